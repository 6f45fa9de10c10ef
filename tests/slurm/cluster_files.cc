// SPDX-License-Identifier: Apache-2.0
#include "tests/slurm/cluster_files.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/support/daemon_process.h"

namespace gpumem::testing {
namespace {

// The network of nodes 1 and 2, munged and slurmctld. Groups of the cluster lie below one that has
// the folder's name, which is of this cluster alone. $1 is the folder.
constexpr char kMachine[] = R"sh(
set -e
PATH=/usr/sbin:/usr/bin:/sbin:/bin
F=$1
G=$(basename "$F")
mkdir "$F/groups"
mount -t $HIERARCHY "$F/groups"
mkdir "$F/groups/$G"
hostname ctl
mount --bind "$F/passwd" /etc/passwd
mount --bind "$F/group" /etc/group
mount --bind "$F/hosts" /etc/hosts
ip link add br0 type bridge
ip addr add 10.99.0.1/24 dev br0
ip link set br0 up
for node in 1 2; do
  mkdir "$F/groups/$G/node$node"
  ip netns add "node$node"
  ip link add "port$node" type veth peer name eth0 netns "node$node"
  ip link set "port$node" master br0 up
  (
    echo 0 >"$F/groups/$G/node$node/cgroup.procs"
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
if [ -e "$F/slurmdbd.conf" ]; then
  export SLURM_CONF="$F/slurm.conf"
  ip link set lo up
  DB="--no-defaults --user=root --datadir=$F/db --skip-test-db"
  mariadb-install-db $DB >"$F/ctl/db.log" 2>&1
  mariadbd --no-defaults --user=root --datadir="$F/db" --socket="$F/db/socket" \
    --pid-file="$F/db/pid" --bind-address=127.0.0.1 --port=3307 --skip-grant-tables \
    >>"$F/ctl/db.log" 2>&1 </dev/null &
  until [ -S "$F/db/socket" ]; do sleep 0.1; done
  slurmdbd -D >"$F/ctl/slurmdbd.out" 2>&1 </dev/null &
  until grep -q started "$F/ctl/slurmdbd.log"; do sleep 0.1; done
  timeout 20 sacctmgr -i add cluster test >"$F/ctl/sacctmgr.log" 2>&1 </dev/null
fi
slurmctld -D -f "$F/slurm.conf" >"$F/ctl/log" 2>&1 </dev/null &
)sh";

// The first process of a node, which keeps its namespaces.
constexpr char kNode[] = R"sh(
set -e
F=$1
N=$F/node$2
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
umount "$F/groups"
umount -R /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
mkdir -p $GROUPS
mount -t $HIERARCHY $GROUPS
hostname "node$2"
ip addr add "10.99.0.1$2/24" dev eth0
ip link set eth0 up
ip link set lo up
mkdir /run/gpumem
echo $$ >"$N/holder.new"
mv "$N/holder.new" "$N/holder"
exec sleep infinity
)sh";

// Becomes a daemon of a node: $2 is the node, $3 slurmd or gpumemd.
constexpr char kDaemon[] = R"sh(
F=$1
N=$F/node$2
G=$GROUPS/system.slice/$3.service
mkdir -p "$G"
echo 0 >"$G/cgroup.procs"
echo $$ >"$N/$3.pid"
exec >>"$N/$3.log" 2>&1 </dev/null
if [ "$3" = slurmd ]; then
  unset SLURMD_NODENAME
  $PRELOAD exec slurmd -D -N "node$2" -f "$F/slurm.conf"
fi
# A keeper that is killed leaves its socket there.
export TMPDIR="$N"
exec "$F/bin/gpumem-keeper" -- "$F/bin/gpumemd" --backend host --config "$F/gpumemd.toml" \
  --runtime-dir /run/gpumem --state-dir "$N/state"
)sh";

// Ends everything but process 1, and removes the control groups.
constexpr char kEnd[] = R"sh(
kill -KILL -1
G=$1/groups/$(basename "$1")
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
AccountingStorageType=accounting_storage/$STORAGE
JobSubmitPlugins=lua
PlugStackConfig=$F/plugstack.conf
PrologFlags=Alloc$CONTAIN
SchedulerParameters=bf_interval=1
ReturnToService=2
KillWait=5
SlurmdTimeout=30
SlurmdParameters=config_overrides
SlurmctldDebug=verbose
SlurmdDebug=verbose
GresTypes=$TYPES
NodeName=node1 NodeAddr=10.99.0.11 CPUs=16 Gres=$GRES
NodeName=node2 NodeAddr=10.99.0.12 CPUs=16 Gres=$GRES
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
)conf";

constexpr char kPreemption[] = R"conf(PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL PriorityTier=10 State=UP
)conf";

// For the program, and where its clients find it.
constexpr char kDatabase[] = R"conf(AuthType=auth/munge
AuthInfo=socket=$F/munge/socket
DbdHost=ctl
DbdAddr=10.99.0.1
SlurmUser=root
LogFile=$F/ctl/slurmdbd.log
PidFile=$F/ctl/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=3307
StorageUser=root
StorageLoc=slurm
)conf";
constexpr char kWithDatabase[] = R"conf(AccountingStorageHost=10.99.0.1
AccountingStoragePass=$F/munge/socket
AccountingStorageTRES=gres/gpumem
)conf";

constexpr char kTier[] = R"toml([tier]
capacity = "3GiB"
huge_pages = false
prefault = false
)toml";

constexpr char kGpumemdConf[] = R"toml([[rule]]
tenant = "job-{slurm_job}"
slurm_job = "*"
made = true
[[tenant]]
name = "jobs"
[[rule]]
tenant = "user-{uid}"
default = true
)toml";

constexpr int kGpuMib = 4096;

void Write(const std::string& path, const std::string& text, mode_t mode = 0644) {
  std::ofstream(path, std::ios::trunc) << text;
  chmod(path.c_str(), mode);
}

}  // namespace

std::string ReadText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void WriteClusterFiles(const std::string& f, const ClusterOptions& options) {
  chmod(f.c_str(), 0755);
  for (const char* name :
       {"/ctl", "/munge", "/bin", "/shared", "/node1", "/node2", "/node1/spool", "/node2/spool"}) {
    mkdir((f + name).c_str(), 0755);
  }
  chmod((f + "/shared").c_str(), 01777);
  // The build's folders may be for root alone.
  const std::pair<const char*, const char*> programs[] = {{"gpumemd", "gpumemd"},
                                                          {"gpumemctl", "gpumemctl"},
                                                          {"keeper", "gpumem-keeper"},
                                                          {"gpumem_slurm", "gpumem-slurm"},
                                                          {"one_hierarchy_so", "one_hierarchy.so"},
                                                          {"spank_gpumem_so", "spank_gpumem.so"}};
  for (const auto& [variable, name] : programs) {
    const std::string path = absl::StrCat(f, "/bin/", name);
    std::filesystem::copy_file(ProgramPath(variable), path);
    chmod(path.c_str(), 0755);
  }
  std::string key(128, 'k');
  std::ifstream("/dev/urandom").read(key.data(), static_cast<std::streamsize>(key.size()));
  Write(f + "/munge/key", key, 0400);
  Write(f + "/hosts", "127.0.0.1 localhost\n10.99.0.1 ctl\n10.99.0.11 node1\n10.99.0.12 node2\n");
  std::string users = ReadText("/etc/passwd"), groups = ReadText("/etc/group");
  for (const uid_t uid : kUsers) {
    absl::StrAppend(&users, "user", uid, ":x:", uid, ":", uid, "::/tmp:/bin/sh\n");
    absl::StrAppend(&groups, "user", uid, ":x:", uid, ":\n");
  }
  Write(f + "/passwd", users);
  Write(f + "/group", groups);

  const bool v2 = options.cgroup_version == 2;
  const bool shards = options.gres == "shard";
  const bool gpus = shards || options.whole_gpus;
  const int mib = options.gpus * kGpuMib;
  std::string lines = shards ? "" : absl::StrCat("Name=", options.gres, " Count=", mib, "\n");
  for (int i = 0; gpus && i < options.gpus; ++i) {
    // Any device will do for Slurm.
    const std::string file = absl::StrCat(f, "/gpu", i);
    mknod(file.c_str(), S_IFCHR | 0666, makedev(1, 3));
    absl::StrAppend(&lines, "Name=gpu File=", file, "\n");
    if (shards) absl::StrAppend(&lines, "Name=shard Count=", kGpuMib, " File=", file, "\n");
  }
  Write(f + "/gres.conf", lines);
  const std::string count = absl::StrCat(options.gres, ":", mib);
  Write(
      f + "/slurm.conf",
      absl::StrReplaceAll(
          absl::StrCat(
              kSlurmConf, options.scripts ? "Prolog=$F/prolog.sh\nEpilog=$F/epilog.sh\n" : "",
              options.preemption ? kPreemption : "", options.database ? kWithDatabase : ""),
          {{"$F", f},
           {"$STORAGE", options.database ? "slurmdbd" : "none"},
           {"$CONTAIN", options.containers ? ",Contain\nJobContainerType=job_container/tmpfs" : ""},
           {"$TYPES", absl::StrCat(gpus ? "gpu," : "", options.gres)},
           {"$GRES", gpus ? absl::StrCat("gpu:", options.gpus, ",", count) : count}}));
  if (options.database) {
    mkdir((f + "/db").c_str(), 0700);
    Write(f + "/slurmdbd.conf", absl::StrReplaceAll(kDatabase, {{"$F", f}}), 0600);
  }
  Write(f + "/cgroup.conf",
        v2 ? "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n" : "CgroupPlugin=cgroup/v1\n");
  Write(f + "/job_container.conf", "AutoBasePath=true\nBasePath=/run/containers\n");
  Write(f + "/plugstack.conf",
        options.scripts
            ? ""
            : absl::StrCat("required ", f, "/bin/spank_gpumem.so", " helper=", f,
                           "/bin/gpumem-slurm", " gres=", options.gres, " ",
                           absl::StrReplaceAll(options.plugin_args, {{"$F", f}}), "\n"));
  for (const char* script : {"prolog.sh", "epilog.sh"}) {
    Write(absl::StrCat(f, "/", script),
          absl::StrReplaceAll(ReadText(absl::StrCat("deploy/slurm/", script)),
                              {{"/usr/libexec/gpumem/", f + "/bin/"}}),
          0755);
  }
  std::filesystem::copy_file("deploy/slurm/job_submit.lua", f + "/job_submit.lua");
  Write(
      f + "/job_submit.lua",
      absl::StrReplaceAll(ReadText(f + "/job_submit.lua"),
                          {{"GRES = \"gpumem\"", absl::StrCat("GRES = \"", options.gres, "\"")}}));
  Write(f + "/gpumemd.toml",
        absl::StrCat("[host]\ndevices = ", options.gpus, "\ndevice_bytes = \"", kGpuMib, "MiB\"\n",
                     options.tier ? kTier : "", kGpumemdConf));
  const std::pair<const char*, const char*> scripts[] = {{"machine.sh", kMachine},
                                                         {"controller.sh", kController},
                                                         {"node.sh", kNode},
                                                         {"daemon.sh", kDaemon},
                                                         {"end.sh", kEnd}};
  for (const auto& [name, text] : scripts) {
    Write(absl::StrCat(f, "/", name),
          absl::StrReplaceAll(text,
                              {{"$HIERARCHY", v2 ? "cgroup2 cgroup2" : "cgroup -o freezer cgroup"},
                               {"$GROUPS", v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/freezer"},
                               {"$PRELOAD", v2 ? "LD_PRELOAD=$F/bin/one_hierarchy.so" : ""}}));
  }
}

}  // namespace gpumem::testing
