// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/documented.h"

#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/testing/fuzz/input.h"

namespace gpumem::testing {
namespace {

// Splits a comment into words of letters, digits and "_".
std::vector<std::string> WordsOf(absl::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || c == '_') {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

bool IsStatus(absl::string_view word) {
  for (int code = 1; code <= 16; ++code) {
    if (word == absl::StatusCodeToString(static_cast<absl::StatusCode>(code))) return true;
  }
  return false;
}

}  // namespace

DocumentedStatuses::DocumentedStatuses(const std::string& path) {
  std::ifstream file(path);
  FUZZ_CHECK(file.is_open());
  std::set<std::string> of_all;
  std::map<std::string, std::set<std::string>> references;
  std::string comment;
  for (std::string text; std::getline(file, text);) {
    absl::string_view line = absl::StripAsciiWhitespace(text);
    if (absl::ConsumePrefix(&line, "//")) {
      comment.append(line.data(), line.size()).append(" ");
      continue;
    }
    std::set<std::string> statuses, others;
    std::string before, before_that;
    for (const std::string& word : WordsOf(comment)) {
      if (IsStatus(word)) statuses.insert(word);
      if (absl::AsciiStrToLower(before) == "as" || (before == "for" && before_that == "as")) {
        others.insert(word);
      }
      before_that = std::exchange(before, word);
    }
    comment.clear();
    if (absl::ConsumePrefix(&line, "rpc ")) {
      const std::string method(line.substr(0, line.find('(')));
      methods_[method] = statuses;
      references[method] = others;
    } else if (absl::StartsWith(line, "syntax")) {
      of_all = statuses;
    }
  }
  // References of references, too.
  for (size_t pass = 0; pass < 3; ++pass) {
    for (const auto& [method, others] : references) {
      for (const std::string& other : others) {
        if (const auto found = methods_.find(other); found != methods_.end()) {
          const std::set<std::string> added = found->second;
          methods_[method].insert(added.begin(), added.end());
        }
      }
    }
  }
  for (auto& [method, statuses] : methods_) statuses.insert(of_all.begin(), of_all.end());
  FUZZ_CHECK(methods_.size() > 20 && !of_all.empty());
}

bool DocumentedStatuses::Has(const std::string& method, absl::StatusCode code) const {
  const auto found = methods_.find(method);
  FUZZ_CHECK(found != methods_.end());
  return code == absl::StatusCode::kOk || found->second.contains(absl::StatusCodeToString(code));
}

}  // namespace gpumem::testing
