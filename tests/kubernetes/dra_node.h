// SPDX-License-Identifier: Apache-2.0
// A node of Kubernetes with gpumem's own driver, for tests: a real gpumemd on the host backend, the
// driver in this process, a fake API server that stores slices, and a fake kubelet.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/kubernetes/api/cluster_view.h"
#include "client/kubernetes/api/testing/fake_api_server.h"
#include "client/kubernetes/dra/driver.h"
#include "client/kubernetes/dra/kubelet_server.h"
#include "client/kubernetes/plugin.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {

// GPUs of its gpumemd and their devices in the slice, pods with their tenants, and claims.
inline constexpr char kGpu0[] = "HOST-00000000-0000-0000-0000-000000000000";
inline constexpr char kGpu1[] = "HOST-00000001-0000-0000-0000-000000000000";
inline constexpr char kDevice0[] = "host-00000000-0000-0000-0000-000000000000";
inline constexpr char kDevice1[] = "host-00000001-0000-0000-0000-000000000000";
inline constexpr char kPodA[] = "0a000000-2a99-45ad-af94-d91eb81a87e9";
inline constexpr char kPodB[] = "0b000000-2a99-45ad-af94-d91eb81a87e9";
inline constexpr char kTenantA[] = "pod-0a000000-2a99-45ad-af94-d91eb81a87e9";
inline constexpr char kTenantB[] = "pod-0b000000-2a99-45ad-af94-d91eb81a87e9";

inline const kubernetes::ClaimName& One() {
  static const auto& name =
      *new kubernetes::ClaimName{"team", "one", "c1000000-2a99-45ad-af94-d91eb81a87e9"};
  return name;
}
inline const kubernetes::ClaimName& Two() {
  static const auto& name =
      *new kubernetes::ClaimName{"team", "two", "c2000000-2a99-45ad-af94-d91eb81a87e9"};
  return name;
}

// Returns a claim for MiB of devices, reserved for one pod.
std::string ClaimText(const kubernetes::ClaimName& name, const std::map<std::string, uint64_t>& mib,
                      const std::string& pod, const std::string& pod_uid);
// Returns a claim for `mib` of a device, reserved for one pod.
std::string ClaimText(const kubernetes::ClaimName& name, const std::string& device, int mib,
                      const std::string& pod_uid);

class DraNode {
 public:
  // `rules`: of gpumemd's configuration, before that of users.
  static absl::StatusOr<std::unique_ptr<DraNode>> Start(const std::string& rules = "");
  ~DraNode();

  kubernetes::FakeStore& store() { return store_; }
  // Returns the text of the node's slice; "" if it is not published.
  std::string slice() const;
  kubernetes::Driver& driver() { return *driver_; }
  DaemonProcess& daemon() { return *daemon_; }
  const std::string& dir() const { return dir_; }
  std::string CdiFile(const std::string& claim_uid) const;

  // Replaces the driver by one that knows nothing of it.
  // `free_pause`: as in DriverOptions.
  absl::Status RestartDriver(absl::Duration free_pause = absl::Minutes(1));
  void StopDriver();
  // Runs the real program in place of this process's driver.
  Child RunProgram(const std::string& kubelet_socket = "none");
  absl::Status KillAndRunDaemon();
  // Loses what a node loses when it is restarted: processes, /run, and /var/run/cdi. Files of
  // gpumemd's state folder stay. The driver is not run again.
  absl::Status Reboot();
  void StopApiServer() { api_server_ = nullptr; }
  kubernetes::FakeApiServer& api_server() { return *api_server_; }
  void StartApiServer();

  // Registers the driver as the kubelet does, and connects to it. Returns the versions it has.
  absl::StatusOr<std::vector<std::string>> Register();
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // Prepares or unprepares a claim as the kubelet does. Returns the CDI devices of its containers.
  absl::StatusOr<std::vector<std::string>> Prepare(const kubernetes::ClaimName& name);
  absl::Status Unprepare(const kubernetes::ClaimName& name);

  // Makes a round of the plug-in for the driver's tenants.
  absl::Status Round();
  // Returns the MiB that the node's tenants have as limit, by tenant and GPU. A guarantee that
  // differs from the limit is an error, and so are more guarantees on a GPU than it has memory.
  absl::StatusOr<std::map<std::string, std::map<std::string, uint64_t>>> Tenants();

 private:
  DraNode() = default;
  kubernetes::ApiServerOptions ApiOptions() const;
  kubernetes::ViewOptions OptionsOfView() const;
  kubernetes::NodeOptions DaemonOptionsOfNode() const;

  std::string dir_;
  std::unique_ptr<DaemonProcess> daemon_;
  kubernetes::FakeStore store_;
  kubernetes::Certificate certificate_;
  int port_ = 0;
  std::unique_ptr<kubernetes::FakeApiServer> api_server_;
  std::unique_ptr<kubernetes::ClusterView> view_;
  std::unique_ptr<kubernetes::Driver> driver_;
  std::unique_ptr<kubernetes::KubeletServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace gpumem::testing
