// SPDX-License-Identifier: Apache-2.0
// gpumemctl trace beside a real daemon, with a client that writes a trace, too.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/cli/gpumemctl.h"

namespace gpumem {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Succeeds unless another trace runs.
const std::vector<std::string> kShort = {"trace", "on", "--seconds", "0.001", "--out", "-"};

class TraceTest : public GpumemctlTest {
 protected:
  // Starts a trace that lasts, and returns once it runs.
  std::unique_ptr<Process> Trace(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"trace", "on", "--seconds", "60", "--out", out_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    while (true) {
      std::unique_ptr<Process> tracing = Start(arguments);
      // It is refused if it comes while one of these attempts runs. Then another is started.
      while (!tracing->Poll().has_value()) {
        if (Run(kShort).code != 0) return tracing;
      }
    }
  }
  // Records a trace in `out` while it holds some segments, and returns what gpumemctl prints.
  json Record(std::vector<std::string> more = {}) {
    more.emplace_back("--json");
    std::unique_ptr<Process> tracing = Trace(more);
    setenv("GPUMEM_TRACE_FILE", own_.c_str(), 1);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(Run({"hold", "--size", "2MiB", "--for", "1ms"}).code, 0);
    }
    unsetenv("GPUMEM_TRACE_FILE");
    tracing->Signal(SIGINT);
    std::string text;
    while (auto line = tracing->ReadLine(absl::Now() + kTimeout)) absl::StrAppend(&text, *line);
    EXPECT_EQ(tracing->Wait(absl::Now() + kTimeout), 0) << text;
    return json::parse(text, nullptr, /*allow_exceptions=*/false);
  }
  static std::vector<std::string> StepsOf(const json& kind) {
    std::vector<std::string> steps;
    for (const json& step : kind["steps"]) {
      steps.push_back(
          absl::StrCat(step["side"].get<std::string>(), " ", step["name"].get<std::string>()));
    }
    return steps;
  }
  static json KindOf(const json& summary, const std::string& name, const std::string& memory) {
    for (const json& kind : summary["kinds"]) {
      if (kind["name"] == name && kind["memory"] == memory) return kind;
    }
    ADD_FAILURE() << "no " << name << ", " << memory << " in " << summary;
    return json::object();
  }

  void SetUp() override {
    GpumemctlTest::SetUp();
    out_ = dir_ + "/daemon.pftrace";
    own_ = dir_ + "/client.pftrace";
  }
  std::string out_, own_;
};

TEST_F(TraceTest, ShowsTheStepsOfAcquires) {
  const json daemon = Record();
  EXPECT_EQ(daemon["dropped"], 0);
  const json alone = KindOf(daemon, "acquire", "fresh");
  EXPECT_EQ(alone["side"], "daemon");
  EXPECT_THAT(StepsOf(alone), AllOf(Contains("daemon authenticate"), Contains("daemon parse"),
                                    Contains("daemon admission"), Contains("daemon create"),
                                    Contains("daemon deliver"), Contains("daemon commit"),
                                    Contains("daemon answer")));

  // Both sides, as one trace.
  const json both = Run({"trace", "show", "--json", out_, own_}).AsJson();
  const json kind = KindOf(both, "acquire", "fresh");
  EXPECT_EQ(kind["side"], "client");
  EXPECT_THAT(StepsOf(kind),
              AllOf(Contains("client call"), Contains("client receive"), Contains("client map"),
                    Contains("daemon daemon"), Contains("daemon deliver")));
  EXPECT_GE(kind["calls"], 2);  // the daemon's part of the last may not have been sent
  for (const json& step : kind["steps"]) {
    EXPECT_GE(step["start_us"], 0) << step;
    EXPECT_LE(step["start_us"], kind["p99_us"]) << step;
  }
  const Answer text = Run({"trace", "show", out_, own_});
  EXPECT_THAT(text.text, AllOf(HasSubstr("acquire, fresh"), HasSubstr("  deliver")));
}

TEST_F(TraceTest, JoinsFilesAndReplacesOnlyWhenForced) {
  Record();
  while (Run(kShort).code != 0) {  // the daemon sees soon that it was stopped
  }
  EXPECT_EQ(Run({"trace", "on", "--seconds", "0.01", "--out", out_}).code, 1);
  const Answer joined =
      Run({"trace", "on", "--seconds", "0.01", "--out", out_, "--force", "--with", own_, "--json"});
  EXPECT_EQ(joined.code, 0) << joined.text;
  const json again = Run({"trace", "show", "--json", out_}).AsJson();
  EXPECT_EQ(joined.AsJson(), again);
  EXPECT_GT(again["spans"], 0);
  EXPECT_EQ(Run({"trace", "show", "/proc/self/exe"}).code, 1);
  EXPECT_NE(Run({"trace", "show", dir_ + "/none"}).code, 0);
}

TEST_F(TraceTest, OneAtATime) {
  std::unique_ptr<Process> tracing = Trace();
  EXPECT_THAT(Run(kShort).text, HasSubstr("another trace of this process runs"));
  tracing->Signal(SIGKILL);
  tracing->Wait(absl::Now() + kTimeout);
  // The daemon sees that its client has gone.
  while (Run(kShort).code != 0) {
  }
  EXPECT_FALSE(std::filesystem::exists(out_));
}

TEST_F(TraceTest, ATraceDoesNotDelayAStop) {
  std::unique_ptr<Process> tracing = Trace();
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->Wait(absl::Now() + absl::Seconds(8)), 0);  // [daemon] drain_timeout is 10 s
  EXPECT_NE(tracing->Wait(absl::Now() + kTimeout), 0);
}

TEST_F(TraceTest, AFileThatCannotBeWritten) {
  setenv("GPUMEM_TRACE_FILE", "/nonexistent/trace", 1);
  const Answer answer = Run({"hold", "--size", "2MiB", "--for", "1ms"});
  unsetenv("GPUMEM_TRACE_FILE");
  EXPECT_NE(answer.code, 0);
  EXPECT_THAT(answer.text, HasSubstr("GPUMEM_TRACE_FILE: cannot write to /nonexistent/trace"));
}

}  // namespace
}  // namespace gpumem
