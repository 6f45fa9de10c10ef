// A reused pid is never taken for the process that had it before.
//
// In a separate PID namespace the test gives one number to two processes, over and over. The first
// connects to the session socket and dies at once; a third process keeps its connection open. The
// second gets the number before the daemon looks. It has another user, group, name and (if this
// machine allows it) control group. Whatever the daemon concludes, it must bill neither process for
// the other, nor as a mixture of both.
//
// 1,000 times; as often as GPUMEM_PID_REUSES says, if set (10,000 in a release's tests).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
#include "daemon/transport/peer/peer.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/live_cgroup.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::DaemonProcess;
using testing::HelloOf;
using testing::LiveCgroup;
using testing::WireSession;

constexpr int kChannel = 3;
constexpr pid_t kNumber = 20000;  // the one that is given out again and again
constexpr uint64_t kMiB = uint64_t{1} << 20;

// --- In the namespace ------------------------------------------------------------------

// Sends the report to the test: "skip: …", "wrong: …", or "done: …".
void Say(const std::string& report) {
  (void)SendMessage(kChannel, report, {}, absl::Now() + testing::kAnswerTime);
}

// The identity of a process.
struct Part {
  const char* name;
  uid_t id;           // uid and gid, if there are other users
  std::string procs;  // of its control group; empty: none
};

// How the life of a process ends that has connected.
struct Life {
  bool stays = false;       // until it is killed
  absl::string_view hello;  // sent before; empty: nothing
  int yields = 0;           // how often it lets others run before it dies
};

// Process `kNumber`, made as `part`: connects `end` to `address` and lives its `life`.
// Does nothing but system calls, since the conductor has threads.
pid_t Start(const Part& part, bool as_other_user, int end, const sockaddr_un& address,
            const Life& life) {
  pid_t wanted = kNumber;
  clone_args args{};
  args.exit_signal = SIGCHLD;
  args.set_tid = reinterpret_cast<uint64_t>(&wanted);
  args.set_tid_size = 1;
  const pid_t pid = static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof(args)));
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, part.name);
  if (!part.procs.empty()) {
    const int procs = open(part.procs.c_str(), O_WRONLY | O_CLOEXEC);
    if (procs < 0 || write(procs, "0", 1) != 1) syscall(SYS_exit_group, 3);
    close(procs);
  }
  if (as_other_user && (syscall(SYS_setresgid, part.id, part.id, part.id) != 0 ||
                        syscall(SYS_setresuid, part.id, part.id, part.id) != 0)) {
    syscall(SYS_exit_group, 4);
  }
  if (connect(end, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    syscall(SYS_exit_group, 5);
  }
  if (!life.hello.empty()) (void)send(end, life.hello.data(), life.hello.size(), 0);
  for (int i = 0; i < life.yields; ++i) sched_yield();
  while (life.stays) pause();
  syscall(SYS_exit_group, 0);
  return 0;
}

// Reaps process `kNumber`; true if it ended well.
bool Reap() {
  int status = 0;
  return waitpid(kNumber, &status, 0) == kNumber && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void Kill() {
  kill(kNumber, SIGKILL);
  waitpid(kNumber, nullptr, 0);
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd NewEnd() { return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

// The second process has connected: its end is no longer unconnected.
bool Connected(int end) {
  return testing::Eventually([end] {
    sockaddr_un peer;
    socklen_t size = sizeof(peer);
    return getpeername(end, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
  });
}

class Conductor {
 public:
  explicit Conductor(int rounds) : rounds_(rounds) {}
  // Kills the processes, so that none is left in the groups, also after an error.
  ~Conductor() { Kill(); }

  // Returns the outcome: "done: …", "wrong: …", or why it cannot run.
  std::string Run() {
    if (std::string why = Prepare(); !why.empty()) return why;
    for (int round = 0; round < rounds_; ++round) {
      std::string wrong = round % 10 == 9 ? RoundWithCharges() : RoundOfTwo(round);
      if (wrong.empty() && round % 100 == 0) wrong = LookAtSessions();
      if (!wrong.empty()) return absl::StrCat("wrong: in round ", round, ": ", wrong);
    }
    if (std::string wrong = LookAtTheEnd(); !wrong.empty()) return absl::StrCat("wrong: ", wrong);
    return absl::StrCat("done: ", rounds_, " rounds", other_users_ ? ", of several users" : "",
                        groups_ ? ", in several control groups" : "", "; ", refused_, " refused, ",
                        welcomed_, " welcomed, ", charged_, " with charges");
  }

 private:
  std::string Prepare() {
    other_users_ = testing::CanBeOtherUsers();
    const std::string slice =
        absl::StrCat("/gpumempids", getpid(), "x", absl::ToUnixMicros(absl::Now()), ".slice");
    auto first = LiveCgroup::Make("", slice + "/first.service");
    if (first.ok() && !testing::InAUnit()) {
      auto second = LiveCgroup::Make("", slice + "/second.service");
      if (second.ok()) {
        first_group_ = *std::move(first);
        second_group_ = *std::move(second);
        first_.procs = first_group_->procs();
        second_.procs = second_group_->procs();
        groups_ = true;
      }
    }
    // Each of the two is a tenant by all of its properties; a mixture of both is "mixed".
    std::string config =
        "[[tenant]]\nname = \"first\"\n[[tenant]]\nname = \"second\"\n"
        "[[tenant]]\nname = \"mixed\"\n";
    const auto rule = [&](const char* tenant, const Part* user, const char* unit) {
      if (!other_users_ && unit == nullptr) return;
      absl::StrAppend(&config, "[[rule]]\ntenant = \"", tenant, "\"\n");
      if (other_users_) absl::StrAppend(&config, "gid = ", user->id, "\n");
      if (unit != nullptr) absl::StrAppend(&config, "unit = \"", unit, ".service\"\n");
    };
    rule("first", &first_, groups_ ? "first" : nullptr);
    rule("second", &second_, groups_ ? "second" : nullptr);
    if (groups_ && other_users_) {
      rule("mixed", &first_, "second");
      rule("mixed", &second_, "first");
    }
    absl::StrAppend(&config, "[[rule]]\ntenant = \"user-{uid}\"\ndefault = true\n");
    auto daemon =
        DaemonProcess::Start({.config = config, .flags = {"--host-device-bytes", "64MiB"}});
    if (!daemon.ok()) return absl::StrCat("wrong: ", daemon.status().ToString());
    daemon_ = *std::move(daemon);
    address_ = AddressOf(daemon_->Socket("session.sock"));
    admin_ = v1::Admin::NewStub(testing::ChannelTo(daemon_->Socket("admin.sock")));

    const UniqueFd probe = NewEnd();
    if (Start(first_, other_users_, probe.get(), address_, {}) != kNumber) {
      return absl::StrCat("skip: this kernel gives out no number that is asked for: ",
                          strerror(errno));
    }
    if (!Reap()) return "wrong: the first process cannot be what it is to be";
    return "";
  }

  // The tenants that the two may be.
  std::string TenantOf(const Part& part) const {
    if (groups_ || other_users_) return part.name;
    return absl::StrCat("user-", geteuid());
  }

  // By turns: the daemon looks when the second process has the first one's number already; and
  // it looks whenever it likes, and the first process says Hello itself.
  std::string RoundOfTwo(int round) {
    const bool stopped = round % 2 == 0;
    const Life short_life = stopped ? Life{} : Life{.hello = hello_, .yields = round % 50};
    if (stopped) {
      daemon_->child().Signal(SIGSTOP);
      // The signal is on its way until the daemon's threads have all stopped.
      siginfo_t how{};
      waitid(P_PID, static_cast<id_t>(daemon_->pid()), &how, WSTOPPED);
    }
    UniqueFd first_end = NewEnd(), second_end = NewEnd();
    const pid_t first = Start(first_, other_users_, first_end.get(), address_, short_life);
    if (first != kNumber || !Reap()) return "the first process failed";
    const pid_t second = Start(second_, other_users_, second_end.get(), address_, {.stays = true});
    const bool ready = second == kNumber && Connected(second_end.get());
    if (stopped) daemon_->child().Signal(SIGCONT);
    if (!ready) return "the second process failed";

    // A process that kept the first one's socket speaks in its name.
    WireSession of_first(std::move(first_end)), of_second(std::move(second_end));
    if (stopped) (void)of_first.Send(hello_);
    const absl::Status answer = of_first.Answer();
    if (answer.ok()) {
      ++welcomed_;
      if (stopped) return "a process that was gone before the daemon looked was welcomed";
      if (of_first.welcome().tenant() != TenantOf(first_)) {
        return absl::StrCat("the first process was billed as ", of_first.welcome().tenant());
      }
    } else {
      ++refused_;
    }
    const absl::Status alive = of_second.Greet(HelloOf(""));
    std::string wrong;
    if (!alive.ok()) {
      wrong = absl::StrCat("the second process was refused: ", alive.ToString());
    } else if (of_second.welcome().tenant() != TenantOf(second_)) {
      wrong = absl::StrCat("the second process was billed as ", of_second.welcome().tenant());
    } else {
      wrong = WhoIs(of_second, second_);
    }
    // The number lives on, and the session of the first one does not.
    if (wrong.empty() && answer.ok() && of_first.Answer().code() != absl::StatusCode::kCancelled) {
      wrong = "the first process is gone, and its session got no Goodbye";
    }
    Kill();
    return wrong;
  }

  // Compares WhoAmI's answer for a session with this part.
  std::string WhoIs(WireSession& session, const Part& part) {
    auto who = testing::CallBroker(*session.TakeBroker(), &v1::Broker::Stub::WhoAmI,
                                   v1::WhoAmIRequest(), session.token());
    if (!who.ok()) return who.status().ToString();
    if (other_users_ && (who->identity().uid() != part.id || who->identity().gid() != part.id)) {
      return absl::StrCat("the user of the other one: ", who->ShortDebugString());
    }
    std::string unit;
    for (const v1::CgroupFact& fact : who->identity().facts()) {
      if (fact.name() == "unit" && fact.values_size() == 1) unit = fact.values(0);
    }
    if (groups_ && unit != absl::StrCat(part.name, ".service")) {
      return absl::StrCat("the group of the other one: ", who->ShortDebugString());
    }
    return "";
  }

  // The first process holds memory when it dies. Another one has its number at once, and lives:
  // the memory comes back all the same.
  std::string RoundWithCharges() {
    UniqueFd first_end = NewEnd(), second_end = NewEnd();
    if (Start(first_, other_users_, first_end.get(), address_, {.stays = true}) != kNumber ||
        !Connected(first_end.get())) {
      return "the first process failed";
    }
    WireSession of_first(std::move(first_end));
    if (absl::Status greeted = of_first.Greet(HelloOf("")); !greeted.ok()) {
      return absl::StrCat("the first process was refused: ", greeted.ToString());
    }
    v1::AcquireRequest acquire;
    acquire.set_bytes(kMiB);
    auto lease = testing::CallBroker(*of_first.TakeBroker(), &v1::Broker::Stub::Acquire, acquire,
                                     of_first.token());
    if (!lease.ok()) return absl::StrCat("no memory: ", lease.status().ToString());
    if (ChargedTo(TenantOf(first_)) == 0) return "what the first process holds is not charged";
    Kill();
    std::string wrong;
    if (Start(second_, other_users_, second_end.get(), address_, {.stays = true}) != kNumber) {
      return "the second process failed";
    }
    if (!testing::Eventually([&] { return ChargedTo(TenantOf(first_)) == 0; })) {
      wrong = "the first process is gone, and its charges are still there";
    }
    if (wrong.empty() && ChargedTo(TenantOf(second_)) != 0) wrong = "the second one is charged";
    Kill();
    ++charged_;
    return wrong;
  }

  uint64_t ChargedTo(const std::string& tenant) {
    v1::GetQuotaRequest request;
    request.set_tenant(tenant);
    v1::GetQuotaResponse response;
    if (!admin_->GetQuota(testing::ContextWith().get(), request, &response).ok()) return 0;
    return response.usage().charged_bytes();
  }

  // No session has the credentials of the one and the name of the other.
  std::string LookAtSessions() {
    v1::ListSessionsResponse response;
    const grpc::Status status =
        admin_->ListSessions(testing::ContextWith().get(), v1::ListSessionsRequest(), &response);
    if (!status.ok()) return status.error_message();
    for (const v1::SessionInfo& session : response.sessions()) {
      for (const Part* part : {&first_, &second_}) {
        const bool named = session.command() == part->name;
        if ((other_users_ && named != (session.uid() == part->id)) ||
            ((groups_ || other_users_) && named != (session.tenant() == part->name))) {
          return absl::StrCat("a mixture: ", session.ShortDebugString());
        }
      }
    }
    return "";
  }

  std::string LookAtTheEnd() {
    for (const Part* part : {&first_, &second_}) {
      if (!testing::Eventually([&] { return ChargedTo(TenantOf(*part)) == 0; })) {
        return absl::StrCat(part->name, " is still charged");
      }
    }
    v1::ListSessionsResponse response;
    if (!testing::Eventually([&] {
          return admin_
                     ->ListSessions(testing::ContextWith().get(), v1::ListSessionsRequest(),
                                    &response)
                     .ok() &&
                 response.sessions_size() == 0;
        })) {
      return absl::StrCat("sessions are left: ", response.ShortDebugString());
    }
    return "";
  }

  const int rounds_;
  const std::string hello_ = HelloOf("").SerializeAsString();
  Part first_{"first", 1001, ""};
  Part second_{"second", 1002, ""};
  bool other_users_ = false;
  bool groups_ = false;
  std::unique_ptr<LiveCgroup> first_group_, second_group_;
  std::unique_ptr<DaemonProcess> daemon_;
  sockaddr_un address_{};
  std::unique_ptr<v1::Admin::Stub> admin_;
  int refused_ = 0, welcomed_ = 0, charged_ = 0;
};

// As with a kernel before 6.5: the daemon's own reading, of a listener in this process.
std::string RunByNumber(int rounds) {
  const std::string path = absl::StrCat("/tmp/gpumem-pids-", absl::ToUnixMicros(absl::Now()));
  const sockaddr_un address = AddressOf(path);
  const UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener.get(), 4) != 0) {
    return absl::StrCat("wrong: ", strerror(errno));
  }
  const Part first{"first", 1001, ""}, second{"second", 1002, ""};
  const UniqueFd nobody = NewEnd();
  std::string report;
  for (int round = 0; round < rounds && report.empty(); ++round) {
    const int64_t queue_empty_at = gpumemd::BootTime();
    if (accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC) >= 0) report = "wrong: who is it?";
    const UniqueFd end = NewEnd();
    if (Start(first, false, end.get(), address, {}) != kNumber || !Reap()) {
      report = absl::StrCat("skip: this kernel gives out no number that is asked for: ",
                            strerror(errno));
      break;
    }
    const UniqueFd second_end = NewEnd();
    if (Start(second, false, second_end.get(), address, {.stays = true}) != kNumber ||
        !Connected(second_end.get())) {
      report = "wrong: the second process failed";
      break;
    }
    const UniqueFd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    auto peer = gpumemd::IdentifyPeer(accepted.get(),
                                      {.queue_empty_at = queue_empty_at, .by_number = true});
    // It cannot know better than that the number is taken; so it says that it does not know.
    if (peer.ok() && peer->identity.cgroup.unknown().empty()) {
      report = absl::StrCat("wrong: in round ", round, " the second process's group was believed");
    }
    const UniqueFd rest(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Kill();
  }
  unlink(path.c_str());
  return report.empty() ? absl::StrCat("done: ", rounds, " rounds by number") : report;
}

// Process 1 of the namespace.
int BeFirst(const std::string& what, int rounds) {
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("proc", "/proc", "proc", 0, nullptr) != 0) {
    Say(absl::StrCat("skip: this machine mounts no /proc for a PID namespace: ", strerror(errno)));
    return 0;
  }
  Say(what == "daemon" ? Conductor(rounds).Run() : RunByNumber(rounds));
  return 0;
}

bool WriteText(const char* path, const std::string& text) {
  const UniqueFd file(open(path, O_WRONLY | O_CLOEXEC));
  return file.valid() &&
         write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace

int RunRole(const std::string& what, int rounds) {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (uid != 0) {
    if (unshare(CLONE_NEWUSER) != 0 || !WriteText("/proc/self/setgroups", "deny") ||
        !WriteText("/proc/self/uid_map", absl::StrCat("0 ", uid, " 1")) ||
        !WriteText("/proc/self/gid_map", absl::StrCat("0 ", gid, " 1"))) {
      Say(absl::StrCat("skip: this user may make no user namespace: ", strerror(errno)));
      return 0;
    }
  }
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) {
    Say(absl::StrCat("skip: this user may make no PID namespace: ", strerror(errno)));
    return 0;
  }
  const pid_t first = fork();
  if (first == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // and all of its namespace with it
    _exit(BeFirst(what, rounds));
  }
  int status = 0;
  waitpid(first, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

namespace {

std::string ReportOf(const std::string& what, const std::string& rounds) {
  Child child = Child::Self({"--role", what, rounds});
  auto report = ReceiveMessage(child.channel(), absl::Now() + absl::Minutes(5));
  EXPECT_EQ(child.Wait(), 0);
  return report.ok() ? report->bytes : report.status().ToString();
}

class PidReuseTest : public ::testing::TestWithParam<const char*> {};

TEST_P(PidReuseTest, NobodyIsTakenForWhoHadHisNumber) {
  const char* wanted = std::getenv("GPUMEM_PID_REUSES");
  const std::string report = ReportOf(GetParam(), wanted != nullptr ? wanted : "1000");
  if (absl::StartsWith(report, "skip: ")) GTEST_SKIP() << report.substr(strlen("skip: "));
  EXPECT_TRUE(absl::StartsWith(report, "done: ")) << report;
  RecordProperty("report", report);
  printf("%s\n", report.c_str());
}

INSTANTIATE_TEST_SUITE_P(Ways, PidReuseTest, ::testing::Values("daemon", "by-number"),
                         [](const auto& way) {
                           return std::string(way.param) == "daemon" ? "RealDaemon"
                                                                     : "KernelBefore65";
                         });

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  int rounds = 0;
  if (argc == 4 && std::string(argv[1]) == "--role" && absl::SimpleAtoi(argv[3], &rounds)) {
    return gpumem::RunRole(argv[2], rounds);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
