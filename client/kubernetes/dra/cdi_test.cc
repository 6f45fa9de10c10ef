// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/cdi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/kubernetes/api/claims.h"
#include "common/kubernetes/names.h"

namespace gpumem::kubernetes {
namespace cdi_test {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kUid[] = "0b7a5d6c-2a99-45ad-af94-d91eb81a87e9";

class CdiFolderTest : public ::testing::Test {
 protected:
  CdiFolderTest() {
    path_ = absl::StrCat(::testing::TempDir(), "/cdi-XXXXXX");
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
  }
  ~CdiFolderTest() override { std::filesystem::remove_all(path_); }

  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  std::string path_;
};

TEST(CdiTest, TheSpecificationIsWhatRuntimesRead) {
  const auto spec = CdiSpecOf(kUid, "/run/gpumem-a");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(json::parse(*spec), json::parse(absl::StrCat(R"({
    "cdiVersion": "0.5.0",
    "kind": "gpumem.dev/claim",
    "devices": [{
      "name": ")",
                                                         kUid, R"(",
      "containerEdits": {
        "env": ["GPUMEM_RUNTIME_DIR=/run/gpumem"],
        "mounts": [{
          "hostPath": "/run/gpumem-a",
          "containerPath": "/run/gpumem",
          "options": ["bind", "ro", "nosuid", "nodev", "noexec"]
        }]
      }
    }]
  })")));
  EXPECT_EQ(CdiDeviceOf(kUid), absl::StrCat("gpumem.dev/claim=", kUid));
}

TEST(CdiTest, UidsAreUuids) {
  EXPECT_TRUE(IsUid(kUid));
  for (const std::string wrong :
       {"", "claim", "../../../etc/passwd", "0B7A5D6C-2A99-45AD-AF94-D91EB81A87E9",
        "0b7a5d6c-2a99-45ad-af94-d91eb81a87e", "0b7a5d6c-2a99-45ad-af94-d91eb81a87e9a",
        "0b7a5d6c/2a99-45ad-af94-d91eb81a87e9", "..7a5d6c-2a99-45ad-af94-d91eb81a87e9"}) {
    EXPECT_FALSE(IsUid(wrong)) << wrong;
    EXPECT_TRUE(absl::IsInvalidArgument(CdiSpecOf(wrong, "/run/gpumem").status())) << wrong;
  }
}

TEST(CdiTest, TheFolderOfSocketsIsAnAbsolutePath) {
  EXPECT_TRUE(CdiSpecOf(kUid, "/tmp/a b").ok());
  for (const std::string wrong : {"", "/", "run/gpumem", "/run/../etc", "/run/./gpumem",
                                  "/run//gpumem", "/run/gpumem/", "/run/gpumem\n", "/run/\xff"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CdiSpecOf(kUid, wrong).status())) << wrong;
  }
}

TEST_F(CdiFolderTest, FilesAreReplacedWhole) {
  const CdiFolder folder(path_);
  const mode_t mask = umask(0077);
  EXPECT_TRUE(folder.Write(kUid, "{1}").ok());
  umask(mask);
  EXPECT_EQ(Read(folder.PathOf(kUid)), "{1}");
  struct stat file = {};
  ASSERT_EQ(stat(folder.PathOf(kUid).c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0644u);

  // A reader of the old file keeps it.
  std::ifstream before(folder.PathOf(kUid));
  EXPECT_TRUE(folder.Write(kUid, "{2}").ok());
  std::ostringstream old;
  old << before.rdbuf();
  EXPECT_EQ(old.str(), "{1}");
  EXPECT_EQ(Read(folder.PathOf(kUid)), "{2}");
  EXPECT_THAT(Files(), ElementsAre(absl::StrCat("gpumem.dev-claim_", kUid, ".json")));
}

TEST_F(CdiFolderTest, WhatAKilledWriterLeftIsReplacedAndNotFollowed) {
  const CdiFolder folder(path_);
  const std::string elsewhere = path_ + "/elsewhere";
  std::ofstream(elsewhere) << "kept";
  ASSERT_EQ(symlink(elsewhere.c_str(), (folder.PathOf(kUid) + ".part").c_str()), 0);
  EXPECT_TRUE(folder.Write(kUid, "{1}").ok());
  EXPECT_EQ(Read(elsewhere), "kept");
  EXPECT_EQ(Read(folder.PathOf(kUid)), "{1}");
}

TEST_F(CdiFolderTest, RemovingIsIdempotent) {
  const CdiFolder folder(path_);
  EXPECT_TRUE(folder.Remove(kUid).ok());
  EXPECT_TRUE(folder.Write(kUid, "{1}").ok());
  std::ofstream(folder.PathOf(kUid) + ".part") << "half";
  EXPECT_TRUE(folder.Remove(kUid).ok());
  EXPECT_TRUE(folder.Remove(kUid).ok());
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(CdiFolderTest, TheFolderIsMade) {
  const CdiFolder folder(path_ + "/cdi");
  EXPECT_TRUE(folder.Remove(kUid).ok());
  EXPECT_TRUE(folder.Write(kUid, "{1}").ok());
  EXPECT_EQ(Read(folder.PathOf(kUid)), "{1}");
}

TEST_F(CdiFolderTest, NamesDoNotLeaveTheFolder) {
  const CdiFolder folder(path_ + "/cdi");
  EXPECT_TRUE(absl::IsInvalidArgument(folder.Write("../x", "{}")));
  EXPECT_TRUE(absl::IsInvalidArgument(folder.Remove("../x")));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(CdiFolderTest, ErrorsNameTheFile) {
  const CdiFolder folder(path_ + "/a/b");  // "a" does not exist
  const absl::Status written = folder.Write(kUid, "{}");
  EXPECT_TRUE(absl::IsNotFound(written)) << written;
  EXPECT_THAT(std::string(written.message()), ::testing::HasSubstr(path_));
}

TEST(CdiClaimsTest, ClaimsWithAFileAreFound) {
  const std::string path = ::testing::TempDir() + "/cdi_claims";
  const CdiFolder folder(path);
  std::filesystem::remove_all(path);
  EXPECT_TRUE(folder.Claims().empty());
  const std::string one = "c1000000-2a99-45ad-af94-d91eb81a87e9";
  const std::string two = "c2000000-2a99-45ad-af94-d91eb81a87e9";
  ASSERT_TRUE(folder.Write(one, "{}").ok());
  std::ofstream(folder.PathOf(two) + ".part") << "{";
  for (const char* other : {"nvidia.yaml", "gpumem.dev-claim_.json", "gpumem.dev-claim_x.json"}) {
    std::ofstream(path + "/" + other) << "{}";
  }
  EXPECT_EQ(folder.Claims(), (std::set<std::string>{one, two}));
  ASSERT_TRUE(folder.Remove(two).ok());
  EXPECT_EQ(folder.Claims(), (std::set<std::string>{one}));
}

}  // namespace cdi_test
}  // namespace gpumem::kubernetes
