// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/machine_memory.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "common/unique_fd.h"

namespace gpumemd {
namespace {

struct Room {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;

  uint64_t to_take() const {
    const uint64_t reserve_bytes = total_bytes / 16;
    return free_bytes > reserve_bytes ? free_bytes - reserve_bytes : 0;
  }
};

std::optional<Room> ReadMachine(const std::string& root) {
  std::ifstream meminfo(root + "/proc/meminfo");
  Room room;
  std::string name, unit;
  uint64_t kib = 0;
  while (meminfo >> name >> kib && std::getline(meminfo, unit)) {
    if (name == "MemTotal:") room.total_bytes = kib * 1024;
    if (name == "MemAvailable:") room.free_bytes = kib * 1024;
  }
  if (room.total_bytes == 0) return std::nullopt;
  return room;
}

// Names of a control group's files.
struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* old_pages;  // in memory.stat
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file"};

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  uint64_t number = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &number)) return std::nullopt;  // such as "max"
  return number;
}

// Returns nothing if the group has no limit.
std::optional<Room> ReadGroup(const std::string& folder, const GroupFiles& files) {
  const std::optional<uint64_t> limit = ReadNumber(absl::StrCat(folder, "/", files.limit));
  const std::optional<uint64_t> usage = ReadNumber(absl::StrCat(folder, "/", files.usage));
  if (!limit.has_value() || !usage.has_value()) return std::nullopt;
  uint64_t old_bytes = 0, bytes = 0;
  std::ifstream stat(absl::StrCat(folder, "/memory.stat"));
  for (std::string name; stat >> name >> bytes;) {
    if (name == files.old_pages) old_bytes = bytes;
  }
  const uint64_t used = *usage - std::min(*usage, old_bytes);
  return Room{.total_bytes = *limit, .free_bytes = *limit - std::min(*limit, used)};
}

// Returns the least of `least` and the remainders of the group at `path` in the hierarchy at
// `folder` and of its ancestors.
uint64_t LeastOfGroups(const std::string& folder, std::string path, const GroupFiles& files,
                       uint64_t least) {
  while (true) {
    if (const std::optional<Room> room = ReadGroup(folder + path, files)) {
      least = std::min(least, room->to_take());
    }
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos || path.empty()) return least;
    path.resize(slash);
  }
}

}  // namespace

absl::StatusOr<uint64_t> BytesToTake(const std::string& root) {
  const std::optional<Room> machine = ReadMachine(root);
  if (!machine.has_value()) {
    const gpumem::UniqueFd probe(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!probe.valid() && (errno == EMFILE || errno == ENFILE)) {
      return absl::ResourceExhaustedError(
          "no descriptor is left to look at the machine's memory; raise the daemon's limit of open "
          "files");
    }
    return absl::InternalError("/proc/meminfo does not report the size of memory");
  }
  uint64_t least = machine->to_take();
  // "0::/path" is of version 2, "4:memory:/path" and the like are of version 1.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (parts[0] == "0") {
      least = LeastOfGroups(root + "/sys/fs/cgroup", parts[2], kVersion2, least);
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      least = LeastOfGroups(root + "/sys/fs/cgroup/memory", parts[2], kVersion1, least);
    }
  }
  return least;
}

uint64_t FreeHugePageBytes(const std::string& root) {
  constexpr char kFree[] = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
  return ReadNumber(root + kFree).value_or(0) * gpumem::kMiB * 2;
}

bool HasFreeHugePages(const std::string& root) { return FreeHugePageBytes(root) > 0; }

absl::StatusOr<std::shared_ptr<void>> MemoryGate::Enter(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<uint64_t> to_take = BytesToTake(root_);
  if (!to_take.ok()) return to_take.status();
  const uint64_t left = *to_take - std::min(*to_take, entered_bytes_);
  if (bytes > left) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the machine, or the control group of the daemon, has ", gpumem::FormatBytes(left),
        " of memory beside its reserve; ", gpumem::FormatBytes(bytes), " were asked for"));
  }
  entered_bytes_ += bytes;
  return std::shared_ptr<void>(nullptr, [self = shared_from_this(), bytes](void*) {
    absl::MutexLock done(&self->mutex_);
    self->entered_bytes_ -= bytes;
  });
}

}  // namespace gpumemd
