// SPDX-License-Identifier: Apache-2.0
// A container runtime reads the CDI file of a claim: the container finds gpumemd, as its pod's
// tenant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "tests/kubernetes/dra_node.h"
#include "tests/support/child.h"
#include "tests/support/live_cgroup.h"

namespace gpumem::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kRules[] = R"(
[tenant_defaults]
limit = "0"
[[rule]]
tenant = "pod-{pod}"
pod = "*"
)";
constexpr char kDriverId[] = "-2a99-45ad-af94-d91eb81a87e9";

struct Output {
  int code = 0;
  std::string text;
};

class PodmanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can run these containers";
    if (std::system("command -v podman unshare ldd >/dev/null") != 0) {
      GTEST_SKIP() << "podman is not installed here";
    }
    if (InAUnit()) GTEST_SKIP() << "this test runs in a unit of systemd itself";
    // Of no other test that runs.
    pod_ = absl::StrFormat("%08d%s", getpid(), kDriverId);
    const std::string path =
        absl::StrCat("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod",
                     absl::StrReplaceAll(pod_, {{"-", "_"}}), ".slice/cri-containerd-",
                     std::string(64, 'c'), ".scope");
    auto group = LiveCgroup::Make("", path);
    if (!group.ok()) group = LiveCgroup::Make("pids", path);
    if (!group.ok()) GTEST_SKIP() << group.status().message();
    group_ = *std::move(group);
    auto node = DraNode::Start(kRules);
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    ASSERT_TRUE(node_->Register().ok());
    std::filesystem::create_directory(node_->dir() + "/cdi");
    const Output probe = Run({}, "echo ran");
    if (probe.code != 0) GTEST_SKIP() << "no containers can be run here: " << probe.text;
    ASSERT_EQ(probe.text, "ran\n");
  }

  // Runs a script in a new container with these CDI devices.
  Output Run(const std::vector<std::string>& devices, const std::string& script) const {
    std::string command = absl::StrCat(
        "tests/kubernetes/podman.sh ", node_->dir(), "/podman ", node_->dir(), "/cdi ",
        group_->procs(), " ", std::filesystem::absolute(ProgramPath("gpumemctl")).string());
    for (const std::string& device : devices) absl::StrAppend(&command, " --device ", device);
    absl::StrAppend(&command, " --rootfs ", node_->dir(), "/podman/root /bin/sh -c '", script,
                    "' 2>&1");
    FILE* const pipe = popen(command.c_str(), "re");
    Output output;
    std::array<char, 4096> part;
    while (const size_t size = fread(part.data(), 1, part.size(), pipe)) {
      output.text.append(part.data(), size);
    }
    output.code = pclose(pipe);
    return output;
  }

  std::string pod_;
  std::unique_ptr<LiveCgroup> group_;
  std::unique_ptr<DraNode> node_;
};

TEST_F(PodmanTest, AContainerOfAClaimIsItsPodsTenant) {
  const kubernetes::ClaimName name{"team", "one", absl::StrCat("c1000000", kDriverId)};
  node_->store().SetClaims({ClaimText(name, kDevice0, 64, pod_)});
  const auto devices = node_->Prepare(name);
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_THAT(*devices,
              ElementsAre("gpumem.dev/claim=" + name.uid, absl::StrCat("nvidia.com/gpu=", kGpu0)));
  EXPECT_NE(Run(*devices, "true").code, 0) << "nothing says yet what the GPU is";
  // In place of what nvidia-ctk generates.
  std::ofstream(node_->dir() + "/cdi/nvidia.yaml")
      << "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: " << kGpu0
      << "\n  containerEdits:\n    env:\n    - FAKE_GPU=0\n    deviceNodes:\n"
      << "    - path: /dev/fake-gpu\n      hostPath: /dev/null\n";

  const Output seen =
      Run(*devices,
          "echo $GPUMEM_RUNTIME_DIR $FAKE_GPU; [ -c /dev/fake-gpu ] && echo device; "
          "echo x >/run/gpumem/x || echo read-only");
  EXPECT_EQ(seen.code, 0) << seen.text;
  EXPECT_THAT(seen.text, HasSubstr("/run/gpumem 0\ndevice\n"));
  EXPECT_THAT(seen.text, HasSubstr("read-only\n"));
  const auto hold = [&](int mib) {
    return Run(*devices, absl::StrCat("/bin/program hold --for 1ms --device ", kGpu0, " --size ",
                                      mib, "MiB"));
  };
  const Output within = hold(64);
  EXPECT_EQ(within.code, 0) << within.text;
  const Output above = hold(66);
  EXPECT_NE(above.code, 0);
  EXPECT_THAT(above.text, HasSubstr(absl::StrCat("pod-", pod_))) << "it says whose limit it is";

  ASSERT_TRUE(node_->Unprepare(name).ok());
  const Output after = Run(*devices, "true");
  EXPECT_NE(after.code, 0);
  EXPECT_THAT(after.text, HasSubstr("gpumem.dev/claim=" + name.uid));
}

}  // namespace
}  // namespace gpumem::testing
