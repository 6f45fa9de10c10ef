// SPDX-License-Identifier: Apache-2.0
#include "tests/support/kept_daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

// Returns a child of the process; -1: none.
pid_t ChildOf(pid_t pid) {
  std::ifstream children(absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
  pid_t child = -1;
  return children >> child ? child : -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KeptDaemon>> KeptDaemon::Start(const Options& options) {
  std::unique_ptr<KeptDaemon> it(new KeptDaemon);
  char dir[] = "/tmp/gpumem-test-XXXXXX";
  if (mkdtemp(dir) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  it->dir_ = dir;
  chmod(dir, 0711);
  it->runtime_dir_ = absl::StrCat(dir, "/run");
  std::ofstream(it->dir_ + "/gpumemd.toml") << options.config;
  if (absl::Status placed = it->Replace(options.program); !placed.ok()) return placed;
  {
    const std::string path = it->dir_ + "/failpoint.allocation";
    const UniqueFd fd(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    constexpr size_t kSize = sizeof(*it->allocations_);
    if (!fd.valid() || ftruncate(fd.get(), kSize) != 0) return absl::ErrnoToStatus(errno, path);
    void* shared = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (shared == MAP_FAILED) return absl::ErrnoToStatus(errno, path);
    it->allocations_ = static_cast<std::atomic<int64_t>*>(shared);
  }
  const UniqueFd saved(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10));
  const UniqueFd log(
      open((it->dir_ + "/log").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  dup2(log.get(), STDERR_FILENO);
  const char* keeper = std::getenv("GPUMEM_KEEPER");
  // Tests that kill daemons often need starts without growing delays.
  it->keeper_ = Child({keeper != nullptr ? keeper : ProgramPath("gpumem-keeper"),
                       absl::StrCat("--healthy-after=", options.healthy_after),
                       absl::StrCat("--max-fds=", options.max_fds), "--", it->dir_ + "/gpumemd",
                       "--backend", options.backend, "--runtime-dir", it->runtime_dir_,
                       "--state-dir", it->dir_ + "/state", "--config", it->dir_ + "/gpumemd.toml"},
                      {{"TMPDIR", it->dir_},  // a keeper that is killed leaves its socket there
                       {"GPUMEM_FAILPOINT_FILE", it->dir_ + "/failpoint"},
                       {"GPUMEM_NEXT_JOURNAL_FILE", it->dir_ + "/next-journal"}});
  dup2(saved.get(), STDERR_FILENO);
  if (it->WaitForGeneration(1)) return it;
  return absl::UnavailableError(absl::StrCat("gpumemd did not start: ", it->Log()));
}

KeptDaemon::~KeptDaemon() {
  if (keeper_.running()) {
    keeper_.Signal(SIGTERM);  // it ends the daemon
    keeper_.Wait();
  }
  if (allocations_ != nullptr) munmap(allocations_, sizeof(*allocations_));
  Eventually([this] {
    std::error_code error;
    std::filesystem::remove_all(dir_, error);
    return !error;
  });
}

pid_t KeptDaemon::daemon_pid() const { return ChildOf(keeper_.pid()); }

absl::Status KeptDaemon::Kill() {
  const int before = generations();
  KillOnly();
  if (WaitForGeneration(before + 1)) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("no daemon came after it: ", Log()));
}

bool KeptDaemon::Freeze() {
  const pid_t pid = daemon_pid();
  if (pid <= 0 || kill(pid, SIGSTOP) != 0) return false;
  // A thread that runs goes on until the kernel reaches it.
  return Eventually([pid] {
    std::error_code gone;
    for (const auto& task :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), gone)) {
      std::ifstream file(task.path() / "stat");
      const std::string stat((std::istreambuf_iterator<char>(file)), {});
      // "TID (COMMAND) STATE …" (proc_pid_stat(5)).
      const size_t command_end = stat.rfind(')');
      if (command_end == std::string::npos || stat.substr(command_end + 2, 1) != "T") return false;
    }
    return !gone;
  });
}

absl::Status KeptDaemon::Restart() {
  const int before = generations();
  keeper_.Signal(SIGUSR1);
  if (WaitForGeneration(before + 1)) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("no daemon came after it: ", Log()));
}

absl::Status KeptDaemon::Replace(const std::string& program) {
  std::error_code error;
  const std::string next = dir_ + "/gpumemd.next";
  std::filesystem::create_symlink(std::filesystem::absolute(ProgramPath(program)), next, error);
  if (!error) std::filesystem::rename(next, dir_ + "/gpumemd", error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot replace gpumemd: ", error.message()));
}

void KeptDaemon::Reconfigure(const std::string& config) {
  // All of it at once: a daemon may just begin.
  std::ofstream(dir_ + "/next.toml") << config;
  std::filesystem::rename(dir_ + "/next.toml", dir_ + "/gpumemd.toml");
  keeper_.Signal(SIGHUP);  // it passes that on
}

void KeptDaemon::KillOnly() {
  const pid_t pid = daemon_pid();
  if (pid > 0) kill(pid, SIGKILL);
}

void KeptDaemon::SetNextJournal(const std::string& what) {
  std::ofstream(dir_ + "/next-journal") << what;
}

void KeptDaemon::ArmFailpoint(const std::string& name, int passes) {
  // All of it at once: a daemon may just begin.
  std::ofstream(dir_ + "/next") << name << " " << passes;
  std::filesystem::rename(dir_ + "/next", dir_ + "/failpoint");
}

void KeptDaemon::ArmPause(const std::string& name, absl::Duration pause) {
  std::ofstream(dir_ + "/next") << name << " 1 pause " << absl::ToInt64Milliseconds(pause);
  std::filesystem::rename(dir_ + "/next", dir_ + "/failpoint");
}

bool KeptDaemon::IsFailpointArmed() const { return std::filesystem::exists(dir_ + "/failpoint"); }

void KeptDaemon::DisarmFailpoint() { std::filesystem::remove(dir_ + "/failpoint"); }

void KeptDaemon::ArmTarget(const std::string& name, int passes, pid_t pid) {
  std::ofstream(dir_ + "/next") << name << " " << passes << " " << pid;
  std::filesystem::rename(dir_ + "/next", dir_ + "/failpoint.target");
}

bool KeptDaemon::IsTargetArmed() const {
  return std::filesystem::exists(dir_ + "/failpoint.target");
}

void KeptDaemon::DisarmTarget() { std::filesystem::remove(dir_ + "/failpoint.target"); }

void KeptDaemon::FailAllocation(int64_t n) { *allocations_ = n; }

// Threads that count at the same time may go below 0.
int64_t KeptDaemon::AllocationsLeft() const { return std::max<int64_t>(*allocations_, 0); }

int KeptDaemon::generations() const {
  const std::string log = Log();
  int count = 0;
  for (size_t at = log.find(" ready: "); at != std::string::npos;
       at = log.find(" ready: ", at + 1)) {
    ++count;
  }
  return count;
}

bool KeptDaemon::WaitForGeneration(int generation) const {
  return Eventually([&] { return generations() >= generation; }, kTimeout);
}

std::string KeptDaemon::Log() const {
  std::stringstream text;
  text << std::ifstream(dir_ + "/log").rdbuf();
  return text.str();
}

}  // namespace gpumem::testing
