// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/unsent.h"

namespace gpumem::web {

Unsent::Text Unsent::Count(const Message& message) {
  {
    absl::MutexLock lock(&mutex_);
    if (texts_[message.get()]++ == 0) bytes_ += message->size();
  }
  return Text(nullptr, [self = shared_from_this(), message](void*) { self->Forget(*message); });
}

void Unsent::Forget(const std::string& text) {
  absl::MutexLock lock(&mutex_);
  const auto found = texts_.find(&text);
  if (found == texts_.end() || --found->second > 0) return;
  bytes_ -= text.size();
  texts_.erase(found);
}

std::optional<Seats::Id> WorstOf(const std::vector<UnsentOf>& connections) {
  std::map<Seats::User, size_t> of_users;
  for (const UnsentOf& connection : connections) of_users[connection.user] += connection.bytes;
  const UnsentOf* worst = nullptr;
  for (const UnsentOf& connection : connections) {
    if (connection.bytes == 0) continue;
    const size_t sum = of_users[connection.user];
    const size_t most = worst == nullptr ? 0 : of_users[worst->user];
    // Of users with equally much, one: not in turn.
    if (worst == nullptr || sum > most || (sum == most && connection.bytes > worst->bytes)) {
      worst = &connection;
    }
  }
  if (worst == nullptr) return std::nullopt;
  return worst->id;
}

}  // namespace gpumem::web
