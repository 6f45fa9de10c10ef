// The daemon's audit: takes records from anywhere, keeps the last of them for operators who look
// on, and writes them down in a thread of its own.
//
//   broker, server ──▶ sink(): AuditFilter ──▶ AuditRing ──▶ the thread ──▶ AuditOutput
//                                                  └───────▶ other readers
//
// Who records something waits for nobody: where the output cannot keep up, or fails for a while,
// the ring is what may be lost, and how many records were is written as well.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/audit/audit_output.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/audit/audit_filter.h"
#include "daemon/core/audit/audit_ring.h"

namespace gpumemd {

struct AuditLogOptions {
  AuditFilterOptions filter;
  size_t ring = AuditRing::kCapacity;
  // After what was written it waits so long, so that many records wake it once.
  absl::Duration pause = absl::Milliseconds(20);
  absl::Duration retry = absl::Seconds(1);  // after an error of the output
};

// Thread-safe.
class AuditLog {
 public:
  // `output` null: nothing is written, and the ring is kept all the same.
  //   RESOURCE_EXHAUSTED  no further thread
  static absl::StatusOr<std::unique_ptr<AuditLog>> Start(std::unique_ptr<AuditOutput> output,
                                                         AuditLogOptions options = {});
  // Writes the records that the ring still has, until the output fails.
  ~AuditLog();
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;

  AuditSink* sink() { return &filter_; }
  AuditRing& ring() { return ring_; }
  // As AuditOutput::Reopen.
  void Reopen();
  // Why nothing is written at the moment; OK where it is.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  AuditLog(std::unique_ptr<AuditOutput> output, AuditLogOptions options);
  void Run();
  // Tries until it is written. False: it failed, and the log ends.
  bool Write(const AuditRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether everything ends, now or within that time.
  bool EndsWithin(absl::Duration time) const ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<AuditOutput> output_;
  const AuditLogOptions options_;
  AuditRing ring_;
  AuditFilter filter_;
  mutable absl::Mutex mutex_;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace gpumemd
