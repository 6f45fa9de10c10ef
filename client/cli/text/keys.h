// SPDX-License-Identifier: Apache-2.0
// Decodes the bytes that a terminal sends for keys.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gpumem::cli {

enum class Key { kCharacter, kUp, kDown, kPageUp, kPageDown, kHome, kEnd, kEscape, kOther };

struct KeyPress {
  Key key = Key::kOther;
  char character = 0;  // of kCharacter

  friend bool operator==(const KeyPress&, const KeyPress&) = default;
};

// Decodes the bytes read from a terminal (the sequences of ECMA-48 that xterm, the Linux console
// and similar terminals send). A truncated sequence is kOther; a lone ESC is the key. Pure.
std::vector<KeyPress> KeysOf(absl::string_view bytes);

}  // namespace gpumem::cli
