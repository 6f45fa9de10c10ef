// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/machine_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "common/bytes.h"
#include "common/testing/descriptors_left.h"

namespace gpumemd {
namespace machine_memory_test {

using absl::StatusCode;

using gpumem::kMiB;

// A machine of 1600 MiB, 1000 of them available: 900 to take.
class MachineMemoryTest : public testing::Test {
 protected:
  MachineMemoryTest() : root_("/tmp/gpumem-machine.XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    Write("/proc/meminfo",
          "MemTotal:        1638400 kB\nMemFree:  1024 kB\nMemAvailable: 1024000 kB\n"
          "HugePages_Total:       0\nHugepagesize: 2048 kB\n");
  }
  ~MachineMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  uint64_t ToTake() { return BytesToTake(root_).value_or(~uint64_t{0}); }

  std::string root_;
};

TEST_F(MachineMemoryTest, WithoutDescriptorsItSaysSo) {
  const gpumem::testing::DescriptorsLeft none(0);
  const absl::StatusOr<uint64_t> bytes = BytesToTake(root_);
  EXPECT_EQ(bytes.status().code(), StatusCode::kResourceExhausted) << bytes.status();
}

TEST_F(MachineMemoryTest, IsWhatIsAvailableLessASixteenthOfAll) {
  EXPECT_EQ(ToTake(), 900 * kMiB);
  EXPECT_EQ(BytesToTake(root_ + "/nowhere").status().code(), StatusCode::kInternal);
  EXPECT_TRUE(BytesToTake().ok());
}

TEST_F(MachineMemoryTest, IsTheLeastThatAGroupOrOneAboveItHasLeft) {
  Write("/proc/self/cgroup", "0::/system.slice/gpumemd.service\n");
  Write("/sys/fs/cgroup/system.slice/gpumemd.service/memory.max", "max\n");
  Write("/sys/fs/cgroup/system.slice/gpumemd.service/memory.current", "1048576\n");
  EXPECT_EQ(ToTake(), 900 * kMiB);
  // 160 MiB, of which 100 are used and 30 of these could be given back; 10 are the reserve.
  Write("/sys/fs/cgroup/system.slice/memory.max", "167772160\n");
  Write("/sys/fs/cgroup/system.slice/memory.current", "104857600\n");
  Write("/sys/fs/cgroup/system.slice/memory.stat",
        "anon 1\ninactive_file 31457280\nactive_file 1048576\n");
  EXPECT_EQ(ToTake(), 80 * kMiB);
  Write("/sys/fs/cgroup/system.slice/gpumemd.service/memory.max", "1048576\n");
  EXPECT_EQ(ToTake(), 0u);
}

TEST_F(MachineMemoryTest, KnowsGroupsOfTheFirstVersionAndOfContainers) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/1\n1:name=systemd:/docker/1\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "167772160\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "104857600\n");
  EXPECT_EQ(ToTake(), 50 * kMiB);
  Write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(ToTake(), 900 * kMiB);
  Write("/sys/fs/cgroup/memory.max", "16777216\n");
  Write("/sys/fs/cgroup/memory.current", "0\n");
  EXPECT_EQ(ToTake(), 15 * kMiB);
}

TEST_F(MachineMemoryTest, AnEnteredRequestCountsUntilItIsDone) {
  const auto gate = std::make_shared<MemoryGate>(root_);
  auto first = gate->Enter(600 * kMiB);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(gate->Enter(301 * kMiB).status().code(), StatusCode::kResourceExhausted);
  const auto second = gate->Enter(300 * kMiB);
  EXPECT_TRUE(second.ok()) << second.status();
  first->reset();
  EXPECT_TRUE(gate->Enter(600 * kMiB).ok());
}

TEST_F(MachineMemoryTest, SaysWhetherHugePagesAreFree) {
  EXPECT_FALSE(HasFreeHugePages(root_));
  Write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0\n");
  EXPECT_FALSE(HasFreeHugePages(root_));
  Write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "3\n");
  EXPECT_TRUE(HasFreeHugePages(root_));
  EXPECT_EQ(FreeHugePageBytes(root_), 6 * kMiB);
}

}  // namespace machine_memory_test
}  // namespace gpumemd
