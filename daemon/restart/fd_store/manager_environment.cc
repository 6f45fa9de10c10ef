// SPDX-License-Identifier: Apache-2.0
#include "daemon/restart/fd_store/manager_environment.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace gpumemd {
namespace {

// Returns the variable's value, empty if there is none, and removes it.
std::string Take(const char* variable) {
  const char* value = std::getenv(variable);
  std::string taken = value == nullptr ? "" : value;
  ::unsetenv(variable);
  return taken;
}

absl::Status Wrong(absl::string_view variable, absl::string_view value, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(variable, " is \"", value, "\", which is ", what,
                   "; only the service manager may set it (sd_listen_fds(3))"));
}

}  // namespace

absl::StatusOr<ManagerEnvironment> TakeManagerEnvironment() {
  // All are taken before any is judged.
  ManagerEnvironment taken{.notify_socket = Take("NOTIFY_SOCKET")};
  const std::string pid_text = Take("LISTEN_PID"), count_text = Take("LISTEN_FDS"),
                    names = Take("LISTEN_FDNAMES"), capacity_text = Take("FDSTORE"),
                    keeper_text = Take("GPUMEM_KEEPER_PID"), watchdog_text = Take("WATCHDOG_USEC"),
                    watched_text = Take("WATCHDOG_PID");
  Take("LISTEN_PIDFDID");  // of newer systemds, beside LISTEN_PID

  uint64_t capacity = 0;
  if (!capacity_text.empty() && !absl::SimpleAtoi(capacity_text, &capacity)) {
    return Wrong("FDSTORE", capacity_text, "not a number of descriptors");
  }
  if (capacity > 0) taken.capacity = capacity;
  if (!keeper_text.empty() &&
      (!absl::SimpleAtoi(keeper_text, &taken.keeper_pid) || taken.keeper_pid <= 0)) {
    return Wrong("GPUMEM_KEEPER_PID", keeper_text, "not a process");
  }
  int64_t watchdog_us = 0;
  if (!watchdog_text.empty() &&
      (!absl::SimpleAtoi(watchdog_text, &watchdog_us) || watchdog_us <= 0)) {
    return Wrong("WATCHDOG_USEC", watchdog_text, "not a time");
  }
  // Of an ancestor's, if it names another.
  if (watchdog_us > 0 && (watched_text.empty() || watched_text == absl::StrCat(::getpid()))) {
    taken.watchdog = absl::Microseconds(watchdog_us);
  }

  if (pid_text.empty() && count_text.empty()) return taken;
  pid_t pid = 0;
  if (!absl::SimpleAtoi(pid_text, &pid) || pid <= 0) {
    return Wrong("LISTEN_PID", pid_text, "not a process");
  }
  if (pid != ::getpid()) return taken;  // they were some ancestor's
  uint32_t count = 0;
  if (!absl::SimpleAtoi(count_text, &count) || count > INT_MAX - STDERR_FILENO - 1) {
    return Wrong("LISTEN_FDS", count_text, "not a number of descriptors");
  }
  if (count == 0) return taken;
  if (names.empty()) {
    taken.fd_names.assign(count, "unknown");  // as sd_listen_fds_with_names(3) calls them
    return taken;
  }
  taken.fd_names = absl::StrSplit(names, ':');
  if (taken.fd_names.size() != count) {
    return Wrong("LISTEN_FDNAMES", absl::StrCat(taken.fd_names.size(), " names"),
                 absl::StrCat("not one for each of ", count, " descriptors"));
  }
  return taken;
}

}  // namespace gpumemd
