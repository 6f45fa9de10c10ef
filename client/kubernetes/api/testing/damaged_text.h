// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>
#include <string>

namespace gpumem::kubernetes {

// Returns the text with one to four changes by chance: bytes that are changed, erased or copied.
inline std::string DamagedText(const std::string& whole, std::mt19937_64* random) {
  std::string text = whole;
  for (size_t n = 1 + (*random)() % 4; n > 0; --n) {
    const size_t at = (*random)() % text.size();
    switch ((*random)() % 3) {
      case 0:
        text[at] = static_cast<char>((*random)());
        break;
      case 1:
        text.erase(at, (*random)() % 8);
        break;
      default:
        text.insert(at, whole.substr((*random)() % whole.size(), (*random)() % 16));
    }
  }
  return text;
}

}  // namespace gpumem::kubernetes
