// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/cli/options/testing/parsed_command.h"

namespace gpumem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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
  EXPECT_EQ(Parsed<UsageCommand>({"usage"}).tenant, "");
  EXPECT_EQ(Parsed<UsageCommand>({"usage", "t"}).tenant, "t");
  EXPECT_EQ(Parsed<UsageCommand>({"usage", "--job", "17"}).tenant, "job-17");
  EXPECT_THAT(ErrorOf({"usage", "--job", "17_3"}), ::testing::HasSubstr("JobIDRaw"));
  EXPECT_THAT(ErrorOf({"usage", "--job", "17+1"}), ::testing::HasSubstr("SLURM_JOB_ID"));
  EXPECT_NE(ErrorOf({"usage", "--job", ""}), "");
  EXPECT_NE(ErrorOf({"usage", "t", "--job", "17"}), "");
  EXPECT_EQ(Parsed<WhoamiCommand>({"whoami", "--as", "t"}).as, "t");
  EXPECT_EQ(Parsed<PsCommand>({"ps"}).tenant, "");
  EXPECT_EQ(Parsed<PsCommand>({"ps", "--tenant", "t"}).tenant, "t");
  EXPECT_EQ(Parsed<PublicationsCommand>({"publications", "--tenant", "t"}).tenant, "t");
  EXPECT_EQ(Parsed<UnpublishCommand>({"unpublish", "t/weights"}).name, "t/weights");
  EXPECT_THAT(ParseCommandLine({"unpublish"}).error, ::testing::HasSubstr("NAME"));
  SegmentsCommand segments = Parsed<SegmentsCommand>({"segments", "--tenant=t", "--device", "0"});
  EXPECT_EQ(segments.tenant, "t");
  EXPECT_EQ(segments.device, "0");
  EXPECT_FALSE(Parsed<DrainCommand>({"drain"}).resume);
  EXPECT_TRUE(Parsed<DrainCommand>({"undrain"}).resume);
  EXPECT_EQ(Parsed<SuspendCommand>({"suspend", "12"}).session, 12u);
  EXPECT_FALSE(Parsed<SuspendCommand>({"suspend", "12"}).resume);
  EXPECT_TRUE(Parsed<SuspendCommand>({"resume", "12"}).resume);
  EXPECT_EQ(Parsed<SuspendCommand>({"suspend", "12"}).tag, "");
  EXPECT_EQ(Parsed<SuspendCommand>({"resume", "12", "--tag", "kv"}).tag, "kv");
  EXPECT_EQ(Parsed<DemoteCommand>({"demote", "12"}).session, 12u);
  EXPECT_FALSE(Parsed<DemoteCommand>({"demote", "12"}).promote);
  EXPECT_FALSE(Parsed<DemoteCommand>({"demote", "12"}).caution.yes);
  EXPECT_TRUE(Parsed<DemoteCommand>({"promote", "12"}).promote);
  EXPECT_TRUE(Parsed<DemoteCommand>({"promote", "12"}).caution.yes);
  EXPECT_EQ(Parsed<DemoteCommand>({"promote", "12", "--tag", "kv"}).tag, "kv");
  EXPECT_THAT(ParseCommandLine({"demote"}).error, ::testing::HasSubstr("SESSION"));
  EXPECT_NE(ParseCommandLine({"demote", "x"}).error, "");
  EXPECT_EQ(Parsed<DemoteCommand>({"demote", "--tenant", "lab"}).tenant, "lab");
  EXPECT_EQ(Parsed<DemoteCommand>({"promote", "--tenant", "lab", "--tag", "kv"}).tag, "kv");
  EXPECT_THAT(ErrorOf({"demote", "12", "--tenant", "lab"}), ::testing::HasSubstr("--tenant"));
  EXPECT_THAT(ErrorOf({"demote", "--tag", "kv"}), ::testing::HasSubstr("--tenant"));
  EXPECT_THAT(ErrorOf({"promote", "--tenant", ""}), ::testing::HasSubstr("is empty"));
  EXPECT_THAT(ErrorOf({"demote", "12", "--tag", ""}), ::testing::HasSubstr("is empty"));
  EXPECT_THAT(ParseCommandLine({"suspend"}).error, ::testing::HasSubstr("SESSION"));
  EXPECT_NE(ParseCommandLine({"suspend", "x"}).error, "");
  EXPECT_NE(ParseCommandLine({"suspend", "12", "--tag", ""}).error, "");
  EXPECT_NE(ParseCommandLine({"suspend", "--publication", ""}).error, "");
  EXPECT_EQ(Parsed<SuspendCommand>({"suspend", "--tenant", "lab"}).tenant, "lab");
  EXPECT_EQ(Parsed<SuspendCommand>({"resume", "--tenant", "lab", "--tag", "kv"}).tag, "kv");
  EXPECT_THAT(ErrorOf({"suspend", "12", "--tenant", "lab"}), ::testing::HasSubstr("--tenant"));
  EXPECT_THAT(ErrorOf({"suspend", "--tenant", ""}), ::testing::HasSubstr("is empty"));
  EXPECT_THAT(ErrorOf({"suspend", "--publication", "t/w", "--tag", "kv"}),
              ::testing::HasSubstr("needs SESSION or --tenant"));
  EXPECT_EQ(Parsed<SuspendCommand>({"suspend", "--publication", "t/w"}).publication, "t/w");
  EXPECT_TRUE(Parsed<SuspendCommand>({"resume", "--publication", "t/w"}).resume);
  EXPECT_NE(ParseCommandLine({"suspend", "12", "--publication", "t/w"}).error, "");
  EXPECT_EQ(Parsed<SuspendCommand>({"suspend", "12"}).process, std::nullopt);
  EXPECT_EQ(Parsed<SuspendCommand>({"suspend", "--process", "4711"}).process, 4711);
  EXPECT_EQ(Parsed<SuspendCommand>({"resume", "--process", "4711"}).bytes, std::nullopt);
  EXPECT_EQ(Parsed<SuspendCommand>({"resume", "--process=4711", "--bytes", "1KiB"}).bytes, 1024u);
  EXPECT_THAT(ErrorOf({"suspend", "12", "--process", "4711"}), ::testing::HasSubstr("--process"));
  EXPECT_THAT(ErrorOf({"resume", "12", "--bytes", "1KiB"}), ::testing::HasSubstr("--bytes"));
  for (const char* const pid : {"0", "-1", "x", "4294967297"}) {
    EXPECT_NE(ErrorOf({"suspend", "--process", pid}), "") << pid;
  }
  Parsed<VersionCommand>({"version"});
  EXPECT_EQ(Parsed<CompletionCommand>({"completion", "fish"}).shell, Shell::kFish);
  TrimCommand trim =
      Parsed<TrimCommand>({"trim", "--tenant", "t", "--device", "G", "--keep", "2K"});
  EXPECT_EQ(trim.tenant, "t");
  EXPECT_EQ(trim.device, "G");
  EXPECT_EQ(trim.keep_bytes, 2048u);
}

TEST(CommandLineTest, FormOfTheOutput) {
  GlobalOptions global;
  Parsed<StatusCommand>({"status"}, &global);
  EXPECT_FALSE(global.wide);
  EXPECT_TRUE(global.headers);
  EXPECT_EQ(global.color, ColorMode::kAuto);
  EXPECT_EQ(global.timeout, std::nullopt);
  Parsed<StatusCommand>({"-o", "wide", "status", "--no-headers", "--color=always"}, &global);
  EXPECT_TRUE(global.wide);
  EXPECT_FALSE(global.json);
  EXPECT_FALSE(global.headers);
  EXPECT_EQ(global.color, ColorMode::kAlways);
  Parsed<StatusCommand>({"status", "--output", "json", "--timeout", "5s"}, &global);
  EXPECT_TRUE(global.json);
  EXPECT_EQ(global.timeout, absl::Seconds(5));
  Parsed<StatusCommand>({"status", "-o", "json", "-o", "table"}, &global);
  EXPECT_FALSE(global.json);
  EXPECT_EQ(ErrorOf({"status", "-o", "yaml"}),
            "--output: \"yaml\" is not one of table, wide, json");
  EXPECT_EQ(ErrorOf({"status", "--color", "blue"}),
            "--color: \"blue\" is not one of auto, always, never");
  EXPECT_NE(ErrorOf({"status", "--json", "-o", "table"}), "");
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
  EXPECT_EQ(Parsed<WebCommand>({"web"}).socket, "");
  EXPECT_EQ(Parsed<WebCommand>({"web", "--socket", "/a/b"}).socket, "/a/b");

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

TEST(CommandLineTest, Trace) {
  TraceCommand trace = Parsed<TraceCommand>({"trace", "on", "--out", "f"});
  EXPECT_EQ(trace.request.duration_ms(), 5000u);
  EXPECT_EQ(trace.request.session_id(), 0u);
  EXPECT_EQ(trace.out, "f");
  EXPECT_FALSE(trace.force);
  trace = Parsed<TraceCommand>({"trace", "on", "--seconds", "0.25", "-O", "-", "--force",
                                "--session", "7", "--with", "a", "--with", "b"});
  EXPECT_EQ(trace.request.duration_ms(), 250u);
  EXPECT_EQ(trace.request.session_id(), 7u);
  EXPECT_THAT(trace.with, ElementsAre("a", "b"));
  EXPECT_THAT(Parsed<TraceShowCommand>({"trace", "show", "a", "b"}).files, ElementsAre("a", "b"));
  for (const char* seconds : {"0", "61", "-1", "nan", "x"}) {
    EXPECT_NE(ErrorOf({"trace", "on", "--out", "f", "--seconds", seconds}), "") << seconds;
  }
  EXPECT_NE(ErrorOf({"trace"}), "");
  EXPECT_NE(ErrorOf({"trace", "on"}), "");
  EXPECT_NE(ErrorOf({"trace", "show"}), "");
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
  events = Parsed<EventsCommand>({"events", "--since", "2020-01-31T12:00:00Z", "--follow"});
  EXPECT_EQ(events.since, absl::FromUnixSeconds(1580472000));
  EXPECT_TRUE(events.request.past());
  EXPECT_TRUE(events.request.follow());
  const absl::Time before = absl::Now();
  events = Parsed<EventsCommand>({"events", "--since", "10m"});
  EXPECT_GE(events.since, before - absl::Minutes(10));
  EXPECT_LE(events.since, absl::Now() - absl::Minutes(10));
  EXPECT_THAT(ErrorOf({"events", "--since", "yesterday"}), HasSubstr("\"yesterday\" is not a"));
}

TEST(CommandLineTest, Reload) {
  EXPECT_FALSE(Parsed<ReloadCommand>({"reload"}).caution.dry_run);
  EXPECT_TRUE(Parsed<ReloadCommand>({"reload", "--dry-run"}).caution.dry_run);
}

TEST(CommandLineTest, Top) {
  TopCommand top = Parsed<TopCommand>({"top"});
  EXPECT_EQ(top.interval, absl::Seconds(1));
  EXPECT_EQ(top.iterations, std::nullopt);
  top = Parsed<TopCommand>({"top", "--interval", "250ms", "--iterations", "2"});
  EXPECT_EQ(top.interval, absl::Milliseconds(250));
  EXPECT_EQ(top.iterations, 2u);
}

TEST(CommandLineTest, ErrorsAreOneSentence) {
  EXPECT_EQ(ErrorOf({"hold", "--size", "1", "--for", "10"}),
            "--for: \"10\" is not a duration (expected one such as 10s, 1m30s, 500ms)");
  EXPECT_EQ(ErrorOf({"hold", "--size", "1", "--for", "0s"}),
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
  EXPECT_EQ(ErrorOf({"hold"}), "hold: nothing to hold: give --size SIZE or --open TICKET");
  for (const std::vector<std::string>& of_new_ones : std::vector<std::vector<std::string>>{
           {"--size", "1"}, {"--kind", "ipc"}, {"--device", "0"}, {"--count", "1"}}) {
    EXPECT_EQ(ErrorOf({"hold", "--open", "t", of_new_ones[0], of_new_ones[1]}),
              "--open: cannot be used with --size, --kind, --device, --count or --wait");
  }
  EXPECT_EQ(ErrorOf({"hold", "--size", "1", "--read-only"}), "--read-only: needs --open");
  EXPECT_EQ(ErrorOf({"hold", "--open", "t", "--read-only", "--fill"}),
            "--fill: cannot be used with --read-only");
  EXPECT_EQ(ErrorOf({"hold", "--size", "1", "--map-device", "0", "--fill"}),
            "--fill: cannot be used with --map-device");
  EXPECT_EQ(ErrorOf({"hold", "--size", "1", "--kind", "shm"}),
            "--kind: \"shm\" is not a kind (expected one of vmm, mempool, ipc, pinned, host)");
  EXPECT_EQ(ErrorOf({"hold", "--size", "1", "--show-handle"}), "--show-handle: needs --kind ipc");
  EXPECT_EQ(ErrorOf({"pool", "set", "--reset-peaks"}), "TENANT is required");
  EXPECT_EQ(ErrorOf({"pool", "set", "t"}),
            "pool set: nothing to change: name an attribute, such as --release-threshold 1GiB");
  EXPECT_EQ(ErrorOf({"pool", "set", "t", "--reuse-opportunistic", "yes"}),
            "--reuse-opportunistic: \"yes\" is not a switch (expected on or off)");
  EXPECT_EQ(ErrorOf({"pool", "trim"}), "TENANT is required");
  EXPECT_THAT(ErrorOf({"pool", "trim", "t", "--to", "some"}), HasSubstr("--to: "));
  EXPECT_EQ(ErrorOf({"hold", "--size", "0"}), "--size: a segment needs at least one byte");
  EXPECT_EQ(ErrorOf({"hold", "--size", "1", "--count", "254"}),
            "--count: Value 254 not in range 1 to 253");
  EXPECT_THAT(ErrorOf({"hold", "--size", "lots"}), HasSubstr("--size: "));
  EXPECT_THAT(ErrorOf({"hold", "--size", "-1"}), HasSubstr("-1"));
  EXPECT_EQ(ErrorOf({"quota", "set", "--limit", "1"}), "TENANT is required");
  EXPECT_EQ(ErrorOf({"quota", "set", "t"}),
            "quota set: nothing to change: name a limit, such as --limit 40GiB");
  EXPECT_EQ(ErrorOf({"quota", "set", "t", "--device", "1GiB"}),
            "--device: \"1GiB\" is not a device's limit (expected DEVICE=BYTES such as 0=10GiB)");
  EXPECT_EQ(ErrorOf({"quota", "set", "t", "--clear", "limits"}),
            "--clear: \"limits\" is not a limit (expected one of device, device-guarantee, "
            "guarantee, idle-suspend, kind, limit, max-in-flight, max-publications, max-retained, "
            "max-segments, max-sessions, max-waiting, min-residence, pinned-limit, preload, "
            "priority, release, "
            "revocable, scrub, swappable, tier-limit, total-limit)");
  EXPECT_THAT(ErrorOf({"quota", "set", "t", "--max-sessions", "-1"}), HasSubstr("--max-sessions"));
  EXPECT_EQ(ErrorOf({"--json"}), "A command is required");
  EXPECT_EQ(ErrorOf({"frobnicate"}), "unknown command \"frobnicate\"");
  EXPECT_EQ(ErrorOf({"status", "extra"}), "unexpected argument \"extra\"");
  EXPECT_EQ(ErrorOf({"status", "--nonsense"}), "unknown option --nonsense");
  EXPECT_EQ(ErrorOf({"map", "--rows"}), "--rows needs a value");
}

TEST(CommandLineTest, ErrorsSuggestTheNearest) {
  EXPECT_EQ(ErrorOf({"statsu"}), "unknown command \"statsu\" (did you mean status?)");
  EXPECT_EQ(ErrorOf({"dev"}), "unknown command \"dev\" (did you mean devices?)");
  EXPECT_EQ(ErrorOf({"quota", "unste", "t"}), "unknown command \"unste\" (did you mean unset?)");
  EXPECT_EQ(ErrorOf({"help", "quota", "gte"}), "unknown command \"gte\" (did you mean get?)");
  EXPECT_EQ(ErrorOf({"ps", "--tennant=t"}), "unknown option --tennant (did you mean --tenant?)");
  EXPECT_EQ(ErrorOf({"ps", "--jsno"}), "unknown option --jsno (did you mean --json?)");
}

TEST(CommandLineTest, DeprecatedSpellingsWorkWithAWarning) {
  const auto warnings = [](const std::vector<std::string>& arguments) {
    return ParseCommandLine(arguments).warnings;
  };
  GlobalOptions global;
  Parsed<StatusCommand>({"status", "--bytes", "--no-color"}, &global);
  EXPECT_TRUE(global.exact);
  EXPECT_EQ(global.color, ColorMode::kNever);
  EXPECT_THAT(warnings({"status", "--bytes", "--no-color", "--bytes"}),
              ElementsAre("--bytes is deprecated: use --exact",
                          "--no-color is deprecated: use --color never"));
  EXPECT_EQ(Parsed<HoldCommand>({"hold", "--bytes", "1MiB", "--exact"}, &global).bytes, 1u << 20);
  EXPECT_TRUE(global.exact);
  EXPECT_EQ(Parsed<HoldCommand>({"hold", "--bytes", "1MiB"}, &global).bytes, 1u << 20);
  EXPECT_FALSE(global.exact);
  EXPECT_THAT(warnings({"hold", "--bytes", "1", "--tenant", "t"}),
              ElementsAre("--bytes is deprecated: use --size", "--tenant is deprecated: use --as"));
  EXPECT_EQ(Parsed<HoldCommand>({"hold", "--size", "1", "--tenant", "t"}).as, "t");
  EXPECT_EQ(Parsed<WhoamiCommand>({"whoami", "--tenant", "t"}).as, "t");
  EXPECT_EQ(Parsed<PublicationsCommand>({"publications", "--of", "t"}).tenant, "t");
  EXPECT_THAT(warnings({"publications", "--of", "t"}),
              ElementsAre("--of is deprecated: use --tenant"));
  EXPECT_TRUE(Parsed<DrainCommand>({"drain", "--resume"}).resume);
  EXPECT_THAT(warnings({"drain", "--resume"}),
              ElementsAre("--resume is deprecated: use gpumemctl undrain"));
  EXPECT_THAT(warnings({"ps", "--tenant", "t", "--exact"}), IsEmpty());
  for (const char* const command : {"hold", "whoami", "publications", "drain", ""}) {
    const std::string help = ParseCommandLine({"help", command}).text;
    for (const char* const hidden : {"--bytes", "--of", "--resume", "--no-color", "eprecated"}) {
      EXPECT_THAT(help, Not(HasSubstr(hidden))) << command;
    }
  }
}

TEST(CommandLineTest, CommandsThatTakeFromOthersAreCautious) {
  EXPECT_FALSE(Parsed<DrainCommand>({"drain"}).caution.dry_run);
  EXPECT_TRUE(Parsed<DrainCommand>({"drain", "--dry-run"}).caution.dry_run);
  EXPECT_TRUE(Parsed<DrainCommand>({"drain", "-y"}).caution.yes);
  EXPECT_TRUE(Parsed<TrimCommand>({"trim", "--yes"}).caution.yes);
  EXPECT_TRUE(Parsed<UnpublishCommand>({"unpublish", "a/b", "--yes"}).caution.yes);
  EXPECT_FALSE(Parsed<SuspendCommand>({"suspend", "1"}).caution.yes);
  EXPECT_TRUE(Parsed<SuspendCommand>({"suspend", "1", "--dry-run"}).caution.dry_run);
  EXPECT_TRUE(Parsed<QuotaSetCommand>({"quota", "set", "t", "--limit", "1", "-y"}).caution.yes);
  EXPECT_TRUE(Parsed<QuotaUnsetCommand>({"quota", "unset", "t", "--dry-run"}).caution.dry_run);
  EXPECT_TRUE(Parsed<PoolTrimCommand>({"pool", "trim", "t", "--dry-run"}).caution.dry_run);
  // These never ask, so they do not look at the effects, on terminals either.
  EXPECT_TRUE(Parsed<QuotaUnsetCommand>({"quota", "unset", "t"}).caution.yes);
  EXPECT_TRUE(Parsed<PoolTrimCommand>({"pool", "trim", "t"}).caution.yes);
  EXPECT_TRUE(Parsed<DrainCommand>({"undrain"}).caution.yes);
  EXPECT_TRUE(Parsed<SuspendCommand>({"resume", "1"}).caution.yes);
  EXPECT_TRUE(Parsed<ReloadCommand>({"reload"}).caution.yes);
  EXPECT_FALSE(Parsed<DrainCommand>({"drain"}).caution.yes);
}

TEST(CommandLineTest, ErrorsKnowWhetherJsonIsWanted) {
  EXPECT_TRUE(ParseCommandLine({"hold", "--json"}).global.json);
  EXPECT_TRUE(ParseCommandLine({"--json", "hold"}).global.json);
  EXPECT_TRUE(ParseCommandLine({"hold", "-o", "json"}).global.json);
  EXPECT_TRUE(ParseCommandLine({"hold", "--nonsense", "--output=json"}).global.json);
  EXPECT_TRUE(ParseCommandLine({"hold", "--nonsense", "--json"}).global.json);
  EXPECT_TRUE(ParseCommandLine({"hold", "--nonsense", "-o", "JSON"}).global.json);
  EXPECT_TRUE(ParseCommandLine({"quota", "set", "t", "--json"}).global.json);
  EXPECT_FALSE(ParseCommandLine({"hold"}).global.json);
}

TEST(CommandLineTest, HelpShowsExamplesAndExitCodes) {
  CommandLine line = ParseCommandLine({"--help"});
  EXPECT_FALSE(line.command.has_value());
  EXPECT_EQ(line.error, "");
  EXPECT_THAT(line.text, HasSubstr("Exit codes:"));
  EXPECT_THAT(line.text, HasSubstr("gpumemctl hold --size 1GiB --for 10s"));
  EXPECT_EQ(ParseCommandLine({"help"}).text, line.text);
  const std::string hold = ParseCommandLine({"hold", "--help"}).text;
  EXPECT_EQ(ParseCommandLine({"help", "hold"}).text, hold);
  EXPECT_THAT(hold, HasSubstr("Usage: gpumemctl hold [OPTION]..."));
  EXPECT_THAT(hold, HasSubstr("--count N "));
  EXPECT_THAT(ParseCommandLine({"help", "quota"}).text, HasSubstr("\nCommands:\n  get "));
  EXPECT_THAT(ParseCommandLine({"hold", "--help"}).text, HasSubstr("--kind ipc --show-handle"));
  EXPECT_THAT(ParseCommandLine({"quota", "set", "-h"}).text, HasSubstr("--pinned-limit"));
  EXPECT_THAT(ParseCommandLine({"pool", "set", "-h"}).text, HasSubstr("--release-threshold 4GiB"));
  EXPECT_THAT(ParseCommandLine({"--version"}).text, HasSubstr("gpumemctl 0."));
}

TEST(CommandLineTest, WithoutArgumentsTheCommandsAreListed) {
  const CommandLine line = ParseCommandLine({});
  EXPECT_FALSE(line.command.has_value());
  EXPECT_EQ(line.error, "");
  EXPECT_THAT(line.text, HasSubstr("\nCommands that show the state:\n  status "));
  EXPECT_THAT(line.text, HasSubstr("\nCommands that use memory:\n"));
  EXPECT_THAT(line.text, HasSubstr("\nOther commands:\n  help "));
  EXPECT_THAT(line.text, Not(HasSubstr("--runtime-dir")));
}

}  // namespace
}  // namespace gpumem::cli
