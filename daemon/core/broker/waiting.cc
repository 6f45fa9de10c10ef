// SPDX-License-Identifier: Apache-2.0
// What an Acquire and an Attach have in common: they may wait for long without a thread, be given
// up by their clients, and be left to the next daemon.
#include <memory>
#include <utility>
#include <vector>

#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"

namespace gpumemd {

absl::StatusOr<bool> Broker::MayBegin(WaitingRequest& it) {
  if (!it.refused.ok()) return std::exchange(it.refused, absl::OkStatus());
  if (it.given_up) return GivenUp();
  if (parks_) {
    it.parked = true;
    ++parked_;
  }
  return !parks_;
}

void Broker::Resume(const std::shared_ptr<WaitingRequest>& request, absl::Status refused) {
  request->waiter.reset();
  request->refused = std::move(refused);
  resumed_.push_back(request);
}

absl::Status Broker::Keep(WaitingRequest& it, const std::vector<LeaseView>& leases) {
  {
    TimedLock lock(&mutex_);
    if (!it.given_up) return absl::OkStatus();
  }
  std::vector<LeaseId> ids;
  for (const LeaseView& lease : leases) ids.push_back(lease.lease);
  // Or they have ended with their session.
  ReleaseInParts(it.session, std::move(ids)).IgnoreError();
  return GivenUp();
}

template <typename Request, typename Queue>
void Broker::GiveUp(const std::shared_ptr<Request>& request, WaitingRequests<Request>& waiting,
                    Queue& queue) {
  request->given_up = true;
  if (std::exchange(request->parked, false)) {
    --parked_;
  } else if (request->waiter) {
    waiting.Take(*request->waiter);
    queue.EndWait(*request->waiter, /*expired=*/false).IgnoreError();
  } else {
    return;
  }
  Resume(request, GivenUp());
}

void Broker::GiveUp(const std::shared_ptr<Acquisition>& acquisition) {
  Update update(this);
  GiveUp(acquisition, acquiring_, ledger_.admission());
}

void Broker::GiveUp(const std::shared_ptr<Attachment>& attachment) {
  Update update(this);
  GiveUp(attachment, attaching_, ledger_.publications());
}

template <typename Request, typename Queue>
void Broker::Park(WaitingRequests<Request>& waiting, Queue& queue) {
  for (const std::shared_ptr<Request>& request : waiting.TakeAll()) {
    queue.EndWait(*request->waiter, /*expired=*/false).IgnoreError();
    request->waiter.reset();
    request->parked = true;
    ++parked_;
  }
}

void Broker::Park() {
  Update update(this);
  parks_ = true;
  Park(acquiring_, ledger_.admission());
  Park(attaching_, ledger_.publications());
}

}  // namespace gpumemd
