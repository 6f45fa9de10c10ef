// SPDX-License-Identifier: Apache-2.0
#include "client/cli/files/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() {
    std::string path = testing::TempDir() + "/output-XXXXXX";
    dir_ = mkdtemp(path.data());
  }
  ~OutputFileTest() override { fs::remove_all(dir_); }

  size_t Entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(dir_), {}));
  }
  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  std::string dir_;
};

TEST_F(OutputFileTest, IsThereWhenItIsWhole) {
  const std::string path = dir_ + "/a";
  auto file = OutputFile::Create(path, false);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Write("one ").ok());
  EXPECT_TRUE((*file)->Write("two").ok());
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE((*file)->Finish().ok());
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(Read(path), "one two");
  file->reset();
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(OutputFileTest, LeavesNothingWithoutACommit) {
  {
    auto file = OutputFile::Create(dir_ + "/a", false);
    ASSERT_TRUE(file.ok());
    EXPECT_TRUE((*file)->Write("one").ok());
  }
  EXPECT_EQ(Entries(), 0u);
}

TEST_F(OutputFileTest, ReplacesOnlyWhereItIsToldTo) {
  const std::string path = dir_ + "/a";
  std::ofstream(path) << "before";
  EXPECT_EQ(OutputFile::Create(path, false).status().code(), absl::StatusCode::kAlreadyExists);

  auto file = OutputFile::Create(path, true);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Write("after").ok());
  EXPECT_TRUE((*file)->Finish().ok());
  EXPECT_EQ(Read(path), "before");
  EXPECT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(Read(path), "after");
}

TEST_F(OutputFileTest, DoesNotReplaceWhatCameMeanwhile) {
  const std::string path = dir_ + "/a";
  {
    auto file = OutputFile::Create(path, false);
    ASSERT_TRUE(file.ok());
    EXPECT_TRUE((*file)->Finish().ok());
    std::ofstream(path) << "theirs";
    EXPECT_EQ((*file)->Commit().code(), absl::StatusCode::kAlreadyExists);
  }
  EXPECT_EQ(Read(path), "theirs");
  EXPECT_EQ(Entries(), 1u);
}

TEST_F(OutputFileTest, SaysWhereItCannotWrite) {
  EXPECT_EQ(OutputFile::Create(dir_ + "/none/a", false).status().code(),
            absl::StatusCode::kNotFound);
  auto full = OutputFile::Create("/dev/full", true);
  EXPECT_FALSE(full.ok() && (*full)->Write("x").ok() && fs::exists("/dev/full.gpumemctl"));
}

}  // namespace
}  // namespace gpumem::cli
