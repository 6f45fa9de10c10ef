// SPDX-License-Identifier: Apache-2.0
// Sessions of commands that connect as an ordinary worker.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/options/command_line.h"
#include "client/session/session.h"

namespace gpumem::cli {

// Begins a session of this tenant; empty: the caller's. The public client does not report all that
// commands show; its session does. Statuses as Client::Connect.
inline absl::StatusOr<std::shared_ptr<internal::Session>> ConnectAsWorker(
    const GlobalOptions& options, const std::string& tenant) {
  return internal::Session::Connect(
      {.runtime_dir = options.runtime_dir,
       .tenant = tenant,
       .name = "gpumemctl",
       .timeout = options.timeout.value_or(ConnectOptions().timeout)});
}

}  // namespace gpumem::cli
