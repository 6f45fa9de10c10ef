// SPDX-License-Identifier: Apache-2.0
// Demoting and promoting while the daemon dies, or does not answer.
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
#include "gpumem/demote.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace demote_restart_test {

using absl::StatusCode;
using internal::FakeDaemon;

constexpr uint64_t kBytes = 64 * 1024;
using IsCancelled = std::function<bool()>;

// A call that is never answered. Cancellation gives no notification.
grpc::Status AwaitEnd(const IsCancelled& is_cancelled) {
  while (!is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
  return grpc::Status::CANCELLED;
}

class DemoteRestartTest : public ::testing::Test {
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
  // Blocks one call of a step for good, and crashes the daemon then.
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
  void Expect(bool demoted) {
    for (const Segment& segment : segments_) {
      EXPECT_EQ(segment.demoted(), demoted);
      EXPECT_STREQ(static_cast<char*>(segment.data()), "kept");
      EXPECT_EQ(daemon_->LeaseOf(segment.lease_id()).segment_id(), segment.segment_id());
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

TEST_F(DemoteRestartTest, TheDaemonDiesBeforeTheExchange) {
  Start({.exchange = [this](const IsCancelled& is_cancelled,
                            const v1::ExchangeLeasesRequest& request) {
    return request.check_only() ? grpc::Status::OK : CrashOnce(is_cancelled);
  }});
  std::thread crasher = Crasher();
  EXPECT_EQ(client_->Demote(all_), absl::OkStatus());
  crasher.join();
  Expect(/*demoted=*/true);
  ASSERT_EQ(client_->Promote(all_), absl::OkStatus());
  Expect(/*demoted=*/false);
}

TEST_F(DemoteRestartTest, TheDaemonDiesBeforeItAnswersTheExchange) {
  Start({.exchanged = [this](const IsCancelled& is_cancelled) { return CrashOnce(is_cancelled); }});
  std::thread crasher = Crasher();
  EXPECT_EQ(client_->Demote(all_), absl::OkStatus());
  crasher.join();
  Expect(/*demoted=*/true);
}

TEST_F(DemoteRestartTest, TheNextDaemonDoesNotKnowTheNewMemory) {
  Start({.exchange = [this](const IsCancelled& is_cancelled,
                            const v1::ExchangeLeasesRequest& request) {
    return request.check_only() ? grpc::Status::OK : CrashOnce(is_cancelled);
  }});
  std::thread crasher([this] {
    reached_.WaitForNotification();
    daemon_->Crash();
    daemon_->LoseLease(3);
    daemon_->ComeBack();
  });
  EXPECT_EQ(client_->Demote(all_).code(), StatusCode::kFailedPrecondition);
  crasher.join();
  Expect(/*demoted=*/false);
}

TEST_F(DemoteRestartTest, AnExchangeWithoutAnAnswerIsUndone) {
  for (const bool takes_effect : {false, true}) {
    std::atomic<int> exchanges = 0;
    const auto once = [&exchanges](const IsCancelled& is_cancelled) {
      return ++exchanges == 1 ? AwaitEnd(is_cancelled) : grpc::Status::OK;
    };
    FakeDaemon::Script script;
    if (takes_effect) {
      script.exchanged = once;
    } else {
      script.exchange = [once](const IsCancelled& is_cancelled,
                               const v1::ExchangeLeasesRequest& request) {
        return request.check_only() ? grpc::Status::OK : once(is_cancelled);
      };
    }
    all_.clear();
    segments_.clear();
    Start(script);
    const absl::Status status = client_->Demote(all_, {.timeout = absl::Milliseconds(500)});
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
    EXPECT_EQ(exchanges, 2);
    Expect(/*demoted=*/false);
    ASSERT_EQ(client_->Demote(all_), absl::OkStatus());
    Expect(/*demoted=*/true);
    segments_.clear();
    client_.reset();
  }
}

TEST_F(DemoteRestartTest, WithoutAnyAnswerTheSessionKeepsBoth) {
  Start({.exchanged = AwaitEnd});
  const absl::Status status = client_->Demote(all_, {.timeout = absl::Milliseconds(200)});
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_EQ(daemon_->live_leases(), 4u) << "no memory counts as free that is mapped here";
  for (const Segment& segment : segments_) {
    EXPECT_FALSE(segment.demoted());
    EXPECT_STREQ(static_cast<char*>(segment.data()), "kept");
  }
}

TEST_F(DemoteRestartTest, TheMemoryStaysMappedIfTheSessionEnds) {
  Start({.exchange = [this](const IsCancelled&, const v1::ExchangeLeasesRequest& request) {
    if (request.check_only()) return grpc::Status::OK;
    daemon_->Goodbye(1, "by the operator");
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the session has ended");
  }});
  EXPECT_FALSE(client_->Demote(all_).ok());
  for (const Segment& segment : segments_) {
    EXPECT_STREQ(static_cast<char*>(segment.data()), "kept");
  }
}

}  // namespace demote_restart_test
}  // namespace gpumem
