// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/connected_users.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gpumemd {

FrameBudgetOptions ConnectedUsersOptions::OfAllTools() {
  FrameBudgetOptions options;
  options.max_control *= 10;
  options.control_per_second *= 10;
  return options;
}

absl::StatusOr<ConnectedUsers::Limits> ConnectedUsers::LimitsOf(uid_t uid, absl::Time now) {
  auto found = users_.find(uid);
  if (found == users_.end()) {
    Forget(now);
    found = users_.emplace(uid, User{.left_at = now}).first;
  }
  User& user = found->second;
  if (user.connections == 0 && now >= ForgottenAt(user)) user = {.left_at = now};
  if (now < user.refused_until) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "uid ", uid, " has flooded this socket with frames of HTTP/2; new connections are refused ",
        "for another ",
        absl::FormatDuration(absl::Ceil(user.refused_until - now, absl::Milliseconds(1)))));
  }
  if (user.frames == nullptr) {
    const bool has_flooded = now < user.refused_until + options_.memory;
    user.frames =
        std::make_shared<FrameBudget>(has_flooded ? options_.frames.AfterFlood() : options_.frames);
  }
  if (user.ends == nullptr) user.ends = std::make_shared<CallWindow>(options_.ends);
  return Limits{.frames = user.frames, .ends = user.ends};
}

void ConnectedUsers::Connected(uid_t uid) { ++users_[uid].connections; }

void ConnectedUsers::Ended(uid_t uid, absl::Time now) {
  User& user = users_[uid];
  if (user.connections == 1) {
    Forget(now);
    user.left_at = now;
  }
  --user.connections;
}

bool ConnectedUsers::TakeFlood(uid_t uid, absl::Time now) {
  const auto found = users_.find(uid);
  if (found == users_.end()) return false;
  User& user = found->second;
  if (user.frames == nullptr || !user.frames->exhausted()) return false;
  if (user.connections == 0 && now >= ForgottenAt(user)) return false;  // it was long ago
  user.frames.reset();
  user.refused_until = now + options_.pause;
  return true;
}

std::vector<std::shared_ptr<CallWindow>> ConnectedUsers::WindowsWithHeld() const {
  std::vector<std::shared_ptr<CallWindow>> windows;
  for (const auto& [uid, user] : users_) {
    if (user.ends != nullptr && user.ends->any_held()) windows.push_back(user.ends);
  }
  return windows;
}

uint32_t ConnectedUsers::connections(uid_t uid) const {
  const auto found = users_.find(uid);
  return found == users_.end() ? 0 : found->second.connections;
}

absl::Time ConnectedUsers::ForgottenAt(const User& user) const {
  return std::max(user.left_at, user.refused_until) + options_.memory;
}

void ConnectedUsers::Forget(absl::Time now) {
  absl::erase_if(users_, [&](const auto& known) {
    return known.second.connections == 0 && now >= ForgottenAt(known.second);
  });
  size_t without = 0;
  auto first = users_.end();
  for (auto it = users_.begin(); it != users_.end(); ++it) {
    if (it->second.connections > 0) continue;
    ++without;
    if (first == users_.end() || ForgottenAt(it->second) < ForgottenAt(first->second)) first = it;
  }
  if (first != users_.end() && without >= options_.max_without_connections) users_.erase(first);
}

}  // namespace gpumemd
