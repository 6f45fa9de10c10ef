// SPDX-License-Identifier: Apache-2.0
#include "client/cli/text/printable.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gpumem::cli {
namespace {

struct Character {
  size_t bytes = 1;
  char32_t code = 0;
  bool valid = false;
};

// Returns the first character of `text`, which is not empty.
Character FirstOf(absl::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {.code = first, .valid = true};
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) return {};
  char32_t code = first & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kLeast[bytes] || code > 0x10FFFF || surrogate) return {};
  return {.bytes = bytes, .code = code, .valid = true};
}

bool IsHarmless(char32_t code) {
  if (code < 0x20 || (code >= 0x7F && code <= 0x9F)) return false;
  return !(code == 0x061C || code == 0x200E || code == 0x200F ||
           (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069));
}

// Copies `text`; `replace` returns the replacement of a harmful character.
template <typename Replace>
std::string Replaced(absl::string_view text, Replace replace) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character first = FirstOf(text);
    const absl::string_view bytes = text.substr(0, first.bytes);
    absl::StrAppend(&result, first.valid && IsHarmless(first.code) ? bytes : replace(first, bytes));
    text.remove_prefix(first.bytes);
  }
  return result;
}

}  // namespace

std::string Printable(absl::string_view text) {
  return Replaced(text,
                  [](const Character&, absl::string_view) -> absl::string_view { return "?"; });
}

std::string PrintableLines(absl::string_view text) {
  return Replaced(text, [](const Character&, absl::string_view bytes) -> absl::string_view {
    return bytes == "\n" ? "\n" : "?";
  });
}

std::string EscapedJson(absl::string_view json) {
  std::string escape;
  return Replaced(json, [&](const Character& first, absl::string_view bytes) -> absl::string_view {
    // JSON has escaped those below 0x20 in strings; elsewhere they are its white space.
    if (!first.valid || first.code < 0x20) return bytes;
    escape = absl::StrFormat("\\u%04x", static_cast<uint32_t>(first.code));
    return escape;
  });
}

}  // namespace gpumem::cli
