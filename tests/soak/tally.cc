// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/tally.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/support/child.h"

namespace gpumem::soak {

std::string WordsOf(const Counts& counts) {
  return absl::StrJoin(counts, " ", absl::PairFormatter("="));
}

Counts CountsOf(absl::string_view words) {
  Counts counts;
  for (const absl::string_view word : absl::StrSplit(words, ' ')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    uint64_t count;
    if (absl::SimpleAtoi(parts.second, &count)) counts[std::string(parts.first)] = count;
  }
  return counts;
}

void Tally::Add(const std::string& what, uint64_t count) {
  absl::MutexLock lock(&mutex_);
  counts_[what] += count;
}

bool Tally::Count(const std::string& what, const absl::Status& status,
                  std::initializer_list<absl::StatusCode> allowed) {
  if (status.ok()) {
    Add(what);
    return true;
  }
  const absl::StatusCode code = status.code();
  if (code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kResourceExhausted ||
      std::find(allowed.begin(), allowed.end(), code) != allowed.end()) {
    Add(what + "-refused");
  } else {
    Wrong(absl::StrCat(what, ": ", status.ToString()));
  }
  return false;
}

void Tally::Wrong(const std::string& words) {
  absl::MutexLock lock(&mutex_);
  ++wrong_[words.substr(0, 500)];
}

void Tally::Tell(uint64_t held) {
  Counts counts;
  std::map<std::string, uint64_t> wrong;
  {
    absl::MutexLock lock(&mutex_);
    counts = std::exchange(counts_, {});
    wrong = std::exchange(wrong_, {});
  }
  testing::Say(testing::kParentChannel, absl::StrCat("did held=", held, " ", WordsOf(counts)));
  for (const auto& [words, times] : wrong) {
    testing::Say(testing::kParentChannel, absl::StrCat("wrong ", times, " times: ", words));
  }
}

}  // namespace gpumem::soak
