// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/suggestions.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gpumem::cli {
namespace {

// Returns the number of edits between two words: a letter too much, too few, another one, or two
// neighbours exchanged.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> rows(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        rows[i][j] = i + j;
        continue;
      }
      const size_t other = a[i - 1] == b[j - 1] ? 0 : 1;
      rows[i][j] = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + other});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows[a.size()][b.size()];
}

std::string Suggestion(absl::string_view word, const std::vector<std::string>& candidates) {
  const std::string nearest = Nearest(word, candidates);
  return nearest.empty() ? "" : absl::StrCat(" (did you mean ", nearest, "?)");
}

void AddOptionNames(const CLI::App& app, std::vector<std::string>* names) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    for (const std::string& name : option->get_lnames()) names->push_back("--" + name);
  }
}

}  // namespace

std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates) {
  // A third of the letters may be wrong: of short words one, of long ones not many.
  const size_t most = std::clamp<size_t>(word.size() / 3, 1, 3);
  std::string nearest;
  size_t least = most + 1;
  for (const std::string& candidate : candidates) {
    const bool begins = word.size() >= 2 && absl::StartsWith(candidate, word);
    const size_t distance = begins ? 1 : Distance(word, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub :
       app.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); })) {
    names.push_back(sub->get_name());
  }
  return names;
}

std::string UnknownCommand(const CLI::App& app, const std::string& word) {
  return absl::StrCat("unknown command \"", word, "\"", Suggestion(word, CommandNames(app)));
}

std::string UnknownWord(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(/*recurse=*/true);
  if (words.empty()) return "unknown argument";
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  const std::string word = words.front().substr(0, words.front().find('='));
  if (absl::StartsWith(word, "-")) {
    std::vector<std::string> names;
    AddOptionNames(*at, &names);
    if (at != &app) AddOptionNames(app, &names);
    return absl::StrCat("unknown option ", word, Suggestion(word, names));
  }
  if (!CommandNames(*at).empty()) return UnknownCommand(*at, words.front());
  return absl::StrCat("unexpected argument \"", words.front(), "\"");
}

}  // namespace gpumem::cli
