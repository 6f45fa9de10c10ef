// SPDX-License-Identifier: Apache-2.0
#include "tests/kubernetes/device_plugin_node.h"

#include <signal.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/kubernetes/device_plugin/units.h"
#include "client/kubernetes/reconcile.h"
#include "tests/kubernetes/daemon_view.h"

namespace gpumem::testing {
namespace {

using nlohmann::json;

constexpr char kNode[] = "node-1";
constexpr absl::Duration kPatience = absl::Seconds(60);

}  // namespace

std::string UnitPod::uid() const {
  return absl::StrFormat("%08d-2a99-45ad-af94-d91eb81a87e9", number);
}
std::string UnitPod::tenant() const { return absl::StrCat("pod-", uid()); }

absl::StatusOr<std::unique_ptr<DevicePluginNode>> DevicePluginNode::Start() {
  std::unique_ptr<DevicePluginNode> node(new DevicePluginNode);
  // Not under TEST_TMPDIR: its path is longer than a socket's name may be.
  char dir[] = "/tmp/gpumem-devices-XXXXXX";
  if (mkdtemp(dir) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  node->dir_ = dir;
  auto daemon = DaemonProcess::Start(
      {.config = absl::StrCat("[host]\ndevices = ", kUnitGpus, "\ndevice_bytes = \"",
                              kUnitsOfGpu * kUnitMib, "MiB\"\n",
                              "[[rule]]\ntenant = \"user-{uid}\"\ndefault = true\n")});
  if (!daemon.ok()) return daemon.status();
  node->daemon_ = *std::move(daemon);
  node->certificate_ = kubernetes::MakeCertificate("localhost", "127.0.0.1");
  std::ofstream(node->dir_ + "/token") << "token";
  std::ofstream(node->dir_ + "/ca.crt") << node->certificate_.certificate;
  node->StartApiServer();
  node->kubelet_ =
      std::make_unique<DeviceKubelet>(node->dir_ + "/devices", node->dir_ + "/pod-resources.sock");
  return node;
}

DevicePluginNode::~DevicePluginNode() {
  plugin_ = Child();
  kubelet_ = nullptr;
  api_server_ = nullptr;
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

std::string DevicePluginNode::uuid(int gpu) const {
  return absl::StrFormat("HOST-%08x-0000-0000-0000-000000000000", gpu);
}

void DevicePluginNode::Create(const UnitPod& pod, bool acknowledged) {
  json object = {{"metadata", {{"namespace", "team"}, {"name", pod.name}, {"uid", pod.uid()}}},
                 {"spec", {{"nodeName", kNode}}},
                 {"status", {{"phase", "Pending"}}}};
  if (acknowledged) object["status"]["startTime"] = "2026-01-01T00:00:00Z";
  pods_[pod.uid()] = object.dump();
  SetPods();
}

void DevicePluginNode::Delete(const UnitPod& pod) {
  pods_.erase(pod.uid());
  SetPods();
}

void DevicePluginNode::SetPods() {
  if (api_server_ == nullptr) return;
  std::vector<std::string> pods;
  for (const auto& [uid, pod] : pods_) pods.push_back(pod);
  api_server_->SetPods(std::move(pods));
}

void DevicePluginNode::StartApiServer() {
  api_server_ = std::make_unique<kubernetes::FakeApiServer>(certificate_, port_);
  port_ = api_server_->port();
  SetPods();
}

void DevicePluginNode::StartPlugin(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"/bin/sh",
                                        "-c",
                                        "exec \"$@\" 2>>\"$0\"",
                                        dir_ + "/plugin.log",
                                        ProgramPath("gpumem_device_plugin"),
                                        "--node",
                                        kNode,
                                        "--runtime-dir",
                                        daemon_->runtime_dir(),
                                        "--kubelet-socket",
                                        dir_ + "/pod-resources.sock",
                                        "--device-plugin-folder",
                                        dir_ + "/devices",
                                        "--api-server",
                                        absl::StrCat("https://127.0.0.1:", port_),
                                        "--token-file",
                                        dir_ + "/token",
                                        "--ca-file",
                                        dir_ + "/ca.crt",
                                        "--interval",
                                        "50ms",
                                        "--step",
                                        absl::StrCat(kUnitMib, "MiB")};
  arguments.insert(arguments.end(), more.begin(), more.end());
  plugin_ = Child(std::move(arguments));
}

bool DevicePluginNode::KillPlugin() {
  plugin_ = Child();
  return Eventually([&] { return kubelet_->resource().empty(); }, kPatience);
}

int DevicePluginNode::RunPlugin(const std::vector<std::string>& arguments) const {
  std::vector<std::string> command = {ProgramPath("gpumem_device_plugin")};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return Child(std::move(command)).Wait();
}

std::string DevicePluginNode::PluginLog() const {
  std::ostringstream text;
  text << std::ifstream(dir_ + "/plugin.log").rdbuf();
  return text.str();
}

absl::Status DevicePluginNode::KillDaemon() {
  daemon_->child().Signal(SIGKILL);
  const int code = daemon_->child().Wait();
  return code == 128 + SIGKILL ? absl::OkStatus() : absl::InternalError(absl::StrCat(code));
}

std::string DevicePluginNode::Gpumemctl(const std::string& arguments) const {
  return testing::Gpumemctl(daemon_->runtime_dir(), arguments);
}

bool DevicePluginNode::WaitForUnits() {
  return Eventually([&] { return kubelet_->healthy() == kUnitGpus * kUnitsOfGpu; }, kPatience);
}

absl::StatusOr<std::map<std::string, std::map<std::string, int>>> DevicePluginNode::Tenants() {
  const auto shares = SharesOf({.runtime_dir = daemon_->runtime_dir(),
                                .owner = kubernetes::OwnerOf("gpumem.dev/memory", kNode)},
                               (kUnitsOfGpu * kUnitMib) << 20);
  if (!shares.ok()) return shares.status();
  std::map<std::string, std::map<std::string, int>> tenants;
  for (const auto& [tenant, share] : *shares) {
    auto& units = tenants[tenant];
    for (const auto& [uuid, bytes] : share) {
      units[uuid] = static_cast<int>((bytes >> 20) / kUnitMib);
    }
  }
  return tenants;
}

std::map<std::string, std::map<std::string, int>> DevicePluginNode::Wanted() const {
  std::map<std::string, std::map<std::string, int>> wanted;
  for (const auto& [uid, pod] : kubelet_->pods()) {
    for (const std::string& id : pod.ids)
      ++wanted[absl::StrCat("pod-", uid)][kubernetes::ParseId(id)->uuid];
  }
  return wanted;
}

absl::StatusOr<size_t> DevicePluginNode::DescribedPods() const {
  kubernetes::Node node({.runtime_dir = daemon_->runtime_dir()});
  const auto pods = node.Pods();
  if (!pods.ok()) return pods.status();
  size_t count = 0;
  for (const auto& list : pods->lists()) count += list.pod_count();
  return count;
}

bool DevicePluginNode::WaitForTenants() {
  bool wrong = false;
  const auto wanted = Wanted();
  const bool reached = Eventually(
      [&] {
        const auto tenants = Tenants();
        wrong |= absl::IsInternal(tenants.status());
        return wrong || (tenants.ok() && *tenants == wanted);
      },
      kPatience);
  return reached && !wrong;
}

}  // namespace gpumem::testing
