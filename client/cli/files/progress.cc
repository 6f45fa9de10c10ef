// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/text/format.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {
namespace {

constexpr absl::Duration kBetween = absl::Milliseconds(100);
constexpr size_t kLongestBar = 30;
constexpr size_t kShortestBar = 6;

size_t Columns() {
  winsize window = {};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
  return known ? window.ws_col : 80;
}

}  // namespace

std::string ProgressLine(absl::string_view what, uint64_t done, uint64_t total,
                         absl::Duration elapsed, size_t columns) {
  const double share = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
  const double seconds = std::max(absl::ToDoubleSeconds(elapsed), 1e-9);
  const double rate = static_cast<double>(done) / seconds;
  std::vector<std::string> parts = {
      absl::StrFormat("%4s",
                      Percent(done, total)),  // a fixed width, so that the text does not jump
      absl::StrCat(Size(done, false), " of ", Size(total, false)),
      absl::StrCat(Size(static_cast<uint64_t>(rate), false), "/s"),
  };
  if (rate > 0) {
    const double left = static_cast<double>(total - std::min(done, total)) / rate;
    parts.push_back(absl::StrCat(Age(static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Ceil(
                                     absl::Seconds(std::min(left, 1e9)), absl::Seconds(1))))),
                                 " left"));
  }
  const std::string name = Printable(what);
  while (true) {
    std::string tail;
    for (const std::string& part : parts) absl::StrAppend(&tail, "  ", part);
    // Name, two blanks, brackets.
    const size_t others = name.size() + tail.size() + 4;
    if (columns >= others + kShortestBar || parts.empty()) {
      const size_t bar = columns > others ? std::min(columns - others, kLongestBar) : 0;
      const size_t full = std::min(bar, static_cast<size_t>(share * static_cast<double>(bar)));
      std::string line = name;
      if (bar >= kShortestBar) {
        absl::StrAppend(&line, "  [", std::string(full, '#'), std::string(bar - full, '.'), "]");
      }
      absl::StrAppend(&line, tail);
      return line.substr(0, columns);
    }
    parts.pop_back();
  }
}

Progress::Progress(std::string what, uint64_t total, bool wanted)
    : what_(std::move(what)),
      total_(total),
      draws_(wanted && isatty(STDERR_FILENO) == 1),
      begun_(absl::Now()),
      next_(begun_ + kBetween) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void Progress::Show(uint64_t done) {
  if (!draws_) return;
  const absl::Time now = absl::Now();
  if (now < next_) return;
  next_ = now + kBetween;
  drawn_ = true;
  // Leaves one column free: some terminals begin a new line after the last one.
  const std::string line = ProgressLine(what_, done, total_, now - begun_, Columns() - 1);
  std::fputs(absl::StrCat("\r", line, "\x1b[K").c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace gpumem::cli
