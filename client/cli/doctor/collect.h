// What gpumemctl doctor can see from here.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "client/cli/doctor/facts.h"

namespace gpumem::cli {

// Looks at this machine, and at the daemon whose sockets are in `runtime_dir`. Never fails: what
// cannot be seen is missing. Takes some 0.3 s where there is an NVIDIA driver, and begins and ends
// a session.
Facts Collect(const std::string& runtime_dir);

// The pure parts of it.

// The version in /proc/driver/nvidia/version: "580.159.04"; empty where it says none.
std::string ModuleVersion(absl::string_view text);
// The soft limit on open files in /proc/PID/limits; nullopt where it says none.
std::optional<uint64_t> FilesLimit(absl::string_view text);
// The service in /proc/PID/cgroup: "gpumemd.service"; empty where there is none.
std::string ServiceOf(absl::string_view text);
// "KEY=NUMBER" in the lines that systemctl show prints.
std::optional<uint64_t> NumberOf(absl::string_view lines, absl::string_view key);

}  // namespace gpumem::cli
