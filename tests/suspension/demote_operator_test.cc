// SPDX-License-Identifier: Apache-2.0
// An operator demotes a session and promotes it, end to end on the host backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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
[tier]
capacity = "64MiB"
)";
constexpr char kPinned[] = R"([pinned]
capacity = "64MiB"
)";
constexpr int kSegments = 3;  // of 16 MiB

class DemoteOperatorTest : public ::testing::Test {
 protected:
  void Start(const std::string& pinned = kPinned) {
    auto daemon = DaemonProcess::Start({.config = absl::StrCat(kConfig, pinned)});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    admin_ = v1::Admin::NewStub(testing::ChannelTo(daemon_->Socket("admin.sock")));
  }
  template <typename Response, typename Request>
  absl::StatusOr<Response> Ask(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                       const Request&, Response*),
                               uint64_t session, absl::Duration timeout, const std::string& tag) {
    Request request;
    request.set_session_id(session);
    request.set_tag(tag);
    request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(timeout)));
    Response response;
    const grpc::Status status = (admin_.get()->*method)(ContextWith().get(), request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }
  absl::StatusOr<v1::DemoteSessionResponse> Demote(uint64_t session,
                                                   absl::Duration timeout = testing::kAnswerTime /
                                                                            2,
                                                   const std::string& tag = "") {
    return Ask(&v1::Admin::Stub::DemoteSession, session, timeout, tag);
  }
  absl::StatusOr<v1::PromoteSessionResponse> Promote(uint64_t session,
                                                     absl::Duration timeout = testing::kAnswerTime /
                                                                              2,
                                                     const std::string& tag = "") {
    return Ask(&v1::Admin::Stub::PromoteSession, session, timeout, tag);
  }
  int Ctl(std::vector<std::string> args) {
    args.insert(args.begin(), {ProgramPath("gpumemctl"), "--runtime-dir", daemon_->runtime_dir()});
    return Child(args).Wait();
  }
  // Runs a program that serves requests, with kSegments, the last one with tag "kv". Returns once
  // the daemon knows.
  Child RunServing(const std::string& role, uint64_t* session) {
    Child child = Child::Self({"--role", role, daemon_->runtime_dir()});
    EXPECT_TRUE(absl::SimpleAtoi(Hear(child.channel()), session));
    // Nothing is suspended: asks nothing of the session.
    EXPECT_TRUE(Eventually([&] {
      v1::ResumeSessionRequest request;
      request.set_session_id(*session);
      v1::ResumeSessionResponse response;
      return admin_->ResumeSession(ContextWith().get(), request, &response).ok();
    }));
    return child;
  }
  static void ExpectEqual(const Child& child) {
    Say(child.channel(), "check");
    EXPECT_EQ(Hear(child.channel()), "equal");
  }
  uint64_t DemotedBytes(uint64_t session) {
    v1::ListSessionsResponse sessions;
    EXPECT_TRUE(
        admin_->ListSessions(ContextWith().get(), v1::ListSessionsRequest(), &sessions).ok());
    for (const v1::SessionInfo& each : sessions.sessions()) {
      if (each.session_id() == session) return each.demoted_bytes();
    }
    return 0;
  }
  uint64_t DemotedBytesOfTenants() {
    v1::ListTenantsResponse tenants;
    EXPECT_TRUE(admin_->ListTenants(ContextWith().get(), v1::ListTenantsRequest(), &tenants).ok());
    uint64_t bytes = 0;
    for (const v1::TenantInfo& each : tenants.tenants()) bytes += each.usage().demoted_bytes();
    return bytes;
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

TEST_F(DemoteOperatorTest, AnotherSessionUsesTheDeviceMeanwhile) {
  Start();
  uint64_t session = 0;
  const Child child = RunServing("serving", &session);
  auto other = daemon_->Connect();
  ASSERT_OK(other);
  EXPECT_FALSE((*other)->Acquire({.bytes = 64 * kMiB}).ok());

  const auto demoted = Demote(session);
  ASSERT_OK(demoted);
  EXPECT_EQ(demoted->demoted_leases(), kSegments);
  EXPECT_EQ(demoted->demoted_bytes(), kSegments * 16 * kMiB);
  EXPECT_EQ(DemotedBytes(session), kSegments * 16 * kMiB);
  EXPECT_EQ(DemotedBytesOfTenants(), kSegments * 16 * kMiB);
  ExpectEqual(child);  // while it is demoted
  const auto again = Demote(session);
  ASSERT_OK(again);
  EXPECT_EQ(again->demoted_leases(), 0u);
  {
    auto whole = (*other)->Acquire({.bytes = 64 * kMiB, .wait = testing::kAnswerTime});
    ASSERT_OK(whole);
    EXPECT_OK(testing::Fill(MemoryOf(*whole), 99));
  }
  const auto promoted = Promote(session);
  ASSERT_OK(promoted);
  EXPECT_EQ(promoted->promoted_leases(), kSegments);
  EXPECT_EQ(promoted->promoted_bytes(), kSegments * 16 * kMiB);
  EXPECT_EQ(DemotedBytes(session), 0u);
  EXPECT_EQ(DemotedBytesOfTenants(), 0u);
  ExpectEqual(child);

  // The same by gpumemctl, and with a wait.
  EXPECT_EQ(Ctl({"demote", absl::StrCat(session), "--dry-run"}), 0);
  EXPECT_EQ(DemotedBytes(session), 0u);
  EXPECT_EQ(Ctl({"demote", absl::StrCat(session), "--timeout", "10s"}), 0);
  EXPECT_EQ(DemotedBytes(session), kSegments * 16 * kMiB);
  auto whole = (*other)->Acquire({.bytes = 64 * kMiB, .wait = testing::kAnswerTime});
  ASSERT_OK(whole);
  EXPECT_STATUS(Promote(session, absl::Milliseconds(100)), kDeadlineExceeded, ": 3 left");
  ExpectEqual(child);
  EXPECT_OK(whole->Release());
  EXPECT_EQ(Ctl({"promote", absl::StrCat(session)}), 0);
  EXPECT_EQ(DemotedBytes(session), 0u);
  ExpectEqual(child);
}

TEST_F(DemoteOperatorTest, ATenantMeansEachOfItsSessions) {
  Start();
  uint64_t session = 0;
  const Child child = RunServing("serving", &session);
  uint64_t suspending = 0;
  const auto tenant = [&] {
    v1::ListSessionsResponse sessions;
    EXPECT_TRUE(
        admin_->ListSessions(ContextWith().get(), v1::ListSessionsRequest(), &sessions).ok());
    return sessions.sessions_size() > 0 ? sessions.sessions(0).tenant() : "";
  }();
  EXPECT_EQ(Ctl({"demote", "--tenant", tenant, "--tag", "kv"}), 0);
  EXPECT_EQ(DemotedBytes(session), 16 * kMiB);
  EXPECT_EQ(Ctl({"demote", "--tenant", tenant}), 0);
  EXPECT_EQ(DemotedBytes(session), kSegments * 16 * kMiB);
  ExpectEqual(child);
  {
    const Child other = RunServing("suspending", &suspending);
    EXPECT_EQ(Ctl({"demote", "--tenant", tenant}), 1) << "one does not serve it";
    ExpectEqual(other);
  }
  EXPECT_TRUE(Eventually([&] { return Ctl({"promote", "--tenant", tenant}) == 0; }));
  EXPECT_EQ(DemotedBytes(session), 0u);
  ExpectEqual(child);
}

TEST_F(DemoteOperatorTest, ATagMeansItsMemoryAlone) {
  Start();
  uint64_t session = 0;
  const Child child = RunServing("serving", &session);
  const auto demoted = Demote(session, testing::kAnswerTime / 2, "kv");
  ASSERT_OK(demoted);
  EXPECT_EQ(demoted->demoted_leases(), 1u);
  EXPECT_EQ(DemotedBytes(session), 16 * kMiB);
  EXPECT_STATUS(Demote(session, testing::kAnswerTime / 2, "none"), kFailedPrecondition,
                "no lease with tag none");
  ExpectEqual(child);
  const auto rest = Demote(session);
  ASSERT_OK(rest);
  EXPECT_EQ(rest->demoted_leases(), 2u);
  ASSERT_OK(Promote(session));
  ExpectEqual(child);
}

TEST_F(DemoteOperatorTest, AProgramThatDoesNotServeDemotionIsNotAsked) {
  Start();
  uint64_t session = 0;
  const Child child = RunServing("suspending", &session);
  EXPECT_STATUS(Demote(session), kFailedPrecondition, "pause and proceed");
  EXPECT_STATUS(Promote(session), kFailedPrecondition, "pause and proceed");
  EXPECT_EQ(Ctl({"demote", absl::StrCat(session)}), 1);
  EXPECT_STATUS(Demote(99), kNotFound, "no live session");
  ExpectEqual(child);
}

TEST_F(DemoteOperatorTest, ItTakesHostMemoryThatGpusCanMap) {
  Start("[pinned]\ncapacity = \"0\"\n");
  uint64_t session = 0;
  const Child child = RunServing("serving", &session);
  EXPECT_STATUS(Demote(session), kFailedPrecondition, "kind host");
  ExpectEqual(child);
}

// Two watches of one session: of an older client, and of one that serves demotion.
TEST_F(DemoteOperatorTest, OnlyAWatchThatServesDemotionIsTold) {
  Start();
  WireSession wire(daemon_->Socket("session.sock"));
  ASSERT_OK(wire.Greet(testing::HelloOf("")));
  const auto broker = wire.TakeBroker();
  v1::AcquireRequest acquire;
  acquire.set_bytes(2 * kMiB);
  v1::AcquireResponse acquired;
  ASSERT_TRUE(broker->Acquire(ContextWith(wire.token()).get(), acquire, &acquired).ok());
  const uint64_t session = wire.welcome().session_id();
  v1::WatchRequest watch;
  watch.set_accepts_suspension(true);
  const auto old_context = ContextWith(wire.token());
  const auto old_events = broker->Watch(old_context.get(), watch);
  v1::Event event;
  ASSERT_TRUE(old_events->Read(&event)) << "the daemon knows of the watch";
  EXPECT_STATUS(Demote(session), kFailedPrecondition, "pause and proceed");

  watch.set_serves_demotion(true);
  const auto context = ContextWith(wire.token());
  const auto events = broker->Watch(context.get(), watch);
  ASSERT_TRUE(events->Read(&event));
  absl::StatusOr<v1::DemoteSessionResponse> answer = absl::UnknownError("none");
  std::thread operators([&] { answer = Demote(session); });
  while (!event.has_suspension_requested() && events->Read(&event)) {
  }
  ASSERT_TRUE(event.has_suspension_requested());
  EXPECT_EQ(event.suspension_requested().action(), v1::SuspensionRequested::DEMOTE);
  EXPECT_FALSE(event.suspension_requested().resume());
  wire.Close();
  operators.join();
  EXPECT_STATUS(answer, kAborted, "has ended");
  // The stream of the older client ends, and had no request in it.
  while (old_events->Read(&event)) EXPECT_FALSE(event.has_suspension_requested());
}

// The program that is demoted. `demotes`: it serves that, too.
int Serve(bool demotes, const std::string& runtime_dir) {
  auto client = Client::Connect({.runtime_dir = runtime_dir});
  if (!client.ok()) return 1;
  std::vector<Segment> segments;
  std::vector<void*> addresses;
  for (uint64_t i = 0; i < kSegments; ++i) {
    auto segment = (*client)->Acquire({.bytes = 16 * kMiB, .tag = i + 1 == kSegments ? "kv" : ""});
    if (!segment.ok() || !testing::Fill(MemoryOf(*segment), i + 1).ok()) return 2;
    addresses.push_back(segment->data());
    segments.push_back(*std::move(segment));
  }
  SuspensionHandlers handlers;
  handlers.segments = [&] {
    std::vector<Segment*> all;
    for (Segment& each : segments) all.push_back(&each);
    return all;
  };
  if (demotes) {
    handlers.pause = [] { return absl::OkStatus(); };
    handlers.proceed = [] {};
  }
  const auto watch = (*client)->ServeSuspensions(handlers);
  if (!watch.ok()) return 3;
  Say(kParentChannel, absl::StrCat((*client)->session_id()));
  while (Hear(kParentChannel) == "check") {
    absl::Status equal;
    for (uint64_t i = 0; i < kSegments; ++i) {
      equal.Update(testing::Check(MemoryOf(segments[i]), i + 1));
      if (segments[i].data() != addresses[i]) equal.Update(absl::InternalError("it has moved"));
    }
    Say(kParentChannel, equal.ok() ? "equal" : equal.ToString());
  }
  return 0;
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--role") {
    return gpumem::Serve(std::string(argv[2]) == "serving", argv[3]);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
