// SPDX-License-Identifier: Apache-2.0
// The last records of the audit, for any number of readers: their writer, and operators who watch.
// A slow reader is told how many records have been overwritten meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/core/audit/audit.h"

namespace gpumemd {

// Thread-safe. No call waits for a reader.
class AuditRing final : public AuditSink {
 public:
  explicit AuditRing(size_t capacity = kCapacity);

  static constexpr size_t kCapacity = 4096;

  // Numbers the record, from 1. Drops the oldest one if there are `capacity`.
  void Record(AuditRecord record) override ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the number of the next record: Read from this number returns only future records.
  uint64_t next() const ABSL_LOCKS_EXCLUDED(mutex_);

  struct Batch {
    uint64_t missed = 0;               // records from `from` on that are gone
    std::vector<AuditRecord> records;  // the oldest first
    uint64_t next = 0;                 // for the next Read
  };
  // Returns at most `most` records, from number `from` on. `from` 0 is the oldest present one and
  // misses none.
  Batch Read(uint64_t from, size_t most) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Blocks until the record of number `from` or a later one is there. False if `deadline` came
  // first.
  bool Await(uint64_t from, absl::Time deadline) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all waits, present and future.
  void EndWaits() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const size_t capacity_;
  mutable absl::Mutex mutex_;
  std::vector<AuditRecord> records_ ABSL_GUARDED_BY(mutex_);  // number n is at n % capacity_
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gpumemd
