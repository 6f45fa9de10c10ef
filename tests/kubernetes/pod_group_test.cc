// SPDX-License-Identifier: Apache-2.0
// The rule of the guide and the plug-in agree on a pod: a process in the control group that a
// kubelet makes gets its pod's share.
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/kubernetes/cluster.h"
#include "tests/support/child.h"
#include "tests/support/live_cgroup.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Cluster;
using testing::LiveCgroup;
using testing::TestPod;

constexpr char kConfig[] = R"(
[tenant_defaults]
limit = "0"
[[rule]]
tenant = "pod-{pod}"
pod = "*"
)";

// Returns the group of a container in the pod, with the kubelet's driver for systemd.
std::string GroupOf(const TestPod& pod) {
  return absl::StrCat("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod",
                      absl::StrReplaceAll(pod.uid(), {{"-", "_"}}), ".slice/cri-containerd-",
                      std::string(64, 'a'), ".scope");
}

TEST(PodGroupTest, APodsProcessesGetItsShare) {
  if (testing::InAUnit()) GTEST_SKIP() << "this test runs in a unit of systemd itself";
  // Of no other test that runs.
  const TestPod pod{static_cast<int>(getpid()), {{0, 64}}};
  auto group = LiveCgroup::Make("", GroupOf(pod));
  if (!group.ok()) group = LiveCgroup::Make("pids", GroupOf(pod));
  if (!group.ok()) GTEST_SKIP() << group.status().message();
  auto cluster = Cluster::Start(kConfig);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const auto hold = [&](int mib) {
    return Child({"/bin/sh", "-c", "echo 0 >\"$0\" && exec \"$@\"", (*group)->procs(),
                  (*cluster)->Program("gpumemctl"), "--runtime-dir",
                  (*cluster)->daemon().runtime_dir(), "hold", "--for", "1ms", "--device",
                  (*cluster)->gpu(0), "--size", absl::StrCat(mib, "MiB")})
        .Wait();
  };
  EXPECT_NE(hold(2), 0) << "before the plug-in has seen its claim";
  (*cluster)->SetPods({pod});
  ASSERT_EQ((*cluster)->RunPluginOnce(), 0) << (*cluster)->PluginLog();
  EXPECT_EQ(hold(64), 0);
  EXPECT_NE(hold(66), 0);
  (*cluster)->SetPods({});
  ASSERT_EQ((*cluster)->RunPluginOnce(), 0) << (*cluster)->PluginLog();
  EXPECT_NE(hold(2), 0) << "after its end";
}

}  // namespace
}  // namespace gpumem
