// SPDX-License-Identifier: Apache-2.0
// An operator suspends a session and resumes it, end to end on the host backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/bytes.h"
#include "common/grpc_status.h"
#include "gpumem/client.h"
#include "gpumem/suspend.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/pattern.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::ContextWith;
using testing::DaemonProcess;
using testing::Eventually;
using testing::Hear;
using testing::kParentChannel;
using testing::MemoryOf;
using testing::ProgramPath;
using testing::Say;
using testing::WireSession;

constexpr char kConfig[] = R"([host]
device_bytes = "64MiB"
)";
constexpr char kTier[] = R"([tier]
capacity = "64MiB"
)";
constexpr int kSegments = 3;  // of 16 MiB

class SuspendOperatorTest : public ::testing::Test {
 protected:
  void Start(const std::string& tier = kTier) {
    auto daemon = DaemonProcess::Start({.config = absl::StrCat(kConfig, tier)});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    admin_ = v1::Admin::NewStub(testing::ChannelTo(daemon_->Socket("admin.sock")));
  }
  absl::StatusOr<v1::SuspendSessionResponse> Suspend(uint64_t session,
                                                     absl::Duration timeout = testing::kAnswerTime /
                                                                              2) {
    v1::SuspendSessionRequest request;
    request.set_session_id(session);
    request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout)));
    v1::SuspendSessionResponse response;
    const grpc::Status status = admin_->SuspendSession(ContextWith().get(), request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }
  absl::StatusOr<v1::ResumeSessionResponse> Resume(uint64_t session,
                                                   absl::Duration timeout = testing::kAnswerTime /
                                                                            2) {
    v1::ResumeSessionRequest request;
    request.set_session_id(session);
    request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout)));
    v1::ResumeSessionResponse response;
    const grpc::Status status = admin_->ResumeSession(ContextWith().get(), request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }
  int Ctl(std::vector<std::string> args) {
    args.insert(args.begin(), {ProgramPath("gpumemctl"), "--runtime-dir", daemon_->runtime_dir()});
    return Child(args).Wait();
  }
  // Runs a program that serves requests, with kSegments. Returns once the daemon knows.
  Child RunServing(uint64_t* session) {
    Child child = Child::Self({"--role", "serving", daemon_->runtime_dir()});
    EXPECT_TRUE(absl::SimpleAtoi(Hear(child.channel()), session));
    // Nothing is suspended: asks nothing of the session.
    EXPECT_TRUE(Eventually([&] { return Resume(*session).ok(); }));
    return child;
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

TEST_F(SuspendOperatorTest, AnotherSessionUsesTheMemoryMeanwhile) {
  Start();
  uint64_t session = 0;
  Child child = RunServing(&session);
  auto other = daemon_->Connect();
  ASSERT_OK(other);
  EXPECT_FALSE((*other)->Acquire({.bytes = 64 * kMiB}).ok());

  const auto suspended = Suspend(session);
  ASSERT_OK(suspended);
  EXPECT_EQ(suspended->suspended_leases(), kSegments);
  EXPECT_EQ(suspended->moved_bytes(), kSegments * 16 * kMiB);
  EXPECT_EQ(suspended->resident_bytes(), 0u);
  const auto again = Suspend(session);
  ASSERT_OK(again);
  EXPECT_EQ(again->suspended_leases(), 0u);
  {
    auto whole = (*other)->Acquire({.bytes = 64 * kMiB});
    ASSERT_OK(whole);
    EXPECT_OK(testing::Fill(MemoryOf(*whole), 99));
  }
  const auto resumed = Resume(session);
  ASSERT_OK(resumed);
  EXPECT_EQ(resumed->resumed_leases(), kSegments);
  EXPECT_EQ(resumed->resumed_bytes(), kSegments * 16 * kMiB);
  Say(child.channel(), "check 1");
  EXPECT_EQ(Hear(child.channel()), "equal");

  // The same by gpumemctl, and with a wait.
  EXPECT_EQ(Ctl({"suspend", absl::StrCat(session), "--dry-run"}), 0);
  EXPECT_EQ(Ctl({"suspend", absl::StrCat(session), "--timeout", "10s"}), 0);
  auto whole = (*other)->Acquire({.bytes = 64 * kMiB});
  ASSERT_OK(whole);
  EXPECT_STATUS(Resume(session, absl::Milliseconds(100)), kDeadlineExceeded, ": 3 left");
  EXPECT_OK(whole->Release());
  EXPECT_EQ(Ctl({"resume", absl::StrCat(session)}), 0);
  Say(child.channel(), "check 2");
  EXPECT_EQ(Hear(child.channel()), "equal");
}

TEST_F(SuspendOperatorTest, ATagMeansItsMemoryAlone) {
  Start();
  auto client = daemon_->Connect();
  ASSERT_OK(client);
  auto weights = (*client)->Acquire({.bytes = 16 * kMiB, .tag = "weights"});
  ASSERT_OK(weights);
  auto cache = (*client)->Acquire({.bytes = 8 * kMiB, .tag = "kv", .scratch = true});
  ASSERT_OK(cache);
  EXPECT_OK(testing::Fill(MemoryOf(*weights), 1));
  const auto watch = (*client)->ServeSuspensions({.segments = [&] {
    return std::vector<Segment*>{&*weights, &*cache};
  }});
  ASSERT_OK(watch);
  const uint64_t session = (*client)->session_id();
  EXPECT_TRUE(Eventually([&] { return Resume(session).ok(); }));
  v1::SuspendSessionRequest request;
  request.set_session_id(session);
  v1::SuspendSessionResponse suspended;
  const auto suspend = [&](const std::string& tag) {
    request.set_tag(tag);
    return FromGrpcStatus(admin_->SuspendSession(ContextWith().get(), request, &suspended));
  };
  EXPECT_STATUS(suspend("a b"), kInvalidArgument, "a tag has");
  EXPECT_STATUS(suspend("other"), kFailedPrecondition, "no lease with tag other");
  ASSERT_OK(suspend("kv"));
  EXPECT_EQ(suspended.suspended_leases(), 1u);
  EXPECT_EQ(suspended.moved_bytes(), 0u);
  EXPECT_EQ(suspended.dropped_bytes(), 8 * kMiB);
  EXPECT_EQ(Ctl({"suspend", absl::StrCat(session), "--tag", "weights"}), 0);
  EXPECT_EQ(Ctl({"resume", absl::StrCat(session), "--tag", "weights"}), 0);
  v1::ListHoldersResponse holders;
  ASSERT_TRUE(admin_->ListHolders(ContextWith().get(), {}, &holders).ok());
  ASSERT_EQ(holders.leases_size(), 2);
  for (const v1::LeaseInfo& lease : holders.leases()) {
    EXPECT_EQ(lease.suspended(), lease.tag() == "kv") << lease.tag();
  }
  const auto resumed = Resume(session);
  ASSERT_OK(resumed);
  EXPECT_EQ(resumed->resumed_leases(), 1u);
  EXPECT_OK(testing::Check(MemoryOf(*weights), 1));
  EXPECT_OK(testing::CheckZero(MemoryOf(*cache)));
}

// Returns the bytes of all sessions in the tier.
uint64_t SuspendedBytes(v1::Admin::Stub* admin) {
  v1::ListSessionsResponse sessions;
  EXPECT_TRUE(admin->ListSessions(ContextWith().get(), v1::ListSessionsRequest(), &sessions).ok());
  uint64_t bytes = 0;
  for (const v1::SessionInfo& each : sessions.sessions()) bytes += each.suspended_bytes();
  return bytes;
}

TEST_F(SuspendOperatorTest, ATenantMeansEachOfItsSessions) {
  Start(absl::StrCat(kTier, R"([[tenant]]
name = "lab"
limit = "64MiB"
[[tenant]]
name = "elsewhere"
limit = "16MiB"
[[rule]]
tenant = "lab"
default = true
[[rule]]
tenant = "elsewhere"
default = true
)"));
  absl::Mutex mutex;
  int asked = 0;
  const auto both = [&] { return asked >= 2; };
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<Segment> segments;
  std::vector<std::unique_ptr<Watch>> watches;
  segments.reserve(4);
  for (uint64_t i = 0; i < 2; ++i) {
    auto client = daemon_->Connect("lab");
    ASSERT_OK(client);
    clients.push_back(*std::move(client));
    auto segment = clients.back()->Acquire({.bytes = 8 * kMiB});
    ASSERT_OK(segment);
    EXPECT_OK(testing::Fill(MemoryOf(*segment), i + 1));
    segments.push_back(*std::move(segment));
    auto watch = clients.back()->ServeSuspensions(
        {.segments = [mine = &segments.back()] { return std::vector<Segment*>{mine}; },
         .quiesce =
             [&] {
               const absl::MutexLock lock(&mutex);
               ++asked;
               return mutex.AwaitWithTimeout(absl::Condition(&both), testing::kAnswerTime / 2)
                          ? absl::OkStatus()
                          : absl::AbortedError("the other was not asked beside it");
             }});
    ASSERT_OK(watch);
    watches.push_back(*std::move(watch));
    EXPECT_TRUE(Eventually([&] { return Resume(clients.back()->session_id()).ok(); }));
  }
  auto elsewhere = daemon_->Connect("elsewhere");
  ASSERT_OK(elsewhere);
  auto other = (*elsewhere)->Acquire({.bytes = 8 * kMiB});
  ASSERT_OK(other);
  EXPECT_EQ(Ctl({"suspend", "--tenant", "none"}), 6);
  EXPECT_EQ(Ctl({"suspend", "--tenant", "lab", "--dry-run"}), 0);
  EXPECT_EQ(SuspendedBytes(admin_.get()), 0u);
  EXPECT_EQ(Ctl({"suspend", "--tenant", "lab"}), 0);
  EXPECT_EQ(SuspendedBytes(admin_.get()), 16 * kMiB);
  EXPECT_EQ(Ctl({"suspend", "--tenant", "lab"}), 0) << "nothing is left to do";
  EXPECT_EQ(Ctl({"resume", "--tenant", "lab"}), 0);
  EXPECT_EQ(SuspendedBytes(admin_.get()), 0u);

  // A session that does not serve fails, and leaves the others alone.
  auto deaf = daemon_->Connect("lab");
  ASSERT_OK(deaf);
  auto kept = (*deaf)->Acquire({.bytes = 2 * kMiB});
  ASSERT_OK(kept);
  EXPECT_EQ(Ctl({"suspend", "--tenant", "lab"}), 1);
  EXPECT_EQ(SuspendedBytes(admin_.get()), 16 * kMiB);
  EXPECT_EQ(Ctl({"resume", "--tenant", "lab"}), 0);
  for (uint64_t i = 0; i < 2; ++i) EXPECT_OK(testing::Check(MemoryOf(segments[i]), i + 1));
}

TEST_F(SuspendOperatorTest, RefusesWhatCannotBe) {
  Start();
  EXPECT_STATUS(Suspend(99), kNotFound, "no live session 99");
  EXPECT_EQ(Ctl({"suspend", "99"}), 6);
  auto deaf = daemon_->Connect();
  ASSERT_OK(deaf);
  auto segment = (*deaf)->Acquire({.bytes = 2 * kMiB});
  ASSERT_OK(segment);
  EXPECT_STATUS(Suspend((*deaf)->session_id()), kFailedPrecondition, "does not accept");
  EXPECT_STATUS(Resume((*deaf)->session_id()), kFailedPrecondition, "does not accept");
  EXPECT_EQ(Ctl({"suspend", absl::StrCat((*deaf)->session_id())}), 1);
  // A session that serves, and has nothing.
  auto empty = daemon_->Connect();
  ASSERT_OK(empty);
  const auto watch =
      (*empty)->ServeSuspensions({.segments = [] { return std::vector<Segment*>(); }});
  ASSERT_OK(watch);
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(Suspend((*empty)->session_id()).status().message(), "has no lease");
  }));
}

TEST_F(SuspendOperatorTest, RefusesWithoutATier) {
  Start(/*tier=*/"");
  auto client = daemon_->Connect();
  ASSERT_OK(client);
  EXPECT_STATUS(Suspend((*client)->session_id()), kFailedPrecondition, "no host tier");
}

TEST_F(SuspendOperatorTest, AWholeProcessNeedsAGpuAndElseNothingChanges) {
  Start();
  uint64_t session = 0;
  const Child child = RunServing(&session);
  for (const char* const command : {"suspend", "resume"}) {
    EXPECT_EQ(Ctl({command, "--process", absl::StrCat(child.pid())}), 1);
    EXPECT_EQ(Ctl({command, "--process", absl::StrCat(child.pid()), "--dry-run"}), 1);
  }
  const auto suspended = Suspend(session);
  ASSERT_OK(suspended);
  EXPECT_EQ(suspended->suspended_leases(), kSegments) << "some were suspended already";
}

TEST_F(SuspendOperatorTest, AStoppedProgramIsLateAndIgnoresTheRequest) {
  Start();
  uint64_t session = 0;
  Child child = RunServing(&session);
  child.Signal(SIGSTOP);
  siginfo_t stopped;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.pid()), &stopped, WSTOPPED | WNOWAIT), 0);
  EXPECT_STATUS(Suspend(session, absl::Milliseconds(200)), kDeadlineExceeded, ": 3 left");
  EXPECT_EQ(Ctl({"suspend", absl::StrCat(session), "--timeout", "200ms"}), 1);
  child.Signal(SIGCONT);
  const auto suspended = Suspend(session);
  ASSERT_OK(suspended);
  EXPECT_EQ(suspended->suspended_leases(), kSegments) << "it obeyed a request that was over";
  ASSERT_OK(Resume(session));
  Say(child.channel(), "check 1");
  EXPECT_EQ(Hear(child.channel()), "equal");
}

TEST_F(SuspendOperatorTest, TheEndOfTheSessionEndsTheWait) {
  Start();
  WireSession wire(daemon_->Socket("session.sock"));
  ASSERT_OK(wire.Greet(testing::HelloOf("")));
  const auto broker = wire.TakeBroker();
  v1::AcquireRequest acquire;
  acquire.set_bytes(2 * kMiB);
  v1::AcquireResponse acquired;
  ASSERT_TRUE(broker->Acquire(ContextWith(wire.token()).get(), acquire, &acquired).ok());
  const auto context = ContextWith(wire.token());
  v1::WatchRequest watch;
  watch.set_accepts_suspension(true);
  const auto events = broker->Watch(context.get(), watch);
  v1::Event event;
  ASSERT_TRUE(events->Read(&event)) << "the daemon knows of the watch";
  absl::StatusOr<v1::SuspendSessionResponse> answer = absl::UnknownError("none");
  std::thread operators([&] { answer = Suspend(wire.welcome().session_id()); });
  while (!event.has_suspension_requested() && events->Read(&event)) {
  }
  EXPECT_TRUE(event.has_suspension_requested());
  EXPECT_FALSE(event.suspension_requested().resume());
  EXPECT_GT(event.suspension_requested().deadline_ms(), 0u);
  wire.Close();
  operators.join();
  EXPECT_STATUS(answer, kAborted, "has ended");
}

// The program that is suspended. Checks its memory after the n-th resumption.
int Serve(const std::string& runtime_dir) {
  auto client = Client::Connect({.runtime_dir = runtime_dir});
  if (!client.ok()) return 1;
  std::vector<Segment> segments;
  for (uint64_t i = 0; i < kSegments; ++i) {
    auto segment = (*client)->Acquire({.bytes = 16 * kMiB});
    if (!segment.ok() || !testing::Fill(MemoryOf(*segment), i + 1).ok()) return 2;
    segments.push_back(*std::move(segment));
  }
  absl::Mutex mutex;
  int resumptions = 0;
  const auto watch = (*client)->ServeSuspensions({.segments =
                                                      [&] {
                                                        std::vector<Segment*> all;
                                                        for (Segment& each : segments)
                                                          all.push_back(&each);
                                                        return all;
                                                      },
                                                  .resumed =
                                                      [&] {
                                                        absl::MutexLock lock(&mutex);
                                                        ++resumptions;
                                                      }});
  if (!watch.ok()) return 3;
  Say(kParentChannel, absl::StrCat((*client)->session_id()));
  for (std::string words = Hear(kParentChannel); absl::StartsWith(words, "check ");
       words = Hear(kParentChannel)) {
    const int wanted = words.back() - '0';
    const auto back = [&] { return resumptions >= wanted; };
    mutex.LockWhen(absl::Condition(&back));
    mutex.Unlock();
    absl::Status equal;
    for (uint64_t i = 0; i < kSegments; ++i) {
      equal.Update(testing::Check(MemoryOf(segments[i]), i + 1));
    }
    Say(kParentChannel, equal.ok() ? "equal" : equal.ToString());
  }
  return 0;
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--role") return gpumem::Serve(argv[3]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
