// SPDX-License-Identifier: Apache-2.0
// top, map, describe and doctor against a real daemon, and top in a user's terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/cli/terminal_fixture.h"
#include "tests/support/child.h"

namespace gpumem {
namespace {

using demo::Process;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class ShowingTest : public TerminalTest {
 protected:
  // A worker's session goes a moment after its process does.
  void WaitUntilNobodyIsThere() {
    const absl::Time deadline = Soon();
    while (!Run({"ps", "--json"}).AsJson()["sessions"].empty()) {
      ASSERT_LT(absl::Now(), deadline);
      poll(nullptr, 0, 5);
    }
  }
};

// --- top ---------------------------------------------------------------------------------

TEST_F(ShowingTest, TopFollowsKeysAndTheDaemon) {
  json held;
  std::unique_ptr<Process> holder = Hold({"--size", "16MiB"}, &held);
  auto top = InTerminal({"top", "--interval", "50ms"});
  // Which is the last line: before it comes, the terminal may have read a part of the picture.
  ASSERT_TRUE(top->WaitFor("s sort: held", Soon())) << top->written();
  EXPECT_THAT(top->Screen(), AllOf(HasSubstr("TENANT"), HasSubstr(tenant_), HasSubstr("16.00 MiB"),
                                   HasSubstr("[||||")));
  EXPECT_TRUE(Fits(top->Screen(), 80));

  top->Type("p");
  ASSERT_TRUE(top->WaitFor("COMMAND", Soon()));
  EXPECT_TRUE(top->WaitFor(absl::StrCat(holder->pid()), Soon()));
  top->Type("sss");
  ASSERT_TRUE(top->WaitFor("s sort: youngest", Soon()));
  top->Type("d");
  ASSERT_TRUE(top->WaitFor("s sort: held", Soon()));
  EXPECT_TRUE(top->WaitFor("FREE", Soon()));
  top->Type("b");
  ASSERT_TRUE(top->WaitFor(absl::StrCat(16 * kMiB), Soon()));
  top->Type("?");
  ASSERT_TRUE(top->WaitFor("by tenant, process, device", Soon()));
  top->Type("\x1b");
  ASSERT_TRUE(top->WaitFor("FREE", Soon()));

  // Changes are shown without a key.
  json more;
  std::unique_ptr<Process> second = Hold({"--size", "4MiB"}, &more);
  EXPECT_TRUE(top->WaitFor(absl::StrCat(20 * kMiB), Soon()));
  End(*second);
  End(*holder);
  top->Type("q");
  EXPECT_EQ(top->Wait(Soon()), 0);
  // The terminal is as it was.
  EXPECT_THAT(top->written(), AllOf(HasSubstr("\x1b[?1049l"), HasSubstr("\x1b[?25h")));
}

TEST_F(ShowingTest, TopScrollsAndFollowsTheSizeOfTheTerminal) {
  std::vector<std::unique_ptr<Process>> holders;
  for (int i = 0; i < 6; ++i) {
    json held;
    holders.push_back(Hold({"--size", "2MiB"}, &held));
  }
  // 24 rows have room for all; nine for a heading, three devices, and two processes.
  auto top = InTerminal({"top", "--by", "process", "--interval", "1h"});
  ASSERT_TRUE(top->WaitFor("COMMAND", Soon()));
  for (const auto& holder : holders) {
    EXPECT_TRUE(top->WaitFor(absl::StrCat(holder->pid()), Soon())) << top->Screen();
  }
  EXPECT_THAT(top->Screen(), Not(HasSubstr("1-6 of 6")));
  top->Resize({.rows = 9, .columns = 100});
  ASSERT_TRUE(top->WaitFor("1-2 of 6", Soon())) << top->Screen();
  top->Type("\x1b[B");
  ASSERT_TRUE(top->WaitFor("2-3 of 6", Soon()));
  top->Type("\x1b[6~");
  ASSERT_TRUE(top->WaitFor("4-5 of 6", Soon()));
  top->Type("\x1b[F");
  ASSERT_TRUE(top->WaitFor("5-6 of 6", Soon()));
  top->Type("\x1b[A");
  ASSERT_TRUE(top->WaitFor("4-5 of 6", Soon()));
  top->Type("\x1b[H");
  ASSERT_TRUE(top->WaitFor("1-2 of 6", Soon()));
  kill(top->pid(), SIGTERM);
  EXPECT_EQ(top->Wait(Soon()), 0);
  for (auto& holder : holders) End(*holder);
}

TEST_F(ShowingTest, TopStaysWhileTheDaemonIsAway) {
  auto top = InTerminal({"top", "--interval", "20ms"}, {.rows = 24, .columns = 160});
  ASSERT_TRUE(top->WaitFor("TENANT", Soon()));
  daemon_.reset();
  ASSERT_TRUE(top->WaitFor("no answer for", Soon()));
  StartDaemon();
  EXPECT_TRUE(top->WaitUntilGone("no answer for", Soon()));
  top->Type("q");
  EXPECT_EQ(top->Wait(Soon()), 0);
}

TEST_F(ShowingTest, ColoursAreLeftOutOnRequest) {
  const auto last_look = [&](const std::vector<std::string>& more,
                             const std::map<std::string, std::string>& environment) {
    std::vector<std::string> arguments = {"top", "--iterations", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto top = InTerminal(arguments, {}, environment);
    EXPECT_EQ(top->Wait(Soon()), 0);
    return top->written();
  };
  EXPECT_THAT(last_look({}, {}), HasSubstr("\x1b[1m"));  // bold
  for (const std::string& look :
       {last_look({"--color", "never"}, {}), last_look({}, {{"NO_COLOR", "1"}})}) {
    EXPECT_THAT(look, AllOf(Not(HasSubstr("\x1b")), HasSubstr("TENANT")));
  }
  // A terminal that knows nothing is only written to.
  EXPECT_THAT(last_look({}, {{"TERM", "dumb"}}),
              AllOf(Not(HasSubstr("\x1b")), HasSubstr("TENANT")));
}

TEST_F(ShowingTest, TopForProgramsAndFiles) {
  json held;
  std::unique_ptr<Process> holder = Hold({"--size", "2MiB"}, &held);
  const std::string text =
      Run({"top", "--iterations", "2", "--interval", "1ms", "--by", "process"}).text;
  EXPECT_THAT(text, AllOf(StartsWith("gpumemd "), Not(HasSubstr("\x1b")),
                          HasSubstr(absl::StrCat(holder->pid()))));
  EXPECT_EQ(Run({"top", "--sort", "age"}).code, 2);
  EXPECT_EQ(Run({"top", "--by", "everything"}).code, 2);
  EXPECT_EQ(Run({"top", "--iterations", "1", "--json"}).AsJson()["sessions"].size(), 1u);
  End(*holder);
}

// --- map and ps --------------------------------------------------------------------------

TEST_F(ShowingTest, MapDrawsWhoHoldsWhat) {
  json held;
  std::unique_ptr<Process> holder = Hold({"--size", "16MiB"}, &held);
  const std::string text = Run({"map", "--device", "0", "--rows", "2"}).text;
  // A quarter of two lines of 78 characters.
  EXPECT_THAT(text, HasSubstr(absl::StrCat("\n  ", std::string(39, 'A'), std::string(39, '.'),
                                           "\n  ", std::string(78, '.'), "\n")));
  EXPECT_THAT(text, AllOf(HasSubstr(absl::StrCat("A  ", tenant_)), HasSubstr("25%")));
  EXPECT_THAT(Run({"--exact", "map"}).text, HasSubstr(absl::StrCat(16 * kMiB)));
  EXPECT_THAT(Run({"map", "--exact"}).text, HasSubstr(absl::StrCat(48 * kMiB)));

  const json devices = Run({"map", "--json"}).AsJson()["devices"];
  ASSERT_EQ(devices.size(), 3u);
  EXPECT_EQ(devices[0]["held_bytes"], 16 * kMiB);
  EXPECT_EQ(devices[0]["free_bytes"], 48 * kMiB);
  EXPECT_EQ(devices[0]["tenants"], json::array({{{"tenant", tenant_},
                                                 {"leased_bytes", 16 * kMiB},
                                                 {"retained_bytes", 0},
                                                 {"lingering_bytes", 0},
                                                 {"moving_bytes", 0},
                                                 {"held_bytes", 16 * kMiB}}}));
  EXPECT_EQ(Run({"map", "--device", "9"}).code, 6);

  auto narrow = InTerminal({"map", "--color=never"}, {.rows = 50, .columns = 60});
  EXPECT_EQ(narrow->Wait(Soon()), 0);
  EXPECT_TRUE(Fits(PlainText(narrow->written()), 60));
  EXPECT_THAT(narrow->written(), HasSubstr(std::string(58, 'A')));
  End(*holder);
}

TEST_F(ShowingTest, PsFitsATerminalOf80Columns) {
  json held;
  std::unique_ptr<Process> holder = Hold({"--size", "2MiB"}, &held);
  auto ps = InTerminal({"ps"});
  EXPECT_EQ(ps->Wait(Soon()), 0);
  const std::string text = PlainText(ps->written());
  EXPECT_TRUE(Fits(text, 80));
  EXPECT_THAT(text, AllOf(HasSubstr(tenant_), HasSubstr(absl::StrCat(holder->pid())),
                          HasSubstr("2.00 MiB")));
  EXPECT_THAT(Run({"ps"}).text, AllOf(HasSubstr("UID"), HasSubstr("COMMAND")));  // for a file
  End(*holder);
}

// --- describe ----------------------------------------------------------------------------

TEST_F(ShowingTest, DescribeTellsWhatRefersToWhat) {
  json held, opened;
  std::unique_ptr<Process> holder = Hold({"--size", "2MiB"}, &held);
  std::unique_ptr<Process> opener = Hold({"--open", held["ticket"]}, &opened);
  const std::string segment = absl::StrCat(held["segment_id"].get<uint64_t>());
  const std::string lease = absl::StrCat(opened["lease_id"].get<uint64_t>());
  const std::string session = absl::StrCat(opened["session_id"].get<uint64_t>());

  const std::string text = Run({"describe", "segment", segment}).text;
  EXPECT_THAT(text, AllOf(StartsWith(absl::StrCat("Segment ", segment, ": 2.00 MiB of kind vmm")),
                          HasSubstr(absl::StrCat("lease ", lease, ", session ", session)),
                          HasSubstr(absl::StrCat("pid ", holder->pid())),
                          HasSubstr(absl::StrCat("pid ", opener->pid())),
                          HasSubstr("with a ticket for its tenant")));
  EXPECT_THAT(Run({"describe", "lease", lease}).text,
              AllOf(HasSubstr(absl::StrCat("segment ", segment)),
                    HasSubstr("Others that lease the same segment")));
  EXPECT_THAT(Run({"describe", "session", session}).text,
              HasSubstr(absl::StrCat("lease ", lease, " on segment ", segment)));
  EXPECT_THAT(Run({"describe", tenant_}).text,
              AllOf(StartsWith(absl::StrCat("Tenant ", tenant_)), HasSubstr("Its sessions:"),
                    HasSubstr("leased, vmm")));
  EXPECT_THAT(Run({"describe", "device", "0"}).text,
              HasSubstr(absl::StrCat("tenant ", tenant_, ": 2.00 MiB")));

  const json about = Run({"describe", "segment", segment, "--json"}).AsJson();
  EXPECT_EQ(about["what"], "segment");
  EXPECT_EQ(about["id"], held["segment_id"]);
  EXPECT_EQ(about["leases"].size(), 2u);
  EXPECT_EQ(about["sessions"].size(), 2u);
  EXPECT_EQ(about["segments"][0]["size_bytes"], 2 * kMiB);

  EXPECT_EQ(Run({"describe", "segment", "4711"}).code, 6);
  EXPECT_EQ(Run({"describe", "nobody"}).code, 6);
  EXPECT_EQ(Run({"describe", "planet", "7"}).code, 2);
  EXPECT_EQ(Run({"describe"}).code, 2);
  End(*opener);
  End(*holder);
}

TEST_F(ShowingTest, DescribeKnowsPublications) {
  const std::string file = dir_ + "/weights";
  std::filesystem::copy_file("/proc/self/exe", file);
  ASSERT_EQ(Run({"publish", "weights", "--file", file}).code, 0);
  const Answer text = Run({"describe", "publication", "weights"});
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.text,
              AllOf(StartsWith(absl::StrCat("Publication ", tenant_, "/weights, version 1: 1 ")),
                    HasSubstr("It stays until it is unpublished"), HasSubstr("which has ended"),
                    HasSubstr("No session is attached."), HasSubstr("It holds, in this order:")));
  const json about = Run({"describe", tenant_ + "/weights", "--json"}).AsJson();
  ASSERT_EQ(about["segments"].size(), 1u);
  const std::string segment = absl::StrCat(about["segments"][0]["segment_id"].get<uint64_t>());
  EXPECT_THAT(Run({"describe", "segment", segment}).text,
              AllOf(HasSubstr("no session leases it"),
                    HasSubstr(absl::StrCat("publication ", tenant_,
                                           "/weights, version 1, in which it is segment 1 of 1"))));
}

// --- events ------------------------------------------------------------------------------

TEST_F(ShowingTest, EventsTellWhatHappenedAndWhatHappens) {
  std::unique_ptr<Process> follower = Start({"events", "--follow", "--past", "--json"});
  const auto next = [&](const std::string& event) {
    while (auto line = follower->ReadLine(Soon())) {
      json record = json::parse(*line, nullptr, /*allow_exceptions=*/false);
      if (record.value("event", "") == event) return record;
    }
    ADD_FAILURE() << "no " << event;
    return json::object();
  };
  EXPECT_EQ(next("started")["number"], 1);
  json held;
  std::unique_ptr<Process> holder = Hold({"--size", "2MiB"}, &held);
  EXPECT_EQ(next("session-opened")["pid"], holder->pid());
  const json granted = next("granted");
  EXPECT_EQ(granted["tenant"], tenant_);
  EXPECT_EQ(granted["bytes"], 2 * kMiB);
  EXPECT_EQ(granted["segment"], json::array({held["segment_id"]}));
  EXPECT_EQ(Run({"quota", "set", tenant_, "--limit", "4MiB"}).code, 0);
  EXPECT_EQ(next("quota-set")["tenant"], tenant_);
  EXPECT_EQ(Run({"hold", "--size", "8MiB", "--for", "1ms"}).code, 5);
  EXPECT_EQ(next("denied")["limit"], 4 * kMiB);
  End(*holder);
  EXPECT_EQ(next("released")["bytes"], 2 * kMiB);
  next("session-ended");
  follower->Signal(SIGINT);
  EXPECT_EQ(follower->Wait(Soon()), 0);

  // The same for people, of the events still kept.
  const Answer denied = Run({"events", "--event", "denied"});
  EXPECT_EQ(denied.code, 0);
  EXPECT_THAT(denied.text, ::testing::ContainsRegex("^[0-9][0-9]:[0-9:.]+  denied   .*" + tenant_));
  EXPECT_THAT(Run({"events", "--event", "denied", "--since", "1h"}).text, HasSubstr(tenant_));
  EXPECT_EQ(Run({"events", "--since", "1ns"}).text, "");
  EXPECT_EQ(Run({"events", "--tenant", "nobody"}).text, "");
  EXPECT_EQ(Run({"events", "--event", "explosion"}).code, 1);
}

TEST_F(ShowingTest, FollowingEventsDoesNotDelayAStop) {
  std::unique_ptr<Process> follower = Start({"events", "--follow", "--past"});
  ASSERT_THAT(follower->ReadLine(Soon()).value_or(""), HasSubstr("started"));
  daemon_->Signal(SIGTERM);
  EXPECT_EQ(daemon_->Wait(absl::Now() + absl::Seconds(8)), 0);  // [daemon] drain_timeout is 10 s
  EXPECT_EQ(follower->Wait(Soon()), 3);
}

// --- doctor ------------------------------------------------------------------------------

// The findings of an area.
std::vector<std::string> Levels(const json& answer, const std::string& area) {
  std::vector<std::string> levels;
  for (const json& finding : answer["findings"]) {
    if (finding["area"] == area) levels.push_back(finding["level"]);
  }
  return levels;
}

TEST_F(ShowingTest, DoctorLooksAtADaemon) {
  const Answer answer = Run({"doctor", "--json"});
  EXPECT_EQ(Levels(answer.AsJson(), "sockets"), std::vector<std::string>(3, "ok")) << answer.text;
  EXPECT_THAT(answer.text, HasSubstr(absl::StrCat("(pid ", daemon_->pid())));
  EXPECT_THAT(answer.text, HasSubstr("gpumemctl has the same version"));
  // No keeper holds this daemon's descriptors.
  EXPECT_THAT(Levels(answer.AsJson(), "restart"), Contains("warning"));
  EXPECT_EQ(answer.AsJson()["problems"], 0) << answer.text;
  EXPECT_EQ(answer.code, 0);
  const Answer text = Run({"doctor"});
  EXPECT_THAT(text.text, AllOf(StartsWith("daemon\n  ok       gpumemd "), HasSubstr("0 problems")));
  WaitUntilNobodyIsThere();
}

TEST_F(ShowingTest, DoctorWorksWithoutADaemon) {
  daemon_.reset();
  const Answer answer = Run({"doctor"});
  EXPECT_EQ(answer.code, 9);
  EXPECT_THAT(answer.text, AllOf(HasSubstr(absl::StrCat("there is no daemon at ", dir_)),
                                 HasSubstr("-> start one")));
  EXPECT_EQ(Run({"--runtime-dir", "/no/such/folder", "doctor"}).code, 9);
  // One document: standard error, which Answer::text has too, is empty.
  const Answer document = Run({"doctor", "--json"});
  EXPECT_EQ(document.code, 9);
  EXPECT_GE(document.AsJson().value("problems", 0), 1) << document.text;
}

TEST_F(ShowingTest, DoctorSaysWhatAnOrdinaryUserCannotSee) {
  if (!testing::CanBeOtherUsers()) GTEST_SKIP() << "being another user takes root";
  // mkdtemp's folder is closed to other users.
  std::filesystem::permissions(dir_, std::filesystem::perms(0755));
  ProcessOptions options{
      .argv = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
               std::filesystem::absolute("client/cli/gpumemctl"), "--runtime-dir", dir_, "doctor"},
      .stderr_too = true};
  Process process(options);
  std::string text;
  while (auto line = process.ReadLine(Soon())) absl::StrAppend(&text, *line, "\n");
  EXPECT_EQ(process.Wait(Soon()), 0) << text;
  EXPECT_THAT(text, AllOf(HasSubstr("unseen   the daemon's state"),
                          HasSubstr("this user's processes are tenant user-65534"),
                          HasSubstr("0 problems")));
  WaitUntilNobodyIsThere();
}

}  // namespace
}  // namespace gpumem
