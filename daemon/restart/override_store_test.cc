// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/override_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace gpumemd {
namespace override_store_test {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OverrideStoreTest : public testing::Test {
 protected:
  OverrideStoreTest() {
    char dir[] = "/tmp/gpumem-test-XXXXXX";
    parent_ = mkdtemp(dir);
    dir_ = parent_ + "/a/state";
  }
  ~OverrideStoreTest() override { fs::remove_all(parent_); }

  static Overrides One(const std::string& tenant, uint64_t limit) {
    return {
        {tenant,
         {.set = {"limit_bytes"}, .values = {.limit_bytes = limit}, .clear = {"max_sessions"}}}};
  }
  std::string Text(const std::string& name) const {
    std::stringstream text;
    text << std::ifstream(dir_ + "/" + name).rdbuf();
    return text.str();
  }
  void Write(const std::string& text) const {
    fs::create_directories(dir_);
    fs::permissions(dir_, fs::perms::owner_all);
    std::ofstream(dir_ + "/overrides.txt") << text;
  }

  std::string parent_, dir_;
};

TEST_F(OverrideStoreTest, WhatIsSavedIsThereAgain) {
  {
    OverrideStore store(dir_);
    EXPECT_THAT(store.notices(), IsEmpty());
    EXPECT_THAT(store.remembered(), IsEmpty());
    ASSERT_EQ(store.Save(One("team", 1)), absl::OkStatus());
    ASSERT_EQ(store.Save(One("user-1", 2)), absl::OkStatus());  // instead
  }
  struct stat found;
  ASSERT_EQ(stat(dir_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0700u);
  ASSERT_EQ(stat((dir_ + "/overrides.txt").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0600u);
  EXPECT_THAT(Text("overrides.txt"),
              HasSubstr("overrides {\n  tenant: \"user-1\"\n  quota {\n    limit_bytes: 2\n  }\n"
                        "  clear: \"max_sessions\"\n}\n"));
  OverrideStore store(dir_);
  EXPECT_THAT(store.notices(), IsEmpty());
  EXPECT_EQ(store.remembered(), One("user-1", 2));
}

TEST_F(OverrideStoreTest, ABrokenFileIsKeptAsideAndToldOf) {
  for (const char* broken :
       {"overrides {", "overrides { colour: 3 }", "overrides { tenant: \"a\" clear: \"colour\" }",
        "overrides { quota { limit_bytes: 1 } }",
        "overrides { tenant: \"a\" quota { max_in_flight: 0 } }",
        "overrides { tenant: \"a\" quota { parent: \"b\" } }",
        "overrides { tenant: \"a\" quota { release: RELEASE_POLICY_UNSPECIFIED } }",
        "overrides { tenant: \"a\" clear: \"scrub\" }\noverrides { tenant: \"a\" }", "\xff"}) {
    Write(broken);
    OverrideStore store(dir_);
    EXPECT_THAT(store.remembered(), IsEmpty()) << broken;
    EXPECT_THAT(store.notices(),
                ElementsAre(testing::AllOf(HasSubstr("are NOT in force"),
                                           HasSubstr(dir_ + "/overrides.txt.broken"))))
        << broken;
    EXPECT_EQ(Text("overrides.txt.broken"), broken);
    EXPECT_FALSE(fs::exists(dir_ + "/overrides.txt"));
    EXPECT_EQ(store.Save(One("a", 1)), absl::OkStatus());
    EXPECT_EQ(Text("overrides.txt.broken"), broken);
  }
}

TEST_F(OverrideStoreTest, WhatIsNoFileIsPutAsideAsWell) {
  fs::create_directories(dir_ + "/overrides.txt");
  fs::permissions(dir_, fs::perms::owner_all);
  OverrideStore store(dir_);
  EXPECT_THAT(store.notices(), ElementsAre(HasSubstr("are NOT in force")));
  EXPECT_TRUE(fs::is_directory(dir_ + "/overrides.txt.broken"));
  EXPECT_EQ(store.Save(One("a", 1)), absl::OkStatus());
}

TEST_F(OverrideStoreTest, AHalfWrittenFileIsNotMistakenForTheFile) {
  {
    OverrideStore store(dir_);
    ASSERT_EQ(store.Save(One("a", 1)), absl::OkStatus());
  }
  std::ofstream(dir_ + "/overrides.txt.new") << "overrides { ten";
  OverrideStore store(dir_);
  EXPECT_THAT(store.notices(), IsEmpty());
  EXPECT_TRUE(store.remembered().contains("a"));
  EXPECT_EQ(store.Save(One("b", 1)), absl::OkStatus());
}

TEST_F(OverrideStoreTest, AFolderServesOneDaemon) {
  OverrideStore store(dir_);
  ASSERT_EQ(store.Save(One("a", 1)), absl::OkStatus());
  OverrideStore other(dir_);
  EXPECT_THAT(other.notices(), ElementsAre(HasSubstr("another daemon uses the state folder")));
  EXPECT_THAT(other.remembered(), IsEmpty());
  EXPECT_EQ(other.Save(One("b", 1)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text("overrides.txt"), HasSubstr("tenant: \"a\""));
}

TEST_F(OverrideStoreTest, AFolderThatOthersWriteToIsNotTrusted) {
  fs::create_directories(dir_);
  fs::permissions(dir_, fs::perms::all);
  OverrideStore store(dir_);
  EXPECT_THAT(store.notices(), ElementsAre(HasSubstr("other users may write to the state folder")));
  EXPECT_FALSE(store.Save(One("b", 1)).ok());
}

TEST_F(OverrideStoreTest, WithoutAFolderNothingIsSaved) {
  std::ofstream(parent_ + "/a") << "a file";
  OverrideStore store(dir_);
  EXPECT_THAT(store.notices(), ElementsAre(HasSubstr("cannot make the state folder")));
  EXPECT_FALSE(store.Save(One("b", 1)).ok());
  EXPECT_THAT(OverrideStore("").notices(), ElementsAre(HasSubstr("--state-dir")));
}

TEST_F(OverrideStoreTest, WhatCannotBeWrittenLeavesTheFileAsItWas) {
  OverrideStore store(dir_);
  ASSERT_EQ(store.Save(One("a", 1)), absl::OkStatus());
  // A folder in the way, since root may write anywhere.
  fs::create_directories(dir_ + "/overrides.txt.new");
  EXPECT_EQ(
      store.Save(One("b", 1)),
      absl::FailedPreconditionError("cannot write " + dir_ + "/overrides.txt (Is a directory)"));
  EXPECT_THAT(Text("overrides.txt"), HasSubstr("tenant: \"a\""));
}

}  // namespace override_store_test
}  // namespace gpumemd
