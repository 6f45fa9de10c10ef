// SPDX-License-Identifier: Apache-2.0
// The plug-in's services for the kubelet (deviceplugin v1beta1), and its registration.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/kubernetes/device_plugin/preferred.h"
#include "client/kubernetes/device_plugin/unit_board.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace gpumem::kubernetes {

inline constexpr char kDevicePluginFolder[] = "/var/lib/kubelet/device-plugins";

// Waits until the pod with these units has its tenant (UnitRounds::Prepare).
using PrepareUnits =
    std::function<absl::Status(absl::Span<const std::string> ids,
                               const std::function<bool()>& cancelled, absl::Time deadline)>;

struct DevicePluginOptions {
  std::string folder = kDevicePluginFolder;
  std::string resource;
  GrantOptions grant;
  // The most time of a start of a container; the kubelet's is 30 s.
  absl::Duration patience = absl::Seconds(20);
};

// Serves a socket of the folder.
class DevicePluginServer {
 public:
  // Serves until the object is destroyed. `board` outlives it. `say` writes a line of the log, from
  // several threads.
  //   INVALID_ARGUMENT  the folder's path is too long for a socket
  //   UNAVAILABLE       the socket cannot be made
  static absl::StatusOr<std::unique_ptr<DevicePluginServer>> Start(
      const DevicePluginOptions& options, const UnitBoard* board, PrepareUnits prepare,
      std::function<void(absl::string_view)> say);

  // The name of the socket in the folder.
  static std::string SocketName();

  ~DevicePluginServer();
  DevicePluginServer(const DevicePluginServer&) = delete;
  DevicePluginServer& operator=(const DevicePluginServer&) = delete;

  // How many streams of the units' list there are. Without one, the kubelet has forgotten the
  // plug-in.
  int streams() const { return streams_; }

 private:
  DevicePluginServer() = default;

  std::atomic<int> streams_ = 0;
  std::atomic<bool> closing_ = false;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

// Keeps the plug-in registered: a kubelet that starts removes all sockets of the folder, and knows
// no plug-in.
class Registrar {
 public:
  // `board` outlives it.
  Registrar(DevicePluginOptions options, const UnitBoard* board, PrepareUnits prepare,
            std::function<void(absl::string_view)> say);
  ~Registrar();

  // Serves and registers, unless the present kubelet has registered the present socket. Does
  // nothing before the board has units. Call it again and again.
  void Look();

 private:
  // Which file a path names. An inode alone may be a later file's, too.
  struct Identity {
    uint64_t device = 0, inode = 0;
    int64_t changed_s = 0, changed_ns = 0;
    bool operator==(const Identity&) const = default;
  };
  static std::optional<Identity> IdentityOf(const std::string& path);
  absl::Status Register() const;
  // Registers if that is needed.
  absl::Status Try();

  const DevicePluginOptions options_;
  const UnitBoard* const board_;
  const PrepareUnits prepare_;
  const std::function<void(absl::string_view)> say_;
  std::unique_ptr<DevicePluginServer> server_;
  std::optional<Identity> socket_;            // ours
  std::optional<Identity> registered_;        // the kubelet's, when it registered the plug-in
  absl::Time looked_ = absl::InfinitePast();  // when that, or an attempt, was
  std::string said_;
};

}  // namespace gpumem::kubernetes
