// SPDX-License-Identifier: Apache-2.0
#include "common/preload_library.h"

#include <limits.h>

#include <cstdlib>

namespace gpumem {
namespace {

// Debian's folder for libraries of this architecture.
#if defined(__aarch64__)
constexpr char kMultiarch[] = "aarch64-linux-gnu";
#else
constexpr char kMultiarch[] = "x86_64-linux-gnu";
#endif

}  // namespace

std::vector<std::string> PreloadPlaces(const std::string& folder) {
  const std::string name = kPreloadLibrary;
  return {folder + "/../lib/gpumem/" + name, folder + "/../lib/" + kMultiarch + "/gpumem/" + name,
          folder + "/../lib64/gpumem/" + name, folder + "/" + name};
}

std::string FindPreload(const std::string& folder) {
  for (const std::string& place : PreloadPlaces(folder)) {
    char resolved[PATH_MAX] = {};
    if (realpath(place.c_str(), resolved) != nullptr) return resolved;
  }
  return "";
}

std::string PreloadBefore(const std::string& library, std::string_view others) {
  if (others.empty()) return library;
  // A program that was put on it may start another one.
  if (others.substr(0, library.size()) == library &&
      (others.size() == library.size() || others[library.size()] == ':')) {
    return std::string(others);
  }
  return library + ":" + std::string(others);
}

}  // namespace gpumem
