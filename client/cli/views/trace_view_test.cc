// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/trace_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/trace/encoder.h"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using trace::Event;
using trace::Request;

// Builds a trace of one client and the daemon.
class TraceViewTest : public testing::Test {
 protected:
  static Event Step(const char* name, uint64_t begin_us, uint64_t end_us, Request request) {
    return {.name = name,
            .begin_ns = begin_us * 1000,
            .end_ns = end_us * 1000,
            .request = request,
            .bytes = 0,
            .thread = 1,
            .place = Event::Place::kThread,
            .role = Event::Role::kStep};
  }
  static Event Whole(Event event, Event::Place place = Event::Place::kThread) {
    event.role = Event::Role::kCall;
    event.place = place;
    return event;
  }
  void Client(std::vector<Event> events) { Add(client_, events); }
  void Daemon(std::vector<Event> events) { Add(daemon_, events); }
  // An acquire from `begin` on, with both sides.
  void Acquire(uint64_t begin, uint64_t number, bool fresh) {
    const Request here = {.session = 3, .id = number, .call = number};
    const Request there = {.session = 3, .id = number, .call = number + 100};
    Client({Step("call", begin + 2, begin + 70, here), Step("map", begin + 75, begin + 85, here),
            Whole(Step("acquire", begin, begin + 90, here))});
    std::vector<Event> events = {Step("lock wait", begin + 21, begin + 22, there),
                                 Step("admission", begin + 20, begin + 24, there),
                                 Step("deliver", begin + 50, begin + 55, there)};
    if (fresh) events.insert(events.begin() + 2, Step("create", begin + 30, begin + 45, there));
    events.push_back(Whole(Step("Acquire", begin + 15, begin + 65, there), Event::Place::kRequest));
    Daemon(events);
  }

  trace::Reader reader_;

 private:
  void Add(trace::Encoder& encoder, const std::vector<Event>& events) {
    std::string bytes;
    encoder.Add(events, &bytes);
    ASSERT_TRUE(reader_.Add(bytes).ok());
  }
  trace::Encoder client_{trace::kClientCategory, {.pid = 1, .name = "worker"}, 1};
  trace::Encoder daemon_{trace::kDaemonCategory, {.pid = 2, .name = "gpumemd"}, 2};
};

TEST_F(TraceViewTest, JoinsBothSidesOfACall) {
  for (uint64_t i = 0; i < 3; ++i) Acquire(1000 * (i + 1), i + 1, /*fresh=*/i == 2);
  const std::vector<TraceCalls> summary = SummaryOf(reader_.slices());
  ASSERT_EQ(summary.size(), 2u);
  const TraceCalls& retained = summary[0];
  EXPECT_EQ(retained.name, "acquire");
  EXPECT_EQ(retained.memory, "retained");
  EXPECT_EQ(retained.calls, 2u);
  EXPECT_TRUE(retained.has_client);
  EXPECT_DOUBLE_EQ(retained.length, 90);
  std::vector<std::string> steps;
  for (const TraceStep& step : retained.steps) {
    steps.push_back((step.daemon ? "daemon " : "client ") + step.name + " " +
                    std::to_string(step.depth));
  }
  EXPECT_EQ(steps,
            (std::vector<std::string>{"client call 0", "daemon daemon 0", "daemon admission 1",
                                      "daemon lock wait 2", "daemon deliver 1", "client map 0"}));
  EXPECT_DOUBLE_EQ(retained.steps[2].start, 20);
  EXPECT_DOUBLE_EQ(retained.steps[2].length, 4);
  EXPECT_EQ(retained.steps[2].calls, 2u);
  EXPECT_EQ(summary[1].memory, "fresh");
  EXPECT_EQ(summary[1].calls, 1u);
}

TEST_F(TraceViewTest, OneSideAlone) {
  const Request request = {.session = 3, .id = 1, .call = 9};
  Daemon({Step("admission", 10, 12, request), Step("admission", 14, 20, request),
          Whole(Step("Acquire", 5, 25, request), Event::Place::kRequest)});
  const std::vector<TraceCalls> summary = SummaryOf(reader_.slices());
  ASSERT_EQ(summary.size(), 1u);
  EXPECT_FALSE(summary[0].has_client);
  EXPECT_DOUBLE_EQ(summary[0].length, 20);
  ASSERT_EQ(summary[0].steps.size(), 1u);
  // Both of them.
  EXPECT_DOUBLE_EQ(summary[0].steps[0].length, 8);
  EXPECT_DOUBLE_EQ(summary[0].steps[0].start, 5);
}

TEST_F(TraceViewTest, CallsWithoutARequestAreApart) {
  for (uint64_t call = 1; call <= 2; ++call) {
    const Request request = {.session = 3, .call = call};
    Client({Whole(Step("release", 10 * call, 10 * call + 4, request))});
    Daemon({Whole(Step("Release", 10 * call + 1, 10 * call + 3, request), Event::Place::kRequest)});
  }
  const std::vector<TraceCalls> summary = SummaryOf(reader_.slices());
  ASSERT_EQ(summary.size(), 2u);
  EXPECT_TRUE(summary[0].has_client);
  EXPECT_FALSE(summary[1].has_client);
  for (const TraceCalls& calls : summary) EXPECT_EQ(calls.calls, 2u);
}

TEST_F(TraceViewTest, ForPeople) {
  Acquire(1000, 1, /*fresh=*/true);
  const std::string text = TraceView(reader_, Layout(80));
  EXPECT_THAT(text, HasSubstr("8 spans\n"));
  EXPECT_THAT(text, HasSubstr("acquire, fresh"));
  EXPECT_THAT(text, HasSubstr("    create"));
  for (absl::string_view line : absl::StrSplit(text, '\n')) EXPECT_LE(WidthOf(line), 80u);
}

TEST_F(TraceViewTest, AnEmptyTrace) {
  EXPECT_EQ(TraceView(reader_, Layout(80)), "0 spans\n");
  EXPECT_THAT(TraceJson(reader_)["kinds"], IsEmpty());
}

TEST_F(TraceViewTest, ForPrograms) {
  Acquire(1000, 1, /*fresh=*/true);
  const Json json = TraceJson(reader_);
  EXPECT_EQ(json["spans"], 8);
  EXPECT_EQ(json["dropped"], 0);
  EXPECT_EQ(json["kinds"][0]["name"], "acquire");
  EXPECT_EQ(json["kinds"][0]["memory"], "fresh");
  EXPECT_EQ(json["kinds"][0]["steps"][0]["name"], "call");
  EXPECT_EQ(json["kinds"][0]["steps"][0]["start_us"], 2.0);
}

}  // namespace
}  // namespace gpumem::cli
