// SPDX-License-Identifier: Apache-2.0
#include "client/files/read_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
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
      const auto reader = FileReader::Open(path);
      if (!reader.ok() || (*reader)->IsCached(0) || (*reader)->IsCached(kBytes - 1)) return false;
    }
    return true;
  }
  static bool Eventually(const FileReader& reader, uint64_t offset) {
    for (const absl::Time end = absl::Now() + absl::Minutes(1); absl::Now() < end;) {
      if (reader.IsCached(offset)) return true;
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

TEST_F(ReadAheadTest, EndsBeforeItHasReadAll) {
  for (int i = 0; i < 100; ++i) {
    const auto sources = OpenSources(paths_, FileFormat::kBytes);
    ASSERT_TRUE(sources.ok()) << sources.status();
    const ReadAhead read_ahead(*sources);
  }
  // The bytes are those of the files whatever was requested.
  const auto sources = OpenSources(paths_, FileFormat::kBytes);
  ASSERT_TRUE(sources.ok()) << sources.status();
  std::string read(kBytes, '\0');
  const ReadAhead read_ahead(*sources);
  ASSERT_TRUE(sources->readers[1]->Read(0, kBytes, read.data()).ok());
  EXPECT_EQ(read, std::string(kBytes, 'b'));
}

}  // namespace read_ahead_test
}  // namespace gpumem::internal
