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

// What a descriptor is, and the number of that. Numbers are the caller's.
struct FdName {
  char kind = 0;  // a letter: 's' a segment, 'j' a journal, 'm' metadata
  uint64_t number = 0;
};

// The kind, then the number in base 62 (0-9, A-Z, a-z) without leading zeros: 2 to 12 characters.
std::string ToString(const FdName& name);

// Reads only what ToString writes, so that there is one name for each; else nullopt.
std::optional<FdName> ParseFdName(absl::string_view text);

}  // namespace gpumemd
