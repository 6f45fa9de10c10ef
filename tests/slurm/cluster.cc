// SPDX-License-Identifier: Apache-2.0
#include "tests/slurm/cluster.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {
namespace {

// Process 1, which adopts and reaps what daemons leave.
constexpr char kInit[] = "while :; do sleep 1000 & wait; done";

// The network of nodes 1 and 2, munged and slurmctld. Groups of the cluster lie below one that has
// the folder's name, which is of this cluster alone. $1 is the folder.
constexpr char kMachine[] = R"sh(
set -e
PATH=/usr/sbin:/usr/bin:/sbin:/bin
F=$1
G=$(basename "$F")
mkdir "$F/freezer"
mount -t cgroup -o freezer cgroup "$F/freezer"
mkdir "$F/freezer/$G"
hostname ctl
mount --bind "$F/passwd" /etc/passwd
mount --bind "$F/group" /etc/group
mount --bind "$F/hosts" /etc/hosts
ip link add br0 type bridge
ip addr add 10.99.0.1/24 dev br0
ip link set br0 up
for node in 1 2; do
  mkdir "$F/freezer/$G/node$node"
  ip netns add "node$node"
  ip link add "port$node" type veth peer name eth0 netns "node$node"
  ip link set "port$node" master br0 up
  (
    echo 0 >"$F/freezer/$G/node$node/cgroup.procs"
    exec nsenter --net="/run/netns/node$node" unshare --mount --uts --cgroup --ipc \
      /bin/sh "$F/node.sh" "$F" "$node" >"$F/node$node/log" 2>&1 </dev/null
  ) &
done
)sh";

constexpr char kController[] = R"sh(
set -e
PATH=/usr/sbin:/usr/bin:/sbin:/bin
F=$1
munged --force --key-file "$F/munge/key" --socket "$F/munge/socket" --pid-file "$F/munge/pid" \
  --log-file "$F/munge/log" --seed-file "$F/munge/seed" --num-threads 2
slurmctld -D -f "$F/slurm.conf" >"$F/ctl/log" 2>&1 </dev/null &
)sh";

// The first process of a node, which keeps its namespaces.
constexpr char kNode[] = R"sh(
set -e
F=$1
N=$F/node$2
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
umount -R /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
mkdir /sys/fs/cgroup/freezer
mount -t cgroup -o freezer cgroup /sys/fs/cgroup/freezer
hostname "node$2"
ip addr add "10.99.0.1$2/24" dev eth0
ip link set eth0 up
ip link set lo up
mkdir /run/gpumem
echo $$ >"$N/holder.new"
mv "$N/holder.new" "$N/holder"
exec sleep infinity
)sh";

// Ends everything but process 1, and removes the control groups.
constexpr char kEnd[] = R"sh(
kill -KILL -1
G=$1/freezer/$(basename "$1")
tries=0
while [ -e "$G" ] && [ $tries -lt 200 ]; do
  find "$G" -depth -type d -exec rmdir {} \; 2>/dev/null
  tries=$((tries + 1))
  ! [ -e "$G" ] || sleep 0.1
done
)sh";

constexpr char kSlurmConf[] = R"conf(ClusterName=test
SlurmctldHost=ctl(10.99.0.1)
AuthType=auth/munge
AuthInfo=socket=$F/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$F/ctl
SlurmdSpoolDir=$F/%n/spool
SlurmctldPidFile=$F/ctl/pid
SlurmdPidFile=$F/%n/slurmd.pidfile
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobSubmitPlugins=lua
PlugStackConfig=$F/plugstack.conf
PrologFlags=Alloc
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
SlurmctldDebug=verbose
SlurmdDebug=verbose
GresTypes=$TYPES
NodeName=node1 NodeAddr=10.99.0.11 CPUs=16 Gres=$GRES
NodeName=node2 NodeAddr=10.99.0.12 CPUs=16 Gres=$GRES
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
)conf";

constexpr char kGpumemdConf[] = R"toml([[rule]]
tenant = "job-{slurm_job}"
slurm_job = "*"
made = true
[[rule]]
tenant = "user-{uid}"
default = true
)toml";

constexpr char kPath[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
constexpr int kGpuMib = 4096;
constexpr absl::Duration kPatience = absl::Seconds(60);

void Write(const std::string& path, const std::string& text, mode_t mode = 0644) {
  std::ofstream(path, std::ios::trunc) << text;
  chmod(path.c_str(), mode);
}

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string TailOf(const std::string& path) {
  const std::string text = Read(path);
  return absl::StrCat("--- ", path, "\n",
                      text.substr(text.size() - std::min<size_t>(text.size(), 4000)));
}

// Returns "VALUE" of "… FIELD=VALUE …" in what scontrol prints.
std::string FieldOf(const std::string& text, const std::string& field) {
  for (absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"))) {
    if (absl::ConsumePrefix(&word, field + "=")) return std::string(word);
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const Options& options) {
  if (geteuid() != 0) return absl::FailedPreconditionError("a cluster of Slurm takes root");
  for (const char* program : {"/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged",
                              "/usr/bin/scontrol", "/usr/sbin/ip"}) {
    if (access(program, X_OK) != 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "Slurm is not installed here (", program, "): slurmctld, slurmd, slurm-client, munge"));
    }
  }
  absl::StatusOr<std::unique_ptr<Namespaces>> namespaces = Namespaces::Make(kInit, {});
  if (!namespaces.ok()) return namespaces.status();
  std::unique_ptr<Cluster> cluster(new Cluster);
  cluster->namespaces_ = *std::move(namespaces);
  if (absl::Status is_up = cluster->Boot(options); !is_up.ok()) return is_up;
  return cluster;
}

void Cluster::WriteFiles(const Options& options) const {
  const std::string& f = folder();
  chmod(f.c_str(), 0755);
  for (const char* name :
       {"/ctl", "/munge", "/bin", "/shared", "/node1", "/node2", "/node1/spool", "/node2/spool"}) {
    mkdir((f + name).c_str(), 0755);
  }
  chmod(shared().c_str(), 01777);
  // The build's folders may be for root alone.
  for (const char* name : {"gpumemd", "gpumemctl", "gpumem-slurm", "spank_gpumem.so"}) {
    std::filesystem::copy_file(ProgramPath(absl::StrReplaceAll(name, {{"-", "_"}, {".", "_"}})),
                               Program(name));
    chmod(Program(name).c_str(), 0755);
  }
  std::string key(128, 'k');
  std::ifstream("/dev/urandom").read(key.data(), static_cast<std::streamsize>(key.size()));
  Write(f + "/munge/key", key, 0400);
  Write(f + "/hosts", "127.0.0.1 localhost\n10.99.0.1 ctl\n10.99.0.11 node1\n10.99.0.12 node2\n");
  std::string users = Read("/etc/passwd"), groups = Read("/etc/group");
  for (const uid_t uid : kUsers) {
    absl::StrAppend(&users, "user", uid, ":x:", uid, ":", uid, "::/tmp:/bin/sh\n");
    absl::StrAppend(&groups, "user", uid, ":x:", uid, ":\n");
  }
  Write(f + "/passwd", users);
  Write(f + "/group", groups);

  const bool shards = options.gres == "shard";
  const int mib = options.gpus * kGpuMib;
  std::string gres = absl::StrCat("Name=", options.gres, " Count=", mib, "\n");
  if (shards) {
    gres = "";
    for (int i = 0; i < options.gpus; ++i) {
      // Any device will do for Slurm.
      const std::string file = absl::StrCat(f, "/gpu", i);
      mknod(file.c_str(), S_IFCHR | 0666, makedev(1, 3));
      absl::StrAppend(&gres, "Name=gpu File=", file, "\nName=shard Count=", kGpuMib, " File=", file,
                      "\n");
    }
  }
  Write(f + "/gres.conf", gres);
  Write(f + "/slurm.conf",
        absl::StrReplaceAll(absl::StrCat(kSlurmConf, options.slurm_conf),
                            {{"$F", f},
                             {"$TYPES", shards ? "gpu,shard" : options.gres},
                             {"$GRES", shards ? absl::StrCat("gpu:", options.gpus, ",shard:", mib)
                                              : absl::StrCat(options.gres, ":", mib)}}));
  Write(f + "/cgroup.conf", "CgroupPlugin=cgroup/v1\n");
  Write(f + "/plugstack.conf",
        absl::StrCat("required ", Program("spank_gpumem.so"), " helper=", Program("gpumem-slurm"),
                     " gres=", options.gres, " ", options.plugin_args, "\n"));
  std::filesystem::copy_file("deploy/slurm/job_submit.lua", f + "/job_submit.lua");
  Write(
      f + "/job_submit.lua",
      absl::StrReplaceAll(Read(f + "/job_submit.lua"),
                          {{"GRES = \"gpumem\"", absl::StrCat("GRES = \"", options.gres, "\"")}}));
  Write(f + "/gpumemd.toml", absl::StrCat("[host]\ndevices = ", options.gpus, "\ndevice_bytes = \"",
                                          kGpuMib, "MiB\"\n", kGpumemdConf));
  Write(f + "/machine.sh", kMachine);
  Write(f + "/node.sh", kNode);
}

absl::Status Cluster::Boot(const Options& options) {
  WriteFiles(options);
  if (!Eventually([this] { return namespaces_->pid() != 0; })) {
    return absl::InternalError(absl::StrCat("no process 1: ", namespaces_->Log()));
  }
  const Result network = namespaces_->Run({"/bin/sh", folder() + "/machine.sh", folder()});
  if (network.code != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine permits no network or group of a cluster: ", network.output));
  }
  const Result controller = namespaces_->Run({"/bin/sh", "-c", kController, "sh", folder()});
  if (controller.code != 0) return absl::InternalError(controller.output);
  for (int node = 1; node <= kNodes; ++node) {
    for (const char* daemon : {"gpumemd", "slurmd"}) {
      if (absl::Status runs = Run(node, daemon); !runs.ok()) return runs;
    }
  }
  return absl::OkStatus();
}

Cluster::~Cluster() {
  Child end = namespaces_->Start({"/bin/sh", "-c", kEnd, "sh", folder()}, "/dev/null");
  end.Wait();
}

Cluster::Result Cluster::AsRoot(const std::vector<std::string>& args) const {
  std::vector<std::string> all = {"/usr/bin/env", kPath,
                                  absl::StrCat("SLURM_CONF=", folder(), "/slurm.conf")};
  all.insert(all.end(), args.begin(), args.end());
  return namespaces_->Run(all);
}

Cluster::Result Cluster::AsUser(uid_t uid, const std::vector<std::string>& args) const {
  std::vector<std::string> all = {"/usr/bin/env",
                                  "-C",
                                  shared(),
                                  "/usr/bin/setpriv",
                                  absl::StrCat("--reuid=", uid),
                                  absl::StrCat("--regid=", uid),
                                  "--clear-groups"};
  all.insert(all.end(), args.begin(), args.end());
  return AsRoot(all);
}

uint32_t Cluster::Submit(uid_t uid, const std::vector<std::string>& options,
                         const std::string& script) {
  std::vector<std::string> all = {"sbatch", "--parsable", "--output=%j.out"};
  all.insert(all.end(), options.begin(), options.end());
  all.push_back(absl::StrCat("--wrap=", script));
  const Result result = AsUser(uid, all);
  uint32_t job = 0;
  if (result.code != 0 || !absl::SimpleAtoi(result.output, &job)) return 0;
  return job;
}

std::string Cluster::Output(uint32_t job) const {
  return Read(absl::StrCat(shared(), "/", job, ".out"));
}

std::string Cluster::JobField(uint32_t job, const std::string& field) const {
  return FieldOf(AsRoot({"scontrol", "show", "job", "-d", absl::StrCat(job)}).output, field);
}

std::string Cluster::NodeField(int node, const std::string& field) const {
  return FieldOf(AsRoot({"scontrol", "show", "node", absl::StrCat("node", node)}).output, field);
}

bool Cluster::WaitForState(uint32_t job, const std::string& state) const {
  return Eventually([&] { return JobField(job, "JobState") == state; }, kPatience);
}

bool Cluster::WaitForQuiet() const {
  return Eventually([&] { return AsRoot({"squeue", "--noheader"}).output.empty(); }, kPatience);
}

Cluster::Result Cluster::OnNode(int node, const std::vector<std::string>& args) const {
  std::string holder = Read(absl::StrCat(folder(), "/node", node, "/holder"));
  absl::StripTrailingAsciiWhitespace(&holder);
  std::vector<std::string> all = {"/usr/bin/nsenter",
                                  "-t",
                                  holder,
                                  "-m",
                                  "-u",
                                  "-C",
                                  "-n",
                                  "-i",
                                  "--",
                                  "/usr/bin/env",
                                  kPath,
                                  absl::StrCat("SLURM_CONF=", folder(), "/slurm.conf"),
                                  absl::StrCat("SLURMD_NODENAME=node", node)};
  all.insert(all.end(), args.begin(), args.end());
  return namespaces_->Run(all);
}

nlohmann::json Cluster::Gpumemctl(int node, std::vector<std::string> args) const {
  args.insert(args.begin(), {Program("gpumemctl"), "-o", "json"});
  const Result result = OnNode(node, args);
  return result.code == 0 ? nlohmann::json::parse(result.output) : nlohmann::json();
}

std::vector<std::string> Cluster::Tenants(int node) const {
  std::vector<std::string> names;
  const nlohmann::json all = Gpumemctl(node, {"tenant", "list"});
  if (!all.is_object()) return {all.dump()};
  for (const auto& tenant : all["tenants"]) names.push_back(tenant["usage"]["tenant"]);
  return names;
}

uint64_t Cluster::Charged(int node) const {
  uint64_t bytes = 0;
  const nlohmann::json status = Gpumemctl(node, {"status"});
  if (!status.is_object()) return ~uint64_t{0};
  for (const auto& device : status["devices"]) bytes += device["charged_bytes"].get<uint64_t>();
  return bytes;
}

void Cluster::Kill(int node, const std::string& daemon) {
  std::string pid = Read(absl::StrCat(folder(), "/node", node, "/", daemon, ".pid"));
  absl::StripTrailingAsciiWhitespace(&pid);
  namespaces_->Run({"/bin/kill", "-KILL", pid});
  Eventually([&] { return namespaces_->Run({"/bin/kill", "-0", pid}).code != 0; });
}

absl::Status Cluster::Run(int node, const std::string& daemon) {
  const std::string home = absl::StrCat(folder(), "/node", node);
  if (!Eventually([&] { return access((home + "/holder").c_str(), F_OK) == 0; })) {
    return absl::InternalError(Logs());
  }
  const std::string command =
      daemon == "slurmd"
          ? absl::StrCat("slurmd -D -N node", node, " -f ", folder(), "/slurm.conf")
          : absl::StrCat(Program("gpumemd"), " --backend host --config ", folder(),
                         "/gpumemd.toml --runtime-dir /run/gpumem --state-dir ", home, "/state");
  OnNode(node, {"/bin/sh", "-c",
                absl::StrCat("(echo 0 >/sys/fs/cgroup/freezer/cgroup.procs; "
                             "exec setsid /bin/sh -c 'echo $$ >$0; exec ",
                             command, "' ", home, "/", daemon, ".pid) >>", home, "/", daemon,
                             ".log 2>&1 </dev/null &")});
  const bool is_up = Eventually(
      [&] {
        if (daemon == "gpumemd") return Gpumemctl(node, {"status"}).is_object();
        const std::string state = NodeField(node, "State");
        return state == "IDLE" || state == "MIXED" || state == "ALLOCATED";
      },
      kPatience);
  if (!is_up) return absl::InternalError(absl::StrCat(daemon, " does not serve\n", Logs()));
  return absl::OkStatus();
}

absl::Status Cluster::Restart(int node, const std::string& daemon) {
  Kill(node, daemon);
  return Run(node, daemon);
}

std::string Cluster::Logs() const {
  std::string logs = namespaces_->Log();
  absl::StrAppend(&logs, TailOf(folder() + "/ctl/log"));
  for (int node = 1; node <= kNodes; ++node) {
    for (const char* name : {"/log", "/slurmd.log", "/gpumemd.log"}) {
      absl::StrAppend(&logs, TailOf(absl::StrCat(folder(), "/node", node, name)));
    }
  }
  return logs;
}

}  // namespace gpumem::testing
