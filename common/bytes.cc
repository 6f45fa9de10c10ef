// SPDX-License-Identifier: Apache-2.0
#include "common/bytes.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace gpumem {
namespace {

constexpr absl::string_view kPrefixes = "KMGTPE";

// Further digits are dropped: they are worth less than a byte of 100 PiB, and would overflow.
constexpr size_t kMaxFractionDigits = 17;

// A non-negative decimal number, exactly: `scaled` / `scale`.
struct Decimal {
  absl::uint128 scaled = 0;
  uint64_t scale = 1;

  // The number times `factor`, rounded down; nothing if it exceeds 64 bits.
  std::optional<uint64_t> Times(uint64_t factor) const {
    // Whole part and fraction apart: their product with `factor` fits 128 bits, the sum's may not.
    const absl::uint128 whole = scaled / scale * factor;
    const absl::uint128 fraction = scaled % scale * factor / scale;
    const absl::uint128 result = whole + fraction;
    if (result > std::numeric_limits<uint64_t>::max()) return std::nullopt;
    return static_cast<uint64_t>(result);
  }
};

// Takes the digits at the front of `text` away from it.
absl::string_view ConsumeDigits(absl::string_view& text) {
  const auto end = std::find_if_not(text.begin(), text.end(), absl::ascii_isdigit);
  const absl::string_view digits = text.substr(0, static_cast<size_t>(end - text.begin()));
  text.remove_prefix(digits.size());
  return digits;
}

// Removes a number such as "12" or "1.5" from the front of `text`. Returns nothing if there is
// none, or if its whole part exceeds 64 bits.
std::optional<Decimal> ConsumeDecimal(absl::string_view& text) {
  const absl::string_view whole = ConsumeDigits(text);
  if (whole.empty()) return std::nullopt;

  Decimal number;
  for (const char digit : whole) {
    number.scaled = number.scaled * 10 + static_cast<unsigned>(digit - '0');
    if (number.scaled > std::numeric_limits<uint64_t>::max()) return std::nullopt;
  }

  if (!absl::ConsumePrefix(&text, ".")) return number;
  const absl::string_view fraction = ConsumeDigits(text);
  if (fraction.empty()) return std::nullopt;
  for (const char digit : fraction.substr(0, kMaxFractionDigits)) {
    number.scaled = number.scaled * 10 + static_cast<unsigned>(digit - '0');
    number.scale *= 10;
  }
  return number;
}

// The number of bytes in a unit, by its name.
std::optional<uint64_t> UnitSize(absl::string_view unit) {
  if (unit.empty() || absl::EqualsIgnoreCase(unit, "B")) return 1;

  const size_t exponent = kPrefixes.find(absl::ascii_toupper(unit.front()));
  if (exponent == absl::string_view::npos) return std::nullopt;
  unit.remove_prefix(1);

  uint64_t base = 0;
  if (unit.empty() || absl::EqualsIgnoreCase(unit, "iB")) {
    base = 1024;
  } else if (absl::EqualsIgnoreCase(unit, "B")) {
    base = 1000;
  } else {
    return std::nullopt;
  }
  uint64_t size = base;
  for (size_t i = 0; i < exponent; ++i) size *= base;
  return size;
}

absl::Status Malformed(absl::string_view text, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", absl::Utf8SafeCEscape(text), "\" is not an amount of memory: expected ", expected));
}

constexpr absl::string_view kExpectedBytes =
    "a number and a unit below 16 EiB, such as 4096, 64MiB or 1.5 GiB";
constexpr absl::string_view kExpectedBytesOrPercent =
    "a number and a unit below 16 EiB, such as 4096, 64MiB or 1.5 GiB, or 0% to 100%";

std::optional<uint64_t> BytesIn(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const std::optional<Decimal> number = ConsumeDecimal(text);
  if (!number) return std::nullopt;
  const std::optional<uint64_t> unit = UnitSize(absl::StripLeadingAsciiWhitespace(text));
  if (!unit) return std::nullopt;
  return number->Times(*unit);
}

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  if (const std::optional<uint64_t> bytes = BytesIn(text)) return *bytes;
  return Malformed(text, kExpectedBytes);
}

absl::StatusOr<uint64_t> ParseBytesOrPercent(absl::string_view text, uint64_t whole) {
  absl::string_view share = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumeSuffix(&share, "%")) {
    if (const std::optional<uint64_t> bytes = BytesIn(text)) return *bytes;
    return Malformed(text, kExpectedBytesOrPercent);
  }
  std::optional<Decimal> percent = ConsumeDecimal(share);
  if (!percent || !absl::StripAsciiWhitespace(share).empty()) {
    return Malformed(text, kExpectedBytesOrPercent);
  }
  percent->scale *= 100;
  const std::optional<uint64_t> bytes = percent->Times(whole);
  if (percent->scaled > percent->scale || !bytes) return Malformed(text, kExpectedBytesOrPercent);
  return *bytes;
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");

  size_t prefix = 0;
  uint64_t unit = 1024;
  const auto hundredths = [&] {
    return static_cast<uint64_t>((absl::uint128(bytes) * 100 + unit / 2) / unit);
  };
  // Decided after rounding, so that 1 MiB - 1 is not "1024.00 KiB".
  while (hundredths() >= 1024 * 100 && prefix + 1 < kPrefixes.size()) {
    unit *= 1024;
    ++prefix;
  }
  return absl::StrFormat("%d.%02d %ciB", hundredths() / 100, hundredths() % 100, kPrefixes[prefix]);
}

std::string FormatGibHours(uint64_t byte_seconds) {
  const double hours = static_cast<double>(byte_seconds) / static_cast<double>(kGiB) / 3600;
  if (byte_seconds == 0) return "0";
  if (hours < 0.0001) return "<0.0001";
  return hours < 1 ? absl::StrFormat("%.4f", hours) : absl::StrFormat("%.2f", hours);
}

absl::StatusOr<uint64_t> RoundUp(uint64_t bytes, uint64_t granularity) {
  if (granularity == 0) {
    return absl::InvalidArgumentError("cannot round to a granularity of 0 bytes");
  }
  const uint64_t excess = bytes % granularity;
  if (excess == 0) return bytes;
  const uint64_t missing = granularity - excess;
  if (bytes > std::numeric_limits<uint64_t>::max() - missing) {
    return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes, rounded up to a multiple of ",
                                                   granularity, ", exceed 64 bits"));
  }
  return bytes + missing;
}

}  // namespace gpumem
