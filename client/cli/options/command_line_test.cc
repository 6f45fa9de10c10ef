// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/cli/options/testing/parsed_command.h"

namespace gpumem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CommandLineTest, GlobalOptionsStandBeforeOrAfterTheSubcommand) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"--json", "--exact", "--runtime-dir", "/x", "quota", "get", "a"},
           {"quota", "--json", "get", "--exact", "a", "--runtime-dir=/x"},
           {"quota", "get", "a", "--json", "--exact", "--runtime-dir", "/x"}}) {
    GlobalOptions global;
    EXPECT_EQ(Parsed<QuotaGetCommand>(arguments, &global).tenant, "a");
    EXPECT_TRUE(global.json);
    EXPECT_TRUE(global.exact);
    EXPECT_EQ(global.runtime_dir, "/x");
  }
}

TEST(CommandLineTest, PlainCommands) {
  GlobalOptions global;
  Parsed<StatusCommand>({"status"}, &global);
  EXPECT_FALSE(global.json);
  EXPECT_FALSE(global.exact);
  EXPECT_EQ(global.runtime_dir, "");
  Parsed<DevicesCommand>({"devices"});
  Parsed<QuotaListCommand>({"quota", "list"});
  EXPECT_EQ(Parsed<WhoamiCommand>({"whoami", "--tenant", "t"}).tenant, "t");
  EXPECT_EQ(Parsed<PsCommand>({"ps"}).tenant, "");
  EXPECT_EQ(Parsed<PsCommand>({"ps", "--tenant", "t"}).tenant, "t");
  EXPECT_EQ(Parsed<PublicationsCommand>({"publications", "--of", "t"}).of_tenant, "t");
  EXPECT_EQ(Parsed<UnpublishCommand>({"unpublish", "t/weights"}).name, "t/weights");
  EXPECT_THAT(ParseCommandLine({"unpublish"}).error, ::testing::HasSubstr("NAME"));
  SegmentsCommand segments = Parsed<SegmentsCommand>({"segments", "--tenant=t", "--device", "0"});
  EXPECT_EQ(segments.tenant, "t");
  EXPECT_EQ(segments.device, "0");
  EXPECT_FALSE(Parsed<DrainCommand>({"drain"}).resume);
  EXPECT_TRUE(Parsed<DrainCommand>({"drain", "--resume"}).resume);
  TrimCommand trim =
      Parsed<TrimCommand>({"trim", "--tenant", "t", "--device", "G", "--keep", "2K"});
  EXPECT_EQ(trim.tenant, "t");
  EXPECT_EQ(trim.device, "G");
  EXPECT_EQ(trim.keep_bytes, 2048u);
}

TEST(CommandLineTest, BytesIsAnotherNameOfExactButOfHold) {
  GlobalOptions global;
  Parsed<StatusCommand>({"status", "--bytes"}, &global);
  EXPECT_TRUE(global.exact);
  Parsed<StatusCommand>({"--bytes", "status", "--no-color"}, &global);
  EXPECT_TRUE(global.exact);
  EXPECT_TRUE(global.no_color);
  EXPECT_EQ(Parsed<HoldCommand>({"hold", "--bytes", "1MiB", "--exact"}, &global).bytes, 1u << 20);
  EXPECT_TRUE(global.exact);
  EXPECT_EQ(Parsed<HoldCommand>({"hold", "--bytes", "1MiB"}, &global).bytes, 1u << 20);
  EXPECT_FALSE(global.exact);
}

TEST(CommandLineTest, CommandsThatShow) {
  TopCommand top = Parsed<TopCommand>({"top"});
  EXPECT_EQ(top.by, TopBy::kTenant);
  EXPECT_EQ(top.sort, TopSort::kSize);
  top = Parsed<TopCommand>({"top", "--by", "process", "--sort=age", "--iterations", "2"});
  EXPECT_EQ(top.by, TopBy::kProcess);
  EXPECT_EQ(top.sort, TopSort::kAge);
  EXPECT_EQ(top.iterations, 2u);
  EXPECT_THAT(ErrorOf({"top", "--sort", "age"}), HasSubstr("age needs --by process"));
  EXPECT_NE(ErrorOf({"top", "--by", "x"}), "");
  EXPECT_EQ(Parsed<MapCommand>({"map"}).rows, 4u);
  EXPECT_EQ(Parsed<MapCommand>({"map", "--rows", "8", "--device", "1"}).device, "1");
  EXPECT_NE(ErrorOf({"map", "--rows", "0"}), "");
  Parsed<DoctorCommand>({"doctor"});

  DescribeCommand describe = Parsed<DescribeCommand>({"describe", "33"});
  EXPECT_EQ(describe.subject, Subject::kAny);
  EXPECT_EQ(describe.name, "33");
  describe = Parsed<DescribeCommand>({"describe", "lease", "33"});
  EXPECT_EQ(describe.subject, Subject::kLease);
  EXPECT_EQ(describe.name, "33");
  EXPECT_EQ(Parsed<DescribeCommand>({"describe", "tenant", "a"}).subject, Subject::kTenant);
  EXPECT_THAT(ErrorOf({"describe", "planet", "7"}), HasSubstr("\"planet\" is not a type"));
  EXPECT_NE(ErrorOf({"describe"}), "");
  EXPECT_NE(ErrorOf({"describe", "lease", "1", "2"}), "");
}

TEST(CommandLineTest, Events) {
  EventsCommand events = Parsed<EventsCommand>({"events"});
  EXPECT_TRUE(events.request.past());
  EXPECT_FALSE(events.request.follow());
  events = Parsed<EventsCommand>(
      {"events", "-f", "--tenant", "a", "--event", "granted", "--event=denied"});
  EXPECT_FALSE(events.request.past());
  EXPECT_TRUE(events.request.follow());
  EXPECT_EQ(events.request.tenant(), "a");
  EXPECT_THAT(events.request.events(), ElementsAre("granted", "denied"));
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"events", "--past", "--follow"},
        {"events", "--follow", "--past"}}) {
    events = Parsed<EventsCommand>(arguments);
    EXPECT_TRUE(events.request.past());
    EXPECT_TRUE(events.request.follow());
  }
  EXPECT_NE(ErrorOf({"events", "--past"}), "");
}

TEST(CommandLineTest, Reload) { Parsed<ReloadCommand>({"reload"}); }

TEST(CommandLineTest, Top) {
  TopCommand top = Parsed<TopCommand>({"top"});
  EXPECT_EQ(top.interval, absl::Seconds(1));
  EXPECT_EQ(top.iterations, std::nullopt);
  top = Parsed<TopCommand>({"top", "--interval", "250ms", "--iterations", "2"});
  EXPECT_EQ(top.interval, absl::Milliseconds(250));
  EXPECT_EQ(top.iterations, 2u);
}

TEST(CommandLineTest, ErrorsAreOneSentence) {
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--for", "10"}),
            "--for: \"10\" is not a duration (expected one such as 10s, 1m30s, 500ms)");
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--for", "0s"}),
            "--for: \"0s\" is not a duration (expected one such as 10s, 1m30s, 500ms)");
  EXPECT_EQ(ErrorOf({"quota", "set", "t", "--parent", "lab"}),
            "--parent: set the parent of a tenant in the configuration (parent = …), then run "
            "gpumemctl reload");
  EXPECT_EQ(ErrorOf({"quota", "set", "t", "--release", "never"}),
            "--release: \"never\" is not a release policy (expected trust or on-exit)");
  EXPECT_NE(ErrorOf({"quota", "set", "t", "--scrub", "--no-scrub"}), "");
  EXPECT_NE(ErrorOf({"quota", "set", "t", "--scrub=false"}), "");
  EXPECT_NE(ErrorOf({"quota", "unset"}), "");
  EXPECT_NE(ErrorOf({"quota", "unset", "t", "--limit=3"}), "");
  EXPECT_EQ(ErrorOf({"hold"}), "hold: nothing to hold: give --bytes SIZE or --open TICKET");
  for (const std::vector<std::string>& of_new_ones : std::vector<std::vector<std::string>>{
           {"--bytes", "1"}, {"--kind", "ipc"}, {"--device", "0"}, {"--count", "1"}}) {
    EXPECT_EQ(ErrorOf({"hold", "--open", "t", of_new_ones[0], of_new_ones[1]}),
              "--open: cannot be used with --bytes, --kind, --device, --count or --wait");
  }
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--read-only"}), "--read-only: needs --open");
  EXPECT_EQ(ErrorOf({"hold", "--open", "t", "--read-only", "--fill"}),
            "--fill: cannot be used with --read-only");
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--map-device", "0", "--fill"}),
            "--fill: cannot be used with --map-device");
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--kind", "shm"}),
            "--kind: \"shm\" is not a kind (expected one of vmm, mempool, ipc, pinned)");
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--show-handle"}), "--show-handle: needs --kind ipc");
  EXPECT_EQ(ErrorOf({"pool", "set", "--reset-peaks"}), "TENANT is required");
  EXPECT_EQ(ErrorOf({"pool", "set", "t"}),
            "pool set: nothing to change: name an attribute, such as --release-threshold 1GiB");
  EXPECT_EQ(ErrorOf({"pool", "set", "t", "--reuse-opportunistic", "yes"}),
            "--reuse-opportunistic: \"yes\" is not a switch (expected on or off)");
  EXPECT_EQ(ErrorOf({"pool", "trim"}), "TENANT is required");
  EXPECT_THAT(ErrorOf({"pool", "trim", "t", "--to", "some"}), HasSubstr("--to: "));
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "0"}), "--bytes: a segment needs at least one byte");
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--count", "254"}),
            "--count: Value 254 not in range 1 to 253");
  EXPECT_THAT(ErrorOf({"hold", "--bytes", "lots"}), HasSubstr("--bytes: "));
  EXPECT_THAT(ErrorOf({"hold", "--bytes", "-1"}), HasSubstr("-1"));
  EXPECT_EQ(ErrorOf({"quota", "set", "--limit", "1"}), "TENANT is required");
  EXPECT_EQ(ErrorOf({"quota", "set", "t"}),
            "quota set: nothing to change: name a limit, such as --limit 40GiB");
  EXPECT_EQ(ErrorOf({"quota", "set", "t", "--device", "1GiB"}),
            "--device: \"1GiB\" is not a device's limit (expected DEVICE=BYTES such as 0=10GiB)");
  EXPECT_EQ(
      ErrorOf({"quota", "set", "t", "--clear", "limits"}),
      "--clear: \"limits\" is not a limit (expected one of device, device-guarantee, "
      "guarantee, kind, limit, max-in-flight, max-publications, max-retained, max-segments, "
      "max-sessions, max-waiting, pinned-limit, priority, release, revocable, scrub, total-limit)");
  EXPECT_THAT(ErrorOf({"quota", "set", "t", "--max-sessions", "-1"}), HasSubstr("--max-sessions"));
  EXPECT_EQ(ErrorOf({}), "A subcommand is required");
  EXPECT_EQ(ErrorOf({"--json"}), "A subcommand is required");
  EXPECT_THAT(ErrorOf({"frobnicate"}), HasSubstr("frobnicate"));
  EXPECT_THAT(ErrorOf({"status", "extra"}), HasSubstr("extra"));
  EXPECT_THAT(ErrorOf({"status", "--nonsense"}), HasSubstr("--nonsense"));
}

TEST(CommandLineTest, ErrorsKnowWhetherJsonIsWanted) {
  EXPECT_TRUE(ParseCommandLine({"hold", "--json"}).global.json);
  EXPECT_TRUE(ParseCommandLine({"--json", "hold"}).global.json);
  EXPECT_TRUE(ParseCommandLine({"hold", "--nonsense", "--json"}).global.json);
  EXPECT_TRUE(ParseCommandLine({"quota", "set", "t", "--json"}).global.json);
  EXPECT_FALSE(ParseCommandLine({"hold"}).global.json);
}

TEST(CommandLineTest, HelpShowsExamplesAndExitCodes) {
  CommandLine line = ParseCommandLine({"--help"});
  EXPECT_FALSE(line.command.has_value());
  EXPECT_EQ(line.error, "");
  EXPECT_THAT(line.text, HasSubstr("Exit codes:"));
  EXPECT_THAT(line.text, HasSubstr("gpumemctl hold --bytes 1GiB --for 10s"));
  EXPECT_THAT(ParseCommandLine({"hold", "--help"}).text, HasSubstr("--count"));
  EXPECT_THAT(ParseCommandLine({"hold", "--help"}).text, HasSubstr("--kind ipc --show-handle"));
  EXPECT_THAT(ParseCommandLine({"quota", "set", "-h"}).text, HasSubstr("--pinned-limit"));
  EXPECT_THAT(ParseCommandLine({"pool", "set", "-h"}).text, HasSubstr("--release-threshold 4GiB"));
  EXPECT_THAT(ParseCommandLine({"--version"}).text, HasSubstr("gpumemctl 0."));
}

}  // namespace
}  // namespace gpumem::cli
