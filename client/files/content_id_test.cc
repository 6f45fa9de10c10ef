// SPDX-License-Identifier: Apache-2.0
#include "client/files/content_id.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace gpumem::internal {
namespace content_id_test {

namespace fs = std::filesystem;

absl::Status Ignore() { return absl::OkStatus(); }

class ContentIdTest : public testing::Test {
 protected:
  ContentIdTest() {
    std::string path = testing::TempDir() + "/content-XXXXXX";
    dir_ = mkdtemp(path.data());
    cache_dir_ = dir_ + "/cache/hashes";
  }
  ~ContentIdTest() override { fs::remove_all(dir_); }

  std::string Write(const std::string& name, const std::string& content, bool long_ago = false) {
    const std::string path = absl::StrCat(dir_, "/", name);
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << content;
    if (long_ago) {
      const timespec times[] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
      utimensat(AT_FDCWD, path.c_str(), times, 0);
    }
    return path;
  }
  std::string IdOf(const std::vector<std::string>& paths) const {
    std::vector<std::unique_ptr<FileReader>> readers;
    std::vector<FileReader*> files;
    for (const std::string& path : paths) {
      auto reader = FileReader::Open(path);
      EXPECT_TRUE(reader.ok()) << reader.status();
      if (!reader.ok()) return "";
      files.push_back(reader->get());
      readers.push_back(*std::move(reader));
    }
    const auto id = ContentId(files, HashCache(cache_dir_), Ignore);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or("");
  }
  static struct stat StatOf(const std::string& path) {
    struct stat found = {};
    EXPECT_EQ(stat(path.c_str(), &found), 0);
    return found;
  }

  std::string dir_;
  std::string cache_dir_;
};

TEST_F(ContentIdTest, IsTheHashThatTheHeaderShows) {
  // printf abc | sha256sum, its sha256sum, and of "gpumem-content/1\n3 a\0" with them.
  EXPECT_EQ(absl::BytesToHexString(IdOf({Write("a", "abc")})),
            "00a88bba48269ac2932e06384488950de5967df2deabcf037ba07e115c97312c");
}

TEST_F(ContentIdTest, DependsOnNamesAndBytesAlone) {
  const std::string a = Write("a", "1");
  const std::string b = Write("b", std::string(9 << 20, 'x'));
  const std::string id = IdOf({a, b});
  EXPECT_EQ(id.size(), 32u);
  EXPECT_EQ(IdOf({b, a}), id);
  EXPECT_EQ(IdOf({Write("other/a", "1"), b}), id);
  EXPECT_NE(IdOf({a}), id);
  EXPECT_NE(IdOf({Write("c", "1"), b}), id);
  EXPECT_NE(IdOf({Write("other/a", "2"), b}), id);
  std::string changed(9 << 20, 'x');
  changed.back() = 'y';
  EXPECT_NE(IdOf({a, Write("other/b", changed)}), id);
}

TEST_F(ContentIdTest, AFileAndItsRestAreNoTwoFiles) {
  const std::string one = Write("a", "12");
  EXPECT_NE(IdOf({one}), IdOf({Write("x/a", "1"), Write("x/b", "2")}));
}

TEST_F(ContentIdTest, IsCachedUntilTheFileChanges) {
  const HashCache cache(cache_dir_);
  const std::string path = Write("a", "1", true);
  const struct stat before = StatOf(path);
  EXPECT_FALSE(cache.Find(before).has_value());
  const std::string hash(64, 'a');
  cache.Keep(before, absl::InfiniteFuture(), hash);
  EXPECT_EQ(cache.Find(before), hash);
  // The id is made of what the cache says: no byte was read.
  const std::string id = IdOf({path});
  Write("a", "2", true);
  EXPECT_FALSE(cache.Find(StatOf(path)).has_value()) << "its ctime is another";
  EXPECT_NE(IdOf({path}), id);
}

TEST_F(ContentIdTest, KeepsNoHashOfAFileThatHasJustChanged) {
  const HashCache cache(cache_dir_);
  const struct stat file = StatOf(Write("a", "1"));
  const absl::Time changed = absl::TimeFromTimespec(file.st_ctim);
  cache.Keep(file, changed + absl::Seconds(1), std::string(64, 'a'));
  EXPECT_FALSE(cache.Find(file).has_value());
  cache.Keep(file, changed + absl::Seconds(2), std::string(64, 'a'));
  EXPECT_TRUE(cache.Find(file).has_value());
}

TEST_F(ContentIdTest, BelievesNoEntryThatOthersCouldHaveWritten) {
  const HashCache cache(cache_dir_);
  const struct stat file = StatOf(Write("a", "1"));
  cache.Keep(file, absl::InfiniteFuture(), std::string(64, 'a'));
  const std::string entry = fs::directory_iterator(cache_dir_)->path();
  ASSERT_TRUE(cache.Find(file).has_value());
  ASSERT_EQ(chmod(entry.c_str(), 0666), 0);
  EXPECT_FALSE(cache.Find(file).has_value());
  ASSERT_EQ(chmod(entry.c_str(), 0600), 0);
  for (const char* text : {"", "1", "1 1.0 1.0 \n"}) {
    std::ofstream(entry, std::ios::trunc) << text;
    EXPECT_FALSE(cache.Find(file).has_value()) << text;
  }
  cache.Keep(file, absl::InfiniteFuture(), std::string(64, 'b'));
  EXPECT_EQ(cache.Find(file), std::string(64, 'b'));
  EXPECT_EQ(std::distance(fs::directory_iterator(cache_dir_), fs::directory_iterator()), 1);
}

TEST_F(ContentIdTest, WorksWithoutACache) {
  cache_dir_ = "";
  const std::string path = Write("a", "1", true);
  EXPECT_EQ(IdOf({path}), IdOf({path}));
}

TEST_F(ContentIdTest, StopsWhereItIsToldTo) {
  auto reader = FileReader::Open(Write("a", std::string(9 << 20, 'x')));
  ASSERT_TRUE(reader.ok());
  FileReader* const file = reader->get();
  const auto id = ContentId({file}, HashCache(""), [] { return absl::CancelledError("enough"); });
  EXPECT_EQ(id.status(), absl::CancelledError("enough"));
}

}  // namespace content_id_test
}  // namespace gpumem::internal
