// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/keys.h"

namespace gpumem::cli {
namespace {

Key ByLetter(char letter) {
  switch (letter) {
    case 'A':
      return Key::kUp;
    case 'B':
      return Key::kDown;
    case 'H':
      return Key::kHome;
    case 'F':
      return Key::kEnd;
    default:
      return Key::kOther;
  }
}

// Decodes "ESC [ number ~".
Key ByNumber(absl::string_view number) {
  if (number == "5") return Key::kPageUp;
  if (number == "6") return Key::kPageDown;
  if (number == "1" || number == "7") return Key::kHome;
  if (number == "4" || number == "8") return Key::kEnd;
  return Key::kOther;
}

}  // namespace

std::vector<KeyPress> KeysOf(absl::string_view bytes) {
  std::vector<KeyPress> keys;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != '\x1b') {
      keys.push_back({Key::kCharacter, bytes[i]});
      continue;
    }
    if (i + 1 == bytes.size() || (bytes[i + 1] != '[' && bytes[i + 1] != 'O')) {
      keys.push_back({Key::kEscape});
      continue;
    }
    // Parameters, then the final byte, which identifies the sequence.
    size_t end = i + 2;
    while (end < bytes.size() && (bytes[end] < '@' || bytes[end] > '~')) ++end;
    if (end == bytes.size()) {
      keys.push_back({Key::kOther});
      break;
    }
    keys.push_back(
        {bytes[end] == '~' ? ByNumber(bytes.substr(i + 2, end - i - 2)) : ByLetter(bytes[end])});
    i = end;
  }
  return keys;
}

}  // namespace gpumem::cli
