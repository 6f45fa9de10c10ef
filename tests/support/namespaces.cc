// SPDX-License-Identifier: Apache-2.0
#include "tests/support/namespaces.h"

#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gpumem::testing {
namespace {

// A test's folder and its control group have a name that begins so.
constexpr const char* kFolders[] = {"/tmp", "/var/tmp"};
constexpr char kPrefix[] = "gpumem-ns-";
constexpr int kMomentSeconds = 60;

// Under --net: systemd raises net.unix.max_dgram_qlen, which is the network's.
constexpr char kNamespaces[] = "--mount --pid --cgroup --ipc --uts --net";

// Process 1 before it goes on with the script.
constexpr char kInit[] = R"sh(
set -e
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
ip link set lo up || true
cd /
)sh";

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A shell's script, its words in `output`, a file.
Child Shell(const std::string& script, const std::string& output,
            const std::vector<std::string>& args) {
  std::vector<std::string> all = {
      "/bin/sh", "-c", absl::StrCat("exec >", output, " 2>&1 </dev/null; ", script), "sh"};
  all.insert(all.end(), args.begin(), args.end());
  return Child(all);
}

// Control group folders can be removed, but not the files in them.
void RemoveGroups(const std::string& folder) {
  nftw(
      folder.c_str(),
      [](const char* path, const struct stat*, int type, FTW*) {
        if (type == FTW_DP) rmdir(path);
        return 0;
      },
      16, FTW_DEPTH | FTW_PHYS);
}

// Removes what killed tests have left: their folders, and the control groups of that name in all
// hierarchies. Their processes are gone, those inside with process 1.
void RemoveLeftovers(const std::string& folders) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folders, ignored)) {
    const std::string name = entry.path().filename();
    if (name.compare(0, strlen(kPrefix), kPrefix) != 0) continue;
    const UniqueFd folder(open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    struct stat status = {};
    // The test that made it holds a lock, but for its first moment.
    if (!folder.valid() || fstat(folder.get(), &status) != 0 ||
        status.st_mtime + kMomentSeconds > time(nullptr) ||
        flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
      continue;
    }
    for (const auto& hierarchy : std::filesystem::directory_iterator("/sys/fs/cgroup", ignored)) {
      RemoveGroups(hierarchy.path() / name);
    }
    RemoveGroups("/sys/fs/cgroup/" + name);
    std::filesystem::remove_all(entry.path(), ignored);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Namespaces>> Namespaces::Make(const std::string& script,
                                                             const std::vector<std::string>& args,
                                                             const std::string& folders) {
  if (geteuid() != 0) {
    return absl::FailedPreconditionError("namespaces of the test's own take root");
  }
  if (access("/usr/bin/nsenter", X_OK) != 0 || access("/usr/bin/unshare", X_OK) != 0) {
    return absl::FailedPreconditionError("util-linux is not installed here");
  }
  for (const char* each : kFolders) RemoveLeftovers(each);
  std::string folder = absl::StrCat(folders, "/", kPrefix, "XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
  std::unique_ptr<Namespaces> it(new Namespaces);
  it->folder_ = folder;
  it->lock_ = UniqueFd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  flock(it->lock_.get(), LOCK_SH);
  const std::string log = absl::StrCat(folder, "/init.log");
  if (Shell(absl::StrCat("exec unshare ", kNamespaces, " --fork mount -t tmpfs none /run"), log, {})
          .Wait() != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine permits no namespaces: ", it->Log()));
  }
  absl::StatusOr<std::unique_ptr<LiveCgroup>> group =
      LiveCgroup::Make("", absl::StrCat("/", folder.substr(folders.size() + 1)));
  if (!group.ok()) return group.status();
  it->group_ = *std::move(group);

  // The control group first: it becomes the root of the new namespace's view.
  std::vector<std::string> all = {
      "/bin/sh",
      "-c",
      absl::StrCat("exec >>", log, " 2>&1 </dev/null; echo 0 >\"$1\"; shift; exec unshare ",
                   kNamespaces, " --fork --mount-proc --kill-child /bin/sh -c \"$@\""),
      "sh",
      it->group_->procs(),
      absl::StrCat(kInit, script),
      "init",
      folder};
  all.insert(all.end(), args.begin(), args.end());
  it->unshare_ = Child(all);
  return it;
}

Namespaces::~Namespaces() {
  pid();
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

pid_t Namespaces::pid() {
  if (pid_ != 0 || !unshare_.running()) return pid_;
  const std::string children =
      absl::StrCat("/proc/", unshare_.pid(), "/task/", unshare_.pid(), "/children");
  if (!absl::SimpleAtoi(absl::StripSuffix(Read(children), " "), &pid_)) pid_ = 0;
  if (pid_ != 0) pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  return pid_;
}

Namespaces::Result Namespaces::Run(const std::vector<std::string>& args) const {
  const std::string output = absl::StrCat(folder_, "/output", ++runs_);
  std::vector<std::string> all = {"/usr/bin/timeout", "60"};
  all.insert(all.end(), args.begin(), args.end());
  Result result;
  result.code = Start(all, output).Wait();
  result.output = Read(output);
  unlink(output.c_str());
  return result;
}

Child Namespaces::Start(const std::vector<std::string>& args, const std::string& output,
                        const std::string& group) const {
  std::vector<std::string> all = {absl::StrCat(pid_)};
  all.insert(all.end(), args.begin(), args.end());
  const std::string join =
      group.empty() ? "" : absl::StrCat("echo 0 >", group_->folder(), group, "/cgroup.procs; ");
  return Shell(
      absl::StrCat(join, "pid=$1; shift; exec nsenter -t $pid -m -p -C -i -u -n -- \"$@\""), output,
      all);
}

std::string Namespaces::Log() const { return Read(folder_ + "/init.log"); }

}  // namespace gpumem::testing
