// SPDX-License-Identifier: Apache-2.0
#include "tests/support/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace gpumem::testing {
namespace {

// Run by a shell-free wrapper would lose the pid: the log's descriptor is inherited.
class StderrTo {
 public:
  explicit StderrTo(const std::string& path)
      : saved_(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10)),
        file_(open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600)) {
    dup2(file_.get(), STDERR_FILENO);
  }
  ~StderrTo() { dup2(saved_.get(), STDERR_FILENO); }

 private:
  UniqueFd saved_, file_;
};

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

}  // namespace

std::string ProgramPath(absl::string_view name) {
  const std::string variable = absl::StrCat("GPUMEM_", absl::AsciiStrToUpper(name));
  if (const char* path = std::getenv(variable.c_str())) return path;
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  std::filesystem::path folder(std::string(self, length > 0 ? static_cast<size_t>(length) : 0));
  return (folder.parent_path() / std::string(name)).string();
}

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(const DaemonOptions& options) {
  std::unique_ptr<DaemonProcess> daemon(new DaemonProcess);
  // Not under TEST_TMPDIR: its path is longer than a socket's name may be.
  char dir[] = "/tmp/gpumem-test-XXXXXX";
  if (mkdtemp(dir) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  daemon->dir_ = dir;
  // Other users' clients pass through it to the sockets; log and configuration stay ours.
  chmod(dir, 0711);
  daemon->runtime_dir_ = absl::StrCat(dir, "/run");
  std::vector<std::string>& args = daemon->args_;
  args = {ProgramPath("gpumemd"), "--backend", options.backend, "--runtime-dir",
          daemon->runtime_dir_,
          // Not the default folder of a daemon of this user.
          "--state-dir", options.state_dir.empty() ? daemon->state_dir() : options.state_dir};
  if (!options.config.empty()) {
    WriteFile(daemon->dir_ + "/gpumemd.toml", options.config);
    args.insert(args.end(), {"--config", daemon->dir_ + "/gpumemd.toml"});
  }
  args.insert(args.end(), options.flags.begin(), options.flags.end());
  if (absl::Status running = daemon->Run(); !running.ok()) return running;
  return daemon;
}

absl::Status DaemonProcess::Run() {
  const size_t said = Log().size();
  {
    StderrTo log(dir_ + "/log");
    child_ = Child(args_);
  }
  const auto is_ready = [&] { return Log().find(" ready: ", said) != std::string::npos; };
  // "ready" is the daemon's word for it; no session is spent on finding out.
  Eventually([&] { return is_ready() || child_.HasEnded(); });
  if (is_ready()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("gpumemd did not start: ", Log().substr(said)));
}

absl::Status DaemonProcess::Restart() {
  child_.Signal(SIGTERM);
  if (const int code = child_.Wait(); code != 0) {
    return absl::InternalError(absl::StrCat("gpumemd ended with exit code ", code));
  }
  return Run();
}

DaemonProcess::~DaemonProcess() {
  child_ = Child();
  if (dir_.empty()) return;
  // The daemon was killed: its context process removes its socket there at the same moment.
  Eventually([this] {
    std::error_code error;
    std::filesystem::remove_all(dir_, error);
    return !error;
  });
}

std::string DaemonProcess::Socket(absl::string_view name) const {
  return absl::StrCat(runtime_dir_, "/", name);
}

void DaemonProcess::Reconfigure(const std::string& config) {
  WriteFile(dir_ + "/gpumemd.toml", config);
  child_.Signal(SIGHUP);
}

std::string DaemonProcess::Log() const {
  std::stringstream text;
  text << std::ifstream(dir_ + "/log").rdbuf();
  return text.str();
}

absl::StatusOr<std::unique_ptr<Client>> DaemonProcess::Connect(const std::string& tenant,
                                                               const std::string& name) const {
  return Client::Connect({.runtime_dir = runtime_dir_, .tenant = tenant, .name = name});
}

}  // namespace gpumem::testing
