// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/process_stats.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

namespace gpumemd {
namespace {

constexpr char kFds[] = "/proc/self/fd";

uint64_t OpenFds() {
  // From Linux 6.2 on the folder's size is how many there are. Before that they have to be
  // counted; segments take one each, so there may be many.
  struct stat info;
  if (stat(kFds, &info) == 0 && info.st_size > 0) return static_cast<uint64_t>(info.st_size);
  DIR* folder = opendir(kFds);
  if (folder == nullptr) return 0;
  uint64_t count = 0;
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(folder);
  return count - 1;  // the folder's own
}

uint64_t ResidentBytes() {
  FILE* file = fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  unsigned long long size = 0, resident = 0;
  const bool read = fscanf(file, "%llu %llu", &size, &resident) == 2;
  fclose(file);
  return read ? resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats{.resident_bytes = ResidentBytes(), .open_fds = OpenFds()};
  rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    stats.cpu =
        absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
  }
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = limit.rlim_cur;
  return stats;
}

}  // namespace gpumemd
