// Keeps a flood of one client from hiding, or crowding out, what else is in the audit: of each
// event of each tenant the first so many of a second pass, and of the rest one record tells how
// many they were. What the daemon and its operators do always passes. Of more tenants and users
// than can be told apart at a time, those that come last count as one.
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
  bool grants = true;        // also pass kGranted and kReleased
  uint32_t per_second = 20;  // 0: all
};

// Thread-safe.
class AuditFilter final : public AuditSink {
 public:
  // `next` outlives this. Seconds are counted by the records' own time.
  AuditFilter(AuditSink* next, AuditFilterOptions options) : next_(next), options_(options) {}

  void Record(AuditRecord record) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool LeavesOut(AuditEvent event, absl::string_view tenant, uint64_t bytes,
                 absl::Time time) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the number of windows that are remembered.
  size_t windows() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Tells of what was left out in seconds that are over by now.
  void Flush(absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // When Flush may have something to tell next.
  absl::Time NextFlush() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One second, of one event and tenant, or user where there is no tenant.
  struct Window {
    absl::Time end;
    uint32_t passed = 0;
    AuditRecord left_out;  // of kSuppressed; its count is absent while there is nothing
  };
  using Key = std::pair<AuditEvent, std::string>;

  static bool Holds(const Window& window, absl::Time time);
  // Ends the window; what is to be told of it.
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
