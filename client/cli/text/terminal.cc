// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/text/print.h"
#include "client/cli/text/table.h"

namespace gpumem::cli {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Output Stdout(ColorMode color) {
  Output output{.colour = color == ColorMode::kAlways, .columns = kAnyWidth};
  if (isatty(STDOUT_FILENO) != 1) return output;
  winsize window = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_row == 0 || window.ws_col == 0) {
    window = {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  }
  output.columns = window.ws_col;
  output.rows = window.ws_row;
  const std::string term = Environment("TERM");
  output.terminal = !term.empty() && term != "dumb";
  if (color == ColorMode::kAuto) {
    output.colour = output.terminal && Environment("NO_COLOR").empty();
  }
  return output;
}

size_t PictureWidth(const Output& output) {
  if (output.columns != kAnyWidth) return output.columns;
  size_t columns = 0;
  return absl::SimpleAtoi(Environment("COLUMNS"), &columns) && columns > 0 ? columns : 80;
}

Terminal::Terminal() {
  if (isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &before_) == 0) {
    input_ = STDIN_FILENO;
    termios keys = before_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    keys.c_cc[VMIN] = 0;
    keys.c_cc[VTIME] = 0;
    tcsetattr(input_, TCSANOW, &keys);
  }
  Print("\x1b[?1049h\x1b[?25l");  // alternate screen, no cursor
}

Terminal::~Terminal() {
  Print("\x1b[?25h\x1b[?1049l");
  if (input_ >= 0) tcsetattr(input_, TCSANOW, &before_);
}

void Terminal::Draw(absl::string_view text) {
  // Clears each line behind its text, then the lines below: the picture does not flicker.
  std::string frame = "\x1b[H";
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StrAppend(&frame, i > 0 ? "\r\n" : "", lines[i], "\x1b[K");
  }
  Print(frame + "\x1b[J");
}

std::optional<std::vector<KeyPress>> Terminal::ReadKeys() {
  char bytes[256];
  const ssize_t length = input_ < 0 ? 0 : read(input_, bytes, sizeof bytes);
  if (length <= 0) return std::nullopt;
  return KeysOf({bytes, static_cast<size_t>(length)});
}

}  // namespace gpumem::cli
