// SPDX-License-Identifier: Apache-2.0
// Pools that are suspended and resumed when the daemon asks for it.
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/testing/fake_daemon.h"
#include "common/bytes.h"
#include "common/node_clock.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gpumem/pool.h"
#include "gpumem/suspend.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace suspend_pools_test {

using internal::FakeDaemon;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using IsCancelled = std::function<bool()>;

v1::Event Asks(bool resume, const std::string& tag = "") {
  v1::Event event;
  event.mutable_suspension_requested()->set_tag(tag);
  event.mutable_suspension_requested()->set_resume(resume);
  event.mutable_suspension_requested()->set_deadline_ms(60'000);
  event.mutable_suspension_requested()->set_cause(v1::SuspensionRequested::IDLE);
  event.set_sent_ns(NodeClockNs());
  return event;
}

// A program with two pools and a segment.
class SuspendPoolsTest : public ::testing::Test {
 protected:
  void Start(FakeDaemon::Script script = {}) {
    daemon_ = std::make_unique<FakeDaemon>(std::move(script));
    client_ = Client::Connect({.runtime_dir = daemon_->runtime_dir(), .timeout = absl::Seconds(20)})
                  .value();
    for (int i = 0; i < 2; ++i) {
      pools_.push_back(Pool::Create(client_, {}).value());
      blocks_.push_back(pools_.back()->Allocate(kMiB, nullptr).value());
      std::strcpy(static_cast<char*>(blocks_.back().data), "kept");
    }
    segment_ = client_->Acquire({.bytes = kMiB}).value();
    std::strcpy(static_cast<char*>(segment_.data()), "kept");
  }
  void Serve(SuspensionHandlers handlers) {
    watch_ = client_->ServeSuspensions(std::move(handlers)).value();
  }
  SuspensionHandlers Handlers() {
    return {.segments = [this] { return std::vector<Segment*>{&segment_}; },
            .pools =
                [this] {
                  return std::vector<Pool*>{pools_[0].get(), pools_[1].get()};
                },
            .quiesce =
                [this] {
                  // The program still runs.
                  for (const auto& pool : pools_) {
                    const auto block = pool->Allocate(1, nullptr);
                    if (block.ok()) pool->Free(*block, nullptr).IgnoreError();
                    Note(block.ok() ? "quiesce" : "too late");
                  }
                  return absl::OkStatus();
                },
            .suspended = [this](SuspensionCause) { Note("suspended"); },
            .resumed = [this] { Note("resumed"); },
            .failed = [this](const absl::Status& why) { Note(why.ToString()); }};
  }
  void Note(std::string what) {
    absl::MutexLock lock(&mutex_);
    notes_.push_back(std::move(what));
  }
  // Waits for so many notes, and returns and forgets them.
  std::vector<std::string> Notes(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return notes_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20)));
    return std::exchange(notes_, {});
  }
  void ExpectKept() {
    for (const Block& block : blocks_) EXPECT_STREQ(static_cast<char*>(block.data), "kept");
    EXPECT_STREQ(static_cast<char*>(segment_.data()), "kept");
  }

  std::unique_ptr<FakeDaemon> daemon_;
  std::shared_ptr<Client> client_;
  std::vector<std::unique_ptr<Pool>> pools_;
  std::vector<Block> blocks_;
  Segment segment_;
  absl::Mutex mutex_;
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Watch> watch_;  // its thread uses the others
};

TEST_F(SuspendPoolsTest, PoolsAndSegmentsAreSuspendedAndResumed) {
  Start();
  Serve(Handlers());
  for (int round = 0; round < 2; ++round) {
    daemon_->Tell(Asks(/*resume=*/false));
    EXPECT_THAT(Notes(3), ElementsAre("quiesce", "quiesce", "suspended"));
    EXPECT_THAT(daemon_->suspended(), SizeIs(daemon_->live_leases()));
    EXPECT_TRUE(pools_[0]->suspended() && pools_[1]->suspended() && segment_.suspended());
    daemon_->Tell(Asks(/*resume=*/true));
    EXPECT_THAT(Notes(1), ElementsAre("resumed"));
    EXPECT_THAT(daemon_->suspended(), IsEmpty());
    ExpectKept();
  }
}

TEST_F(SuspendPoolsTest, OnlyWhatIsInTheOtherStateIsTouched) {
  Start();
  SuspensionHandlers handlers = Handlers();
  handlers.quiesce = nullptr;
  Serve(std::move(handlers));
  ASSERT_EQ(pools_[0]->Suspend(), absl::OkStatus());
  daemon_->Tell(Asks(/*resume=*/false));
  daemon_->Tell(Asks(/*resume=*/false));  // there is nothing left
  EXPECT_THAT(Notes(1), ElementsAre("suspended"));
  EXPECT_TRUE(pools_[0]->suspended() && pools_[1]->suspended() && segment_.suspended());
  daemon_->Tell(Asks(/*resume=*/true));
  EXPECT_THAT(Notes(1), ElementsAre("resumed"));
  ExpectKept();
}

TEST_F(SuspendPoolsTest, ATagMeansNoPool) {
  Start();
  segment_ = client_->Acquire({.bytes = kMiB, .tag = "kv"}).value();
  Serve(Handlers());
  daemon_->Tell(Asks(/*resume=*/false, "kv"));
  EXPECT_THAT(Notes(3), ElementsAre("quiesce", "quiesce", "suspended"));
  EXPECT_TRUE(segment_.suspended());
  EXPECT_FALSE(pools_[0]->suspended() || pools_[1]->suspended());
}

TEST_F(SuspendPoolsTest, ARefusalBringsTheOthersBack) {
  std::atomic<int> calls = 0;
  Start({.prepare_suspend = [&](const v1::PrepareSuspendRequest&) {
    return ++calls < 3 ? grpc::Status::OK
                       : grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the tier is full");
  }});
  Serve(Handlers());
  daemon_->Tell(Asks(/*resume=*/false));
  EXPECT_THAT(Notes(3), ElementsAre("quiesce", "quiesce", HasSubstr("the tier is full")));
  EXPECT_FALSE(pools_[0]->suspended() || pools_[1]->suspended() || segment_.suspended());
  EXPECT_THAT(daemon_->suspended(), IsEmpty());
  ExpectKept();
}

TEST_F(SuspendPoolsTest, ARefusedResumeSuspendsTheOthersAgain) {
  std::atomic<int> calls = 0;
  Start({.resume_leases = [&](const IsCancelled&, const v1::ResumeRequest&) {
    return ++calls == 2 ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full")
                        : grpc::Status::OK;
  }});
  Serve(Handlers());
  daemon_->Tell(Asks(/*resume=*/false));
  daemon_->Tell(Asks(/*resume=*/true));
  EXPECT_THAT(Notes(4), ElementsAre("quiesce", "quiesce", "suspended", HasSubstr("full")));
  EXPECT_TRUE(pools_[0]->suspended() && pools_[1]->suspended() && segment_.suspended());
  EXPECT_THAT(daemon_->suspended(), SizeIs(daemon_->live_leases()));
  daemon_->Tell(Asks(/*resume=*/true));
  EXPECT_THAT(Notes(1), ElementsAre("resumed"));
  ExpectKept();
}

TEST_F(SuspendPoolsTest, APoolOfAnotherKindIsRefused) {
  Start();
  const auto pinned = Pool::Create(client_, {.kind = Kind::kPinned}).value();
  SuspensionHandlers handlers = Handlers();
  handlers.pools = [&] { return std::vector<Pool*>{pools_[0].get(), pinned.get()}; };
  Serve(std::move(handlers));
  daemon_->Tell(Asks(/*resume=*/false));
  EXPECT_THAT(Notes(3).back(), HasSubstr("pinned"));
  EXPECT_FALSE(pools_[0]->suspended());
  watch_.reset();
}

TEST_F(SuspendPoolsTest, ANullPoolIsAnError) {
  Start();
  SuspensionHandlers handlers = Handlers();
  handlers.quiesce = nullptr;
  handlers.pools = [&] { return std::vector<Pool*>{pools_[0].get(), nullptr}; };
  Serve(std::move(handlers));
  daemon_->Tell(Asks(/*resume=*/false));
  EXPECT_THAT(Notes(1), ElementsAre(HasSubstr("null pointer")));
  EXPECT_FALSE(pools_[0]->suspended() || segment_.suspended());
}

TEST_F(SuspendPoolsTest, AProgramMakesTheCallsByItself) {
  Start();
  Serve({.serve = [this](const SuspensionRequest& request) {
    EXPECT_GT(request.left, absl::Seconds(30));
    EXPECT_EQ(request.cause, SuspensionCause::kIdle);
    for (const auto& pool : pools_) {
      EXPECT_EQ(request.resume ? pool->Resume() : pool->Suspend(), absl::OkStatus());
    }
    Note((request.resume ? "resumed " : "suspended ") + request.tag);
  }});
  daemon_->Tell(Asks(/*resume=*/false, "some"));
  EXPECT_THAT(Notes(1), ElementsAre("suspended some"));
  EXPECT_TRUE(pools_[0]->suspended() && pools_[1]->suspended());
  daemon_->Tell(Asks(/*resume=*/true));
  EXPECT_THAT(Notes(1), ElementsAre("resumed "));
  ExpectKept();
}

}  // namespace suspend_pools_test
}  // namespace gpumem
