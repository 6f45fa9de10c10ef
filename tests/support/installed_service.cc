// SPDX-License-Identifier: Apache-2.0
#include "tests/support/installed_service.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {
namespace {

namespace fs = std::filesystem;

constexpr char kShipped[] = "deploy/systemd";

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

// Runs inside: does to the machine what the package's files and its postinst do. $1 is the folder.
// Layers over /etc and /usr/sbin, since the machine's own files stay as they are.
constexpr char kInstall[] = R"sh(
set -e
systemd-sysusers --root="$1/root"
mount -t overlay overlay -o "lowerdir=$1/root/etc:/etc" /etc
mount -t overlay overlay -o "lowerdir=$1/root/usr/sbin:/usr/sbin" /usr/sbin
mount --bind "$1/config" /etc/gpumem
mount -t tmpfs -o mode=755 tmpfs /var/lib
mount -t tmpfs -o mode=755 tmpfs /var/log
systemd-tmpfiles --create "$1/tmpfiles.conf"
)sh";

}  // namespace

absl::StatusOr<std::unique_ptr<InstalledService>> InstalledService::Install(
    const Options& options) {
  auto machine = SystemdMachine::Boot();
  if (!machine.ok()) return machine.status();
  std::unique_ptr<InstalledService> service(new InstalledService);
  service->machine_ = *std::move(machine);
  try {
    if (absl::Status prepared = service->Prepare(options); !prepared.ok()) return prepared;
  } catch (const fs::filesystem_error& error) {
    return absl::InternalError(error.what());
  }
  service->DropIn("test", absl::StrCat("StandardError=append:", service->machine_->folder(),
                                       "/log\n", options.service_lines));
  return service;
}

absl::Status InstalledService::Prepare(const Options& options) {
  const std::string& folder = machine_->folder();
  const std::string root = folder + "/root";
  for (const char* each : {"/root/etc/gpumem", "/root/usr/sbin", "/root/usr/lib/sysusers.d",
                           "/config", "/units/gpumemd.service.d"}) {
    fs::create_directories(folder + each);
  }
  for (const char* each : {"/etc/passwd", "/etc/group"}) fs::copy_file(each, root + each);
  fs::copy_file(absl::StrCat(kShipped, "/sysusers.conf"), root + "/usr/lib/sysusers.d/gpumem.conf");
  fs::copy_file(absl::StrCat(kShipped, "/tmpfiles.conf"), folder + "/tmpfiles.conf");
  fs::copy_file(ProgramPath(options.program), root + "/usr/sbin/gpumemd");
  for (const char* unit : {"gpumemd.service", "gpumemd-session.socket", "gpumemd-admin.socket",
                           "gpumemd-view.socket"}) {
    fs::copy_file(absl::StrCat(kShipped, "/", unit), absl::StrCat(folder, "/units/", unit));
  }
  Configure(options.config.empty() ? Read("deploy/gpumemd.toml") : options.config);
  const auto installed = machine_->Run({"/bin/sh", "-c", kInstall, "install", folder});
  if (installed.code == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this machine does not let the test lay files over its own: ", installed.output));
}

void InstalledService::Configure(const std::string& toml) const {
  Write(machine_->folder() + "/config/gpumemd.toml", toml);
}

void InstalledService::DropIn(const std::string& name, const std::string& service_lines) const {
  machine_->WriteUnit(absl::StrCat("gpumemd.service.d/", name, ".conf"),
                      absl::StrCat("[Service]\n", service_lines, "\n"));
}

pid_t InstalledService::MainPid() const {
  pid_t pid = 0;
  (void)absl::SimpleAtoi(Property("MainPID"), &pid);
  return pid;
}

SystemdMachine::Result InstalledService::Role(const std::vector<std::string>& words) const {
  std::vector<std::string> args = {fs::read_symlink("/proc/self/exe").string(), "--role"};
  args.insert(args.end(), words.begin(), words.end());
  return machine_->Run(args);
}

std::string InstalledService::Log() const { return Read(machine_->folder() + "/log"); }

}  // namespace gpumem::testing
