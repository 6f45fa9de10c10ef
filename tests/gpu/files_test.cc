// SPDX-License-Identifier: Apache-2.0
// gpumemctl publish, fetch and verify through real GPU memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/cuda/device_copy.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"

namespace gpumem {
namespace files_test {

namespace fs = std::filesystem;

class GpuFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = testing::DaemonProcess::Start({.backend = "cuda"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    std::string path = "/tmp/gpumem-files-XXXXXX";
    dir_ = mkdtemp(path.data());
  }
  ~GpuFiles() override {
    if (!dir_.empty()) fs::remove_all(dir_);
  }

  std::string Make(const std::string& name, uint64_t bytes) {
    std::string content(bytes, '\0');
    uint64_t state = bytes;
    for (char& c : content) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      c = static_cast<char>(state >> 56);
    }
    std::string path = absl::StrCat(dir_, "/", name);
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  int Run(std::vector<std::string> args) {
    args.insert(args.begin(),
                {testing::ProgramPath("gpumemctl"), "--runtime-dir", daemon_->runtime_dir()});
    return testing::Child(args).Wait();
  }

  std::unique_ptr<testing::DaemonProcess> daemon_;
  std::string dir_;
};

TEST_F(GpuFiles, GoToTheGpuAndComeBack) {
  // More pieces than there are slots to copy them through, and an odd end.
  const std::string a = Make("a.bin", (uint64_t{150} << 20) + 4321);
  const std::string b = Make("b.bin", 17);
  for (const std::string kind : {"vmm", "pinned"}) {
    ASSERT_EQ(Run({"publish", "model", "--kind", kind, "--file", a, b}), 0) << kind;
    EXPECT_EQ(Run({"verify", "model"}), 0) << kind;
    const std::string out = absl::StrCat(dir_, "/", kind);
    fs::create_directory(out);
    ASSERT_EQ(Run({"fetch", "model", "--out", out}), 0) << kind;
    EXPECT_TRUE(Read(out + "/a.bin") == Read(a)) << kind;
    EXPECT_TRUE(Read(out + "/b.bin") == Read(b)) << kind;
  }
}

TEST_F(GpuFiles, VerifySeesAnyByteThatIsDifferent) {
  const std::string a = Make("a.bin", uint64_t{64} << 20);
  ASSERT_EQ(Run({"publish", "model", "--kind", "vmm", "--file", a}), 0);
  auto client = daemon_->Connect();
  ASSERT_OK(client);
  auto attached = (*client)->Attach("model", {.read_only = false});
  ASSERT_OK(attached);
  auto copier = DeviceCopier::ForCuda(attached->segments()[0].device_uuid());
  ASSERT_OK(copier);
  char byte = 0;
  char* at = static_cast<char*>(attached->data()) + (uint64_t{64} << 20) - 1;
  ASSERT_OK((*copier)->CopyOut(&byte, at, 1));
  byte ^= 1;
  ASSERT_OK((*copier)->CopyIn(at, &byte, 1));
  EXPECT_EQ(Run({"verify", "model"}), 8);
  EXPECT_EQ(Run({"fetch", "model", "--out", dir_ + "/bad"}), 8);
  EXPECT_FALSE(fs::exists(dir_ + "/bad"));
}

}  // namespace files_test
}  // namespace gpumem
