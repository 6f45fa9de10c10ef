// SPDX-License-Identifier: Apache-2.0
// Gives memory back to the driver, and what ended sessions had, on threads of the broker.
#include <algorithm>
#include <utility>

#include "common/trace/span.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/failpoint.h"
#include "daemon/core/mutant.h"

namespace gpumemd {

void Broker::CollectLost(size_t device) {
  size_t count = 0;
  {
    Update update(this);
    std::vector<SegmentId> lost;
    for (const auto& [id, memory] : memory_) {
      if (ledger_.state().PlaceOf(id).device == device && memory->lost()) lost.push_back(id);
    }
    count = ledger_.segments().MarkLost(lost);
  }
  if (observer_ != nullptr) observer_->ContextLost(devices_[device]->info().uuid, count);
}

size_t Broker::LaneOf(SegmentId segment) const {
  const LedgerState::Place place = ledger_.state().PlaceOf(segment);
  return IsContextBound(place.kind) ? 1 + place.device : 0;
}

void Broker::DisposeLoop(size_t lane) {
  while (true) {
    std::vector<Doomed> batch;
    bool survivable = false;
    // Closed at the end of the round.
    std::vector<std::pair<PublicationId, std::shared_ptr<const Metadata>>> metadata;
    {
      TimedLock lock(&mutex_);
      const auto wake = [this, lane]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !doomed_[lane].empty() || (lane == 0 && !ended_metadata_.empty());
      };
      mutex_.Await(absl::Condition(&wake));
      if (stopping_ && doomed_[lane].empty()) return;
      batch = std::exchange(doomed_[lane], {});
      survivable = survivable_;
      if (lane == 0) metadata.swap(ended_metadata_);
    }
    if (survivable && !batch.empty()) {
      std::vector<SegmentId> ids;
      for (const Doomed& doomed : batch) ids.push_back(doomed.id);
      Failpoint("let-go-before");
      if (!Mutant(Fault::kStoreKeepsFreed)) continuity_->LetGo(ids);
      Failpoint("let-go-after");
    }
    if (survivable) {
      for (const auto& [id, kept] : metadata) continuity_->LetGo(id);
    }
    for (Doomed& doomed : batch) {
      gpumem::trace::Span dispose("dispose");
      if (!Mutant(Fault::kUnchargesFirst)) doomed.memory.reset();  // the driver call
      dispose.End();
      Update update(this);
      ledger_.Destroyed(doomed.id);
    }
  }
}

void Broker::EndLoop() {
  // Lets other threads take the mutex: a mutex that is retaken at once is seldom theirs.
  constexpr absl::Duration kPause = absl::Microseconds(200);
  while (true) {
    {
      TimedLock lock(&mutex_);
      const auto wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || (ledger_.endings().HasAny() && !frozen_);
      };
      mutex_.Await(absl::Condition(&wake));
      if (stopping_) return;
    }
    {
      Update update(this);
      if (!frozen_) ledger_.endings().Continue(leases_at_once_);
    }
    TimedLock lock(&mutex_);
    const auto stops = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
    if (mutex_.AwaitWithTimeout(absl::Condition(&stops), kPause)) return;
  }
}

}  // namespace gpumemd
