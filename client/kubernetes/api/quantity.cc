// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/api/quantity.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gpumem::kubernetes {
namespace {

using Wide = unsigned __int128;

constexpr size_t kMostCharacters = 64;
constexpr uint64_t kMostBytes = std::numeric_limits<int64_t>::max();
// Digits after the point that count: with them and any suffix a product has at most 120 bits.
constexpr int kMostFractionDigits = 18;
// No exponent beyond this changes the result: it is 0, 1 or out of range by then.
constexpr int kMostExponent = 200;

struct Scale {
  int exponent = 0;     // of ten
  uint64_t factor = 1;  // a power of two
};

absl::string_view TakeDigits(absl::string_view* text) {
  const auto end = std::find_if_not(text->begin(), text->end(),
                                    [](unsigned char c) { return absl::ascii_isdigit(c); });
  const absl::string_view digits = text->substr(0, static_cast<size_t>(end - text->begin()));
  text->remove_prefix(digits.size());
  return digits;
}

// Returns the exponent of "e3", "E+3" or "e-3" without its first letter; nullopt: it is none.
std::optional<int> ParseExponent(absl::string_view text) {
  const bool negative = absl::StartsWith(text, "-");
  if (negative || absl::StartsWith(text, "+")) text.remove_prefix(1);
  const absl::string_view digits = TakeDigits(&text);
  if (digits.empty() || !text.empty()) return std::nullopt;
  int exponent = 0;
  for (const char c : digits) exponent = std::min(exponent * 10 + (c - '0'), kMostExponent);
  return negative ? -exponent : exponent;
}

std::optional<Scale> ParseSuffix(absl::string_view text) {
  static constexpr std::array<std::pair<absl::string_view, int>, 10> kDecimal = {{{"n", -9},
                                                                                  {"u", -6},
                                                                                  {"m", -3},
                                                                                  {"", 0},
                                                                                  {"k", 3},
                                                                                  {"M", 6},
                                                                                  {"G", 9},
                                                                                  {"T", 12},
                                                                                  {"P", 15},
                                                                                  {"E", 18}}};
  static constexpr std::array<absl::string_view, 6> kBinary = {"Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
  for (const auto& [suffix, exponent] : kDecimal) {
    if (text == suffix) return Scale{.exponent = exponent};
  }
  for (size_t i = 0; i < kBinary.size(); ++i) {
    if (text == kBinary[i]) return Scale{.factor = uint64_t{1} << (10 * (i + 1))};
  }
  if (!absl::StartsWithIgnoreCase(text, "e")) return std::nullopt;
  const std::optional<int> exponent = ParseExponent(text.substr(1));
  if (!exponent.has_value()) return std::nullopt;
  return Scale{.exponent = *exponent};
}

}  // namespace

absl::StatusOr<uint64_t> ParseQuantity(absl::string_view text) {
  const auto error = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", absl::CHexEscape(text.substr(0, kMostCharacters)), "\" is no quantity: ", why));
  };
  if (text.size() > kMostCharacters) return error("too long");
  absl::string_view rest = text;
  if (absl::StartsWith(rest, "-")) return error("negative");
  if (absl::StartsWith(rest, "+")) rest.remove_prefix(1);
  const absl::string_view whole = TakeDigits(&rest);
  absl::string_view part;
  if (absl::StartsWith(rest, ".")) {
    rest.remove_prefix(1);
    part = TakeDigits(&rest);
  }
  if (whole.empty() && part.empty()) return error("it has no number");
  const std::optional<Scale> scale = ParseSuffix(rest);
  if (!scale.has_value()) return error("unknown suffix");

  // The digits around the point, which the power of ten has moved.
  std::string digits = absl::StrCat(whole, part);
  int point = static_cast<int>(whole.size()) + scale->exponent;
  if (std::all_of(digits.begin(), digits.end(), [](char c) { return c == '0'; })) return 0;
  if (point < 0) {
    digits.insert(0, static_cast<size_t>(-point), '0');
    point = 0;
  }
  if (static_cast<size_t>(point) > digits.size()) {
    digits.append(static_cast<size_t>(point) - digits.size(), '0');
  }

  const auto too_large = [&] {
    return absl::OutOfRangeError(absl::StrCat("\"", text, "\" is more than 2^63 - 1"));
  };
  Wide bytes = 0;
  for (const char c : absl::string_view(digits).substr(0, static_cast<size_t>(point))) {
    bytes = bytes * 10 + static_cast<unsigned>(c - '0');
    if (bytes > kMostBytes) return too_large();
  }
  bytes *= scale->factor;
  if (bytes > kMostBytes) return too_large();

  Wide fraction = 0, unit = 1;
  bool more = false;
  int taken = 0;
  for (const char c : absl::string_view(digits).substr(static_cast<size_t>(point))) {
    if (taken++ < kMostFractionDigits) {
      fraction = fraction * 10 + static_cast<unsigned>(c - '0');
      unit *= 10;
    } else {
      more |= c != '0';
    }
  }
  if (more) ++fraction;
  bytes += (fraction * scale->factor + unit - 1) / unit;
  if (bytes > kMostBytes) return too_large();
  return static_cast<uint64_t>(bytes);
}

}  // namespace gpumem::kubernetes
