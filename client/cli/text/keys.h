// What a terminal sends for the keys that are pressed.
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

// The keys in bytes as they were read (the sequences of ECMA-48 that xterm, the Linux console and
// those like them send). A sequence that the end cuts off is kOther; an ESC by itself is the key.
// Pure.
std::vector<KeyPress> KeysOf(absl::string_view bytes);

}  // namespace gpumem::cli
