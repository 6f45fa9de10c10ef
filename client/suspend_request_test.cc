// SPDX-License-Identifier: Apache-2.0
// Suspending and resuming when the daemon asks for it.
#include <string.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/testing/fake_daemon.h"
#include "common/node_clock.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gpumem/suspend.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace suspend_request_test {

using absl::StatusCode;
using internal::FakeDaemon;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kBytes = 64 * 1024;

v1::Event Asks(bool resume, const std::string& tag = "") {
  v1::Event event;
  event.mutable_suspension_requested()->set_tag(tag);
  event.mutable_suspension_requested()->set_resume(resume);
  event.mutable_suspension_requested()->set_deadline_ms(60'000);
  event.set_sent_ns(NodeClockNs());
  return event;
}

v1::Event Asks(v1::SuspensionRequested::Action action, const std::string& tag = "") {
  v1::Event event = Asks(/*resume=*/false, tag);
  event.mutable_suspension_requested()->set_action(action);
  return event;
}

class SuspendRequestTest : public ::testing::Test {
 protected:
  void Start(FakeDaemon::Script script = {}) {
    daemon_ = std::make_unique<FakeDaemon>(std::move(script));
    client_ = Client::Connect({.runtime_dir = daemon_->runtime_dir(), .timeout = absl::Seconds(20)})
                  .value();
    segments_ = client_->AcquireMany({.bytes = kBytes}, 2).value();
    for (Segment& segment : segments_) strcpy(static_cast<char*>(segment.data()), "kept");
  }
  // Handlers that write down their calls.
  SuspensionHandlers Handlers() {
    return {.segments =
                [this] {
                  return std::vector<Segment*>{&segments_[0], &segments_[1]};
                },
            .quiesce =
                [this] {
                  Note("quiesce");
                  return absl::OkStatus();
                },
            .resumed = [this] { Note("resumed"); },
            .failed = [this](const absl::Status& why) { Note(why.ToString()); },
            .done = [this] { done_.fetch_add(1); },
            .ended = [this](const absl::Status&) { Note("ended"); }};
  }
  SuspensionHandlers DemotionHandlers() {
    SuspensionHandlers handlers = Handlers();
    handlers.pause = [this] {
      Note("pause");
      return absl::OkStatus();
    };
    handlers.proceed = [this] { Note("proceed"); };
    return handlers;
  }
  void Note(std::string what) {
    absl::MutexLock lock(&mutex_);
    notes_.push_back(std::move(what));
  }
  // Waits for so many notes, and returns them.
  std::vector<std::string> Notes(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return notes_.size() >= count; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20)));
    return notes_;
  }

  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Client> client_;
  std::vector<Segment> segments_;
  std::atomic<int> done_ = 0;  // calls of `done`
  absl::Mutex mutex_;
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(SuspendRequestTest, TheDaemonSuspendsAndResumesTheProgram) {
  std::atomic<bool> suspended = false;
  Start({.suspended = [&](const auto&) {
    suspended = true;
    return grpc::Status::OK;
  }});
  const auto watch = client_->ServeSuspensions(Handlers());
  ASSERT_TRUE(watch.ok()) << watch.status();
  daemon_->Tell(Asks(/*resume=*/false));
  EXPECT_THAT(Notes(1), ElementsAre("quiesce"));
  // The request to resume comes when the thread of the Watch is done with the first.
  daemon_->Tell(Asks(/*resume=*/true));
  EXPECT_THAT(Notes(2), ElementsAre("quiesce", "resumed"));
  EXPECT_TRUE(suspended);
  EXPECT_THAT(daemon_->suspended(), IsEmpty());
  for (const Segment& segment : segments_) {
    EXPECT_FALSE(segment.suspended());
    EXPECT_STREQ(static_cast<char*>(segment.data()), "kept");
  }
}

TEST_F(SuspendRequestTest, OnlySegmentsInTheOtherStateAreTouched) {
  Start();
  ASSERT_EQ(client_->Suspend({&segments_[0]}), absl::OkStatus());
  auto watch = client_->ServeSuspensions(Handlers());
  ASSERT_TRUE(watch.ok()) << watch.status();
  daemon_->Tell(Asks(/*resume=*/false));
  daemon_->Tell(Asks(/*resume=*/false));  // there is nothing left
  daemon_->Tell(Asks(/*resume=*/true));
  daemon_->Tell(Asks(/*resume=*/true));
  daemon_->Tell(Asks(/*resume=*/false));
  EXPECT_THAT(Notes(3), ElementsAre("quiesce", "resumed", "quiesce"));
  watch->reset();       // waits for the suspension
  EXPECT_EQ(done_, 5);  // also where there was nothing to do
  EXPECT_TRUE(segments_[0].suspended());
  EXPECT_TRUE(segments_[1].suspended());
}

TEST_F(SuspendRequestTest, ATagMeansItsSegmentsAlone) {
  Start();
  segments_[1] = client_->Acquire({.bytes = kBytes, .tag = "kv", .scratch = true}).value();
  EXPECT_EQ(segments_[0].tag(), "");
  EXPECT_EQ(segments_[1].tag(), "kv");
  auto watch = client_->ServeSuspensions(Handlers());
  ASSERT_TRUE(watch.ok()) << watch.status();
  daemon_->Tell(Asks(/*resume=*/false, "weights"));  // there are none
  daemon_->Tell(Asks(/*resume=*/false, "kv"));
  daemon_->Tell(Asks(/*resume=*/true, "kv"));
  daemon_->Tell(Asks(/*resume=*/false, "kv"));
  EXPECT_THAT(Notes(3), ElementsAre("quiesce", "resumed", "quiesce"));
  watch->reset();  // waits for the suspension
  EXPECT_FALSE(segments_[0].suspended());
  EXPECT_TRUE(segments_[1].suspended());
}

TEST_F(SuspendRequestTest, TheDaemonDemotesAndPromotesTheProgram) {
  Start();
  auto handlers = DemotionHandlers();
  absl::BlockingCounter served(5);
  handlers.done = [&] { served.DecrementCount(); };
  auto watch = client_->ServeSuspensions(handlers);
  ASSERT_TRUE(watch.ok()) << watch.status();
  void* const address = segments_[0].data();
  daemon_->Tell(Asks(v1::SuspensionRequested::DEMOTE));
  daemon_->Tell(Asks(v1::SuspensionRequested::DEMOTE));  // there is nothing left
  daemon_->Tell(Asks(/*resume=*/false));                 // demoted memory is not suspended
  daemon_->Tell(Asks(v1::SuspensionRequested::PROMOTE));
  daemon_->Tell(Asks(/*resume=*/false));
  served.Wait();
  // A slow machine switches each segment in a separate pause.
  std::vector<std::string> notes = Notes(5);
  EXPECT_EQ(notes.back(), "quiesce");
  notes.pop_back();
  for (size_t i = 0; i < notes.size(); ++i) EXPECT_EQ(notes[i], i % 2 == 0 ? "pause" : "proceed");
  watch->reset();
  EXPECT_FALSE(segments_[0].demoted());
  EXPECT_TRUE(segments_[0].suspended());
  EXPECT_EQ(segments_[0].data(), address);
}

TEST_F(SuspendRequestTest, OnlyWhatTheProgramDoesNotWriteToIsDemoted) {
  Start();
  segments_.push_back(client_->Acquire({.bytes = kBytes, .tag = "weights"}).value());
  auto handlers = DemotionHandlers();
  handlers.demotable = [this] { return std::vector<Segment*>{&segments_[1], &segments_[2]}; };
  auto watch = client_->ServeSuspensions(handlers);
  ASSERT_TRUE(watch.ok()) << watch.status();
  daemon_->Tell(Asks(v1::SuspensionRequested::DEMOTE, "none"));
  daemon_->Tell(Asks(v1::SuspensionRequested::DEMOTE, "weights"));
  EXPECT_THAT(Notes(2), ElementsAre("pause", "proceed"));
  watch->reset();
  EXPECT_FALSE(segments_[1].demoted());
  EXPECT_TRUE(segments_[2].demoted());
  watch = client_->ServeSuspensions(handlers);
  ASSERT_TRUE(watch.ok()) << watch.status();
  daemon_->Tell(Asks(v1::SuspensionRequested::DEMOTE));
  EXPECT_EQ(Notes(4).size(), 4u);
  watch->reset();
  EXPECT_FALSE(segments_[0].demoted());
  EXPECT_TRUE(segments_[1].demoted());
  EXPECT_STREQ(static_cast<char*>(segments_[1].data()), "kept");
}

TEST_F(SuspendRequestTest, AnActionThatIsNotKnownDoesNothing) {
  Start();
  const auto watch = client_->ServeSuspensions(DemotionHandlers());
  ASSERT_TRUE(watch.ok()) << watch.status();
  daemon_->Tell(Asks(static_cast<v1::SuspensionRequested::Action>(99)));
  daemon_->Tell(Asks(v1::SuspensionRequested::DEMOTE));
  EXPECT_EQ(Notes(2).front(), "pause") << "of the second request";
  EXPECT_FALSE(segments_[0].suspended());
}

TEST_F(SuspendRequestTest, FailuresAreTold) {
  Start({.prepare_suspend = [](const v1::PrepareSuspendRequest&) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the tier is full");
  }});
  auto handlers = Handlers();
  auto watch = client_->ServeSuspensions(handlers);
  ASSERT_TRUE(watch.ok()) << watch.status();
  daemon_->Tell(Asks(/*resume=*/false));
  EXPECT_THAT(Notes(1), ElementsAre(::testing::HasSubstr("the tier is full")));
  watch->reset();
  EXPECT_EQ(done_, 1);
  EXPECT_FALSE(segments_[0].suspended());
}

TEST_F(SuspendRequestTest, ARequestWhoseTimeIsOverIsIgnored) {
  Start();
  const auto watch = client_->ServeSuspensions(Handlers());
  ASSERT_TRUE(watch.ok()) << watch.status();
  v1::Event late = Asks(/*resume=*/false);
  late.mutable_suspension_requested()->set_deadline_ms(1);
  late.set_sent_ns(NodeClockNs() - 2'000'000);
  daemon_->Tell(late);
  ASSERT_EQ(client_->Suspend({&segments_[0]}), absl::OkStatus());
  daemon_->Tell(Asks(/*resume=*/true));
  EXPECT_THAT(Notes(1), ElementsAre("resumed"));
}

// `segments` may wait for other threads of the program.
TEST_F(SuspendRequestTest, ARequestWhoseTimeEndsInTheProgramIsIgnored) {
  Start();
  auto handlers = Handlers();
  absl::Notification asked;
  handlers.segments = [&, segments = handlers.segments] {
    if (!asked.HasBeenNotified()) {
      asked.Notify();
      absl::SleepFor(absl::Milliseconds(100));  // longer than the request is valid
    }
    return segments();
  };
  auto watch = client_->ServeSuspensions(handlers);
  ASSERT_TRUE(watch.ok()) << watch.status();
  v1::Event brief = Asks(/*resume=*/false);
  brief.mutable_suspension_requested()->set_deadline_ms(50);
  daemon_->Tell(brief);
  asked.WaitForNotification();
  daemon_->Tell(Asks(/*resume=*/true));  // nothing to do: but it comes after the other
  watch->reset();
  EXPECT_FALSE(segments_[0].suspended());
  EXPECT_THAT(Notes(0), IsEmpty());
}

TEST_F(SuspendRequestTest, TheProgramLearnsWhyItIsSuspended) {
  Start();
  auto handlers = Handlers();
  handlers.suspended = [this](SuspensionCause cause) {
    Note(cause == SuspensionCause::kOperator       ? "operator"
         : cause == SuspensionCause::kMemoryNeeded ? "memory needed"
                                                   : "idle");
  };
  const auto watch = client_->ServeSuspensions(handlers);
  ASSERT_TRUE(watch.ok()) << watch.status();
  std::vector<std::string> all;
  for (const auto cause : {v1::SuspensionRequested::OPERATOR,
                           v1::SuspensionRequested::MEMORY_NEEDED, v1::SuspensionRequested::IDLE}) {
    v1::Event asks = Asks(/*resume=*/false);
    asks.mutable_suspension_requested()->set_cause(cause);
    daemon_->Tell(asks);
    daemon_->Tell(Asks(/*resume=*/true));
    all = Notes(all.size() + 3);
  }
  EXPECT_THAT(all, ElementsAre("quiesce", "operator", "resumed", "quiesce", "memory needed",
                               "resumed", "quiesce", "idle", "resumed"));
}

TEST_F(SuspendRequestTest, ActivityIsReportedOnceASecondAtMost) {
  Start();
  for (int i = 0; i < 1000; ++i) client_->ReportActivity();
  EXPECT_GE(daemon_->activity_reports(), 1);
  EXPECT_LE(daemon_->activity_reports(), 20);  // it took some seconds on a slow machine
}

TEST_F(SuspendRequestTest, WithoutHandlersNothingChanges) {
  Start();
  EXPECT_EQ(client_->ServeSuspensions({}).status().code(), StatusCode::kInvalidArgument);
  SuspensionHandlers half = DemotionHandlers();
  half.proceed = nullptr;
  EXPECT_EQ(client_->ServeSuspensions(half).status().code(), StatusCode::kInvalidArgument);
  absl::Notification drained;
  const auto watch = client_->StartWatch({.draining = [&](bool) { drained.Notify(); }});
  ASSERT_TRUE(watch.ok()) << watch.status();
  daemon_->Tell(Asks(/*resume=*/false));
  v1::Event draining;
  draining.mutable_draining()->set_draining(true);
  daemon_->Tell(draining);
  drained.WaitForNotification();
  EXPECT_THAT(daemon_->suspended(), IsEmpty());
}

}  // namespace suspend_request_test
}  // namespace gpumem
