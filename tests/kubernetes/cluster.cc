// SPDX-License-Identifier: Apache-2.0
#include "tests/kubernetes/cluster.h"

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/kubernetes/podresources.pb.h"
#include "tests/kubernetes/daemon_view.h"

namespace gpumem::testing {
namespace {

using kubernetes::FakeApiServer;
using kubernetes::FakeKubelet;
using nlohmann::json;

constexpr char kDriver[] = "gpu.nvidia.com";
constexpr char kNode[] = "node-1";
constexpr char kOwner[] = "gpu.nvidia.com/node-1";
constexpr absl::Duration kPatience = absl::Seconds(60);

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

std::string ClaimOf(const TestPod& pod) {
  std::vector<std::string> results;
  for (const auto& [gpu, mib] : pod.mib) {
    results.push_back(absl::StrCat(R"({"driver": ")", kDriver, R"(", "pool": ")", kNode,
                                   R"(", "device": "gpu-)", gpu,
                                   R"(", "consumedCapacity": {"memory": ")", mib, R"(Mi"}})"));
  }
  return absl::StrCat(R"({"metadata": {"namespace": "team", "name": "claim-)", pod.number,
                      R"("}, "status": {"allocation": {"devices": {"results": [)",
                      absl::StrJoin(results, ","),
                      R"(]}}, "reservedFor": [{"resource": "pods", "name": "pod-)", pod.number,
                      R"(", "uid": ")", pod.uid(), R"("}]}})");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const std::string& rules) {
  std::unique_ptr<Cluster> cluster(new Cluster);
  // Not under TEST_TMPDIR: its path is longer than a socket's name may be.
  char dir[] = "/tmp/gpumem-kubernetes-XXXXXX";
  if (mkdtemp(dir) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  cluster->dir_ = dir;
  auto daemon = DaemonProcess::Start(
      {.config =
           absl::StrCat("[host]\ndevices = ", kGpus, "\ndevice_bytes = \"", kGpuMib, "MiB\"\n",
                        rules, "[[rule]]\ntenant = \"user-{uid}\"\ndefault = true\n")});
  if (!daemon.ok()) return daemon.status();
  cluster->daemon_ = *std::move(daemon);
  const json devices =
      json::parse(cluster->Gpumemctl("devices --json"), nullptr, /*allow_exceptions=*/false);
  if (devices.is_discarded()) return absl::InternalError("gpumemctl devices has failed");
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    cluster->uuids_.push_back(devices["devices"][static_cast<size_t>(gpu)]["device_uuid"]);
  }
  cluster->certificate_ = kubernetes::MakeCertificate("localhost", "127.0.0.1");
  Write(cluster->dir_ + "/token", "token");
  Write(cluster->dir_ + "/ca.crt", cluster->certificate_.certificate);
  cluster->SetSlices(true);
  cluster->StartApiServer();
  cluster->StartKubelet();
  return cluster;
}

Cluster::~Cluster() {
  plugin_ = Child();
  kubelet_ = nullptr;
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

void Cluster::StartApiServer() {
  api_server_ = std::make_unique<FakeApiServer>(certificate_, port_, &store_);
  port_ = api_server_->port();
}

void Cluster::StartKubelet() {
  kubelet_ = std::make_unique<FakeKubelet>(dir_ + "/kubelet.sock");
  SetPodsOfKubelet(kubelet_pods_);
}

void Cluster::SetPods(const std::vector<TestPod>& pods) {
  // In the order in which a cluster has them: the scheduler first.
  SetPodsOfApiServer(pods);
  SetPodsOfKubelet(pods);
}

void Cluster::SetPodsOfApiServer(const std::vector<TestPod>& pods) {
  std::vector<std::string> claims = {R"({"metadata": {"name": "pending"}})"};
  for (const TestPod& pod : pods) claims.push_back(ClaimOf(pod));
  store_.SetClaims(claims);
}

void Cluster::SetPodsOfKubelet(const std::vector<TestPod>& pods) {
  kubelet_pods_ = pods;
  if (kubelet_ == nullptr) return;
  ::v1::ListPodResourcesResponse answer;
  for (const TestPod& pod : pods) {
    FakeKubelet::Add(absl::StrCat("pod-", pod.number), absl::StrCat("claim-", pod.number), kDriver,
                     &answer);
  }
  kubelet_->Set(std::move(answer));
}

void Cluster::SetSlices(bool published) {
  std::vector<std::string> devices;
  for (size_t gpu = 0; gpu < uuids_.size(); ++gpu) {
    devices.push_back(absl::StrCat(
        R"({"name": "gpu-)", gpu, R"(", "attributes": {"uuid": {"string": ")", uuids_[gpu],
        R"("}}, "capacity": {"memory": {"value": ")", kGpuMib, R"(Mi"}}})"));
  }
  std::vector<std::string> slices;
  if (published) {
    slices.push_back(absl::StrCat(R"({"spec": {"driver": ")", kDriver, R"(", "nodeName": ")", kNode,
                                  R"(", "pool": {"name": ")", kNode,
                                  R"(", "generation": 1}, "devices": [)",
                                  absl::StrJoin(devices, ","), "]}}"));
  }
  store_.SetSlices(slices);
}

absl::Status Cluster::KillDaemon() {
  daemon_->child().Signal(SIGKILL);
  const int code = daemon_->child().Wait();
  return code == 128 + SIGKILL ? absl::OkStatus() : absl::InternalError(absl::StrCat(code));
}

std::vector<std::string> Cluster::PluginArguments(const std::string& interval) const {
  std::vector<std::string> arguments = {"/bin/sh",
                                        "-c",
                                        "exec \"$@\" 2>>\"$0\"",
                                        dir_ + "/plugin.log",
                                        ProgramPath("gpumem_kubelet_plugin"),
                                        "--node",
                                        kNode,
                                        "--runtime-dir",
                                        daemon_->runtime_dir(),
                                        "--kubelet-socket",
                                        dir_ + "/kubelet.sock",
                                        "--api-server",
                                        absl::StrCat("https://127.0.0.1:", port_),
                                        "--token-file",
                                        dir_ + "/token",
                                        "--ca-file",
                                        dir_ + "/ca.crt",
                                        "--interval",
                                        interval,
                                        "--timeout",
                                        "10s"};
  arguments.insert(arguments.end(), plugin_flags_.begin(), plugin_flags_.end());
  return arguments;
}

void Cluster::StartPlugin(const std::string& interval, const std::string& notify_socket) {
  plugin_ = Child(PluginArguments(interval), {{"NOTIFY_SOCKET", notify_socket}});
}
void Cluster::KillPlugin() { plugin_ = Child(); }

int Cluster::EndPlugin() {
  plugin_.Signal(SIGTERM);
  return plugin_.Wait();
}

int Cluster::RunPluginOnce() {
  std::vector<std::string> arguments = PluginArguments("1s");
  arguments.emplace_back("--once");
  return Child(std::move(arguments)).Wait();
}

std::string Cluster::PluginLog() const {
  std::ostringstream text;
  text << std::ifstream(dir_ + "/plugin.log").rdbuf();
  return text.str();
}

std::string Cluster::Gpumemctl(const std::string& arguments) const {
  return testing::Gpumemctl(daemon_->runtime_dir(), arguments);
}

absl::StatusOr<std::map<std::string, std::map<int, uint64_t>>> Cluster::Tenants() {
  const json list =
      json::parse(Gpumemctl("quota list --json"), nullptr, /*allow_exceptions=*/false);
  if (list.is_discarded()) return absl::UnavailableError("gpumemctl quota list has failed");
  std::map<std::string, std::map<int, uint64_t>> tenants;
  std::map<std::string, uint64_t> guaranteed;
  for (const json& tenant : list["tenants"]) {
    for (const json& device : tenant["usage"]["devices"]) {
      guaranteed[device["device_uuid"]] += device["guarantee_bytes"].get<uint64_t>();
    }
    const json& made = tenant["made"];
    if (made.is_null() || made["owner"] != kOwner || made["ending"].get<bool>()) continue;
    auto& mib = tenants[tenant["usage"]["tenant"]];
    for (const json& device : tenant["usage"]["devices"]) {
      const auto at = std::find(uuids_.begin(), uuids_.end(), device["device_uuid"]);
      if (at == uuids_.end()) continue;
      if (device["limit_bytes"] != device["guarantee_bytes"]) {
        return absl::InternalError(absl::StrCat("limit and guarantee differ: ", tenant.dump()));
      }
      const auto bytes = device["limit_bytes"].get<uint64_t>();
      if (bytes > 0) mib[static_cast<int>(at - uuids_.begin())] = bytes >> 20;
    }
  }
  for (const std::string& uuid : uuids_) {
    if (guaranteed[uuid] > kGpuMib << 20) {
      return absl::InternalError(absl::StrCat("more is guaranteed than there is on ", uuid));
    }
  }
  return tenants;
}

bool Cluster::WaitForTenantsOf(const std::vector<TestPod>& pods) {
  std::map<std::string, std::map<int, uint64_t>> wanted;
  for (const TestPod& pod : pods) wanted[pod.tenant()] = pod.mib;
  bool wrong = false;
  const bool reached = Eventually(
      [&] {
        const auto tenants = Tenants();
        wrong |= absl::IsInternal(tenants.status());
        return wrong || (tenants.ok() && *tenants == wanted);
      },
      kPatience);
  return reached && !wrong;
}

bool Cluster::WaitForRounds(size_t count) {
  // A round asks the kubelet once, and once or never before the next round, which may have begun.
  const size_t wanted = kubelet_->calls() + 2 * (count + 1);
  return Eventually([&] { return kubelet_->calls() >= wanted; }, kPatience);
}

}  // namespace gpumem::testing
