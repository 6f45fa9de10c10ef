// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/accounts.h"

#include <errno.h>
#include <pwd.h>

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gpumem::web {
namespace {

constexpr absl::Duration kRemembered = absl::Minutes(1);
constexpr size_t kMostAnswers = 4096;
constexpr size_t kEntryBytes = 4096;

bool IsInSystem(uid_t uid) {
  passwd entry{};
  passwd* found = nullptr;
  std::vector<char> buffer(kEntryBytes);
  const int error = getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  // ERANGE: there is a long entry. Other errors: a directory does not answer, which locks no user
  // out.
  return found != nullptr || (error != 0 && error != ENOENT && error != ESRCH);
}

struct Answer {
  bool has_account = false;
  absl::Time until;
};

}  // namespace

std::function<bool(uid_t)> AccountsOfSystem() {
  auto answers = std::make_shared<absl::flat_hash_map<uid_t, Answer>>();
  return [answers](uid_t uid) {
    const absl::Time now = absl::Now();
    const auto known = answers->find(uid);
    if (known != answers->end() && now < known->second.until) return known->second.has_account;
    if (answers->size() >= kMostAnswers) answers->clear();
    const Answer answer{.has_account = IsInSystem(uid), .until = now + kRemembered};
    (*answers)[uid] = answer;
    return answer.has_account;
  };
}

}  // namespace gpumem::web
