// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/users/logins.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"

namespace gpumem::web {
namespace {

// Returns 256 random bits as text that is safe in URLs.
std::string NewSecret() {
  std::array<char, 32> bits = {};
  // Not interrupted: it is less than 256 bytes (getrandom(2)).
  if (getrandom(bits.data(), bits.size(), 0) != static_cast<ssize_t>(bits.size())) std::abort();
  return absl::WebSafeBase64Escape(absl::string_view(bits.data(), bits.size()));
}

// Compares secrets in a time that depends on their sizes alone.
bool IsSame(absl::string_view one, absl::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    difference |= static_cast<unsigned char>(one[i]) ^ static_cast<unsigned char>(other[i]);
    asm volatile("" : "+r"(difference));  // the compiler must not end the loop early
  }
  return difference == 0;
}

}  // namespace

void Logins::Secrets::Expire(absl::Time now) {
  while (!entries.empty() && entries.front().ends <= now) entries.pop_front();
}

bool Logins::IsSameUser(const Viewer& one, const Viewer& other) const {
  return one.uid == other.uid || user_of_(one.uid) == user_of_(other.uid);
}

size_t Logins::CountOf(const Viewer& viewer, const Secrets& secrets) const {
  return static_cast<size_t>(
      std::count_if(secrets.entries.begin(), secrets.entries.end(),
                    [&](const Entry& entry) { return IsSameUser(entry.viewer, viewer); }));
}

std::string Logins::Secrets::Add(const Viewer& viewer, absl::Time ends) {
  entries.push_back({NewSecret(), viewer, ends});
  return entries.back().secret;
}

std::list<Logins::Entry>::iterator Logins::Secrets::Find(absl::string_view secret, absl::Time now) {
  auto found = entries.end();
  for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
    if (IsSame(entry->secret, secret) && entry->ends > now) found = entry;
  }
  return found;
}

absl::StatusOr<std::string> Logins::NewLink(const Viewer& viewer) {
  const absl::Time now = now_();
  links_.Expire(now);
  if (CountOf(viewer, links_) >= kLinksOfUser) {
    return absl::ResourceExhaustedError(
        "you have too many unused login links; each expires after 60 seconds");
  }
  return links_.Add(viewer, now + kLinkLives);
}

std::optional<std::string> Logins::Redeem(absl::string_view token) {
  const absl::Time now = now_();
  links_.Expire(now);
  keys_.Expire(now);
  const auto link = links_.Find(token, now);
  if (link == links_.entries.end()) return std::nullopt;
  const Viewer viewer = link->viewer;
  links_.entries.erase(link);
  if (CountOf(viewer, keys_) >= kKeysOfUser) {
    keys_.entries.erase(
        std::find_if(keys_.entries.begin(), keys_.entries.end(),
                     [&](const Entry& entry) { return IsSameUser(entry.viewer, viewer); }));
  }
  return keys_.Add(viewer, now + kKeyLives);
}

std::optional<Viewer> Logins::Find(absl::string_view key) {
  const absl::Time now = now_();
  keys_.Expire(now);
  const auto found = keys_.Find(key, now);
  if (found == keys_.entries.end()) return std::nullopt;
  return found->viewer;
}

absl::Time Logins::LiveUntil() {
  const absl::Time now = now_();
  absl::Time until = absl::InfinitePast();
  for (Secrets* const secrets : {&links_, &keys_}) {
    secrets->Expire(now);
    if (!secrets->entries.empty()) until = std::max(until, secrets->entries.back().ends);
  }
  return until;
}

}  // namespace gpumem::web
