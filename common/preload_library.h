// SPDX-License-Identifier: Apache-2.0
// Where libgpumem-preload.so is, and how programs are put on it. Only the C++ library: a plug-in of
// Slurm uses it as well.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpumem {

inline constexpr char kPreloadLibrary[] = "libgpumem-preload.so";
inline constexpr char kPreloadVariable[] = "LD_PRELOAD";

// Returns the places of the library in an installation whose programs are in `folder`.
std::vector<std::string> PreloadPlaces(const std::string& folder);

// Returns the path of the library there; empty: there is none.
std::string FindPreload(const std::string& folder);

// Returns the value of LD_PRELOAD with the library before `others`, which are preloaded already.
std::string PreloadBefore(const std::string& library, std::string_view others);

}  // namespace gpumem
