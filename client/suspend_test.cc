// SPDX-License-Identifier: Apache-2.0
// Suspending and resuming segments, against a daemon that can refuse each step.
#include "gpumem/suspend.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "common/denial.h"
#include "common/grpc_status.h"
#include "common/unique_fd.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace suspend_test {

using absl::StatusCode;
using internal::FakeDaemon;
using internal::OpenFds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr uint64_t kBytes = 64 * 1024;
using IsCancelled = std::function<bool()>;

// Returns a refusal for lack of memory.
grpc::Status Denied() {
  v1::Denial denial;
  denial.set_cause(v1::Denial::CAUSE_CAPACITY);
  denial.set_tenant("testers");
  return ToGrpcStatus(DenialError(denial));
}

// True if memory is mapped there. The kernel does not fault on behalf of a system call.
bool Readable(const void* at) {
  const UniqueFd file(memfd_create("probe", MFD_CLOEXEC));
  return pwrite(file.get(), at, 1, 0) == 1;
}

// True if the address is taken and has no memory.
bool IsReserved(const void* at) {
  return !Readable(at) && msync(const_cast<void*>(at), 1, MS_ASYNC) == 0;  // else ENOMEM
}

char* Bytes(const Segment& segment) { return static_cast<char*>(segment.data()); }

// Returns the arguments of Suspend() and Resume().
std::vector<Segment*> All(std::vector<Segment>& segments) {
  std::vector<Segment*> all;
  for (Segment& segment : segments) all.push_back(&segment);
  return all;
}

class SuspendTest : public ::testing::Test {
 protected:
  void Start(FakeDaemon::Script script = {}) {
    daemon_ = std::make_unique<FakeDaemon>(std::move(script));
    client_ = Connect();
  }
  std::unique_ptr<Client> Connect() const {
    return Client::Connect({.runtime_dir = daemon_->runtime_dir(), .timeout = absl::Seconds(20)})
        .value();
  }
  // Returns new contiguous segments; each begins with its number.
  std::vector<Segment> Acquire(int count) {
    std::vector<Segment> segments = client_->AcquireMany({.bytes = kBytes}, count).value();
    for (int i = 0; i < count; ++i) Stamp(segments[static_cast<size_t>(i)], i);
    return segments;
  }
  static void Stamp(const Segment& segment, int number) {
    strcpy(Bytes(segment), absl::StrCat("segment ", number).c_str());
  }
  // Expects the bytes that Acquire() wrote, at the old addresses.
  static void ExpectIntact(const std::vector<Segment>& segments, const char* base) {
    for (size_t i = 0; i < segments.size(); ++i) {
      EXPECT_FALSE(segments[i].suspended());
      ASSERT_EQ(Bytes(segments[i]), base + i * kBytes);
      EXPECT_EQ(Bytes(segments[i]), absl::StrCat("segment ", i));
    }
  }
  static void ExpectSuspended(const std::vector<Segment>& segments, const char* base) {
    for (size_t i = 0; i < segments.size(); ++i) {
      EXPECT_TRUE(segments[i].suspended());
      EXPECT_EQ(Bytes(segments[i]), base + i * kBytes);
      EXPECT_TRUE(IsReserved(segments[i].data()));
    }
  }

  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Client> client_;
};

TEST_F(SuspendTest, BytesComeBackToTheirAddresses) {
  Start();
  std::vector<Segment> segments = Acquire(4);
  char* const base = Bytes(segments[0]);
  const uint64_t before = segments[1].segment_id();
  const size_t fds = OpenFds();
  Segment* const middle[] = {&segments[2], &segments[1]};
  for (int round = 1; round <= 3; ++round) {
    ASSERT_EQ(client_->Suspend(middle), absl::OkStatus());
    EXPECT_THAT(daemon_->suspended(), ::testing::ElementsAre(2, 3));
    EXPECT_TRUE(segments[1].suspended());
    EXPECT_EQ(segments[1].data(), base + kBytes);
    EXPECT_EQ(segments[1].size(), kBytes);
    EXPECT_TRUE(IsReserved(base + kBytes));
    EXPECT_FALSE(Readable(base + 3 * kBytes - 1));
    EXPECT_STREQ(base, "segment 0") << "the segments beside them";
    EXPECT_STREQ(base + 3 * kBytes, "segment 3");
    ASSERT_EQ(client_->Resume(middle), absl::OkStatus());
    EXPECT_THAT(daemon_->suspended(), IsEmpty());
    ExpectIntact(segments, base);
    EXPECT_EQ(segments[1].segment_id(), before + static_cast<uint64_t>(round) * 1000);
    EXPECT_EQ(OpenFds(), fds);
  }
  segments.clear();
  EXPECT_EQ(daemon_->live_leases(/*awaited=*/0), 0u);
  EXPECT_FALSE(IsReserved(base + kBytes));
}

TEST_F(SuspendTest, ReadOnlyMemoryStaysReadOnly) {
  Start();
  Segment mine = client_->Acquire({.bytes = kBytes}).value();
  strcpy(Bytes(mine), "shared");
  auto client = Connect();
  Segment segment = client->Open(mine.Share()->value, {.read_only = true}).value();
  Segment* const one[] = {&segment};
  ASSERT_EQ(client->Suspend(one), absl::OkStatus());
  ASSERT_EQ(client->Resume(one), absl::OkStatus());
  EXPECT_STREQ(Bytes(segment), "shared");
  EXPECT_DEATH(Bytes(segment)[0] = 'x', "");
}

TEST_F(SuspendTest, MoreThanOneCallsWorth) {
  Start();
  std::vector<Segment> segments = Acquire(200);
  char* const base = Bytes(segments[0]);
  std::vector<Segment> more = Acquire(100);
  char* const other = Bytes(more[0]);
  std::vector<Segment*> all = All(segments);
  for (Segment& segment : more) all.push_back(&segment);
  ASSERT_EQ(client_->Suspend(all), absl::OkStatus());
  EXPECT_THAT(daemon_->suspended(), SizeIs(300));
  ASSERT_EQ(client_->Resume(all), absl::OkStatus());
  ExpectIntact(segments, base);
  ExpectIntact(more, other);
}

TEST_F(SuspendTest, BadArgumentsAreToldWithoutTheDaemon) {
  Start({.prepare_suspend = [](const v1::PrepareSuspendRequest&) {
    ADD_FAILURE() << "the daemon was asked";
    return grpc::Status::OK;
  }});
  std::vector<Segment> segments = Acquire(2);
  Segment empty;
  Segment pinned = client_->Acquire({.bytes = kBytes, .kind = Kind::kPinned}).value();
  const auto code = [this](std::vector<Segment*> list) { return client_->Suspend(list).code(); };
  EXPECT_EQ(code({}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({nullptr}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({&empty}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({&segments[0], &segments[1], &segments[0]}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(std::vector<Segment*>(4097, segments.data())), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({&segments[0], &pinned}), StatusCode::kUnimplemented);
  EXPECT_EQ(Connect()->Suspend(All(segments)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Resume(All(segments)).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->Resume({}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Resume(All(segments), {.wait = -absl::Seconds(1)}).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(SuspendTest, TwiceIsRefused) {
  Start();
  std::vector<Segment> segments = Acquire(2);
  char* const base = Bytes(segments[0]);
  Segment* const first[] = {&segments[0]};
  ASSERT_EQ(client_->Suspend(first), absl::OkStatus());
  EXPECT_EQ(client_->Suspend(All(segments)).code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(segments[1].suspended());
  EXPECT_EQ(client_->Resume(All(segments)).code(), StatusCode::kFailedPrecondition);
  ASSERT_EQ(client_->Resume(first), absl::OkStatus());
  ExpectIntact(segments, base);
}

TEST_F(SuspendTest, ARefusedReservationChangesNothing) {
  grpc::Status refusal;
  Start({.prepare_suspend = [&](const v1::PrepareSuspendRequest&) { return refusal; }});
  std::vector<Segment> segments = Acquire(2);
  char* const base = Bytes(segments[0]);
  for (const grpc::StatusCode code :
       {grpc::StatusCode::FAILED_PRECONDITION, grpc::StatusCode::UNIMPLEMENTED,
        grpc::StatusCode::NOT_FOUND}) {
    refusal = {code, "no"};
    bool called = false;
    const absl::Status status = client_->Suspend(All(segments), {.quiesce = [&] {
                                                   called = true;
                                                   return absl::OkStatus();
                                                 }});
    EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(code));
    EXPECT_FALSE(called);
    ExpectIntact(segments, base);
  }
  refusal = Denied();
  EXPECT_TRUE(GetDenial(client_->Suspend(All(segments))).has_value());
}

TEST_F(SuspendTest, TheProgramStopsItsUseBeforeTheMemoryIsUnmapped) {
  Start();
  std::vector<Segment> segments = Acquire(2);
  char* const base = Bytes(segments[0]);
  const auto refuse = [&] {
    EXPECT_NE(daemon_->reservation(), 0u);
    EXPECT_STREQ(base, "segment 0");
    return absl::AbortedError("not now");
  };
  EXPECT_EQ(client_->Suspend(All(segments), {.quiesce = refuse}), absl::AbortedError("not now"));
  EXPECT_EQ(daemon_->reservation(), 0u);
  ExpectIntact(segments, base);
  const auto finish = [&] {
    strcpy(base + kBytes, "last word");
    return absl::OkStatus();
  };
  ASSERT_EQ(client_->Suspend(All(segments), {.quiesce = finish}), absl::OkStatus());
  ASSERT_EQ(client_->Resume(All(segments)), absl::OkStatus());
  EXPECT_STREQ(base + kBytes, "last word");
}

TEST_F(SuspendTest, ARefusedSuspendMapsTheMemoryAgain) {
  const char* base = nullptr;
  Start({.suspend = [&](const IsCancelled&, const v1::SuspendRequest& request) {
    EXPECT_EQ(request.suspension_id(), daemon_->reservation());
    EXPECT_FALSE(Readable(base));
    EXPECT_FALSE(Readable(base + kBytes));
    return Denied();
  }});
  std::vector<Segment> segments = Acquire(2);
  base = Bytes(segments[0]);
  const size_t fds = OpenFds();
  const absl::Status status = client_->Suspend(All(segments));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(GetDenial(status).has_value());
  EXPECT_THAT(status.message(), Not(HasSubstr("stay suspended")));
  ExpectIntact(segments, base);
  EXPECT_EQ(OpenFds(), fds);
}

TEST_F(SuspendTest, ARefusedSuspendThatCannotMapAgainSaysSo) {
  std::atomic<bool> refuses = true;
  Start({.suspend =
             [](const IsCancelled&, const v1::SuspendRequest& request) {
               return request.suspension_id() != 0 ? Denied() : grpc::Status::OK;
             },
         .resume_leases =
             [&](const IsCancelled&, const v1::ResumeRequest&) {
               return refuses ? grpc::Status(grpc::StatusCode::INTERNAL, "broken")
                              : grpc::Status::OK;
             }});
  std::vector<Segment> segments = Acquire(2);
  char* const base = Bytes(segments[0]);
  const absl::Status status = client_->Suspend(All(segments));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(GetDenial(status).has_value());
  EXPECT_THAT(status.message(), HasSubstr("stay suspended"));
  EXPECT_THAT(status.message(), HasSubstr("broken"));
  ExpectSuspended(segments, base);
  refuses = false;
  ASSERT_EQ(client_->Resume(All(segments)), absl::OkStatus());
  ExpectIntact(segments, base);
}

TEST_F(SuspendTest, ARefusedResumeLeavesAllSuspended) {
  std::atomic<bool> refuses = true;
  std::atomic<uint64_t> wait_ms = 0;
  Start({.resume_leases = [&](const IsCancelled&, const v1::ResumeRequest& request) {
    wait_ms = request.wait_ms();
    return refuses ? Denied() : grpc::Status::OK;
  }});
  std::vector<Segment> segments = Acquire(2);
  char* const base = Bytes(segments[0]);
  ASSERT_EQ(client_->Suspend(All(segments)), absl::OkStatus());
  const absl::Status status = client_->Resume(All(segments), {.wait = absl::Seconds(7)});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(GetDenial(status).has_value());
  EXPECT_EQ(wait_ms, 7000u);
  ExpectSuspended(segments, base);
  refuses = false;
  ASSERT_EQ(client_->Resume(All(segments)), absl::OkStatus());
  EXPECT_EQ(wait_ms, 0u);
  ExpectIntact(segments, base);
}

TEST_F(SuspendTest, AWaitIsCancelled) {
  absl::Notification waits;
  std::atomic<bool> blocks = true;
  Start({.resume_leases = [&](const IsCancelled& is_cancelled, const v1::ResumeRequest&) {
    if (!blocks) return grpc::Status::OK;
    waits.Notify();
    while (!is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  }});
  std::vector<Segment> segments = Acquire(2);
  char* const base = Bytes(segments[0]);
  ASSERT_EQ(client_->Suspend(All(segments)), absl::OkStatus());
  CancelToken cancel;
  std::thread other([&] {
    waits.WaitForNotification();
    cancel.Cancel();
  });
  EXPECT_EQ(
      client_->Resume(All(segments), {.wait = absl::InfiniteDuration(), .cancel = cancel}).code(),
      StatusCode::kCancelled);
  other.join();
  ExpectSuspended(segments, base);
  EXPECT_THAT(daemon_->suspended(), SizeIs(2));
  EXPECT_EQ(daemon_->live_leases(), 2u);
  blocks = false;
  ASSERT_EQ(client_->Resume(All(segments)), absl::OkStatus());
  ExpectIntact(segments, base);
}

TEST_F(SuspendTest, IfOneDeviceRefusesTheOthersAreSuspendedAgain) {
  std::atomic<bool> refuses = true;
  Start({.resume_leases = [&](const IsCancelled&, const v1::ResumeRequest& request) {
    return refuses && request.lease_ids(0) > 2 ? Denied() : grpc::Status::OK;
  }});
  std::vector<Segment> first = Acquire(2);
  daemon_->GrantOn(FakeDaemon::kPinnedDevice);  // sorts behind the other
  std::vector<Segment> second = Acquire(2);
  char* const bases[] = {Bytes(first[0]), Bytes(second[0])};
  std::vector<Segment*> all = All(second);
  for (Segment& segment : first) all.push_back(&segment);
  ASSERT_EQ(client_->Suspend(all), absl::OkStatus());
  EXPECT_EQ(client_->Resume(all).code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(daemon_->suspended(), SizeIs(4));
  ExpectSuspended(first, bases[0]);
  ExpectSuspended(second, bases[1]);
  refuses = false;
  ASSERT_EQ(client_->Resume(all), absl::OkStatus());
  ExpectIntact(first, bases[0]);
  ExpectIntact(second, bases[1]);
}

TEST_F(SuspendTest, ASuspendedSegmentIsReleased) {
  Start();
  std::vector<Segment> segments = Acquire(3);
  char* const base = Bytes(segments[0]);
  ASSERT_EQ(client_->Suspend(All(segments)), absl::OkStatus());
  EXPECT_EQ(segments[1].Release(), absl::OkStatus());
  EXPECT_FALSE(segments[1].suspended());
  EXPECT_EQ(segments[1].data(), nullptr);
  EXPECT_EQ(daemon_->live_leases(), 2u);
  EXPECT_FALSE(IsReserved(base + kBytes));
  EXPECT_TRUE(IsReserved(base + 2 * kBytes));
  segments.clear();
  EXPECT_EQ(daemon_->live_leases(/*awaited=*/0), 0u);
  EXPECT_FALSE(IsReserved(base));
}

TEST_F(SuspendTest, OnlyTicketsCanBeHadMeanwhile) {
  Start();
  std::vector<Segment> segments = Acquire(1);
  const int fd = segments[0].fd().value();
  ASSERT_EQ(client_->Suspend(All(segments)), absl::OkStatus());
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "it would keep the memory";
  EXPECT_EQ(segments[0].fd().status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->Publish("name", segments, {}).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_FALSE(segments[0].registered());
  EXPECT_TRUE(segments[0].Share().ok());
  ASSERT_EQ(client_->Resume(All(segments)), absl::OkStatus());
  EXPECT_TRUE(segments[0].fd().ok());
}

}  // namespace suspend_test
}  // namespace gpumem
