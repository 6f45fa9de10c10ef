// The user's terminal, taken over for a picture that is redrawn in place.
#pragma once

#include <termios.h>

#include <string>

#include "absl/strings/string_view.h"

namespace gpumem::cli {

// While it lives: the alternate screen without a cursor, keys readable one by one and
// not echoed. Its end gives everything back.
class Terminal {
 public:
  // True where there is a terminal to draw on.
  static bool IsThere();

  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Shows `text`, cut to the size of the window as it is now.
  void Draw(absl::string_view text);

  // Where to wait for keys; -1 where input is no terminal.
  int input() const { return input_; }
  // The key that was pressed, or 0.
  char ReadKey();

 private:
  int input_ = -1;
  termios before_ = {};
};

// The first `rows` lines of `text`, each cut to `columns` characters.
std::string CutTo(absl::string_view text, size_t rows, size_t columns);

}  // namespace gpumem::cli
