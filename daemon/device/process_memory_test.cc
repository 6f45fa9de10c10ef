// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/process_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/status/status.h"

namespace gpumemd {
namespace process_memory_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(HostProcessMemoryTest, SaysOfEachDeviceWhatTheFileSays) {
  constexpr char kText[] = "HOST-0 12 1000\n\n  HOST-1 12 5\nHOST-0 7 3\nHOST-0 12 24";
  EXPECT_THAT(*ParseHostProcessMemory(kText, "HOST-0"),
              ElementsAre(ProcessBytes{7, 3}, ProcessBytes{12, 1024}));
  EXPECT_THAT(*ParseHostProcessMemory(kText, "HOST-1"), ElementsAre(ProcessBytes{12, 5}));
  EXPECT_THAT(*ParseHostProcessMemory(kText, "HOST-2"), IsEmpty());
}

TEST(HostProcessMemoryTest, AMalformedLineIsAnErrorAndNotAnEmptyList) {
  for (const char* line : {"HOST-0", "HOST-0 1", "HOST-0 one 2", "HOST-0 1 -2", "HOST-0 -1 2",
                           "HOST-0 1 2 3", "HOST-0 1 2GiB"}) {
    const auto sample = ParseHostProcessMemory(std::string("HOST-0 1 1\n") + line, "HOST-0");
    EXPECT_EQ(sample.status().code(), absl::StatusCode::kUnavailable) << line;
    EXPECT_THAT(std::string(sample.status().message()), HasSubstr(line));
  }
}

TEST(HostProcessMemoryTest, WithoutAFileTheListIsEmpty) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/processes";
  const auto source = MakeHostProcessMemory(path);
  EXPECT_THAT(*source->Sample("HOST-0"), IsEmpty());
  std::ofstream(path) << "HOST-0 1 2\n";
  EXPECT_THAT(*source->Sample("HOST-0"), ElementsAre(ProcessBytes{1, 2}));
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_THAT(*source->Sample("HOST-0"), IsEmpty());
}

TEST(NvmlProcessMemoryTest, KnowsNoDeviceThatDoesNotExist) {
  const auto source = MakeNvmlProcessMemory();
  if (!source.ok()) {
    EXPECT_EQ(source.status().code(), absl::StatusCode::kUnavailable);
    GTEST_SKIP() << source.status().message();
  }
  EXPECT_EQ((*source)->Sample("GPU-0").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace process_memory_test
}  // namespace gpumemd
