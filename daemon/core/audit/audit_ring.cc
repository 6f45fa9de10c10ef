// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/audit/audit_ring.h"

#include <algorithm>
#include <utility>

namespace gpumemd {

AuditRing::AuditRing(size_t capacity) : capacity_(std::max<size_t>(capacity, 1)) {}

void AuditRing::Record(AuditRecord record) {
  absl::MutexLock lock(&mutex_);
  record.number = next_++;
  // The ring grows as it fills: a daemon without audit records needs no memory for it.
  if (records_.size() < capacity_) {
    records_.push_back(std::move(record));
  } else {
    std::swap(records_[(record.number - 1) % capacity_], record);
  }
}

uint64_t AuditRing::next() const {
  absl::MutexLock lock(&mutex_);
  return next_;
}

AuditRing::Batch AuditRing::Read(uint64_t from, size_t most) const {
  absl::MutexLock lock(&mutex_);
  const uint64_t oldest = next_ - records_.size();
  Batch batch;
  batch.next = from == 0 ? oldest : from;
  if (batch.next < oldest) {
    batch.missed = oldest - batch.next;
    batch.next = oldest;
  }
  while (batch.next < next_ && batch.records.size() < most) {
    batch.records.push_back(records_[(batch.next++ - 1) % capacity_]);
  }
  return batch;
}

bool AuditRing::Await(uint64_t from, absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  const auto there = [this, from]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ || next_ > from; };
  mutex_.AwaitWithDeadline(absl::Condition(&there), deadline);
  return next_ > from;
}

void AuditRing::EndWaits() {
  absl::MutexLock lock(&mutex_);
  ended_ = true;
}

}  // namespace gpumemd
