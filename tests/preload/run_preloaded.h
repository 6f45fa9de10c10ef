// SPDX-License-Identifier: Apache-2.0
// Runs programs under the preload, with the fake driver and the plug-in of the tests.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/preload/toolkit.h"
#include "gtest/gtest.h"

namespace gpumem::preload {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// What a program printed, as "key=value" words, and how it ended.
struct Finished {
  int status = 0;  // exit status; 128 + signal
  std::string output;
  std::string errors;
  // Words of the output in order; a key may be there more than once.
  std::vector<std::string> values(const std::string& key) const;
  // The last one; empty if there is none.
  std::string value(const std::string& key) const;
};

// How the library comes into a program.
enum class Via { kNone, kPreload, kInjection };

// A name for tests with this parameter.
std::string NameOf(const ::testing::TestParamInfo<Via>& info);

// A place for one run, with separate books.
class PreloadTest : public ::testing::Test {
 protected:
  void SetUp() override;

  // Skips a test of injection where there is none. Returns true if it did.
  static bool SkipsInjection();

  // Absolute path of a file that BUILD.bazel names TEST_<name>.
  static std::string Path(const std::string& name);

  // Runs a program.
  Finished Run(std::vector<std::string> arguments, Via via = Via::kPreload);

  // The most that the driver gave out in the last run, with 16 MiB for a context.
  uint64_t driver_peak() const;

  // What the plug-in has counted in all runs.
  uint64_t used() const;
  uint64_t peak() const;
  uint64_t contexts() const;
  uint64_t processes() const;
  uint64_t used_of(int device) const { return Number(6 + device); }

  std::map<std::string, std::string> environment;  // of the next runs
  std::string preloads;                            // other preloads, before ours if that is one

 private:
  uint64_t Number(int index) const;
  std::string state_;
};

}  // namespace gpumem::preload
