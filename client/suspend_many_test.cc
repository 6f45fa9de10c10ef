// SPDX-License-Identifier: Apache-2.0
// Suspending and resuming more segments than the protocol takes in one call.
#include <sys/resource.h>

#include <atomic>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/testing/fake_daemon.h"
#include "common/denial.h"
#include "common/grpc_status.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gpumem/suspend.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace suspend_many_test {

using absl::StatusCode;
using internal::FakeDaemon;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using IsCancelled = std::function<bool()>;

constexpr uint64_t kBytes = 64 * 1024;
constexpr size_t kCount = 1250;

// Returns the script of a daemon that resumes up to 253 leases in one call.
auto Older(std::function<grpc::Status(const IsCancelled&, const v1::ResumeRequest&)> resume) {
  return [resume](const IsCancelled& is_cancelled, const v1::ResumeRequest& request) {
    return request.lease_ids_size() <= 253
               ? resume(is_cancelled, request)
               : grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "name 1 to 253 leases to resume");
  };
}

// Returns a refusal for lack of memory.
grpc::Status Denied() {
  v1::Denial denial;
  denial.set_cause(v1::Denial::CAUSE_CAPACITY);
  denial.set_tenant("testers");
  return ToGrpcStatus(DenialError(denial));
}

class SuspendManyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    rlimit limit = {};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    if (limit.rlim_cur < 2 * kCount) GTEST_SKIP() << "the daemon has a descriptor for each";
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  // Acquires kCount segments; each begins with its number.
  void Start(FakeDaemon::Script script = {}) {
    daemon_ = std::make_unique<FakeDaemon>(std::move(script));
    client_ = Client::Connect({.runtime_dir = daemon_->runtime_dir(), .timeout = absl::Seconds(20)})
                  .value();
    while (segments_.size() < kCount) {
      std::vector<Segment> some = client_->AcquireMany({.bytes = kBytes}, 125).value();
      std::move(some.begin(), some.end(), std::back_inserter(segments_));
    }
    for (size_t i = 0; i < kCount; ++i) {
      *static_cast<size_t*>(segments_[i].data()) = i;
      at_.push_back(segments_[i].data());
      all_.push_back(&segments_[i]);
    }
  }
  void ExpectIntact() const {
    EXPECT_THAT(daemon_->suspended(), IsEmpty());
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_FALSE(segments_[i].suspended());
      ASSERT_EQ(segments_[i].data(), at_[i]);
      ASSERT_EQ(*static_cast<const size_t*>(at_[i]), i);
    }
  }

  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Client> client_;
  std::vector<Segment> segments_;
  std::vector<Segment*> all_;
  std::vector<void*> at_;
};

TEST_F(SuspendManyTest, TheyGoInSeveralCalls) {
  std::vector<int> sizes, resumed;
  Start({.suspend =
             [&](const IsCancelled&, const v1::SuspendRequest& request) {
               sizes.push_back(request.lease_ids_size());
               return grpc::Status::OK;
             },
         .resume_leases =
             [&](const IsCancelled&, const v1::ResumeRequest& request) {
               resumed.push_back(request.lease_ids_size());
               return grpc::Status::OK;
             }});
  int calls = 0;
  const auto count = [&] {
    ++calls;
    return absl::OkStatus();
  };
  ASSERT_EQ(client_->Suspend(all_, {.quiesce = count}), absl::OkStatus());
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(sizes, ElementsAre(1024, 226));
  EXPECT_THAT(daemon_->suspended(), SizeIs(kCount));
  ASSERT_EQ(client_->Resume(all_), absl::OkStatus());
  EXPECT_THAT(resumed, ElementsAre(1024, 226));
  ExpectIntact();
}

TEST_F(SuspendManyTest, AnOlderDaemonResumesFewerInOneCall) {
  std::vector<int> resumed;
  Start({.resume_leases = Older([&](const IsCancelled&, const v1::ResumeRequest& request) {
           resumed.push_back(request.lease_ids_size());
           return grpc::Status::OK;
         })});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  ASSERT_EQ(client_->Resume(all_), absl::OkStatus());
  EXPECT_THAT(resumed, ElementsAre(253, 253, 253, 253, 238));
  ExpectIntact();
}

TEST_F(SuspendManyTest, AProcessWithFewDescriptorsResumesFewerInOneCall) {
  std::vector<int> resumed;
  Start({.resume_leases = [&](const IsCancelled&, const v1::ResumeRequest& request) {
    resumed.push_back(request.lease_ids_size());
    return grpc::Status::OK;
  }});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = internal::OpenFds() + 400;
  ASSERT_GT(limit.rlim_cur / 2, 700u) << "the daemon has a descriptor for each";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const absl::Status status = client_->Resume(all_);
  limit.rlim_cur = before;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_EQ(status, absl::OkStatus());
  EXPECT_GT(resumed.front(), 700);
  resumed.erase(resumed.begin());
  EXPECT_THAT(resumed, ElementsAre(253, 253, 253, 253, 238));
  ExpectIntact();
}

TEST_F(SuspendManyTest, IfALaterCallIsRefusedTheEarlierOnesComeBack) {
  std::atomic<int> calls = 0;
  Start({.prepare_suspend = [&](const v1::PrepareSuspendRequest&) {
    return ++calls == 2 ? Denied() : grpc::Status::OK;
  }});
  const absl::Status status = client_->Suspend(all_, SuspendOptions());
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(GetDenial(status).has_value());
  ExpectIntact();
}

TEST_F(SuspendManyTest, ARefusedResumeLeavesAllSuspended) {
  std::atomic<int> calls = 0;
  Start({.resume_leases = Older([&](const IsCancelled&, const v1::ResumeRequest&) {
           return ++calls == 5 ? Denied() : grpc::Status::OK;
         })});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  EXPECT_EQ(client_->Resume(all_).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(calls, 5);
  EXPECT_THAT(daemon_->suspended(), SizeIs(kCount));
  for (const Segment& segment : segments_) ASSERT_TRUE(segment.suspended());
  ASSERT_EQ(client_->Resume(all_), absl::OkStatus());
  ExpectIntact();
}

// Another process may hold the rest of the memory, and wait for what this one holds.
TEST_F(SuspendManyTest, NoPartIsHeldWhileAnotherWaits) {
  std::atomic<int> calls = 0;
  std::vector<absl::Duration> waits;
  size_t suspended = 0;
  Start({.resume_leases = Older([&](const IsCancelled&, const v1::ResumeRequest& request) {
           waits.push_back(absl::Milliseconds(request.wait_ms()));
           if (++calls == 4) suspended = daemon_->suspended().size();
           if (calls != 3) return grpc::Status::OK;
           absl::SleepFor(waits.back());  // as the daemon does, until the wait is over
           return Denied();
         })});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  ASSERT_EQ(client_->Resume(all_, {.wait = absl::Hours(1)}), absl::OkStatus());
  ExpectIntact();
  EXPECT_EQ(calls, 3 + 5);
  EXPECT_EQ(suspended, kCount) << "when it begins again";
  EXPECT_GT(waits[0], absl::Minutes(50));
  EXPECT_GT(waits[3], absl::Minutes(50));
  for (const size_t later : {1, 2}) EXPECT_LE(waits[later], absl::Seconds(1));
  for (const size_t later : {4, 5, 6, 7}) EXPECT_LE(waits[later], absl::Seconds(2));
}

// What no wait changes is not tried again: each attempt would copy all earlier parts.
TEST_F(SuspendManyTest, ARefusalAtOnceIsNotRepeated) {
  std::atomic<int> calls = 0;
  Start({.resume_leases = Older([&](const IsCancelled&, const v1::ResumeRequest&) {
           return ++calls == 3 ? Denied() : grpc::Status::OK;
         })});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  EXPECT_TRUE(absl::IsResourceExhausted(client_->Resume(all_, {.wait = absl::Hours(1)})));
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(daemon_->suspended().size(), kCount);
}

}  // namespace suspend_many_test
}  // namespace gpumem
