// SPDX-License-Identifier: Apache-2.0
// Keeps one client's flood from hiding or displacing other audit records. The first records per
// second of each event and tenant pass; one record gives the number of the rest. Records of the
// daemon's and its operators' acts always pass. Beyond the number of tenants and users that can be
// told apart at a time, the last to come count as one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/core/audit/audit.h"

namespace gpumemd {

struct AuditFilterOptions {
  bool grants = true;        // also pass kGranted, kReleased, kSuspended and kResumed
  uint32_t per_second = 20;  // 0: no limit
};

// Thread-safe.
class AuditFilter final : public AuditSink {
 public:
  // `next` outlives this. Seconds are counted by the time in the records.
  AuditFilter(AuditSink* next, AuditFilterOptions options) : next_(next), options_(options) {}

  void Record(AuditRecord record) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool LeavesOut(AuditEvent event, absl::string_view tenant, uint64_t bytes,
                 absl::Time time) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the number of windows that are remembered.
  size_t windows() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Reports what was left out in seconds that are over by now.
  void Flush(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns when Flush may next have something to report.
  absl::Time NextFlush() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One second, of one event and tenant; or of a user, if there is no tenant.
  struct Window {
    absl::Time end;
    uint32_t passed = 0;
    AuditRecord left_out;  // of kSuppressed; its count is absent while it is empty
  };
  using Key = std::pair<AuditEvent, std::string>;

  static bool Holds(const Window& window, absl::Time time);
  // Ends the window and appends its report, if any, to `told`.
  static void Tell(Window& window, std::vector<AuditRecord>* told);

  AuditSink* const next_;
  const AuditFilterOptions options_;
  // Returns the window of `*key`. If there are too many, returns the event's shared one and sets
  // `*key` to its key. Appends the records of windows that it removed to `told`.
  Window& WindowOf(Key* key, absl::Time time, std::vector<AuditRecord>* told)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<Key, Window> windows_ ABSL_GUARDED_BY(mutex_);
  // When windows that have ended were last removed to make room.
  absl::Time pruned_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace gpumemd
