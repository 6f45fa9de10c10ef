// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/dra/cdi.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/kubernetes/api/claims.h"
#include "client/kubernetes/containers.h"
#include "common/kubernetes/names.h"
#include "common/unique_fd.h"

namespace gpumem::kubernetes {
namespace {

// The first version in which a device's name may begin with a digit, and the last one that
// podman 4.3 reads.
constexpr char kCdiVersion[] = "0.5.0";
constexpr mode_t kMode = 0644;
constexpr char kPrefix[] = "gpumem.dev-claim_";
constexpr char kSuffix[] = ".json";
constexpr char kPart[] = ".part";

absl::Status CheckUid(absl::string_view uid) {
  return IsUid(uid) ? absl::OkStatus()
                    : absl::InvalidArgumentError("the uid of a claim is no UUID");
}

bool IsCleanPath(absl::string_view path) {
  if (!absl::StartsWith(path, "/") || path.size() < 2) return false;
  const bool printable =
      std::all_of(path.begin(), path.end(), [](unsigned char c) { return absl::ascii_isprint(c); });
  if (!printable) return false;
  for (const absl::string_view part : absl::StrSplit(path.substr(1), '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

// Writes all of the text to a new file.
absl::Status WriteNew(const std::string& path, absl::string_view text) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return absl::ErrnoToStatus(errno, path);
  const UniqueFd file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kMode));
  if (!file.valid()) return absl::ErrnoToStatus(errno, path);
  // Whatever the umask is: container runtimes of users read it, too.
  if (fchmod(file.get(), kMode) != 0) return absl::ErrnoToStatus(errno, path);
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, path);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return fsync(file.get()) == 0 ? absl::OkStatus() : absl::ErrnoToStatus(errno, path);
}

}  // namespace

std::string CdiDeviceOf(absl::string_view claim_uid) {
  return absl::StrCat(kCdiKind, "=", claim_uid);
}

absl::StatusOr<std::string> CdiSpecOf(absl::string_view claim_uid, absl::string_view runtime_dir) {
  if (absl::Status uid = CheckUid(claim_uid); !uid.ok()) return uid;
  if (!IsCleanPath(runtime_dir)) {
    return absl::InvalidArgumentError("the folder of gpumemd's sockets is no absolute path");
  }
  using nlohmann::json;
  const json mount = {{"hostPath", runtime_dir},
                      {"containerPath", kRuntimeDirOfContainers},
                      {"options", {"bind", "ro", "nosuid", "nodev", "noexec"}}};
  const json edits = {
      {"env", json::array({absl::StrCat("GPUMEM_RUNTIME_DIR=", kRuntimeDirOfContainers)})},
      {"mounts", json::array({mount})}};
  const json device = {{"name", claim_uid}, {"containerEdits", edits}};
  const json spec = {
      {"cdiVersion", kCdiVersion}, {"kind", kCdiKind}, {"devices", json::array({device})}};
  return absl::StrCat(spec.dump(2), "\n");
}

std::string CdiFolder::PathOf(absl::string_view claim_uid) const {
  return absl::StrCat(path_, "/", kPrefix, claim_uid, kSuffix);
}

std::set<std::string> CdiFolder::Claims() const {
  std::set<std::string> claims;
  std::error_code error;
  std::filesystem::directory_iterator entry(path_, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    absl::string_view uid = name;
    if (!absl::ConsumePrefix(&uid, kPrefix)) continue;
    // What a killed driver has left of a file is of that claim, too.
    (void)absl::ConsumeSuffix(&uid, kPart);
    if (absl::ConsumeSuffix(&uid, kSuffix) && IsUid(uid)) claims.emplace(uid);
  }
  return claims;
}

absl::Status CdiFolder::Write(absl::string_view claim_uid, absl::string_view spec) const {
  if (absl::Status uid = CheckUid(claim_uid); !uid.ok()) return uid;
  if (mkdir(path_.c_str(), 0755) != 0 && errno != EEXIST) return absl::ErrnoToStatus(errno, path_);
  const std::string path = PathOf(claim_uid);
  // Runtimes read names that end in ".json" or ".yaml" alone.
  const std::string part = absl::StrCat(path, kPart);
  if (absl::Status written = WriteNew(part, spec); !written.ok()) {
    (void)unlink(part.c_str());
    return written;
  }
  if (std::rename(part.c_str(), path.c_str()) == 0) return absl::OkStatus();
  absl::Status error = absl::ErrnoToStatus(errno, path);
  (void)unlink(part.c_str());
  return error;
}

absl::Status CdiFolder::Remove(absl::string_view claim_uid) const {
  if (absl::Status uid = CheckUid(claim_uid); !uid.ok()) return uid;
  const std::string path = PathOf(claim_uid);
  for (const std::string& file : {absl::StrCat(path, kPart), path}) {
    if (unlink(file.c_str()) != 0 && errno != ENOENT) return absl::ErrnoToStatus(errno, file);
  }
  return absl::OkStatus();
}

}  // namespace gpumem::kubernetes
