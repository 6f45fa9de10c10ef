// The last records of the audit, for any number of readers: whoever writes them down, and operators
// who look on. Who reads too slowly is told how many have been overwritten meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/core/audit/audit.h"

namespace gpumemd {

// Thread-safe. Nothing waits for a reader.
class AuditRing final : public AuditSink {
 public:
  explicit AuditRing(size_t capacity = kCapacity);

  static constexpr size_t kCapacity = 4096;

  // Numbers the record, from 1. The oldest one goes where there are `capacity`.
  void Record(AuditRecord record) override ABSL_LOCKS_EXCLUDED(mutex_);

  // The number of the next record: Read from here for what comes from now on.
  uint64_t next() const ABSL_LOCKS_EXCLUDED(mutex_);

  struct Batch {
    uint64_t missed = 0;               // records from `from` on that are no longer there
    std::vector<AuditRecord> records;  // the oldest first
    uint64_t next = 0;                 // for the next Read
  };
  // From number `from` on, at most so many. `from` 0 is the oldest that is there, and misses none.
  Batch Read(uint64_t from, size_t most) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits for the record of number `from`, or a later one: whether it is there.
  bool Await(uint64_t from, absl::Time deadline) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Nobody waits any more, now or later.
  void EndWaits() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const size_t capacity_;
  mutable absl::Mutex mutex_;
  std::vector<AuditRecord> records_ ABSL_GUARDED_BY(mutex_);  // number n is at n % capacity_
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gpumemd
