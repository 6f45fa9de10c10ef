// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/stream_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace gpumem::web {
namespace {

bool IsSnapshot(const std::string& message) {
  return absl::StartsWith(message, "event: snapshot\n");
}

}  // namespace

bool StreamQueue::Push(Message message) {
  if (IsSnapshot(*message)) {
    if (has_snapshot_) return false;
    has_snapshot_ = true;
    snapshot_bytes_ = message->size();
  } else {
    const size_t most = std::max(limit_, snapshot_bytes_);
    if (message->size() > most - std::min(most, bytes_)) return false;
    bytes_ += message->size();
  }
  messages_.push_back(std::move(message));
  return true;
}

void StreamQueue::Pop() {
  const std::string& message = *messages_.front();
  if (IsSnapshot(message)) {
    has_snapshot_ = false;
  } else {
    bytes_ -= message.size();
  }
  messages_.pop_front();
}

}  // namespace gpumem::web
