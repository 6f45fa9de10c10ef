// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/arena.h"

#include <grp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/hostile/attacks.h"
#include "tests/support/daemon_process.h"
#include "tests/support/http_get.h"

namespace gpumem::hostile {
namespace {

using testing::CanBeOtherUsers;
using testing::Child;
using testing::Hear;
using testing::kParentChannel;
using testing::Say;

// --- The cast -----------------------------------------------------------------------------------

constexpr uid_t kBystanderUid = 64801;
constexpr uid_t kFirstAttackerUid = 64802;
constexpr uid_t kFirstNewcomerUid = 64900;

// Segments are sparse files: nothing of the devices is touched. Everyone may connect to the sockets
// of operators and viewers, so that the daemon itself has to turn others away.
std::string ConfigOf(const Scene& scene) {
  return absl::StrCat(R"(
[host]
devices = 2
device_bytes = "16GiB"
[metrics]
listen = "127.0.0.1:0"
[[rule]]
tenant = "user-{uid}"
default = true
[daemon]
backend = "host"
admin_socket_mode = "0666"
view_socket_mode = "0666"
)",
                      scene.daemon, R"(
[tenant_defaults]
max_segments = 4096
max_sessions = 256
max_in_flight = 64
max_waiting = 256
)",
                      scene.tenant_defaults, "\n", scene.more);
}

// Drops root's rights. Then sets again two properties that the kernel resets: it dies with its
// parent, and may look into its /proc folder.
bool BecomeUser(uid_t uid) {
  if (uid == getuid()) return true;
  if (setgroups(0, nullptr) != 0 || setgid(uid) != 0 || setuid(uid) != 0) return false;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_DUMPABLE, 1);
  return true;
}

int RunAttack(const std::string& runtime_dir, const std::string& name, absl::Duration length) {
  const Attack attack = FindAttack(name);
  if (attack == nullptr) return 2;
  const Tally tally = attack({.runtime_dir = runtime_dir, .deadline = absl::Now() + length});
  Say(kParentChannel, nlohmann::json(tally).dump());
  return 0;
}

}  // namespace

int InOwnSession(const std::function<int()>& main) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return 2;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(2);  // it died before the line above
    setsid();
    exit(main());
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int RunRole(const std::vector<std::string>& args) {
  int uid, length_ms;
  if (args.size() < 3 || !absl::SimpleAtoi(args[2], &uid)) return 2;
  const std::string& role = args[0];
  const std::string& runtime_dir = args[1];
  if (role == "attack") {
    rlimit descriptors;
    getrlimit(RLIMIT_NOFILE, &descriptors);
    descriptors.rlim_cur = descriptors.rlim_max;
    setrlimit(RLIMIT_NOFILE, &descriptors);
    setpriority(PRIO_PROCESS, 0, 19);
  }
  if (!BecomeUser(static_cast<uid_t>(uid))) return 3;
  if (role == "bystander" && args.size() == 4) return RunBystander(runtime_dir, args[3]);
  if (role == "newcomer" && args.size() == 4) return RunNewcomer(runtime_dir, args[3]);
  if (role == "attack" && args.size() == 5 && absl::SimpleAtoi(args[4], &length_ms)) {
    return RunAttack(runtime_dir, args[3], absl::Milliseconds(length_ms));
  }
  return 2;
}

Child Arena::StartRole(const std::string& role, uid_t uid, std::vector<std::string> more) {
  if (!CanBeOtherUsers()) uid = getuid();
  std::vector<std::string> args = {"--role", role, runtime_dir_, absl::StrCat(uid)};
  args.insert(args.end(), more.begin(), more.end());
  return Child::Self(std::move(args));
}

void Arena::StartDaemon(const Scene& scene) {
  // In memory, so that a busy disk does not hold up the daemon's log; and short enough for the
  // names of sockets in it.
  dir_ = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
  absl::StrAppend(&dir_, "/gpumem-hostile-XXXXXX");
  ASSERT_NE(mkdtemp(dir_.data()), nullptr);
  chmod(dir_.c_str(), 0711);  // other users pass through it to the sockets
  runtime_dir_ = dir_ + "/run";
  std::ofstream(dir_ + "/gpumemd.toml") << ConfigOf(scene);
  std::vector<std::string> argv = {testing::ProgramPath("gpumemd"),
                                   "--runtime-dir",
                                   runtime_dir_,
                                   "--state-dir",
                                   dir_ + "/state",
                                   "--config",
                                   dir_ + "/gpumemd.toml"};
  if (scene.descriptors > 0) {
    argv.insert(argv.begin(), {"/bin/sh", "-c", "ulimit -n \"$0\" && exec \"$@\"",
                               absl::StrCat(scene.descriptors)});
  }
  daemon_ = std::make_unique<demo::Process>(demo::ProcessOptions{
      .argv = argv, .log_file = scene.log_is_read ? dir_ + "/log" : "", .stderr_too = true});
  pid_ = daemon_->pid();
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  std::string said;
  while (!absl::StrContains(said, " ready: ")) {
    ASSERT_LT(absl::Now(), deadline) << said;
    ASSERT_TRUE(DaemonLives()) << said;
    if (scene.log_is_read) {
      absl::SleepFor(absl::Milliseconds(5));  // between looks
      said = Log();
    } else if (const auto line = daemon_->ReadLine(deadline); line.has_value()) {
      absl::StrAppend(&said, *line, "\n");
    }
  }
  const size_t url = said.find("http://");
  if (url != std::string::npos) metrics_url_ = said.substr(url, said.find('\n', url) - url);
}

void Arena::Start(const Scene& scene) {
  if (scene.needs_users && !CanBeOtherUsers()) {
    GTEST_SKIP() << "what one user may not do to another takes several users, and so root";
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "latency and resident memory are not those of a build without sanitizers";
#endif
  // Protects the figures from other load here; attackers have the lowest priority anyway.
  setpriority(PRIO_PROCESS, 0, -20);
  std::ofstream("/proc/self/autogroup") << -20;  // that of the session, if the kernel has these
  next_uid_ = kFirstAttackerUid;
  scene_ = scene;
  ASSERT_NO_FATAL_FAILURE(StartDaemon(scene));
  ExpectNewcomerIsServed();  // gRPC and the broker have made their one-time allocations
  bystander_ = StartRole("bystander", kBystanderUid, {scene.device});
  ASSERT_EQ(Hear(bystander_.channel()), "ready");
  EndPhase();
  const absl::Time begin = absl::Now();
  const absl::Duration length = std::min(AttackTime(), absl::Seconds(10));
  ExpectVisitorsAreServed(begin, length);
  absl::SleepFor(begin + length - absl::Now());  // the phase's own length
  quiet_ = EndPhase();
  ASSERT_GT(quiet_.calls, 0u);
  ASSERT_EQ(quiet_.failed, 0u) << quiet_.first_error;
  quiet_hold_ = LongestLockHold();
  before_ = Look();
  figures_["quiet"] = FiguresOf(quiet_);
  figures_["before"] = {{"resident_mib", before_.resident >> 20}, {"fds", before_.fds}};
}

void Arena::ExpectNewcomerIsServed() {
  static uid_t next = kFirstNewcomerUid;
  Child newcomer = StartRole("newcomer", next++, {scene_.device});
  const std::string answer = Hear(newcomer.channel());
  double ms = 0;
  EXPECT_TRUE(absl::SimpleAtod(answer, &ms)) << "a new client: " << answer;
  figures_["newcomer_ms"] = std::max(ms, figures_.value("newcomer_ms", 0.0));
}

void Arena::ExpectOperatorIsServed() {
  const absl::Time deadline = absl::Now() + absl::Seconds(15);
  std::string output;
  try {
    demo::Process status(
        {.argv = {testing::ProgramPath("gpumemctl"), "--runtime-dir", runtime_dir_, "status"},
         .stderr_too = true});
    while (auto line = status.ReadLine(deadline)) absl::StrAppend(&output, *line, "\n");
    EXPECT_EQ(status.Wait(deadline), 0) << "gpumemctl status: " << output;
  } catch (const demo::Failure& failure) {
    ADD_FAILURE() << "gpumemctl status: " << failure.what() << "\n" << output;
  }
}

void Arena::ExpectVisitorsAreServed(absl::Time begin, absl::Duration length) {
  for (double part : {0.5, 0.9}) {  // attacks have had an effect by then
    absl::SleepFor(begin + part * length - absl::Now());
    ExpectNewcomerIsServed();
    ExpectOperatorIsServed();
  }
}

Arena::Holdings Arena::Look() const {
  return {.resident = testing::ResidentBytes(pid_), .fds = testing::CountFds(pid_)};
}

bool Arena::DaemonLives() const {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

double Arena::LongestLockHold() const { return Metric("gpumem_broker_lock_hold_max_seconds"); }

double Arena::Metric(absl::string_view series) const {
  if (metrics_url_.empty()) return -1;
  const auto page = testing::HttpGet(metrics_url_);
  if (!page.ok()) return -1;
  double largest = -1;
  for (absl::string_view line : absl::StrSplit(page->body, '\n')) {
    double value;
    if (absl::StartsWith(line, series) &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value))
      largest = std::max(largest, value);
  }
  return largest;
}

std::string Arena::Log() const {
  std::ifstream file(dir_ + "/log");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

uint64_t Arena::LogLines() const {
  const std::string log = Log();
  return static_cast<uint64_t>(std::count(log.begin(), log.end(), '\n'));
}

uint64_t Arena::Counted(const std::string& attack, const std::string& what) const {
  const auto attackers = figures_.find("attackers");
  if (attackers == figures_.end() || !attackers->contains(attack)) return 0;
  return attackers->at(attack).value(what, uint64_t{0});
}

void Arena::TearDown() {
  if (pid_ == 0) return;  // skipped
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::cout << "figures " << test->name() << " " << figures_.dump() << std::endl;
  EXPECT_TRUE(DaemonLives()) << Log();
  bystander_ = {};
  daemon_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(dir_, ignored);
}

}  // namespace gpumem::hostile
