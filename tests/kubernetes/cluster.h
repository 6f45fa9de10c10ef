// SPDX-License-Identifier: Apache-2.0
// A node of Kubernetes for tests: a real gpumemd on the host backend, a fake API server, a fake
// kubelet and the real plug-in.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/kubernetes/api/testing/fake_api_server.h"
#include "client/kubernetes/testing/fake_kubelet.h"
#include "tests/kubernetes/scheduler.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {

class Cluster {
 public:
  // `rules`: of gpumemd's configuration, before that of users.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const std::string& rules = "");
  ~Cluster();

  DaemonProcess& daemon() { return *daemon_; }
  // A folder whose path is short enough for sockets.
  const std::string& dir() const { return dir_; }
  kubernetes::FakeApiServer& api_server() { return *api_server_; }
  const std::string& gpu(int number) const { return uuids_.at(static_cast<size_t>(number)); }

  // What the API server and the kubelet list from now on.
  void SetPods(const std::vector<TestPod>& pods);
  void SetPodsOfApiServer(const std::vector<TestPod>& pods);
  void SetPodsOfKubelet(const std::vector<TestPod>& pods);
  // Without them the devices of claims are unknown.
  void SetSlices(bool published);

  void StopApiServer() { api_server_ = nullptr; }
  void StartApiServer();
  void StopKubelet() { kubelet_ = nullptr; }
  void StartKubelet();
  kubernetes::FakeKubelet& kubelet() { return *kubelet_; }
  absl::Status KillDaemon();
  absl::Status RunDaemon() { return daemon_->RunAgain(); }

  // Sets more flags of plug-ins that start later.
  void SetPluginFlags(std::vector<std::string> flags) { plugin_flags_ = std::move(flags); }
  void StartPlugin(const std::string& interval = "50ms", const std::string& notify_socket = "");
  void KillPlugin();
  // Ends it as systemd does, and returns its exit code.
  int EndPlugin();
  // Runs the plug-in for one round, and returns its exit code.
  int RunPluginOnce();
  std::string PluginLog() const;

  // Returns the live tenants of the plug-in as `gpumemctl quota list --json` shows them: for each
  // GPU the MiB of its limit, which is its guarantee. Another limit or guarantee is an error.
  absl::StatusOr<std::map<std::string, std::map<int, uint64_t>>> Tenants();
  // Waits until the tenants are those of the pods.
  bool WaitForTenantsOf(const std::vector<TestPod>& pods);
  // Waits until the plug-in has made so many whole rounds more.
  bool WaitForRounds(size_t count);
  // Returns the path of a program of the project.
  static std::string Program(const std::string& name) { return ProgramPath(name); }
  // Runs gpumemctl, and returns what it prints; "" if it fails.
  std::string Gpumemctl(const std::string& arguments) const;

 private:
  Cluster() = default;
  std::vector<std::string> PluginArguments(const std::string& interval) const;

  std::string dir_;
  std::unique_ptr<DaemonProcess> daemon_;
  kubernetes::Certificate certificate_;
  int port_ = 0;
  kubernetes::FakeStore store_;
  std::unique_ptr<kubernetes::FakeApiServer> api_server_;
  std::unique_ptr<kubernetes::FakeKubelet> kubelet_;
  std::vector<TestPod> kubelet_pods_;
  std::vector<std::string> uuids_;
  Child plugin_;
  std::vector<std::string> plugin_flags_;
};

}  // namespace gpumem::testing
