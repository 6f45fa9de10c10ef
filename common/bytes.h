// SPDX-License-Identifier: Apache-2.0
// Amounts of memory as people write and read them.
//
// All functions are pure and thread-safe. They parse text from configuration files, flags and
// requests, so every error is a sentence that can be shown to the author of the text.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

// Returns the bytes that the text names: a decimal number, then optionally a space and a unit.
// Surrounding blanks and the unit's case do not matter.
//
//   none or B              bytes
//   K M G T P E            powers of 1024, as in "2G"
//   KiB MiB GiB TiB PiB EiB  the same
//   KB MB GB TB PB EB      powers of 1000, as in "1GB" = 1,000,000,000
//
// The number may have a fraction ("1.5 GiB"); fractions of a byte are dropped.
//
// INVALID_ARGUMENT: the text is anything else, signs and exponents included, or the amount does not
// fit into 64 bits.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);

// As ParseBytes(), and also "50%" or "12.5%": that share of `whole`, rounded down.
//
// INVALID_ARGUMENT: as for ParseBytes(), or more than 100%. An amount in bytes may exceed `whole`;
// the caller must check that.
absl::StatusOr<uint64_t> ParseBytesOrPercent(absl::string_view text, uint64_t whole);

// Returns the amount in the largest binary unit that it fills, to two decimals: "0 B", "512 B",
// "1.50 GiB". For people; rounds.
std::string FormatBytes(uint64_t bytes);

// Returns memory times time in GiB-hours, for people: "0", "<0.0001", "0.0123", "1.50".
std::string FormatGibHours(uint64_t byte_seconds);

// Returns the smallest multiple of `granularity` that is at least `bytes`. Any granularity above 0
// is valid, powers of two or not.
//
// INVALID_ARGUMENT: `granularity` is 0, or the result does not fit into 64 bits.
absl::StatusOr<uint64_t> RoundUp(uint64_t bytes, uint64_t granularity);

}  // namespace gpumem
