// SPDX-License-Identifier: Apache-2.0
// Many threads of one client, while its daemon crashes again and again at every step of their
// calls.
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace reconnect_race_test {

using internal::FakeDaemon;

constexpr int kThreads = 16;
constexpr int kCrashes = 100;
constexpr uint64_t kBytes = FakeDaemon::kGranularity;

// A daemon whose Acquires sometimes block until it crashes, before or after each of their steps.
class StickyDaemon {
 public:
  FakeDaemon& fake() { return fake_; }
  // Stops all blocking.
  void Mend() { sticks_ = false; }

 private:
  grpc::Status Acquire(const std::function<bool()>& is_cancelled, uint64_t session,
                       const v1::AcquireRequest& request, v1::AcquireResponse* response) {
    thread_local std::minstd_rand random(std::random_device{}());
    const auto stick = [&](uint32_t one_of) {
      if (random() % one_of != 0) return false;
      while (sticks_ && !is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
      return is_cancelled();
    };
    if (stick(32)) return grpc::Status::CANCELLED;
    if (random() % 32 == 0) {
      fake_.GrantSilently(session, request, response);
      // Answers without the Delivery: the client waits for it until the crash.
      if (sticks_ && random() % 2 == 0) return grpc::Status::OK;
      response->Clear();
      if (stick(1)) return grpc::Status::CANCELLED;
    }
    fake_.Grant(session, request, response);
    if (stick(32)) return grpc::Status::CANCELLED;
    return grpc::Status::OK;
  }

  std::atomic<bool> sticks_ = true;
  FakeDaemon fake_{
      {.acquire_waiting = [this](const auto& is_cancelled, uint64_t session,
                                 const v1::AcquireRequest& request, v1::AcquireResponse* response) {
        return Acquire(is_cancelled, session, request, response);
      }}};
};

// The work of one thread: acquires segments, marks them, checks that no other thread has them, and
// releases them in one of several ways.
class Worker {
 public:
  Worker(Client* client, int number) : client_(client), mark_(number + 1), random_(mark_) {}

  void Step() {
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        return Acquire();
      case 3:
        return Open();
      case 4:
        EXPECT_TRUE(client_->GetUsage().ok());
        return;
      case 5:
        if (!mine_.empty()) {
          Check(mine_.back());
          const absl::Status released = mine_.back().Release();
          EXPECT_TRUE(released.ok()) << released;
          mine_.pop_back();
        }
        return;
      default:
        if (!mine_.empty()) {
          Check(mine_.front());
          mine_.erase(mine_.begin());
        }
    }
  }

  // Checks that the remaining segments are unchanged.
  void Finish() {
    for (Segment& segment : mine_) {
      Check(segment);
      EXPECT_TRUE(segment.Share().ok());
    }
    mine_.clear();
  }

  int64_t acquired() const { return acquired_; }

 private:
  void Acquire() {
    AcquireOptions options = {.bytes = kBytes};
    if (random_() % 4 == 0) options.wait = absl::Hours(1);
    const int count = 1 + static_cast<int>(random_() % 3);
    absl::StatusOr<std::vector<Segment>> segments = client_->AcquireMany(options, count);
    ASSERT_TRUE(segments.ok()) << segments.status();
    acquired_ += count;
    for (Segment& segment : *segments) {
      ASSERT_EQ(*static_cast<int*>(segment.data()), 0) << "somebody else has it, too";
      *static_cast<int*>(segment.data()) = mark_;
      mine_.push_back(std::move(segment));
    }
  }

  void Open() {
    if (mine_.empty()) return;
    const absl::StatusOr<Ticket> ticket = mine_.front().Share();
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    const absl::StatusOr<Segment> same = client_->Open(ticket->value);
    ASSERT_TRUE(same.ok()) << same.status();
    Check(*same);
  }

  void Check(const Segment& segment) {
    EXPECT_EQ(*static_cast<const int*>(segment.data()), mark_) << "somebody else has it, too";
  }

  Client* const client_;
  const int mark_;
  std::minstd_rand random_;
  std::vector<Segment> mine_;
  int64_t acquired_ = 0;
};

TEST(ReconnectRaceTest, NoLeaseIsGrantedTwiceAndNoneIsLost) {
  StickyDaemon daemon;
  auto client =
      Client::Connect({.runtime_dir = daemon.fake().runtime_dir(), .timeout = absl::Seconds(100)})
          .value();
  std::atomic<bool> over = false;
  std::atomic<int64_t> lost = 0;
  auto watch = client
                   ->StartWatch({.segments_lost =
                                     [&](const SegmentsLost& which) {
                                       lost += static_cast<int64_t>(which.lease_ids.size());
                                     }})
                   .value();
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    workers.push_back(std::make_unique<Worker>(client.get(), i));
    threads.emplace_back([&over, worker = workers.back().get()] {
      while (!over) worker->Step();
    });
  }
  std::minstd_rand random(7);
  int resumes = -1;
  for (int i = 0; i < kCrashes; ++i) {
    // Mostly when the session has resumed, and at any moment of the resume.
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (i % 4 > 0 && daemon.fake().resumes() == resumes && absl::Now() < give_up) {
      absl::SleepFor(absl::Microseconds(500));
    }
    absl::SleepFor(absl::Microseconds(random() % 10000));
    daemon.fake().Crash();
    resumes = daemon.fake().resumes();
    if (random() % 4 == 0) absl::SleepFor(absl::Microseconds(random() % 20000));
    daemon.fake().ComeBack();
  }
  over = true;
  daemon.Mend();
  // A call that waits for a Delivery that was never sent waits for one more crash.
  daemon.fake().Crash();
  daemon.fake().ComeBack();
  for (std::thread& thread : threads) thread.join();
  int64_t acquired = 0;
  for (const std::unique_ptr<Worker>& worker : workers) {
    worker->Finish();
    acquired += worker->acquired();
  }
  workers.clear();
  EXPECT_TRUE(client->GetUsage().ok());
  EXPECT_EQ(daemon.fake().live_leases(), 0u);
  EXPECT_EQ(daemon.fake().early_calls(), 0);
  EXPECT_EQ(lost, 0);
  EXPECT_GT(acquired, kCrashes);
  EXPECT_GT(daemon.fake().resumes(), kCrashes / 2);
  RecordProperty("acquired", static_cast<int>(acquired));
  RecordProperty("resumes", daemon.fake().resumes());
}

}  // namespace reconnect_race_test
}  // namespace gpumem
