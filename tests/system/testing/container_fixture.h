// SPDX-License-Identifier: Apache-2.0
// gpumemd in a container, as on a node of Kubernetes, and clients in containers of pods
// (tests/system/testing/container_worker.h).
//
// With $GPUMEM_IMAGE_ROOTFS, an image's root file system in a folder, all containers have that one,
// and all programs in them but the clients are the image's.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "tests/support/child.h"
#include "tests/support/container_host.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {

inline constexpr uid_t kDaemonUid = 64740;
inline constexpr char kPodOfDaemon[] = "0d0d0d0d-0000-4000-8000-000000000000";
inline constexpr char kRed[] = "aaaaaaaa-1111-4222-8333-444444444444";
inline constexpr char kBlue[] = "bbbbbbbb-1111-4222-8333-444444444444";

// Returns Kubernetes's group for a container of this pod, with containerd and the systemd driver.
inline std::string GroupOf(const std::string& name, const std::string& pod,
                           const std::string& qos = "burstable") {
  std::string uid = pod;
  std::replace(uid.begin(), uid.end(), '-', '_');
  std::string id;
  for (unsigned char c : name) absl::StrAppend(&id, absl::Hex(c, absl::kZeroPad2));
  id.resize(64, '0');
  const std::string above =
      qos == "guaranteed" ? "/kubepods.slice/kubepods"
                          : absl::StrCat("/kubepods.slice/kubepods-", qos, ".slice/kubepods-", qos);
  return absl::StrCat(above, "-pod", uid, ".slice/cri-containerd-", id, ".scope");
}

// Returns the configuration in the manifests' ConfigMap: the lines indented below its name.
inline std::string ManifestConfig() {
  std::ifstream file("deploy/kubernetes/daemon/config.yaml");
  std::string config;
  bool in_config = false;
  for (std::string line; std::getline(file, line);) {
    if (in_config && !line.empty() && !absl::StartsWith(line, "    ")) break;
    if (in_config) absl::StrAppend(&config, absl::StripPrefix(line, "    "), "\n");
    in_config = in_config || line == "  gpumemd.toml: |";
  }
  return config;
}

inline std::string Absolute(const std::string& path) {
  return std::filesystem::absolute(path).string();
}

// $GPUMEM_KEEPER, or the one in the folder of this program.
inline std::string KeeperPath() {
  const char* path = std::getenv("GPUMEM_KEEPER");
  return path != nullptr ? path : ProgramPath("gpumem-keeper");
}

inline std::string ImageRootfs() {
  const char* path = std::getenv("GPUMEM_IMAGE_ROOTFS");
  return path != nullptr ? path : "";
}

// How a program of the project is called in a container.
inline std::string Inside(const std::string& name) {
  return ImageRootfs().empty() ? absl::StrCat("/opt/", name) : name;
}

// A client in a container, from the test's side.
class Worker {
 public:
  Worker(Child child, UniqueFd listener)
      : child_(std::move(child)), listener_(std::move(listener)) {}
  // Its answer to words of container_worker.h; an error in words where none comes within a minute.
  std::string Ask(const std::string& words) {
    Say(words);
    return testing::Hear(channel_.get());
  }
  void Say(const std::string& words) {
    if (!channel_.valid()) Accept();
    testing::Say(channel_.get(), words);
  }
  std::string Hear() { return testing::Hear(channel_.get()); }
  Child& child() { return child_; }

 private:
  void Accept() {
    pollfd ready = {listener_.get(), POLLIN, 0};
    poll(&ready, 1, 60'000);
    channel_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  Child child_;
  UniqueFd listener_, channel_;
};

class ContainerTest : public ::testing::Test {
 protected:
  // Two pods, each a tenant; a pod without a tenant gets one by its name.
  static constexpr char kConfig[] = R"toml(
[host]
device_bytes = "256MiB"
[[tenant]]
name = "red"
limit = "128MiB"
[[tenant]]
name = "blue"
limit = "192MiB"
[[rule]]
tenant = "red"
pod = "aaaaaaaa-*"
[[rule]]
tenant = "blue"
pod = "bbbbbbbb-*"
cgroup = "/kubepods.slice/*"
[[rule]]
tenant = "pod-{pod}"
pod = "*"
[[rule]]
tenant = "user-{uid}"
default = true
)toml";

  void SetUp() override {
    auto host = ContainerHost::Boot(ImageRootfs());
    if (absl::IsFailedPrecondition(host.status())) GTEST_SKIP() << host.status().message();
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    // The node's part in a DaemonSet's manifest: two folders, the daemon's.
    for (const char* name : {"run", "state", "stages"}) {
      const std::string folder = absl::StrCat(host_->folder(), "/", name);
      mkdir(folder.c_str(), 0755);
      EXPECT_EQ(chown(folder.c_str(), kDaemonUid, kDaemonUid), 0);
    }
    std::ofstream(host_->folder() + "/gpumemd.toml") << kConfig;
  }
  std::string Log() const { return host_->Log("daemon"); }
  int Generations() const {
    const std::string log = Log();
    int count = 0;
    for (size_t at = log.find(" ready: "); at != std::string::npos;
         at = log.find(" ready: ", at + 1)) {
      ++count;
    }
    return count;
  }

  ContainerSpec DaemonSpec() const {
    const std::string& folder = host_->folder();
    ContainerSpec spec = {
        .name = "daemon",
        .cgroup = GroupOf("daemon", kPodOfDaemon, "besteffort"),
        .args = {Inside("gpumem-keeper"), "--healthy-after=0", "--", Inside("gpumemd"), "--backend",
                 "host", "--config", "/etc/gpumemd.toml", "--runtime-dir", "/run/gpumem",
                 "--state-dir", "/var/lib/gpumem"},
        .env = {"GPUMEM_RUNTIME_DIR=/run/gpumem"},
        .uid = kDaemonUid,
        .gid = kDaemonUid,
        .host_pid = true,
        .mounts = {{folder + "/gpumemd.toml", "/etc/gpumemd.toml", true},
                   {folder + "/run", "/run/gpumem"},
                   {folder + "/state", "/var/lib/gpumem"},
                   {"/sys/fs/cgroup", "/host/cgroup", true}}};
    AddProgram(KeeperPath(), "gpumem-keeper", spec);
    AddProgram(ProgramPath("gpumemd"), "gpumemd", spec);
    AddProgram(ProgramPath("gpumemctl"), "gpumemctl", spec);
    return spec;
  }
  static void AddProgram(const std::string& path, const std::string& name, ContainerSpec& spec) {
    if (ImageRootfs().empty()) spec.mounts.push_back({Absolute(path), Inside(name), true});
  }
  // Success if it serves.
  ::testing::AssertionResult StartDaemon(const ContainerSpec& spec) {
    daemon_ = host_->Run(spec);
    if (Eventually([&] { return Generations() == 1; })) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << Log();
  }
  // A client of this pod: `mounts` besides the folder of the daemon's sockets.
  Worker StartWorker(const std::string& name, const std::string& pod, uid_t uid = 1000) {
    ContainerSpec spec = WorkerSpec(name, pod, uid);
    spec.mounts.push_back({host_->folder() + "/run", "/run/gpumem", true});
    return StartWorker(spec);
  }
  ContainerSpec WorkerSpec(const std::string& name, const std::string& pod, uid_t uid) const {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    ContainerSpec spec = {
        .name = name,
        .cgroup = GroupOf(name, pod),
        .args = {"/opt/worker", "--worker", absl::StrCat("/stages/", name)},
        .uid = uid,
        .gid = uid,
        .mounts = {{self, "/opt/worker", true}, {host_->folder() + "/stages", "/stages"}}};
    AddProgram(ProgramPath("gpumemctl"), "gpumemctl", spec);
    return spec;
  }
  Worker StartWorker(const ContainerSpec& spec) {
    auto listener =
        ListenUnix(absl::StrCat(host_->folder(), "/stages/", spec.name), SOCK_SEQPACKET, 0666);
    EXPECT_TRUE(listener.ok()) << listener.status();
    return Worker(host_->Run(spec), *std::move(listener));
  }
  // gpumemctl in the daemon's container, as an exec probe runs it.
  ContainerHost::Result Ctl(std::vector<std::string> args) const {
    args.insert(args.begin(), Inside("gpumemctl"));
    return host_->Exec("daemon", args);
  }
  // Returns a list of gpumemctl's JSON output; empty if there is none.
  nlohmann::json List(std::vector<std::string> args, const std::string& list) const {
    args.emplace_back("--json");
    const auto answer = nlohmann::json::parse(Ctl(args).output, nullptr, false);
    return answer.is_object() ? answer.value(list, nlohmann::json::array())
                              : nlohmann::json::array();
  }
  nlohmann::json Sessions() const { return List({"ps"}, "sessions"); }
  // How many requests of a tenant wait for memory.
  int Waiting(const std::string& tenant) const {
    for (const nlohmann::json& each : List({"quota", "list"}, "tenants")) {
      if (each["usage"]["tenant"] == tenant) return each["usage"]["waiting"];
    }
    return 0;
  }
  // The daemon's own process on the node: the keeper's child.
  pid_t DaemonOnNode() const {
    const std::string keeper = absl::StrCat(host_->PidOf("daemon"));
    const auto children =
        host_->OnNode({"cat", absl::StrCat("/proc/", keeper, "/task/", keeper, "/children")});
    pid_t pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(children.output, &pid)) << children.output;
    return pid;
  }

  std::unique_ptr<ContainerHost> host_;
  Child daemon_;
};

}  // namespace gpumem::testing
