// SPDX-License-Identifier: Apache-2.0
#include "client/cli/process/record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"

namespace gpumem::cli {
namespace {

absl::Status FileError(const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
}

}  // namespace

std::string ProcessRecords::DefaultFolder() {
  if (geteuid() == 0) return "/run/gpumemctl";
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') return absl::StrCat(runtime, "/gpumemctl");
  return absl::StrCat("/tmp/gpumemctl-", geteuid());
}

std::string ProcessRecords::PathOf(pid_t pid, uint64_t start_ticks) const {
  return absl::StrCat(folder_, "/", pid, "-", start_ticks, ".json");
}

absl::Status ProcessRecords::CheckFolder() const {
  struct stat folder;
  if (lstat(folder_.c_str(), &folder) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at ", folder_));
  }
  if (!S_ISDIR(folder.st_mode) || folder.st_uid != geteuid() || (folder.st_mode & 022) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(folder_, " has to be a folder that only this user can write to"));
  }
  return absl::OkStatus();
}

absl::Status ProcessRecords::Write(const ProcessRecord& record) const {
  if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) return FileError(folder_);
  if (absl::Status safe = CheckFolder(); !safe.ok()) return safe;
  const nlohmann::json json = {{"pid", record.pid},
                               {"start_ticks", record.start_ticks},
                               {"need", record.need},
                               {"sessions", record.sessions}};
  const std::string text = json.dump() + "\n";
  const std::string path = PathOf(record.pid, record.start_ticks);
  const std::string part = path + ".part";
  unlink(part.c_str());
  const UniqueFd file(open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return FileError(part);
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return FileError(part);
  }
  if (rename(part.c_str(), path.c_str()) != 0) return FileError(path);
  return absl::OkStatus();
}

absl::StatusOr<ProcessRecord> ProcessRecords::Read(pid_t pid, uint64_t start_ticks) const {
  const std::string path = PathOf(pid, start_ticks);
  std::ifstream file(path);
  if (!file.is_open()) {
    return absl::NotFoundError(
        absl::StrCat("there is no record of process ", pid, " in ", folder_));
  }
  if (absl::Status safe = CheckFolder(); !safe.ok()) return safe;
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  ProcessRecord record{.pid = pid, .start_ticks = start_ticks};
  try {
    record.need = json.at("need").get<DeviceBytesMap>();
    record.sessions = json.at("sessions").get<std::vector<uint64_t>>();
  } catch (const nlohmann::json::exception&) {
    return absl::DataLossError(absl::StrCat(path, " is damaged"));
  }
  return record;
}

void ProcessRecords::Remove(pid_t pid, uint64_t start_ticks) const {
  unlink(PathOf(pid, start_ticks).c_str());
}

}  // namespace gpumem::cli
