// SPDX-License-Identifier: Apache-2.0
// The user's terminal, for a picture that is redrawn in place.
#pragma once

#include <termios.h>

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "client/cli/text/keys.h"
#include "client/cli/text/styled.h"

namespace gpumem::cli {

// The capabilities of the output.
struct Output {
  bool terminal = false;  // one that can be drawn on
  bool colour = false;
  size_t columns = 0;  // of a line; kAnyWidth if output is no terminal
  size_t rows = 0;     // of the terminal
};

// Returns the state of stdout. With kAuto there are no colours if it is no terminal, if NO_COLOR is
// set and not empty (no-color.org), or if TERM names a terminal without them ("dumb", or nothing).
// Such a terminal cannot be drawn on either.
Output Stdout(ColorMode color);

// Returns the width for pictures: that of the terminal, else $COLUMNS, else 80.
size_t PictureWidth(const Output& output);

// Switches to the alternate screen without a cursor; keys are read one by one and not echoed. The
// destructor restores the terminal.
class Terminal {
 public:
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Shows `text`, whose lines must fit.
  void Draw(absl::string_view text);

  // The descriptor to wait on for keys; -1 if input is no terminal.
  int input() const { return input_; }
  // Returns the pressed keys; nullopt if no more can come.
  std::optional<std::vector<KeyPress>> ReadKeys();

 private:
  int input_ = -1;
  termios before_ = {};
};

}  // namespace gpumem::cli
