// SPDX-License-Identifier: Apache-2.0
#include "common/trace/recording.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace gpumem::trace {
namespace {

std::vector<Event> TakenFrom(Recording& recording) {
  std::vector<Event> events;
  recording.Take(&events);
  return events;
}

const Event* Find(const std::vector<Event>& events, const std::string& name) {
  const auto found = std::find_if(events.begin(), events.end(),
                                  [&](const Event& event) { return event.name == name; });
  return found == events.end() ? nullptr : &*found;
}

TEST(RecordingTest, RecordsNothingWhileOff) {
  { const Span before("before"); }
  EXPECT_EQ(NowIfOn(), 0u);
  EXPECT_EQ(NextCall(), 0u);
  auto recording = Recording::Start();
  ASSERT_TRUE(recording.ok()) << recording.status();
  EXPECT_TRUE(IsOn());
  EXPECT_TRUE(TakenFrom(**recording).empty());
  recording->reset();
  EXPECT_FALSE(IsOn());
}

TEST(RecordingTest, NestedSpansAndTheirNumbers) {
  auto recording = Recording::Start();
  ASSERT_TRUE(recording.ok()) << recording.status();
  {
    const CallSpan call("outer");
    Identify(7, 9);
    Span inner("inner");
    inner.set_bytes(64);
  }
  const std::vector<Event> events = TakenFrom(**recording);
  ASSERT_EQ(events.size(), 2u);
  const Event& inner = events[0];
  const Event& outer = events[1];
  EXPECT_STREQ(inner.name, "inner");
  EXPECT_EQ(inner.bytes, 64u);
  EXPECT_EQ(inner.role, Event::Role::kStep);
  EXPECT_EQ(outer.role, Event::Role::kCall);
  for (const Event& event : events) {
    EXPECT_EQ(event.request.session, 7u);
    EXPECT_EQ(event.request.id, 9u);
    EXPECT_NE(event.request.call, 0u);
    EXPECT_EQ(event.thread, static_cast<uint32_t>(gettid()));
  }
  EXPECT_LE(outer.begin_ns, inner.begin_ns);
  EXPECT_LE(inner.begin_ns, inner.end_ns);
  EXPECT_LE(inner.end_ns, outer.end_ns);
  EXPECT_EQ(CurrentRequest().call, 0u);
}

TEST(RecordingTest, ACallInACallIsAStep) {
  auto recording = Recording::Start();
  ASSERT_TRUE(recording.ok()) << recording.status();
  {
    const CallSpan outer("outer");
    const CallSpan inner("inner");
  }
  const std::vector<Event> events = TakenFrom(**recording);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(Find(events, "inner")->role, Event::Role::kStep);
  EXPECT_EQ(Find(events, "inner")->request.call, Find(events, "outer")->request.call);
}

TEST(RecordingTest, RequestsThatChangeThreads) {
  auto recording = Recording::Start();
  ASSERT_TRUE(recording.ok()) << recording.status();
  const Request request = {.session = 1, .id = 2, .call = NextCall()};
  const uint64_t queued = NowIfOn();
  std::thread([&] {
    RecordOf(request, "queue", queued);
    const RequestScope scope(request);
    const Span work("work");
  }).join();
  { const Span other("other"); }
  const std::vector<Event> events = TakenFrom(**recording);
  EXPECT_EQ(Find(events, "queue")->place, Event::Place::kRequest);
  EXPECT_EQ(Find(events, "queue")->request.call, request.call);
  EXPECT_EQ(Find(events, "work")->request.call, request.call);
  EXPECT_NE(Find(events, "work")->thread, Find(events, "other")->thread);
  EXPECT_EQ(Find(events, "other")->request.call, 0u);
}

TEST(RecordingTest, OneAtATime) {
  auto first = Recording::Start();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(Recording::Start().status().code(), absl::StatusCode::kFailedPrecondition);
  first->reset();
  EXPECT_TRUE(Recording::Start().ok());
}

TEST(RecordingTest, CountsWhatDoesNotFit) {
  auto recording = Recording::Start();
  ASSERT_TRUE(recording.ok()) << recording.status();
  for (size_t i = 0; i < kSpansPerThread + 10; ++i) const Span span("span");
  EXPECT_EQ(TakenFrom(**recording).size(), kSpansPerThread);
  EXPECT_EQ((*recording)->dropped(), 10u);
  { const Span span("span"); }
  EXPECT_EQ(TakenFrom(**recording).size(), 1u);
  EXPECT_EQ((*recording)->dropped(), 10u);
}

TEST(RecordingTest, ARecordingHasNothingOfAnEarlierOne) {
  auto recording = Recording::Start();
  ASSERT_TRUE(recording.ok()) << recording.status();
  Span late("late");
  { const Span untaken("untaken"); }
  recording->reset();
  recording = Recording::Start();
  ASSERT_TRUE(recording.ok()) << recording.status();
  late.End();
  { const Span now("now"); }
  const std::vector<Event> events = TakenFrom(**recording);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_STREQ(events[0].name, "now");
  EXPECT_EQ((*recording)->dropped(), 0u);
}

TEST(RecordingTest, ThreadsThatEndGiveUpTheirRings) {
  auto recording = Recording::Start();
  ASSERT_TRUE(recording.ok()) << recording.status();
  for (size_t i = 0; i < kMostThreads + 10; ++i) {
    std::thread([] { const Span span("span"); }).join();
  }
  EXPECT_EQ(TakenFrom(**recording).size(), kMostThreads + 10);
  EXPECT_EQ((*recording)->dropped(), 0u);
}

TEST(RecordingTest, MoreThreadsThanRings) {
  auto recording = Recording::Start();
  ASSERT_TRUE(recording.ok()) << recording.status();
  std::atomic<size_t> made = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kMostThreads + 2; ++i) {
    threads.emplace_back([&] {
      { const Span span("span"); }
      ++made;
      made.notify_all();
      for (size_t seen = made; seen < kMostThreads + 2; seen = made) made.wait(seen);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const size_t recorded = TakenFrom(**recording).size();
  EXPECT_LE(recorded, kMostThreads);
  EXPECT_EQ(recorded + (*recording)->dropped(), kMostThreads + 2);
}

TEST(RecordingTest, AllThreadsAtOnceWhileRecordingsComeAndGo) {
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (!done) {
        const CallSpan call("call");
        const Span step("step");
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    auto recording = Recording::Start();
    ASSERT_TRUE(recording.ok()) << recording.status();
    std::vector<Event> events;
    while (events.size() < 100) (*recording)->Take(&events);
    for (const Event& event : events) {
      EXPECT_TRUE(std::string(event.name) == "call" || std::string(event.name) == "step");
      EXPECT_LE(event.begin_ns, event.end_ns);
      EXPECT_GE(event.begin_ns, (*recording)->started_ns());
    }
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(RecordingTest, AForkedChildRecordsNothing) {
  auto recording = Recording::Start();
  ASSERT_TRUE(recording.ok()) << recording.status();
  const pid_t child = fork();
  if (child == 0) {
    StopAfterFork();
    { const Span span("child"); }
    _exit(IsOn() ? 1 : 0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(IsOn());
}

}  // namespace
}  // namespace gpumem::trace
