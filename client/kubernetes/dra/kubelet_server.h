// SPDX-License-Identifier: Apache-2.0
// The driver's services for the kubelet: its registration, the preparation of claims, and the
// health of GPUs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/kubernetes/dra/driver.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace gpumem::kubernetes {

struct KubeletServerOptions {
  // Folders of the kubelet. The second one is made if it does not exist.
  std::string registry = "/var/lib/kubelet/plugins_registry";
  std::string folder = "/var/lib/kubelet/plugins/gpumem.dev";
  // The maximum time of a request; the kubelet's is 45 s.
  absl::Duration timeout = absl::Seconds(40);
};

class KubeletServer {
 public:
  // Serves until the object is destroyed. `driver` outlives it. `say` writes a line of the log,
  // from several threads.
  //   INVALID_ARGUMENT  a path is too long for a socket
  //   UNAVAILABLE       a socket cannot be made
  //   others            of the file system
  static absl::StatusOr<std::unique_ptr<KubeletServer>> Start(
      const KubeletServerOptions& options, Driver* driver,
      std::function<void(absl::string_view)> say);

  // Returns the path of the socket by which the kubelet finds the driver.
  static std::string RegistrationSocketOf(const KubeletServerOptions& options);

  // Ends calls and removes the sockets, first that of the registration.
  ~KubeletServer();
  KubeletServer(const KubeletServer&) = delete;
  KubeletServer& operator=(const KubeletServer&) = delete;

 private:
  explicit KubeletServer(HealthFeed* health) : health_(health) {}

  HealthFeed* const health_;
  std::unique_ptr<grpc::Service> v1_;
  std::unique_ptr<grpc::Service> v1beta1_;
  std::unique_ptr<grpc::Service> health_service_;
  std::unique_ptr<grpc::Service> registration_;
  std::unique_ptr<grpc::Server> driver_server_;
  std::unique_ptr<grpc::Server> registration_server_;
};

}  // namespace gpumem::kubernetes
