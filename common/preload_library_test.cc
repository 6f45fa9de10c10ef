// SPDX-License-Identifier: Apache-2.0
#include "common/preload_library.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace gpumem {
namespace {

TEST(PreloadLibraryTest, ComesFirstAndOnce) {
  EXPECT_EQ(PreloadBefore("/lib/p.so", ""), "/lib/p.so");
  EXPECT_EQ(PreloadBefore("/lib/p.so", "/lib/other.so"), "/lib/p.so:/lib/other.so");
  EXPECT_EQ(PreloadBefore("/lib/p.so", "/lib/p.so"), "/lib/p.so");
  EXPECT_EQ(PreloadBefore("/lib/p.so", "/lib/p.so:/lib/other.so"), "/lib/p.so:/lib/other.so");
  EXPECT_EQ(PreloadBefore("/lib/p.so", "/lib/p.so.1"), "/lib/p.so:/lib/p.so.1");
}

TEST(PreloadLibraryTest, IsFoundInAnInstallation) {
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / "installed";
  std::filesystem::create_directories(root / "bin");
  std::filesystem::create_directories(root / "lib/gpumem");
  EXPECT_EQ(FindPreload(root / "bin"), "");
  std::ofstream(root / "lib/gpumem" / kPreloadLibrary) << "\n";
  EXPECT_EQ(FindPreload(root / "bin"),
            std::filesystem::canonical(root / "lib/gpumem" / kPreloadLibrary));
}

}  // namespace
}  // namespace gpumem
