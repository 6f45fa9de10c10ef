// SPDX-License-Identifier: Apache-2.0
#include "client/files/read_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumem::internal {
namespace read_ahead_test {

namespace fs = std::filesystem;

class ReadAheadTest : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = (uint64_t{20} << 20) + 5;

  ReadAheadTest() {
    std::string path = testing::TempDir() + "/read-ahead-XXXXXX";
    dir_ = mkdtemp(path.data());
    for (int i = 0; i < 2; ++i) {
      paths_.push_back(absl::StrCat(dir_, "/", i));
      std::ofstream(paths_.back()) << std::string(kBytes, static_cast<char>('a' + i));
    }
  }
  ~ReadAheadTest() override { fs::remove_all(dir_); }

  // Evicts the files from the page cache. False: their file system keeps them.
  bool Evict() {
    for (const std::string& path : paths_) {
      const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
      fdatasync(fd.get());
      posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
      if (IsCached(path, 0) || IsCached(path, kBytes - 1)) return false;
    }
    return true;
  }
  // By mincore(2): a read that waits for no disk, as of FileReader::IsCached, can start the disk.
  static bool IsCached(const std::string& path, uint64_t offset) {
    const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    void* const mapped = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (mapped == MAP_FAILED) return false;
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    unsigned char in_core = 0;
    const bool told = mincore(static_cast<char*>(mapped) + offset / page * page, 1, &in_core) == 0;
    munmap(mapped, kBytes);
    return told && (in_core & 1) != 0;
  }
  static bool Eventually(const FileReader& reader, uint64_t offset) {
    for (const absl::Time end = absl::Now() + absl::Minutes(1); absl::Now() < end;) {
      if (IsCached(reader.path(), offset)) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }

  std::string dir_;
  std::vector<std::string> paths_;
};

TEST_F(ReadAheadTest, ReadsAllFilesBeforeTheyAreAskedFor) {
  if (!Evict()) GTEST_SKIP() << "the file system keeps its cache";
  const auto sources = OpenSources(paths_, FileFormat::kBytes);
  ASSERT_TRUE(sources.ok()) << sources.status();
  const ReadAhead read_ahead(*sources);
  for (const auto& reader : sources->readers) {
    EXPECT_TRUE(Eventually(*reader, 0));
    EXPECT_TRUE(Eventually(*reader, kBytes - 1));
  }
}

TEST_F(ReadAheadTest, RequestsNoMoreThanItMay) {
  if (!Evict()) GTEST_SKIP() << "the file system keeps its cache";
  const auto sources = OpenSources(paths_, FileFormat::kBytes);
  ASSERT_TRUE(sources.ok()) << sources.status();
  const FileReader &first = *sources->readers[0], &second = *sources->readers[1];
  RequestReadAhead(*sources, UINT64_MAX, /*stopped=*/true);
  EXPECT_EQ(first.asked(), 0u);
  constexpr uint64_t kMost = uint64_t{16} << 20;
  RequestReadAhead(*sources, kMost, /*stopped=*/false);
  EXPECT_EQ(first.asked(), kMost);
  EXPECT_EQ(second.asked(), 0u);
  EXPECT_TRUE(Eventually(first, kMost - 1));
}

TEST_F(ReadAheadTest, ReadersMayReadMeanwhile) {
  Evict();
  const auto sources = OpenSources(paths_, FileFormat::kBytes);
  ASSERT_TRUE(sources.ok()) << sources.status();
  std::string read(kBytes, '\0');
  const ReadAhead read_ahead(*sources);
  ASSERT_TRUE(sources->readers[1]->Read(0, kBytes, read.data()).ok());
  EXPECT_EQ(read, std::string(kBytes, 'b'));
}

}  // namespace read_ahead_test
}  // namespace gpumem::internal
