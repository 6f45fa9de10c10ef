// SPDX-License-Identifier: Apache-2.0
#include "tests/support/systemd_machine.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/child.h"

namespace gpumem::testing {
namespace {

constexpr char kSystemd[] = "/lib/systemd/systemd";

// Process 1 before it becomes systemd; $1 is the folder, $2 systemd. LeakSanitizer traces the
// process that it checks, which the services' filters of system calls do not let it.
constexpr char kInit[] = R"sh(
mkdir "$1/units"
for target in test sysinit basic shutdown exit multi-user; do
  printf "[Unit]\nDefaultDependencies=no\n" >"$1/units/$target.target"
done
mount --bind "$1" "$1"
mount -o remount,bind,ro /
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=lxc \
  SYSTEMD_UNIT_PATH="$1/units" SYSTEMD_GENERATOR_PATH="$1/none" \
  SYSTEMD_ENVIRONMENT_GENERATOR_PATH="$1/none" \
  SYSTEMD_PROC_CMDLINE=systemd.setenv=ASAN_OPTIONS=detect_leaks=0 \
  "$2" --system --unit=test.target --log-target=console --show-status=no
)sh";

}  // namespace

absl::StatusOr<std::unique_ptr<SystemdMachine>> SystemdMachine::Boot() {
  if (access(kSystemd, X_OK) != 0) {
    return absl::FailedPreconditionError("systemd is not installed here");
  }
  absl::StatusOr<std::unique_ptr<Namespaces>> namespaces = Namespaces::Make(kInit, {kSystemd});
  if (!namespaces.ok()) return namespaces.status();
  std::unique_ptr<SystemdMachine> machine(new SystemdMachine);
  machine->namespaces_ = *std::move(namespaces);
  const bool is_up = Eventually(
      [&] {
        return machine->namespaces_->pid() != 0 &&
               machine->Systemctl({"is-system-running"}).output == "running\n";
      },
      absl::Seconds(60));
  if (!is_up) return absl::InternalError(absl::StrCat("systemd did not boot: ", machine->Log()));
  // "systemd 252 (252.39-1~deb12u2)"
  const std::vector<std::string> words =
      absl::StrSplit(machine->Systemctl({"--version"}).output, ' ');
  if (words.size() > 1) (void)absl::SimpleAtoi(words[1], &machine->version_);
  return machine;
}

void SystemdMachine::WriteUnit(const std::string& name, const std::string& text) {
  std::ofstream(absl::StrCat(folder(), "/units/", name), std::ios::trunc) << text;
  Systemctl({"daemon-reload"});
}

SystemdMachine::Result SystemdMachine::Systemctl(std::vector<std::string> args) const {
  args.insert(args.begin(), "systemctl");
  return Run(args);
}

std::string SystemdMachine::Property(const std::string& unit, const std::string& property) const {
  const std::string output = Systemctl({"show", "--value", "-p", property, unit}).output;
  return std::string(absl::StripSuffix(output, "\n"));
}

}  // namespace gpumem::testing
