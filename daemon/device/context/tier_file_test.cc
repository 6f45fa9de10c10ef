// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/tier_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "daemon/device/context/populate.h"
#include "daemon/device/memfd.h"
#include "daemon/device/testing/tier_memory.h"

namespace gpumemd {
namespace {

using gpumem::kMiB;
using gpumem::UniqueFd;

TEST(TierFile, HasWindowsOfOneSizeButTheLast) {
  const auto memory = *TierMemory::Make(130 * kMiB);
  const auto file = TierFile::Map(memory->fd());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->bytes(), 130 * kMiB);
  ASSERT_EQ((*file)->windows(), 3u);
  EXPECT_EQ((*file)->window(1).data, (*file)->At(64 * kMiB));
  EXPECT_EQ((*file)->window(1).bytes, 64 * kMiB);
  EXPECT_EQ((*file)->window(2).bytes, 2 * kMiB);
  (*file)->At(129 * kMiB)[5] = 'x';
  EXPECT_EQ(memory->data()[129 * kMiB + 5], 'x');
}

TEST(TierFile, KnowsItsFileByAnyDescriptor) {
  const auto memory = *TierMemory::Make(2 * kMiB);
  const auto other = *TierMemory::Make(2 * kMiB);
  const auto file = TierFile::Map(memory->fd());
  ASSERT_TRUE(file.ok()) << file.status();
  const UniqueFd again(fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0));
  EXPECT_TRUE((*file)->Is(again.get()));
  EXPECT_FALSE((*file)->Is(other->fd()));
  EXPECT_FALSE((*file)->Is(-1));
}

TEST(TierFile, RefusesWhatIsNoFile) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  EXPECT_EQ(TierFile::Map(reader.get()).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(TierFile::Map(-1).status().code(), absl::StatusCode::kInternal);
  const absl::StatusOr<UniqueFd> empty = MakeSealedMemfd("empty", 0);
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(TierFile::Map(empty->get()).status().code(), absl::StatusCode::kInternal);
}

TEST(TierFile, RefusesCopiesBeyondItsEndOrASegments) {
  const auto memory = *TierMemory::Make(8 * kMiB);
  const auto file = TierFile::Map(memory->fd());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto check = [&file](uint64_t segment_bytes, uint64_t offset,
                             std::vector<TierExtent> extents) {
    CopyBatch batch;
    batch.parts.push_back(
        {.segment_bytes = segment_bytes, .offset = offset, .extents = std::move(extents)});
    return (*file)->Check(batch).code();
  };
  constexpr auto kOk = absl::StatusCode::kOk;
  constexpr auto kInternal = absl::StatusCode::kInternal;
  EXPECT_EQ(check(8 * kMiB, 0, {{.offset = 0, .bytes = 8 * kMiB}}), kOk);
  EXPECT_EQ(check(8 * kMiB, 6 * kMiB, {{.offset = 6 * kMiB, .bytes = 2 * kMiB}}), kOk);
  EXPECT_EQ(check(8 * kMiB, 0, {{.offset = 6 * kMiB, .bytes = 4 * kMiB}}), kInternal);
  EXPECT_EQ(check(8 * kMiB, 0, {{.offset = UINT64_MAX, .bytes = 2 * kMiB}}), kInternal);
  EXPECT_EQ(check(8 * kMiB, 0, {{.offset = 2 * kMiB, .bytes = UINT64_MAX}}), kInternal);
  EXPECT_EQ(check(2 * kMiB, 0, {{.offset = 0, .bytes = 4 * kMiB}}), kInternal);
  EXPECT_EQ(check(4 * kMiB, 2 * kMiB, {{.offset = 0, .bytes = 4 * kMiB}}), kInternal);
  EXPECT_EQ(check(2 * kMiB, 4 * kMiB, {{.offset = 0, .bytes = 2 * kMiB}}), kInternal);
}

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
  constexpr uint64_t kWindows = 32;  // far more than it has threads
  const auto memory = *TierMemory::Make(kWindows * kWindow);
  const auto file = TierFile::Map(memory->fd());
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<uint64_t> windows(kWindows);
  std::iota(windows.begin(), windows.end(), 0);
  { const Populating populating(file->get(), windows); }
  EXPECT_LT(AllocatedBytes(memory->fd()), kWindows * kWindow);
  const Populating none(file->get(), {});
}

}  // namespace
}  // namespace gpumemd
