// SPDX-License-Identifier: Apache-2.0
#include "tests/support/container_host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace gpumem::testing {
namespace {

using nlohmann::json;

constexpr char kCrun[] = "/usr/bin/crun";
// Processes of the node are in a group of their own, since a group that has others below it may
// have no members where controllers are given on (cgroups(7)).
constexpr char kNodeGroup[] = "/node";

// Process 1. It reaps no children: orphaned processes end with the node.
constexpr char kInit[] = R"sh(
mkdir /sys/fs/cgroup/node
echo 0 >/sys/fs/cgroup/node/cgroup.procs
cd "$1"
mkdir -p rootfs/usr rootfs/proc rootfs/dev rootfs/sys rootfs/tmp rootfs/run rootfs/etc
for name in bin sbin lib lib64; do
  if [ -L "/$name" ]; then ln -s "usr/$name" "rootfs/$name"; fi
done
echo up
exec sleep infinity
)sh";

json Namespace(const char* type) { return {{"type", type}}; }

json Tmpfs(const char* target, const char* mode) {
  return {{"destination", target},
          {"type", "tmpfs"},
          {"source", "tmpfs"},
          {"options", {"nosuid", "noexec", mode}}};
}

json Bind(const std::string& source, const std::string& target, bool read_only) {
  return {{"destination", target},
          {"type", "bind"},
          {"source", source},
          {"options", {"rbind", read_only ? "ro" : "rw"}}};
}

// As containerd writes it for a pod without requests (config.md of the OCI runtime spec).
json ConfigOf(const ContainerSpec& spec, const std::string& rootfs, bool is_image) {
  json env = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  for (const std::string& variable : spec.env) env.push_back(variable);
  json mounts = {
      {{"destination", "/proc"},
       {"type", "proc"},
       {"source", "proc"},
       {"options", {"nosuid", "noexec", "nodev"}}},
      Tmpfs("/dev", "mode=755"),
      Tmpfs("/tmp", "mode=1777"),
      {{"destination", "/sys"},
       {"type", "sysfs"},
       {"source", "sysfs"},
       {"options", {"nosuid", "noexec", "nodev", "ro"}}},
      {{"destination", "/sys/fs/cgroup"},
       {"type", "cgroup"},
       {"source", "cgroup"},
       {"options", {"nosuid", "noexec", "nodev", "relatime", "ro"}}},
  };
  if (!is_image) mounts.push_back(Bind("/usr", "/usr", true));
  for (const ContainerMount& mount : spec.mounts) {
    mounts.push_back(Bind(mount.source, mount.target, mount.read_only));
  }
  json namespaces = {Namespace("ipc"), Namespace("network"), Namespace("mount"), Namespace("uts"),
                     Namespace("cgroup")};
  if (!spec.host_pid) namespaces.push_back(Namespace("pid"));
  return {
      {"ociVersion", "1.0.2"},
      {"hostname", spec.name},
      {"root", {{"path", rootfs}, {"readonly", true}}},
      {"mounts", mounts},
      {"process",
       {{"user", {{"uid", spec.uid}, {"gid", spec.gid}}},
        {"args", spec.args},
        {"env", env},
        {"cwd", "/"},
        {"noNewPrivileges", true},
        {"capabilities", json::object()}}},
      {"linux",
       {{"cgroupsPath", spec.cgroup.empty() ? absl::StrCat("/", spec.name) : spec.cgroup},
        {"namespaces", namespaces},
        {"maskedPaths",
         {"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
          "/proc/scsi", "/sys/firmware"}},
        {"readonlyPaths",
         {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}}}},
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<ContainerHost>> ContainerHost::Boot(const std::string& rootfs) {
  if (access(kCrun, X_OK) != 0) {
    return absl::FailedPreconditionError("crun is not installed here");
  }
  absl::StatusOr<std::unique_ptr<Namespaces>> namespaces = Namespaces::Make(kInit, {});
  if (!namespaces.ok()) return namespaces.status();
  std::unique_ptr<ContainerHost> host(new ContainerHost);
  host->namespaces_ = *std::move(namespaces);
  host->image_ = rootfs;
  if (!Eventually(
          [&] { return host->namespaces_->pid() != 0 && host->namespaces_->Log() == "up\n"; })) {
    return absl::InternalError(
        absl::StrCat("the node did not come up: ", host->namespaces_->Log()));
  }
  // Users of containers reach the mounted parts through it.
  chmod(host->folder().c_str(), 0711);
  return host;
}

Child ContainerHost::Run(const ContainerSpec& spec) {
  const std::string bundle = absl::StrCat(folder(), "/bundle-", spec.name);
  mkdir(bundle.c_str(), 0700);
  std::ofstream(bundle + "/config.json")
      << ConfigOf(spec, image_.empty() ? folder() + "/rootfs" : image_, !image_.empty()).dump(1);
  users_[spec.name] = absl::StrCat(spec.uid, ":", spec.gid);
  const std::string log = absl::StrCat(folder(), "/log-", spec.name);
  unlink(log.c_str());  // of a former container of that name
  return namespaces_->Start({kCrun, "--root", "/run/crun", "--cgroup-manager=cgroupfs", "run",
                             "--bundle", bundle, spec.name},
                            log, kNodeGroup);
}

ContainerHost::Result ContainerHost::Exec(const std::string& name,
                                          const std::vector<std::string>& args) const {
  std::vector<std::string> all = {"exec", "--user", users_.at(name), name};
  all.insert(all.end(), args.begin(), args.end());
  return Crun(all);
}

ContainerHost::Result ContainerHost::Kill(const std::string& name,
                                          const std::string& signal) const {
  return Crun({"kill", name, signal});
}

pid_t ContainerHost::PidOf(const std::string& name) const {
  const json state = json::parse(Crun({"state", name}).output, nullptr, false);
  if (!state.is_object() || state.value("status", "") != "running") return 0;
  return state.value("pid", 0);
}

std::string ContainerHost::Log(const std::string& name) const {
  std::stringstream text;
  text << std::ifstream(absl::StrCat(folder(), "/log-", name)).rdbuf();
  return text.str();
}

ContainerHost::Result ContainerHost::Crun(std::vector<std::string> args) const {
  args.insert(args.begin(), {kCrun, "--root", "/run/crun", "--cgroup-manager=cgroupfs"});
  return namespaces_->Run(args);
}

}  // namespace gpumem::testing
