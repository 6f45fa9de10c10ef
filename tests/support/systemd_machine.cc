#include "tests/support/systemd_machine.h"

#include <ftw.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpumem::testing {
namespace {

constexpr char kSystemd[] = "/lib/systemd/systemd";
// Under --net: systemd raises net.unix.max_dgram_qlen, which is the network's.
constexpr char kNamespaces[] = "--mount --pid --cgroup --ipc --uts --net";

// Process 1 before it becomes systemd; $1 is the folder, $2 systemd.
constexpr char kInit[] = R"sh(
set -e
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
mount --bind "$1" "$1"
mount -o remount,bind,ro /
ip link set lo up || true
cd /
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=lxc \
  SYSTEMD_UNIT_PATH="$1/units" SYSTEMD_GENERATOR_PATH="$1/none" \
  SYSTEMD_ENVIRONMENT_GENERATOR_PATH="$1/none" \
  "$2" --system --unit=test.target --log-target=console --show-status=no
)sh";

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

// The exit code of a shell's script, its words in `output`, a file.
int Shell(const std::string& script, const std::string& output,
          const std::vector<std::string>& args) {
  std::vector<std::string> all = {
      "/bin/sh", "-c", absl::StrCat("exec >", output, " 2>&1 </dev/null; ", script), "sh"};
  all.insert(all.end(), args.begin(), args.end());
  return Child(all).Wait();
}

// Groups can be removed, but not what is in them.
void RemoveGroups(const std::string& folder) {
  nftw(
      folder.c_str(),
      [](const char* path, const struct stat*, int type, FTW*) {
        if (type == FTW_DP) rmdir(path);
        return 0;
      },
      16, FTW_DEPTH | FTW_PHYS);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SystemdMachine>> SystemdMachine::Boot() {
  if (geteuid() != 0) {
    return absl::FailedPreconditionError("booting a systemd of the test's own takes root");
  }
  if (access(kSystemd, X_OK) != 0 || access("/usr/bin/nsenter", X_OK) != 0 ||
      access("/usr/bin/unshare", X_OK) != 0) {
    return absl::FailedPreconditionError("systemd or util-linux is not installed here");
  }
  char folder[] = "/tmp/gpumem-test-XXXXXX";
  if (mkdtemp(folder) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  std::unique_ptr<SystemdMachine> machine(new SystemdMachine);
  machine->folder_ = folder;
  const std::string log = absl::StrCat(folder, "/systemd.log");
  if (Shell(absl::StrCat("exec unshare ", kNamespaces, " --fork mount -t tmpfs none /run"), log,
            {}) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine permits no namespaces: ", machine->Log()));
  }
  absl::StatusOr<std::unique_ptr<LiveCgroup>> group =
      LiveCgroup::Make("", absl::StrCat("/", std::string(folder).substr(strlen("/tmp/"))));
  if (!group.ok()) return group.status();
  machine->group_ = *std::move(group);

  mkdir(absl::StrCat(folder, "/units").c_str(), 0755);
  for (const char* target : {"test", "sysinit", "basic", "shutdown", "exit", "multi-user"}) {
    Write(absl::StrCat(folder, "/units/", target, ".target"), "[Unit]\nDefaultDependencies=no\n");
  }
  // The control group first: it becomes the root of what the new namespace sees.
  machine->unshare_ = Child(
      {"/bin/sh", "-c",
       absl::StrCat("exec >>", log, " 2>&1 </dev/null; echo 0 >\"$1\"; exec unshare ", kNamespaces,
                    " --fork --mount-proc --kill-child /bin/sh -c \"$2\" init \"$3\" \"$4\""),
       "sh", machine->group_->procs(), kInit, folder, kSystemd});
  const std::string children = absl::StrCat("/proc/", machine->unshare_.pid(), "/task/",
                                            machine->unshare_.pid(), "/children");
  const bool is_up = Eventually(
      [&] {
        if (machine->pid_ == 0 &&
            !absl::SimpleAtoi(absl::StripSuffix(Read(children), " "), &machine->pid_)) {
          return false;
        }
        return machine->Systemctl({"is-system-running"}).output == "running\n";
      },
      absl::Seconds(60));
  if (machine->pid_ != 0) {
    machine->pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, machine->pid_, 0)));
  }
  if (!is_up) return absl::InternalError(absl::StrCat("systemd did not boot: ", machine->Log()));
  // "systemd 252 (252.39-1~deb12u2)"
  const std::vector<std::string> words =
      absl::StrSplit(machine->Systemctl({"--version"}).output, ' ');
  if (words.size() > 1) (void)absl::SimpleAtoi(words[1], &machine->version_);
  return machine;
}

SystemdMachine::~SystemdMachine() {
  unshare_ = Child();
  if (pidfd_.valid()) {
    // Process 1 is gone only when all others in its namespace are.
    pollfd ended = {pidfd_.get(), POLLIN, 0};
    poll(&ended, 1, 60'000);
  }
  if (group_ != nullptr) {
    Eventually([this] {
      RemoveGroups(group_->folder());
      return access(group_->folder().c_str(), F_OK) != 0;
    });
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void SystemdMachine::WriteUnit(const std::string& name, const std::string& text) {
  Write(absl::StrCat(folder_, "/units/", name), text);
  Systemctl({"daemon-reload"});
}

SystemdMachine::Result SystemdMachine::Run(const std::vector<std::string>& args) const {
  const std::string output = absl::StrCat(folder_, "/output", ++runs_);
  std::vector<std::string> all = {absl::StrCat(pid_)};
  all.insert(all.end(), args.begin(), args.end());
  Result result;
  result.code = Shell("pid=$1; shift; exec timeout 60 nsenter -t $pid -m -p -C -i -u -n -- \"$@\"",
                      output, all);
  result.output = Read(output);
  unlink(output.c_str());
  return result;
}

SystemdMachine::Result SystemdMachine::Systemctl(std::vector<std::string> args) const {
  args.insert(args.begin(), "systemctl");
  return Run(args);
}

std::string SystemdMachine::Property(const std::string& unit, const std::string& property) const {
  const std::string output = Systemctl({"show", "--value", "-p", property, unit}).output;
  return std::string(absl::StripSuffix(output, "\n"));
}

std::string SystemdMachine::Log() const { return Read(folder_ + "/systemd.log"); }

}  // namespace gpumem::testing
