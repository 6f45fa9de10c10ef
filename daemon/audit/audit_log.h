// SPDX-License-Identifier: Apache-2.0
// The daemon's audit: takes records from any thread, keeps the last of them for watching operators,
// and writes them in a separate thread.
//
//   broker, server ──▶ sink(): AuditFilter ──▶ AuditRing ──▶ the thread ──▶ AuditOutput
//                                                  └───────▶ other readers
//
// Recording never waits. If the output is too slow, or fails for a while, records beyond the ring
// are lost, and their number is written as well.
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
  // Pause after a write, so that many records wake the thread once.
  absl::Duration pause = absl::Milliseconds(20);
  absl::Duration retry = absl::Seconds(1);  // after an error of the output
};

// Thread-safe.
class AuditLog {
 public:
  // Starts the log. `output` null: nothing is written, but the ring is kept.
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
  // Returns why nothing is written at the moment; OK if the output works.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  AuditLog(std::unique_ptr<AuditOutput> output, AuditLogOptions options);
  void Run();
  // Tries until it is written. False if it failed and the log ends.
  bool Write(const AuditRecord& record) ABSL_LOCKS_EXCLUDED(mutex_);
  // True if the log ends, now or within that time.
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
