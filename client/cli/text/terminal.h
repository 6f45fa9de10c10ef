// The user's terminal, taken over for a picture that is redrawn in place.
#pragma once

#include <termios.h>

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "client/cli/text/keys.h"

namespace gpumem::cli {

// What may be printed where output goes.
struct Output {
  bool terminal = false;  // one that can be drawn on
  bool colour = false;
  size_t columns = 0;  // of a line; kAnyWidth where output is no terminal
  size_t rows = 0;     // of the terminal
};

// Stdout as it is now. No colours where `no_color`, where NO_COLOR is set and not empty
// (no-color.org), or where TERM says that the terminal knows none ("dumb", or nothing); that one
// cannot be drawn on either.
Output Stdout(bool no_color);

// The width for pictures: that of the terminal, else $COLUMNS, else 80.
size_t PictureWidth(const Output& output);

// While it lives: the alternate screen without a cursor, keys readable one by one and
// not echoed. Its end gives everything back.
class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Shows `text`, whose lines fit.
  void Draw(absl::string_view text);

  // Where to wait for keys; -1 where input is no terminal.
  int input() const { return input_; }
  // The keys that were pressed; nullopt where there will be no more.
  std::optional<std::vector<KeyPress>> ReadKeys();

 private:
  int input_ = -1;
  termios before_ = {};
};

}  // namespace gpumem::cli
