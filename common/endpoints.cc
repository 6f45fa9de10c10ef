// SPDX-License-Identifier: Apache-2.0
#include "common/endpoints.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace gpumem {
namespace {

constexpr char kSystemDir[] = "/run/gpumem";
constexpr char kSystemStateDir[] = "/var/lib/gpumem";

// Empty when unset. A setuid program does not listen to its caller's environment.
absl::string_view Environment(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? absl::string_view() : value;
}

// Returns the folder of a daemon of this user.
std::string OwnDir() {
  if (::geteuid() == 0) return kSystemDir;
  if (absl::string_view xdg = Environment("XDG_RUNTIME_DIR"); !xdg.empty()) {
    return SocketPath(xdg, "gpumem");
  }
  return absl::StrCat("/tmp/gpumem-", ::geteuid());
}

bool HasSessionSocket(const std::string& dir) {
  struct stat info;
  return ::stat(SocketPath(dir, kSessionSocket).c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

// In /tmp any user could make a folder under this user's name and listen there.
bool IsOwnFolder(const std::string& dir) {
  struct stat info;
  return ::lstat(dir.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

}  // namespace

std::string DaemonRuntimeDir() {
  const absl::string_view named = Environment("GPUMEM_RUNTIME_DIR");
  return named.empty() ? OwnDir() : std::string(named);
}

std::string DaemonStateDir() {
  // Several, separated by colons, if the unit names several: the first is the daemon's.
  const absl::string_view given = Environment("STATE_DIRECTORY");
  if (!given.empty()) return std::string(given.substr(0, given.find(':')));
  if (::geteuid() == 0) return kSystemStateDir;
  if (absl::string_view xdg = Environment("XDG_STATE_HOME"); !xdg.empty()) {
    return SocketPath(xdg, "gpumem");
  }
  const absl::string_view home = Environment("HOME");
  return home.empty() ? "" : absl::StrCat(home, "/.local/state/gpumem");
}

std::string ClientRuntimeDir() {
  if (absl::string_view named = Environment("GPUMEM_RUNTIME_DIR"); !named.empty()) {
    return std::string(named);
  }
  std::string own = OwnDir();
  return IsOwnFolder(own) && HasSessionSocket(own) ? own : kSystemDir;
}

std::string SocketPath(absl::string_view runtime_dir, absl::string_view name) {
  return absl::StrCat(runtime_dir, "/", name);
}

}  // namespace gpumem
