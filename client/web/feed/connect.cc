// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/connect.h"

#include "absl/status/status.h"

namespace gpumem::web {

absl::StatusOr<std::unique_ptr<cli::AdminConnection>> ConnectDaemon(const std::string& runtime_dir,
                                                                    absl::Duration timeout) {
  auto connection = cli::ConnectView(runtime_dir, timeout);
  if (absl::IsPermissionDenied(connection.status())) {
    return absl::PermissionDeniedError(
        "gpumemd does not admit gpumem-web. An administrator sets view_group in gpumemd.toml to a "
        "group of gpumem-web (gpumem-metrics), and restarts gpumemd");
  }
  if (absl::IsUnavailable(connection.status())) {
    return absl::UnavailableError(
        "gpumemd does not run. An administrator starts it: systemctl start gpumemd");
  }
  return connection;
}

}  // namespace gpumem::web
