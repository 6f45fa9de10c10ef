// SPDX-License-Identifier: Apache-2.0
// An Acquire or an Attach that waits, without a thread: how it is resumed, given up by its client,
// or left to the next daemon.
#include <memory>
#include <utility>
#include <vector>

#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"

namespace gpumemd {

void Broker::Resume(const std::shared_ptr<WaitingRequest>& request, absl::Status refused) {
  request->waiter.reset();
  request->refused = std::move(refused);
  resumed_.push_back(request);
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

void Broker::GiveUpHeld(const std::shared_ptr<Acquisition>& acquisition) {
  const auto is_it = [&](const auto& each) { return each.second == acquisition; };
  if (std::erase_if(awaiting_copies_, is_it) > 0) {
    acquisition->given_up = true;
    return Resume(acquisition, GivenUp());
  }
  GiveUp(acquisition, acquiring_, ledger_.admission());
}

void Broker::GiveUp(const std::shared_ptr<Acquisition>& acquisition) {
  Update update(this);
  GiveUpHeld(acquisition);
}

void Broker::GiveUp(const std::shared_ptr<Attachment>& attachment) {
  Update update(this);
  if (attachment->bring_back != nullptr) {
    attachment->given_up = true;
    return GiveUpHeld(attachment->bring_back);
  }
  GiveUp(attachment, attaching_, ledger_.publications().waiters());
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
  for (const auto& [segment, request] : std::exchange(awaiting_copies_, {})) {
    request->parked = true;
    ++parked_;
  }
  Park(attaching_, ledger_.publications().waiters());
}

}  // namespace gpumemd
