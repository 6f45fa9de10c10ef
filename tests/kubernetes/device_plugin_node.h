// SPDX-License-Identifier: Apache-2.0
// A node of Kubernetes with gpumem-device-plugin, for tests: the real program and a real gpumemd on
// the host backend, a fake API server that lists pods, and a kubelet's device manager.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/kubernetes/api/testing/fake_api_server.h"
#include "tests/kubernetes/device_kubelet.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {

inline constexpr int kUnitGpus = 2;
inline constexpr int kUnitsOfGpu = 64;
inline constexpr uint64_t kUnitMib = 16;

// A pod of the namespace "team" with one container.
struct UnitPod {
  int number = 0;  // of its uid
  std::string name;
  int units = 0;
  std::string uid() const;
  std::string tenant() const;
};

class DevicePluginNode {
 public:
  static absl::StatusOr<std::unique_ptr<DevicePluginNode>> Start();
  ~DevicePluginNode();

  DeviceKubelet& kubelet() { return *kubelet_; }
  DaemonProcess& daemon() { return *daemon_; }
  std::string uuid(int gpu) const;

  // What the API server has: the pod, and whether the kubelet has acknowledged it.
  void Create(const UnitPod& pod, bool acknowledged = false);
  void Acknowledge(const UnitPod& pod) { Create(pod, /*acknowledged=*/true); }
  void Delete(const UnitPod& pod);
  void StopApiServer() { api_server_ = nullptr; }
  void StartApiServer();
  size_t requests() const { return api_server_->Requests().size(); }

  void StartPlugin(const std::vector<std::string>& more = {});
  // Waits until the kubelet has seen it: pods that came before that would be refused.
  bool KillPlugin();
  Child& plugin() { return plugin_; }
  // Runs the program with these arguments alone, and returns its exit code.
  int RunPlugin(const std::vector<std::string>& arguments) const;
  std::string PluginLog() const;
  absl::Status KillDaemon();
  absl::Status RunDaemon() { return daemon_->RunAgain(); }
  std::string Gpumemctl(const std::string& arguments) const;

  // Waits until the kubelet can give out all units.
  bool WaitForUnits();
  // Returns the units that live tenants of the plug-in have, by tenant and GPU. An error if limit
  // and guarantee of one differ, or if more is guaranteed than there is.
  absl::StatusOr<std::map<std::string, std::map<std::string, int>>> Tenants();
  // Returns what the kubelet's pods should have.
  std::map<std::string, std::map<std::string, int>> Wanted() const;
  // Returns how many pods gpumemd was told of, for rules.
  absl::StatusOr<size_t> DescribedPods() const;
  // Waits until tenants are those of the kubelet's pods.
  bool WaitForTenants();

 private:
  DevicePluginNode() = default;
  void SetPods();

  std::string dir_;
  std::unique_ptr<DaemonProcess> daemon_;
  kubernetes::Certificate certificate_;
  int port_ = 0;
  std::unique_ptr<kubernetes::FakeApiServer> api_server_;
  std::unique_ptr<DeviceKubelet> kubelet_;
  std::map<std::string, std::string> pods_;  // of the API server, by uid
  Child plugin_;
};

}  // namespace gpumem::testing
