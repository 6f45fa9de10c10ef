// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/fd_store/fd_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace gpumemd {
namespace {

constexpr absl::string_view kDigits =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

}  // namespace

std::string ToString(const FdName& name) {
  std::string reversed;
  uint64_t rest = name.number;
  do {
    reversed += kDigits[rest % kDigits.size()];
    rest /= kDigits.size();
  } while (rest > 0);
  reversed += name.kind;
  std::reverse(reversed.begin(), reversed.end());
  return reversed;
}

std::optional<FdName> ParseFdName(absl::string_view text) {
  if (text.size() < 2 || !absl::ascii_isalpha(static_cast<unsigned char>(text[0]))) {
    return std::nullopt;
  }
  FdName name{.kind = text[0]};
  text.remove_prefix(1);
  if (text[0] == '0' && text.size() > 1) return std::nullopt;
  for (const char c : text) {
    const size_t digit = kDigits.find(c);
    if (digit == absl::string_view::npos || name.number > (UINT64_MAX - digit) / kDigits.size()) {
      return std::nullopt;
    }
    name.number = name.number * kDigits.size() + digit;
  }
  return name;
}

}  // namespace gpumemd
