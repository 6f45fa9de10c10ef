// SPDX-License-Identifier: Apache-2.0
// Programs that know nothing of gpumem, in jobs of a real Slurm and on a CUDA driver over host
// memory (tests/fake_cuda).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/slurm/cluster.h"
#include "tests/slurm/slurm_fixture.h"

namespace gpumem {
namespace {

using ::testing::HasSubstr;
using testing::kUsers;

class SlurmPreloadTest : public SlurmTest {
 protected:
  // As an installation has them; the program and the driver lie beside it.
  bool StartWithPrograms(const std::string& plugin_args) {
#if !GPUMEM_WITH_CUDA
    Skip("built without CUDA");
    return false;
#endif
    if (!Start({.plugin_args = plugin_args})) return false;
    std::filesystem::create_directories(lib("gpumem"));
    const std::pair<const char*, const char*> files[] = {
        {"COPIED_PRELOAD", "gpumem/libgpumem-preload.so"},
        {"COPIED_ACCOUNTANT", "gpumem/libgpumem-accountant.so"},
        {"COPIED_LIBGPUMEM", "libgpumem.so.1"},
        {"COPIED_LIBCUDA", "libcuda.so.1"},
        {"COPIED_WAYS", "ways"}};
    for (const auto& [variable, name] : files) {
      std::filesystem::copy_file(std::getenv(variable), lib(name));
      std::filesystem::permissions(lib(name), std::filesystem::perms(0755));
    }
    return true;
  }
  std::string lib(const std::string& name) const {
    return absl::StrCat(cluster_->folder(), "/lib/", name);
  }
  // Allocates 32 MiB at a time, until it is refused, in a job of 288 MiB.
  testing::Cluster::Result AllocateAll(const std::vector<std::string>& options) {
    std::vector<std::string> args = {"srun", "--quiet", "-w", "node1", "--gpumem=288M"};
    args.insert(args.end(), options.begin(), options.end());
    for (const std::string& arg :
         {std::string("/usr/bin/env"), absl::StrCat("LD_LIBRARY_PATH=", lib("")),
          std::string("FAKE_CUDA_HOST_UUIDS=1"), absl::StrCat("GPUMEM_PRELOAD_CONTEXT=", 16 << 20),
          lib("ways"), std::string("alloc"), absl::StrCat(32 << 20)}) {
      args.push_back(arg);
    }
    return cluster_->AsUser(kUsers[0], args);
  }
};

TEST_F(SlurmPreloadTest, AnUnmodifiedProgramIsHeldToTheJobsMemory) {
  if (!StartWithPrograms("preload_library=$F/lib/gpumem/libgpumem-preload.so")) return;
  // Eight of them and the context, which is taken to have 16 MiB.
  const auto held = AllocateAll({"--gpumem-preload"});
  EXPECT_EQ(held.code, 0) << held.output;
  EXPECT_THAT(held.output, HasSubstr(absl::StrCat("device_total=", 288 << 20)));
  EXPECT_THAT(held.output, HasSubstr("got=8"));
  const auto free = AllocateAll({});
  EXPECT_THAT(free.output, HasSubstr(absl::StrCat("device_total=", 1 << 30))) << free.output;
  ExpectNothingLeft();
}

TEST_F(SlurmPreloadTest, ASiteDecidesForJobsThatSayNothing) {
  if (!StartWithPrograms("preload=yes preload_library=$F/lib/gpumem/libgpumem-preload.so")) return;
  EXPECT_THAT(AllocateAll({}).output, HasSubstr("got=8"));
  const auto free = AllocateAll({"--gpumem-preload=no"});
  EXPECT_THAT(free.output, HasSubstr(absl::StrCat("device_total=", 1 << 30))) << free.output;
  const auto wrong = AllocateAll({"--gpumem-preload=perhaps"});
  EXPECT_NE(wrong.code, 0);
  EXPECT_THAT(wrong.output, HasSubstr("neither yes nor no"));
  ExpectNothingLeft();
}

TEST_F(SlurmPreloadTest, WithoutTheLibraryTheProgramDoesNotRun) {
  if (!StartWithPrograms("preload_library=/no/such/library.so")) return;
  const auto failed = AllocateAll({"--gpumem-preload"});
  EXPECT_NE(failed.code, 0) << failed.output;
  EXPECT_THAT(failed.output, ::testing::Not(HasSubstr("device_total")));
  ExpectNothingLeft();
}

}  // namespace
}  // namespace gpumem
