// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/caution.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/printable.h"

namespace gpumem::cli {
namespace {

std::string Lines(const Effects& effects) {
  std::string text;
  for (const std::string& line : effects.lines) {
    absl::StrAppend(&text, "  ", Printable(line), "\n");
  }
  return text;
}

std::string Notices(const Effects& effects) {
  std::string text;
  for (const std::string& notice : effects.notices) {
    absl::StrAppend(&text, "notice: ", Printable(notice), "\n");
  }
  return text;
}

void PrintDryRun(const std::string& what, const Effects& effects, const GlobalOptions& options) {
  if (options.json) {
    Json json = Json::object();
    json["dry_run"] = true;
    json["command"] = what;
    json["effects"] = effects.lines;
    json["notices"] = effects.notices;
    Print(Document(json));
    return;
  }
  Print(absl::StrCat("gpumemctl ", what,
                     effects.lines.empty() ? " would change nothing.\n" : " would do this:\n",
                     Lines(effects), Notices(effects)));
}

// Reads a line of standard input. The end of input is no.
bool Confirmed() {
  std::string answer;
  int c = std::getchar();
  for (; c != EOF && c != '\n'; c = std::getchar()) answer.push_back(static_cast<char>(c));
  if (c == EOF) {
    std::fputs("\n", stderr);  // the error begins a line
    return false;
  }
  absl::StripAsciiWhitespace(&answer);
  absl::AsciiStrToLower(&answer);
  return answer == "y" || answer == "yes";
}

}  // namespace

bool CanAsk() { return isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1; }

absl::StatusOr<bool> Proceed(const Caution& caution, const std::string& what,
                             absl::FunctionRef<absl::StatusOr<Effects>()> effects,
                             const GlobalOptions& options) {
  const bool may_ask = !caution.yes && CanAsk();
  if (!caution.dry_run && !may_ask) return true;
  absl::StatusOr<Effects> all = effects();
  if (!all.ok()) return all.status();
  if (caution.dry_run) {
    PrintDryRun(what, *all, options);
    return false;
  }
  if (!all->takes) return true;
  std::fputs(absl::StrCat("gpumemctl ", what, ":\n", Lines(*all), Notices(*all), "Continue? [y/N] ")
                 .c_str(),
             stderr);
  std::fflush(stderr);
  if (Confirmed()) return true;
  return absl::CancelledError("nothing was changed: the answer was not yes");
}

}  // namespace gpumem::cli
