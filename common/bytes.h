// Amounts of memory as people write and read them.
//
// All functions are pure and safe to call from any thread. Text that comes
// from configuration files, flags and requests goes through here, so every
// error is a sentence that can be shown to whoever wrote the text.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gpumem {

// Reads an amount of bytes: a decimal number, then optionally a space and a
// unit. Surrounding blanks and the unit's case do not matter.
//
//   none or B              bytes
//   K M G T P E            powers of 1024, as in "2G"
//   KiB MiB GiB TiB PiB EiB  the same
//   KB MB GB TB PB EB      powers of 1000, as in "1GB" = 1,000,000,000
//
// The number may have a fraction ("1.5 GiB"); what is left of a byte is dropped.
//
// INVALID_ARGUMENT: the text is anything else, signs and exponents included, or
// the amount does not fit into 64 bits.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);

// As ParseBytes, and also "50%" or "12.5%": that share of `whole`, rounded down.
//
// INVALID_ARGUMENT: as for ParseBytes, or more than 100%. An amount in bytes may
// exceed `whole`: whether that makes sense is up to the caller.
absl::StatusOr<uint64_t> ParseBytesOrPercent(absl::string_view text, uint64_t whole);

// The amount in the largest binary unit that it fills, to two decimals:
// "0 B", "512 B", "1.50 GiB". For people; it does not keep every byte.
std::string FormatBytes(uint64_t bytes);

// The smallest multiple of `granularity` that is at least `bytes`. Any
// granularity above 0 will do, powers of two or not.
//
// INVALID_ARGUMENT: `granularity` is 0, or the result does not fit into 64 bits.
absl::StatusOr<uint64_t> RoundUp(uint64_t bytes, uint64_t granularity);

}  // namespace gpumem
