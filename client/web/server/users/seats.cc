// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/users/seats.h"

namespace gpumem::web {

std::optional<Seats::Id> Seats::Add(Id id, User user) {
  std::optional<Id> closed;
  const auto own = users_.find(user);
  if (own != users_.end() && own->second.size() >= limit_of_user_) {
    closed = own->second.front();
  } else if (places_.size() >= limit_) {
    closed = Quietest();
  }
  std::list<Id>& list = users_[user];
  places_[id] = {user, list.insert(list.end(), id)};
  return closed;
}

void Seats::Touch(Id id) {
  const auto place = places_.find(id);
  if (place == places_.end()) return;
  std::list<Id>& list = users_[place->second.user];
  list.splice(list.end(), list, place->second.at);
}

std::optional<Seats::Id> Seats::Move(Id id, User user) {
  const auto place = places_.find(id);
  if (place == places_.end() || place->second.user == user) {
    Touch(id);
    return std::nullopt;
  }
  Remove(id);
  return Add(id, user);
}

void Seats::Remove(Id id) {
  const auto place = places_.find(id);
  if (place == places_.end()) return;
  const auto user = users_.find(place->second.user);
  user->second.erase(place->second.at);
  if (user->second.empty()) users_.erase(user);
  places_.erase(place);
}

std::optional<Seats::Id> Seats::Quietest() const {
  const std::list<Id>* most = nullptr;
  for (const auto& [user, list] : users_) {
    if (most == nullptr || list.size() > most->size()) most = &list;
  }
  if (most == nullptr) return std::nullopt;
  return most->front();
}

}  // namespace gpumem::web
