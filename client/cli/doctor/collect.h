// SPDX-License-Identifier: Apache-2.0
// Collects the facts that gpumemctl doctor can see from here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cli/doctor/facts.h"

namespace gpumem::cli {

// Inspects this machine, and the daemon with sockets in `runtime_dir`. Never fails: facts that
// cannot be seen are missing. Takes some 0.3 s if there is an NVIDIA driver, and begins and ends a
// session. `timeout` is that of each request to the daemon.
Facts Collect(const std::string& runtime_dir, std::optional<absl::Duration> timeout = std::nullopt);

// Its pure functions.

// Returns the version in /proc/driver/nvidia/version: "580.159.04"; empty if it names none.
std::string ModuleVersion(absl::string_view text);
// Returns the soft limit on open files in /proc/PID/limits; nullopt if it names none.
std::optional<uint64_t> FilesLimit(absl::string_view text);
// Returns the service in /proc/PID/cgroup: "gpumemd.service"; empty if there is none.
std::string ServiceOf(absl::string_view text);
// Returns NUMBER of "KEY=NUMBER" in the output of systemctl show.
std::optional<uint64_t> NumberOf(absl::string_view lines, absl::string_view key);

}  // namespace gpumem::cli
