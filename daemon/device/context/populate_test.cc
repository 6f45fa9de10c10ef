// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/populate.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/bytes.h"
#include "daemon/device/testing/tier_memory.h"

namespace gpumemd {
namespace {

using gpumem::kMiB;

constexpr uint64_t kWindow = TierFile::kWindowBytes;

uint64_t AllocatedBytes(int fd) {
  struct stat info = {};
  EXPECT_EQ(fstat(fd, &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

TEST(Populating, AllocatesTheNamedWindowsAlone) {
  const auto memory = *TierMemory::Make(8 * kWindow);
  const auto file = TierFile::Map(memory->fd());
  ASSERT_TRUE(file.ok()) << file.status();
  Populating populating(file->get(), {1, 3, 4, 5, 6, 7});
  for (size_t i = 0; i < 6; ++i) ASSERT_EQ(populating.Await(i), absl::OkStatus());
  const uint64_t allocated = AllocatedBytes(memory->fd());
  // A kernel before 5.14 leaves it to the first use.
  if (allocated != 0) {
    EXPECT_EQ(allocated, 6 * kWindow);
  }
}

TEST(Populating, AnswersInAnyOrderAndMoreThanOnce) {
  const auto memory = *TierMemory::Make(3 * kWindow);
  const auto file = TierFile::Map(memory->fd());
  ASSERT_TRUE(file.ok()) << file.status();
  Populating populating(file->get(), {0, 1, 2});
  for (const size_t i : {2, 0, 2, 1}) EXPECT_EQ(populating.Await(i), absl::OkStatus());
}

TEST(Populating, EndsBeforeItsWorkIsDone) {
  const auto memory = *TierMemory::Make(8 * kWindow);
  const auto file = TierFile::Map(memory->fd());
  ASSERT_TRUE(file.ok()) << file.status();
  { const Populating populating(file->get(), {0, 1, 2, 3, 4, 5, 6, 7}); }
  EXPECT_LE(AllocatedBytes(memory->fd()), 8 * kWindow);
  const Populating none(file->get(), {});
}

}  // namespace
}  // namespace gpumemd
