// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/peer/cgroup_namespace.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

constexpr char kOwn[] = "/kubepods.slice/kubepods-besteffort.slice/pod1.slice/one.scope";

TEST(FromMachineRoot, NamesGroupsOfOthersAsTheMachineDoes) {
  const auto path = [](const std::string& seen) {
    return FromMachineRoot(absl::StrCat("0::", seen, "\n"), kOwn);
  };
  EXPECT_EQ(path("/"), absl::StrCat("0::", kOwn, "\n"));
  EXPECT_EQ(path("/below"), absl::StrCat("0::", kOwn, "/below\n"));
  EXPECT_EQ(path("/../two.scope"),
            "0::/kubepods.slice/kubepods-besteffort.slice/pod1.slice/two.scope\n");
  EXPECT_EQ(path("/../../pod2.slice/x"),
            "0::/kubepods.slice/kubepods-besteffort.slice/pod2.slice/x\n");
  EXPECT_EQ(path("/../../../../system.slice/a.service"), "0::/system.slice/a.service\n");
  EXPECT_EQ(path("/../../../.."), "0::/\n");
}

TEST(FromMachineRoot, LeavesWhatItCannotKnow) {
  for (const char* text : {"0::/../../../../../further\n", "0::/../gone (deleted)\n",
                           "4:memory:/../x\n", "nonsense", ""}) {
    EXPECT_EQ(FromMachineRoot(text, kOwn), text);
  }
  EXPECT_EQ(FromMachineRoot("0::/../x\n", ""), "0::/../x\n");
  // The other hierarchies' lines stay as they are.
  EXPECT_EQ(FromMachineRoot("4:memory:/a\n0::/../x\n", "/b/c"), "4:memory:/a\n0::/b/x\n");
}

// Folders stand in for groups: only the inode is compared.
class RootOfCgroupNamespaceTest : public ::testing::Test {
 protected:
  RootOfCgroupNamespaceTest() {
    char folder[] = "/tmp/gpumem-test-XXXXXX";
    folder_ = mkdtemp(folder);
    for (const char* group : {"/a/x/one", "/a/y/one", "/a/y/two/deep", "/b"}) {
      std::filesystem::create_directories(folder_ + group);
    }
  }
  ~RootOfCgroupNamespaceTest() override { std::filesystem::remove_all(folder_); }
  static std::string Mount(const std::string& root, const std::string& where,
                           const std::string& type = "cgroup2") {
    return absl::StrCat("33 24 0:29 ", root, " ", where, " ro,nosuid shared:9 - ", type, " ", type,
                        " rw\n");
  }
  static std::string Root(const std::string& mountinfo) {
    return RootOfCgroupNamespace(mountinfo, /*pid=*/42);
  }
  std::string folder_;
};

TEST_F(RootOfCgroupNamespaceTest, IsFoundByItsInode) {
  const std::string machine = Mount("/../../..", folder_);
  EXPECT_EQ(Root(Mount("/", folder_ + "/a/y/two") + machine), "/a/y/two");
  EXPECT_EQ(Root(machine + Mount("/", folder_ + "/a/y/one")), "/a/y/one");
  // Something that shows only a part of it does not count.
  EXPECT_EQ(Root(machine + Mount("/", folder_ + "/a/y/one") + Mount("/..", folder_ + "/a/y")),
            "/a/y/one");
}

TEST_F(RootOfCgroupNamespaceTest, IsUnknownWhereTheMachinesGroupsAreNotSeen) {
  const std::string own = Mount("/", folder_ + "/a/y/two");
  EXPECT_EQ(Root(""), "");
  EXPECT_EQ(Root(own), "");
  EXPECT_EQ(Root(own + Mount("/../../..", folder_, "cgroup")), "");
  EXPECT_EQ(Root(own + Mount("/../../../c", folder_)), "");
  EXPECT_EQ(Root(own + Mount("/../..", folder_)), "") << "too deep for it";
  EXPECT_EQ(Root(own + Mount("/../../..", folder_ + "/b")), "");
  EXPECT_EQ(Root(Mount("/../../..", folder_)), "");
}

// A container manager has mounted the machine's at /sys/fs/cgroup itself, so the container's own
// is not there, or is hidden.
TEST_F(RootOfCgroupNamespaceTest, IsFoundByThisProcessWhereTheOwnIsHidden) {
  const std::string machine = Mount("/../../..", folder_);
  std::ofstream(folder_ + "/a/x/one/cgroup.procs") << "1\n24\n";
  std::ofstream(folder_ + "/a/y/one/cgroup.procs") << "142\n";
  std::ofstream(folder_ + "/a/y/two/cgroup.procs") << "7\n42\n";
  EXPECT_EQ(Root(machine), "/a/y/two");
  EXPECT_EQ(Root(Mount("/", folder_) + machine), "/a/y/two");
  EXPECT_EQ(Root(machine + Mount("/", folder_ + "/a/x/one")), "/a/x/one") << "the inode is surer";
}

TEST_F(RootOfCgroupNamespaceTest, PathsOfMountsMayHaveBlanksAndBackslashes) {
  const std::string odd = folder_ + "/odd \t\\n\\040";
  std::filesystem::create_directories(odd + "/a/y/two");
  std::string escaped = folder_ + "/odd\\040\\011\\134n\\134040";
  EXPECT_EQ(Root(Mount("/", escaped + "/a/y/two") + Mount("/../../..", escaped)), "/a/y/two");
  std::filesystem::create_directories(folder_ + "/end\\04/a/y/two");
  escaped = folder_ + "/end\\04";
  EXPECT_EQ(Root(Mount("/", escaped + "/a/y/two") + Mount("/../../..", escaped)), "/a/y/two");
}

TEST_F(RootOfCgroupNamespaceTest, EveryMountIsTried) {
  const std::string machine = Mount("/../../..", folder_);
  const std::string own = Mount("/", folder_ + "/a/y/two");
  const std::string hidden = Mount("/../../..", folder_ + "/b");
  const std::string gone = Mount("/", folder_ + "/gone"), other = Mount("/", folder_ + "/b");
  for (const std::string& mounts :
       {absl::StrCat(hidden, machine, own), absl::StrCat(machine, hidden, own),
        absl::StrCat(own, gone, machine), absl::StrCat(gone, own, other, machine, hidden)}) {
    EXPECT_EQ(Root(mounts), "/a/y/two") << mounts;
  }
}

}  // namespace
}  // namespace gpumemd
