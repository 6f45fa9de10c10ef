#include "client/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/print.h"

namespace gpumem::cli {

bool Terminal::IsThere() { return isatty(STDOUT_FILENO) == 1; }

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
  winsize window = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_row == 0) {
    window = {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  }
  // Each line is cleared behind its text, then what is below: nothing flickers.
  std::string frame = "\x1b[H";
  std::string visible = CutTo(text, window.ws_row, window.ws_col);
  std::vector<absl::string_view> lines = absl::StrSplit(visible, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StrAppend(&frame, i > 0 ? "\r\n" : "", lines[i], "\x1b[K");
  }
  Print(frame + "\x1b[J");
}

char Terminal::ReadKey() {
  char key = 0;
  return input_ >= 0 && read(input_, &key, 1) == 1 ? key : '\0';
}

std::string CutTo(absl::string_view text, size_t rows, size_t columns) {
  std::string result;
  size_t row = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (row == rows) break;
    if (row > 0) result += '\n';
    ++row;
    size_t column = 0;
    for (char c : line) {
      // A UTF-8 sequence is one character: its later bytes follow its first.
      if ((static_cast<unsigned char>(c) & 0xC0) != 0x80 && ++column > columns) break;
      result += c;
    }
  }
  return result;
}

}  // namespace gpumem::cli
