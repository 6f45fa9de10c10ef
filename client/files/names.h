// SPDX-License-Identifier: Apache-2.0
// The names of files and arrays in a publication. Publications are untrusted.
#pragma once

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace gpumem::internal {

// True if a file in a folder can have this name: it must not lead out of the folder of a fetch.
inline bool IsFileName(absl::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         !absl::StrContains(name, '/') && !absl::StrContains(name, '\0');
}

// True if a file of this name is hidden from ls(1), as the start-up files of shells and programs
// are.
inline bool IsHidden(absl::string_view name) { return absl::StartsWith(name, "."); }

// True if an array of a file can have this name: it has no control characters.
inline bool IsArrayName(absl::string_view name) {
  return !name.empty() && name.size() <= 1024 && std::none_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
}

}  // namespace gpumem::internal
