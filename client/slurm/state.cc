// SPDX-License-Identifier: Apache-2.0
#include "client/slurm/state.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

namespace gpumem::slurm {
namespace {

constexpr char kPrefix[] = "job-";
constexpr absl::Duration kPause = absl::Milliseconds(20);

// Makes the folder, which jobs' users read whatever the umask is.
//   FAILED_PRECONDITION  it is there, and other users can change it
absl::Status MakeFolder(const std::string& state_dir) {
  if (mkdir(state_dir.c_str(), 0755) == 0) {
    if (chmod(state_dir.c_str(), 0755) == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, state_dir);
  }
  if (errno != EEXIST) return absl::ErrnoToStatus(errno, state_dir);
  struct stat info = {};
  if (lstat(state_dir.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, state_dir);
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 022) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(state_dir, " is no folder that only this user can change"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string TenantOf(uint32_t job) { return absl::StrCat(kPrefix, job); }

std::optional<uint32_t> JobOf(absl::string_view tenant) {
  uint32_t job = 0;
  if (!absl::ConsumePrefix(&tenant, kPrefix) || !absl::SimpleAtoi(tenant, &job) || job == 0) {
    return std::nullopt;
  }
  return job;
}

std::string GpusFile(const std::string& state_dir, uint32_t job) {
  return absl::StrCat(state_dir, "/", TenantOf(job));
}

absl::Status WriteGpus(const std::string& state_dir, uint32_t job, const std::string& gpus) {
  if (absl::Status made = MakeFolder(state_dir); !made.ok()) return made;
  const std::string path = GpusFile(state_dir, job);
  std::ofstream file(path, std::ios::trunc);
  file << gpus << "\n";
  file.close();
  if (!file.good() || chmod(path.c_str(), 0644) != 0) return absl::ErrnoToStatus(errno, path);
  return absl::OkStatus();
}

absl::StatusOr<JobLock> JobLock::Take(const std::string& state_dir, uint32_t job,
                                      absl::Time deadline) {
  if (absl::Status made = MakeFolder(state_dir); !made.ok()) return made;
  const std::string path = absl::StrCat(state_dir, "/lock");
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid()) return absl::ErrnoToStatus(errno, path);
  // One file for all jobs, of which each locks the byte of its number: no file is left of a job.
  struct flock byte = {};
  byte.l_type = F_WRLCK;
  byte.l_whence = SEEK_SET;
  byte.l_start = job;
  byte.l_len = 1;
  while (fcntl(file.get(), F_OFD_SETLK, &byte) != 0) {
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
      return absl::ErrnoToStatus(errno, path);
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("another gpumem-slurm works on ", TenantOf(job)));
    }
    absl::SleepFor(kPause);
  }
  return JobLock(std::move(file));
}

}  // namespace gpumem::slurm
