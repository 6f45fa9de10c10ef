// gpumemd in a container as on a node of Kubernetes, with clients in containers of other users'
// pods. Each container is a real one (crun) with separate namespaces. The test commands the clients
// over a socket.
//
// With $GPUMEM_IMAGE_ROOTFS, an image's root file system in a folder, all containers have that one,
// and all programs in them but the clients are the image's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/unix_channel.h"
#include "tests/support/child.h"
#include "tests/support/container_host.h"
#include "tests/support/daemon_process.h"
#include "tests/system/container_worker.h"

namespace gpumem {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using testing::Child;
using testing::ContainerHost;
using testing::ContainerSpec;
using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uid_t kDaemonUid = 64740;
constexpr char kPodOfDaemon[] = "0d0d0d0d-0000-4000-8000-000000000000";
constexpr char kRed[] = "aaaaaaaa-1111-4222-8333-444444444444";
constexpr char kBlue[] = "bbbbbbbb-1111-4222-8333-444444444444";

// Two pods, each a tenant; a pod without a tenant gets one by its name.
constexpr char kConfig[] = R"toml(
[host]
device_bytes = "256MiB"
[[tenant]]
name = "red"
limit = "128MiB"
[[tenant]]
name = "blue"
limit = "192MiB"
[[rule]]
tenant = "red"
pod = "aaaaaaaa-*"
[[rule]]
tenant = "blue"
pod = "bbbbbbbb-*"
cgroup = "/kubepods.slice/*"
[[rule]]
tenant = "pod-{pod}"
pod = "*"
[[rule]]
tenant = "user-{uid}"
default = true
)toml";

// Returns Kubernetes's group for a container of this pod, with containerd and the systemd driver.
std::string GroupOf(const std::string& name, const std::string& pod,
                    const std::string& qos = "burstable") {
  std::string uid = pod;
  std::replace(uid.begin(), uid.end(), '-', '_');
  std::string id;
  for (unsigned char c : name) absl::StrAppend(&id, absl::Hex(c, absl::kZeroPad2));
  id.resize(64, '0');
  const std::string above =
      qos == "guaranteed" ? "/kubepods.slice/kubepods"
                          : absl::StrCat("/kubepods.slice/kubepods-", qos, ".slice/kubepods-", qos);
  return absl::StrCat(above, "-pod", uid, ".slice/cri-containerd-", id, ".scope");
}

// Returns the configuration in the manifests' ConfigMap: the lines indented below its name.
std::string ManifestConfig() {
  std::ifstream file("deploy/kubernetes/gpumemd.yaml");
  std::string config;
  bool in_config = false;
  for (std::string line; std::getline(file, line);) {
    if (in_config && !line.empty() && !absl::StartsWith(line, "    ")) break;
    if (in_config) absl::StrAppend(&config, absl::StripPrefix(line, "    "), "\n");
    in_config = in_config || line == "  gpumemd.toml: |";
  }
  return config;
}

std::string Absolute(const std::string& path) { return std::filesystem::absolute(path).string(); }

// $GPUMEM_KEEPER, or the one in the folder of this program.
std::string KeeperPath() {
  const char* path = std::getenv("GPUMEM_KEEPER");
  return path != nullptr ? path : testing::ProgramPath("gpumem-keeper");
}

std::string ImageRootfs() {
  const char* path = std::getenv("GPUMEM_IMAGE_ROOTFS");
  return path != nullptr ? path : "";
}

// How a program of the project is called in a container.
std::string Inside(const std::string& name) {
  return ImageRootfs().empty() ? absl::StrCat("/opt/", name) : name;
}

// A client in a container, from the test's side.
class Worker {
 public:
  Worker(Child child, UniqueFd listener)
      : child_(std::move(child)), listener_(std::move(listener)) {}
  // Its answer to words of container_worker.h; an error in words where none comes within a minute.
  std::string Ask(const std::string& words) {
    Say(words);
    return testing::Hear(channel_.get());
  }
  void Say(const std::string& words) {
    if (!channel_.valid()) Accept();
    testing::Say(channel_.get(), words);
  }
  std::string Hear() { return testing::Hear(channel_.get()); }
  Child& child() { return child_; }

 private:
  void Accept() {
    pollfd ready = {listener_.get(), POLLIN, 0};
    poll(&ready, 1, 60'000);
    channel_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  Child child_;
  UniqueFd listener_, channel_;
};

class ContainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto host = ContainerHost::Boot(ImageRootfs());
    if (absl::IsFailedPrecondition(host.status())) GTEST_SKIP() << host.status().message();
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    // The node's part in a DaemonSet's manifest: two folders, the daemon's.
    for (const char* name : {"run", "state", "stages"}) {
      const std::string folder = absl::StrCat(host_->folder(), "/", name);
      mkdir(folder.c_str(), 0755);
      EXPECT_EQ(chown(folder.c_str(), kDaemonUid, kDaemonUid), 0);
    }
    std::ofstream(host_->folder() + "/gpumemd.toml") << kConfig;
  }
  std::string Log() const { return host_->Log("daemon"); }
  int Generations() const {
    const std::string log = Log();
    int count = 0;
    for (size_t at = log.find(" ready: "); at != std::string::npos;
         at = log.find(" ready: ", at + 1)) {
      ++count;
    }
    return count;
  }

  ContainerSpec DaemonSpec() const {
    const std::string& folder = host_->folder();
    ContainerSpec spec = {
        .name = "daemon",
        .cgroup = GroupOf("daemon", kPodOfDaemon, "besteffort"),
        .args = {Inside("gpumem-keeper"), "--healthy-after=0", "--", Inside("gpumemd"), "--backend",
                 "host", "--config", "/etc/gpumemd.toml", "--runtime-dir", "/run/gpumem",
                 "--state-dir", "/var/lib/gpumem"},
        .env = {"GPUMEM_RUNTIME_DIR=/run/gpumem"},
        .uid = kDaemonUid,
        .gid = kDaemonUid,
        .host_pid = true,
        .mounts = {{folder + "/gpumemd.toml", "/etc/gpumemd.toml", true},
                   {folder + "/run", "/run/gpumem"},
                   {folder + "/state", "/var/lib/gpumem"},
                   {"/sys/fs/cgroup", "/host/cgroup", true}}};
    AddProgram(KeeperPath(), "gpumem-keeper", spec);
    AddProgram(testing::ProgramPath("gpumemd"), "gpumemd", spec);
    AddProgram(testing::ProgramPath("gpumemctl"), "gpumemctl", spec);
    return spec;
  }
  static void AddProgram(const std::string& path, const std::string& name, ContainerSpec& spec) {
    if (ImageRootfs().empty()) spec.mounts.push_back({Absolute(path), Inside(name), true});
  }
  // Success if it serves.
  ::testing::AssertionResult StartDaemon(const ContainerSpec& spec) {
    daemon_ = host_->Run(spec);
    if (Eventually([&] { return Generations() == 1; })) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << Log();
  }
  // A client of this pod: `mounts` besides the folder of the daemon's sockets.
  Worker StartWorker(const std::string& name, const std::string& pod, uid_t uid = 1000) {
    ContainerSpec spec = WorkerSpec(name, pod, uid);
    spec.mounts.push_back({host_->folder() + "/run", "/run/gpumem", true});
    return StartWorker(spec);
  }
  ContainerSpec WorkerSpec(const std::string& name, const std::string& pod, uid_t uid) const {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    ContainerSpec spec = {
        .name = name,
        .cgroup = GroupOf(name, pod),
        .args = {"/opt/worker", "--worker", absl::StrCat("/stages/", name)},
        .uid = uid,
        .gid = uid,
        .mounts = {{self, "/opt/worker", true}, {host_->folder() + "/stages", "/stages"}}};
    AddProgram(testing::ProgramPath("gpumemctl"), "gpumemctl", spec);
    return spec;
  }
  Worker StartWorker(const ContainerSpec& spec) {
    auto listener =
        ListenUnix(absl::StrCat(host_->folder(), "/stages/", spec.name), SOCK_SEQPACKET, 0666);
    EXPECT_TRUE(listener.ok()) << listener.status();
    return Worker(host_->Run(spec), *std::move(listener));
  }
  // gpumemctl in the daemon's container, as an exec probe runs it.
  ContainerHost::Result Ctl(std::vector<std::string> args) const {
    args.insert(args.begin(), Inside("gpumemctl"));
    return host_->Exec("daemon", args);
  }
  // Returns a list of gpumemctl's JSON output; empty if there is none.
  json List(std::vector<std::string> args, const std::string& list) const {
    args.push_back("--json");
    const json answer = json::parse(Ctl(args).output, nullptr, false);
    return answer.is_object() ? answer.value(list, json::array()) : json::array();
  }
  json Sessions() const { return List({"ps"}, "sessions"); }
  // How many requests of a tenant wait for memory.
  int Waiting(const std::string& tenant) const {
    for (const json& each : List({"quota", "list"}, "tenants")) {
      if (each["usage"]["tenant"] == tenant) return each["usage"]["waiting"];
    }
    return 0;
  }
  // The daemon's own process on the node: the keeper's child.
  pid_t DaemonOnNode() const {
    const std::string keeper = absl::StrCat(host_->PidOf("daemon"));
    const auto children =
        host_->OnNode({"cat", absl::StrCat("/proc/", keeper, "/task/", keeper, "/children")});
    pid_t pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(children.output, &pid)) << children.output;
    return pid;
  }

  std::unique_ptr<ContainerHost> host_;
  Child daemon_;
};

TEST_F(ContainerTest, PodsAreTenantsByTheirControlGroups) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  // All of one uid: only the pod distinguishes them.
  Worker red = StartWorker("red", kRed);
  Worker blue = StartWorker("blue", kBlue);
  Worker other = StartWorker("other", "cccccccc-1111-4222-8333-444444444444");
  for (Worker* worker : {&red, &blue, &other}) ASSERT_EQ(worker->Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("tenant"), "red");
  EXPECT_EQ(blue.Ask("tenant"), "blue");
  EXPECT_EQ(other.Ask("tenant"), "pod-cccccccc-1111-4222-8333-444444444444");

  const json who =
      json::parse(host_->Exec("blue", {Inside("gpumemctl"), "whoami", "--json"}).output);
  EXPECT_EQ(who["tenant"], "blue");
  std::map<std::string, json> facts;
  for (const json& fact : who["identity"]["facts"]) facts[fact["name"]] = fact["values"];
  EXPECT_EQ(facts["pod"], json({kBlue}));
  EXPECT_EQ(facts["qos"], json({"burstable"}));
  EXPECT_EQ(who["identity"]["cgroup"], GroupOf("blue", kBlue));
  EXPECT_EQ(facts["container"].dump().size(), strlen("[\"\"]") + 64);
  EXPECT_THAT(Log(), HasSubstr(absl::StrCat("this daemon's is ", DaemonSpec().cgroup, "\n")));
}

// Over the container's own, which is not to be seen then.
TEST_F(ContainerTest, TheNodesGroupsMayBeMountedWhereTheContainersAre) {
  ContainerSpec spec = DaemonSpec();
  for (auto& mount : spec.mounts) {
    if (mount.source == "/sys/fs/cgroup") mount.target = mount.source;
  }
  ASSERT_TRUE(StartDaemon(spec));
  Worker red = StartWorker("red", kRed);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("tenant"), "red") << Log();
}

TEST_F(ContainerTest, TheManifestsRulesTellTheirExamplesApart) {
  std::ofstream(host_->folder() + "/gpumemd.toml") << ManifestConfig();
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  ContainerSpec spec = WorkerSpec("serving", kRed, 10001);
  spec.cgroup = GroupOf("serving", kRed, "guaranteed");
  spec.mounts.push_back({host_->folder() + "/run", "/run/gpumem", true});
  Worker serving = StartWorker(spec);
  Worker training = StartWorker("training", kBlue, 10001);
  ASSERT_EQ(serving.Ask("connect"), "OK") << Log();
  ASSERT_EQ(training.Ask("connect"), "OK") << Log();
  EXPECT_EQ(serving.Ask("tenant"), "serving");
  EXPECT_EQ(training.Ask("tenant"), absl::StrCat("pod-", kBlue));
}

TEST_F(ContainerTest, AClientInItsOwnPidNamespaceIsKnown) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  Worker red = StartWorker("red", kRed, 1234);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("pid"), "1");
  const json sessions = Sessions();
  ASSERT_EQ(sessions.size(), 1u) << Log();
  EXPECT_EQ(sessions[0]["pid"], host_->PidOf("red"));
  EXPECT_EQ(sessions[0]["uid"], 1234);
  EXPECT_EQ(sessions[0]["command"], "worker");
}

TEST_F(ContainerTest, ADaemonThatDoesNotSeeTheNodesProcessesRefusesThem) {
  ContainerSpec spec = DaemonSpec();
  spec.host_pid = false;
  ASSERT_TRUE(StartDaemon(spec));
  Worker red = StartWorker("red", kRed);
  EXPECT_THAT(red.Ask("connect"), HasSubstr("hostPID"));
}

TEST_F(ContainerTest, ADaemonThatDoesNotSeeTheNodesGroupsBillsByUid) {
  ContainerSpec spec = DaemonSpec();
  spec.mounts.erase(std::find_if(spec.mounts.begin(), spec.mounts.end(), [](const auto& mount) {
    return mount.source == "/sys/fs/cgroup";
  }));
  ASSERT_TRUE(StartDaemon(spec));
  Worker red = StartWorker("red", kRed, 1234);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("tenant"), "user-1234");
  EXPECT_THAT(Log(), HasSubstr("the machine's control groups are not to be seen"));
}

TEST_F(ContainerTest, NobodyInAnotherContainerIsAnOperator) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  std::vector<Worker> workers;
  for (const uid_t uid :
       {uid_t{0}, kDaemonUid}) {  // root here has no capability to open the socket
    const std::string name = absl::StrCat("uid-", uid);
    workers.push_back(StartWorker(name, kRed, uid));
    EXPECT_EQ(workers.back().Ask("connect"), "OK") << "it is a client like others";
    const auto refused =
        host_->Exec(name, {Inside("gpumemctl"), "quota", "set", "red", "--limit", "200MiB"});
    EXPECT_EQ(refused.code, 4) << refused.output;
    EXPECT_THAT(refused.output, HasSubstr("outside containers or in the daemon's container"));
  }
  EXPECT_THAT(Log(), HasSubstr("its process is in another PID namespace, in a container"));
  // One that sees the node's processes, as the daemon's own does, is the node's affair.
  ContainerSpec spec = WorkerSpec("operator", kRed, kDaemonUid);
  spec.host_pid = true;
  spec.mounts.push_back({host_->folder() + "/run", "/run/gpumem", true});
  workers.push_back(StartWorker(spec));
  EXPECT_EQ(workers.back().Ask("connect"), "OK");
  const auto status = host_->Exec("operator", {Inside("gpumemctl"), "status"});
  EXPECT_EQ(status.code, 0) << status.output;
}

TEST_F(ContainerTest, TwoTenantsShareAPublicationAndKeepTheirLimits) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  Worker red = StartWorker("red", kRed, 1001);
  Worker blue = StartWorker("blue", kBlue, 1002);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  ASSERT_EQ(blue.Ask("connect"), "OK") << Log();

  // Red may have 128 MiB, and not a page more.
  EXPECT_EQ(red.Ask("acquire 128"), "OK");
  EXPECT_THAT(red.Ask("acquire 2"), StartsWith("RESOURCE_EXHAUSTED"));
  EXPECT_EQ(red.Ask("publish weights"), "OK");
  // Attached tenants are not charged.
  EXPECT_EQ(blue.Ask("attach red/weights"), "OK");
  EXPECT_EQ(blue.Ask("charged"), "0");
  EXPECT_EQ(red.Ask("charged"), absl::StrCat(128 * kMiB));
  // The device has 128 MiB left, within blue's limit.
  EXPECT_EQ(blue.Ask("acquire 64"), "OK");
  EXPECT_EQ(blue.Ask("check"), "OK");
}

TEST_F(ContainerTest, TheMemoryOfAKilledContainerComesBack) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  Worker red = StartWorker("red", kRed);
  Worker blue = StartWorker("blue", kBlue);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  ASSERT_EQ(blue.Ask("connect"), "OK") << Log();
  EXPECT_EQ(blue.Ask("acquire 192"), "OK");
  EXPECT_THAT(red.Ask("acquire 128"), StartsWith("RESOURCE_EXHAUSTED"));

  red.Say("acquire 128 wait");
  ASSERT_TRUE(Eventually([&] { return Waiting("red") == 1; })) << Ctl({"quota", "list"}).output;
  EXPECT_EQ(host_->Kill("blue", "KILL").code, 0);
  EXPECT_EQ(blue.child().Wait(), 128 + SIGKILL);
  EXPECT_EQ(red.Hear(), "OK");
  EXPECT_EQ(red.Ask("check"), "OK");
  EXPECT_EQ(Sessions().size(), 1u) << Sessions();
}

TEST_F(ContainerTest, ClientsOutliveTheDaemonsDeathInItsContainer) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  Worker red = StartWorker("red", kRed);
  Worker blue = StartWorker("blue", kBlue);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  ASSERT_EQ(blue.Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("acquire 64"), "OK");
  EXPECT_EQ(red.Ask("publish weights"), "OK");
  EXPECT_EQ(blue.Ask("acquire 32"), "OK");

  const pid_t first = DaemonOnNode();
  EXPECT_EQ(host_->OnNode({"kill", "-KILL", absl::StrCat(first)}).code, 0);
  ASSERT_TRUE(Eventually([&] { return Generations() == 2; })) << Log();
  EXPECT_NE(DaemonOnNode(), first);

  EXPECT_EQ(red.Ask("check"), "OK");
  EXPECT_EQ(blue.Ask("check"), "OK");
  EXPECT_EQ(blue.Ask("attach red/weights"), "OK") << Log();
  EXPECT_EQ(blue.Ask("charged"), absl::StrCat(32 * kMiB));
  EXPECT_EQ(red.Ask("charged"), absl::StrCat(64 * kMiB));
  // Their processes are still known: memory of dead ones comes back.
  EXPECT_EQ(host_->Kill("blue", "KILL").code, 0);
  EXPECT_EQ(blue.child().Wait(), 128 + SIGKILL);
  EXPECT_EQ(red.Ask("acquire 64"), "OK");
  EXPECT_TRUE(Eventually([&] { return Sessions().size() == 1; })) << Sessions();
  // The folder of the sockets shows the new ones to later clients.
  Worker late = StartWorker("late", kBlue);
  EXPECT_EQ(late.Ask("connect"), "OK");
  EXPECT_EQ(late.Ask("attach red/weights"), "OK");
}

// gpumem-keeper keeps the listening sockets.
TEST_F(ContainerTest, AMountOfTheSocketItselfLeadsToTheNextDaemon) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  ContainerSpec spec = WorkerSpec("red", kRed, 1000);
  spec.mounts.push_back(
      {absl::StrCat(host_->folder(), "/run/session.sock"), "/run/gpumem/session.sock"});
  Worker red = StartWorker(spec);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  EXPECT_EQ(host_->OnNode({"kill", "-KILL", absl::StrCat(DaemonOnNode())}).code, 0);
  ASSERT_TRUE(Eventually([&] { return Generations() == 2; })) << Log();
  EXPECT_EQ(host_->Exec("red", {Inside("gpumemctl"), "whoami"}).code, 0);
}

TEST_F(ContainerTest, WithThePodEndsWhatItKept) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  Worker red = StartWorker("red", kRed);
  ASSERT_EQ(red.Ask("connect"), "OK") << Log();
  EXPECT_EQ(red.Ask("acquire 64"), "OK");
  EXPECT_EQ(red.Ask("publish weights"), "OK");

  EXPECT_EQ(host_->Kill("daemon", "TERM").code, 0);
  EXPECT_EQ(daemon_.Wait(), 0) << Log();
  EXPECT_EQ(red.Ask("check"), "OK") << "what is mapped stays mapped";
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  EXPECT_EQ(red.Ask("check"), "OK");
  Worker late = StartWorker("late", kRed);
  ASSERT_EQ(late.Ask("connect"), "OK");
  EXPECT_THAT(late.Ask("attach red/weights"), StartsWith("NOT_FOUND"));
  EXPECT_EQ(late.Ask("charged"), "0") << "the new daemon knows nothing of it";
}

TEST_F(ContainerTest, TheProbesAnswer) {
  ASSERT_TRUE(StartDaemon(DaemonSpec()));
  EXPECT_EQ(Ctl({"status"}).code, 0) << Ctl({"status"}).output;
  const pid_t daemon = DaemonOnNode();
  EXPECT_EQ(host_->OnNode({"kill", "-STOP", absl::StrCat(daemon)}).code, 0);
  EXPECT_EQ(host_->Exec("daemon", {"/usr/bin/timeout", "2", Inside("gpumemctl"), "status"}).code,
            124);
  EXPECT_EQ(host_->OnNode({"kill", "-CONT", absl::StrCat(daemon)}).code, 0);
  EXPECT_EQ(Ctl({"status"}).code, 0);
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--worker") return gpumem::RunContainerWorker(argv[2]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
