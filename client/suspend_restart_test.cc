// SPDX-License-Identifier: Apache-2.0
// Suspending and resuming while the daemon dies, stops answering, or sends wrong memory.
#include <string.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gpumem/suspend.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace suspend_restart_test {

using absl::StatusCode;
using internal::FakeDaemon;
using internal::OpenFds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kBytes = 64 * 1024;
using IsCancelled = std::function<bool()>;

// A call that is never answered. Cancellation gives no notification.
grpc::Status AwaitEnd(const IsCancelled& is_cancelled) {
  while (!is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
  return grpc::Status::CANCELLED;
}

class SuspendRestartTest : public ::testing::Test {
 protected:
  void Start(FakeDaemon::Script script) {
    daemon_ = std::make_unique<FakeDaemon>(std::move(script));
    client_ = Client::Connect({.runtime_dir = daemon_->runtime_dir(), .timeout = absl::Seconds(60)})
                  .value();
    segments_ = client_->AcquireMany({.bytes = kBytes}, 2).value();
    for (Segment& segment : segments_) {
      strcpy(static_cast<char*>(segment.data()), "kept");
      all_.push_back(&segment);
    }
  }
  // Blocks the first call of a step for good, and crashes the daemon then.
  grpc::Status CrashOnce(const IsCancelled& is_cancelled) {
    if (crashes_++ > 0) return grpc::Status::OK;
    reached_.Notify();
    return AwaitEnd(is_cancelled);
  }
  std::thread Crasher() {
    return std::thread([this] {
      reached_.WaitForNotification();
      daemon_->Crash();
      daemon_->ComeBack();
    });
  }
  void ExpectIntact() {
    for (Segment& segment : segments_) {
      ASSERT_FALSE(segment.suspended());
      EXPECT_STREQ(static_cast<char*>(segment.data()), "kept");
    }
    EXPECT_EQ(daemon_->live_leases(), 2u);
  }

  absl::Notification reached_;
  std::atomic<int> crashes_ = 0;
  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Client> client_;
  std::vector<Segment> segments_;
  std::vector<Segment*> all_;
};

TEST_F(SuspendRestartTest, TheDaemonDiesBeforeItSuspends) {
  Start({.suspend = [this](const IsCancelled& is_cancelled, const v1::SuspendRequest&) {
    return CrashOnce(is_cancelled);
  }});
  std::thread crasher = Crasher();
  EXPECT_EQ(client_->Suspend(all_), absl::OkStatus());
  crasher.join();
  EXPECT_THAT(daemon_->suspended(), SizeIs(2));
  ASSERT_EQ(client_->Resume(all_), absl::OkStatus());
  ExpectIntact();
}

TEST_F(SuspendRestartTest, TheDaemonDiesBeforeItAnswersSuspend) {
  Start({.suspended = [this](const IsCancelled& is_cancelled) { return CrashOnce(is_cancelled); }});
  std::thread crasher = Crasher();
  EXPECT_EQ(client_->Suspend(all_), absl::OkStatus());
  crasher.join();
  EXPECT_THAT(daemon_->suspended(), SizeIs(2));
  ASSERT_EQ(client_->Resume(all_), absl::OkStatus());
  ExpectIntact();
}

TEST_F(SuspendRestartTest, TheDaemonDiesBeforeItResumes) {
  Start({.resume_leases = [this](const IsCancelled& is_cancelled, const v1::ResumeRequest&) {
    return CrashOnce(is_cancelled);
  }});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  std::thread crasher = Crasher();
  EXPECT_EQ(client_->Resume(all_), absl::OkStatus());
  crasher.join();
  ExpectIntact();
}

TEST_F(SuspendRestartTest, TheDaemonDiesBetweenTheMemoryAndTheAnswer) {
  Start({.resumed = [this](const IsCancelled& is_cancelled) { return CrashOnce(is_cancelled); }});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  std::thread crasher = Crasher();
  EXPECT_EQ(client_->Resume(all_, {.wait = absl::Seconds(60)}), absl::OkStatus());
  crasher.join();
  ExpectIntact();
  EXPECT_TRUE(client_->GetUsage().ok());
  ExpectIntact();
}

TEST_F(SuspendRestartTest, SuspendedSegmentsOutliveTheDaemon) {
  Start({});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  daemon_->Crash();
  daemon_->ComeBack();
  ASSERT_EQ(client_->Resume(all_), absl::OkStatus());
  ExpectIntact();
}

TEST_F(SuspendRestartTest, ALostSegmentIsTold) {
  Start({});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  daemon_->LoseLease(segments_[1].lease_id());
  daemon_->Crash();
  daemon_->ComeBack();
  const absl::Status status = client_->Resume(all_);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("lease 2 is lost"));
  EXPECT_TRUE(segments_[0].suspended());
  EXPECT_TRUE(segments_[1].suspended());
  Segment* const first[] = {&segments_[0]};
  EXPECT_EQ(client_->Resume(first), absl::OkStatus());
  EXPECT_STREQ(static_cast<char*>(segments_[0].data()), "kept");
  Segment* const second[] = {&segments_[1]};
  EXPECT_EQ(client_->Resume(second).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(segments_[1].Release(), absl::OkStatus());
}

TEST_F(SuspendRestartTest, ALostSegmentIsNotSuspended) {
  Start({});
  daemon_->LoseLease(segments_[1].lease_id());
  daemon_->Crash();
  daemon_->ComeBack();
  EXPECT_EQ(client_->Suspend(all_).code(), StatusCode::kFailedPrecondition);
  for (Segment& segment : segments_) EXPECT_STREQ(static_cast<char*>(segment.data()), "kept");
}

TEST_F(SuspendRestartTest, ASessionThatIsOverLeavesThemSuspended) {
  Start({});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  daemon_->Crash();
  daemon_->ComeBack(/*remembers=*/false);
  EXPECT_EQ(client_->Resume(all_).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(segments_[0].suspended());
  segments_.clear();
}

// The memory comes, and the answer never does: the leases must not be released with it.
TEST_F(SuspendRestartTest, MemoryWithoutACallerIsSuspendedAgain) {
  std::atomic<bool> answers = false;
  Start({.resumed = [&](const IsCancelled& is_cancelled) {
    return answers ? grpc::Status::OK : AwaitEnd(is_cancelled);
  }});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  const size_t fds = OpenFds();
  EXPECT_EQ(client_->Resume(all_, {.timeout = absl::Milliseconds(500)}).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(segments_[0].suspended());
  EXPECT_THAT(daemon_->suspended(), SizeIs(2));
  EXPECT_TRUE(client_->GetUsage().ok());
  EXPECT_EQ(daemon_->live_leases(), 2u);
  EXPECT_EQ(daemon_->release_calls(), 0);
  EXPECT_EQ(OpenFds(), fds);
  answers = true;
  ASSERT_EQ(client_->Resume(all_), absl::OkStatus());
  ExpectIntact();
}

TEST_F(SuspendRestartTest, ASuspendWithoutAnAnswerIsUndone) {
  Start({.suspended = [](const IsCancelled& is_cancelled) { return AwaitEnd(is_cancelled); }});
  EXPECT_EQ(client_->Suspend(all_, {.timeout = absl::Milliseconds(500)}).code(),
            StatusCode::kDeadlineExceeded);
  ExpectIntact();
  EXPECT_THAT(daemon_->suspended(), IsEmpty());
}

TEST_F(SuspendRestartTest, AChildAfterForkIsRefused) {
  Start({});
  ASSERT_EQ(client_->Suspend(all_), absl::OkStatus());
  EXPECT_EXIT(
      {
        const bool refused = client_->Resume(all_).code() == StatusCode::kFailedPrecondition;
        segments_.clear();
        _exit(refused ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
  ASSERT_EQ(client_->Resume(all_), absl::OkStatus());
  ExpectIntact();
}

}  // namespace suspend_restart_test
}  // namespace gpumem
