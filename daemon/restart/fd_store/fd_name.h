// SPDX-License-Identifier: Apache-2.0
// Short names for stored descriptors: a letter and a number, "s2Bz".
//
// All names come back in one environment variable, which execve(2) limits to 128 KiB
// (MAX_ARG_STRLEN) with a ':' between two names: names of 6 characters let 18,000 descriptors be
// stored, names of 255 only 500. A number below 10^9 takes at most 5 characters here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace gpumemd {

// The kind of a descriptor, and a number that the caller chooses.
struct FdName {
  char kind = 0;  // a letter: 's' a segment, 'j' a journal, 'm' metadata, 't' a tier
  uint64_t number = 0;
};

// Returns the kind, then the number in base 62 (0-9, A-Z, a-z) without leading zeros: 2 to 12
// characters.
std::string ToString(const FdName& name);

// Parses only what ToString() writes, so that each descriptor has one name; else nullopt.
std::optional<FdName> ParseFdName(absl::string_view text);

}  // namespace gpumemd
