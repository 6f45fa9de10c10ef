#include "client/cli/options/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gpumem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the command of these arguments; fails the test if it is another command.
template <typename C>
C Parsed(const std::vector<std::string>& arguments, GlobalOptions* global = nullptr) {
  CommandLine line = ParseCommandLine(arguments);
  EXPECT_EQ(line.error, "");
  EXPECT_EQ(line.text, "");
  if (global != nullptr) *global = line.global;
  if (!line.command || !std::holds_alternative<C>(*line.command)) {
    ADD_FAILURE() << "not the command expected";
    return {};
  }
  return std::get<C>(*line.command);
}

std::string ErrorOf(const std::vector<std::string>& arguments) {
  CommandLine line = ParseCommandLine(arguments);
  EXPECT_FALSE(line.command.has_value());
  EXPECT_EQ(line.text, "");
  return line.error;
}

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
  EXPECT_THAT(ErrorOf({"top", "--sort", "age"}), HasSubstr("age is for --by process"));
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
  EXPECT_THAT(ErrorOf({"describe", "planet", "7"}), HasSubstr("\"planet\" is nothing"));
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

TEST(CommandLineTest, QuotaAloneIsQuotaGetOfOnesOwn) {
  EXPECT_EQ(Parsed<QuotaGetCommand>({"quota"}).tenant, "");
  EXPECT_EQ(Parsed<QuotaGetCommand>({"quota", "get"}).tenant, "");
}

TEST(CommandLineTest, QuotaSetFillsWhatIsGivenAndNothingElse) {
  v1::SetQuotaRequest request =
      Parsed<QuotaSetCommand>({"quota", "set", "training", "--limit", "40GiB", "--max-sessions",
                               "16", "--device", "0=1GiB", "--device", "GPU-1=2G", "--clear",
                               "total-limit", "--clear", "max_retained_bytes"})
          .request;
  EXPECT_EQ(request.tenant(), "training");
  EXPECT_EQ(request.quota().limit_bytes(), uint64_t{40} << 30);
  EXPECT_EQ(request.quota().max_sessions(), 16u);
  EXPECT_FALSE(request.quota().has_total_limit_bytes());
  EXPECT_FALSE(request.quota().has_max_segments());
  EXPECT_FALSE(request.quota().has_max_in_flight());
  EXPECT_FALSE(request.quota().has_max_retained_bytes());
  EXPECT_FALSE(request.quota().has_pinned_limit_bytes());
  ASSERT_EQ(request.quota().devices_size(), 2);
  EXPECT_EQ(request.quota().devices(0).device_uuid(), "0");
  EXPECT_EQ(request.quota().devices(0).limit_bytes(), uint64_t{1} << 30);
  EXPECT_EQ(request.quota().devices(1).device_uuid(), "GPU-1");
  EXPECT_EQ(request.quota().devices(1).limit_bytes(), uint64_t{2} << 30);
  EXPECT_THAT(request.clear(), ElementsAre("total_limit_bytes", "max_retained_bytes"));

  request = Parsed<QuotaSetCommand>({"quota", "set", "--max-segments=0", "--total-limit=1TiB",
                                     "--max-in-flight=3", "--max-retained=0", "--pinned-limit",
                                     "3GiB", "--clear", "pinned-limit", "t"})
                .request;
  EXPECT_EQ(request.tenant(), "t");
  EXPECT_TRUE(request.quota().has_max_segments());
  EXPECT_EQ(request.quota().max_segments(), 0u);
  EXPECT_EQ(request.quota().total_limit_bytes(), uint64_t{1} << 40);
  EXPECT_EQ(request.quota().max_in_flight(), 3u);
  EXPECT_TRUE(request.quota().has_max_retained_bytes());
  EXPECT_EQ(request.quota().pinned_limit_bytes(), uint64_t{3} << 30);
  EXPECT_THAT(request.clear(), ElementsAre("pinned_limit_bytes"));
}

TEST(CommandLineTest, QuotaSetKnowsGuaranteesAndSettings) {
  const v1::Quota quota = Parsed<QuotaSetCommand>({"quota",
                                                   "set",
                                                   "t",
                                                   "--guarantee",
                                                   "4GiB",
                                                   "--device-guarantee",
                                                   "0=1GiB",
                                                   "--device-guarantee=GPU-1=2GiB",
                                                   "--priority",
                                                   "-5",
                                                   "--max-waiting",
                                                   "0",
                                                   "--max-publications",
                                                   "9",
                                                   "--scrub",
                                                   "--no-revocable",
                                                   "--kind",
                                                   "ipc",
                                                   "--release",
                                                   "on-exit"})
                              .request.quota();
  EXPECT_EQ(quota.guarantee_bytes(), uint64_t{4} << 30);
  ASSERT_EQ(quota.guarantees_size(), 2);
  EXPECT_EQ(quota.guarantees(0).device_uuid(), "0");
  EXPECT_EQ(quota.guarantees(1).device_uuid(), "GPU-1");
  EXPECT_EQ(quota.guarantees(1).guarantee_bytes(), uint64_t{2} << 30);
  EXPECT_EQ(quota.priority(), -5);
  EXPECT_TRUE(quota.has_max_waiting());
  EXPECT_EQ(quota.max_waiting(), 0u);
  EXPECT_EQ(quota.max_publications(), 9u);
  EXPECT_TRUE(quota.scrub());
  EXPECT_TRUE(quota.has_revocable());
  EXPECT_FALSE(quota.revocable());
  EXPECT_EQ(quota.kind(), v1::KIND_IPC);
  EXPECT_EQ(quota.release(), v1::RELEASE_POLICY_ON_EXIT);
  EXPECT_FALSE(quota.has_limit_bytes());
  // Settings that are off are changes, too.
  EXPECT_TRUE(
      Parsed<QuotaSetCommand>({"quota", "set", "t", "--no-scrub"}).request.quota().has_scrub());
  EXPECT_THAT(Parsed<QuotaSetCommand>(
                  {"quota", "set", "t", "--clear", "guarantee", "--clear", "device-guarantee"})
                  .request.clear(),
              ElementsAre("guarantee_bytes", "guarantees"));
}

TEST(CommandLineTest, QuotaUnsetNamesFieldsOrNone) {
  v1::UnsetQuotaRequest all = Parsed<QuotaUnsetCommand>({"quota", "unset", "t"}).request;
  EXPECT_EQ(all.tenant(), "t");
  EXPECT_EQ(all.fields_size(), 0);
  EXPECT_THAT(
      Parsed<QuotaUnsetCommand>({"quota", "unset", "t", "--limit", "--device-guarantee", "--scrub"})
          .request.fields(),
      testing::UnorderedElementsAre("limit_bytes", "guarantees", "scrub"));
}

TEST(CommandLineTest, Reload) { Parsed<ReloadCommand>({"reload"}); }

TEST(CommandLineTest, PoolAloneIsPoolList) {
  EXPECT_EQ(Parsed<PoolListCommand>({"pool"}).tenant, "");
  PoolListCommand list =
      Parsed<PoolListCommand>({"pool", "list", "--tenant", "t", "--device", "1"});
  EXPECT_EQ(list.tenant, "t");
  EXPECT_EQ(list.device, "1");
}

TEST(CommandLineTest, PoolSetFillsWhatIsGivenAndNothingElse) {
  v1::SetPoolRequest request =
      Parsed<PoolSetCommand>({"pool", "set", "t", "--release-threshold", "0"}).request;
  EXPECT_EQ(request.tenant(), "t");
  EXPECT_EQ(request.device_uuid(), "");
  EXPECT_TRUE(request.has_release_threshold_bytes());
  EXPECT_FALSE(request.has_reuse_follow_event_dependencies());
  EXPECT_FALSE(request.has_reuse_allow_opportunistic());
  EXPECT_FALSE(request.has_reuse_allow_internal_dependencies());
  EXPECT_FALSE(request.reset_peaks());

  request =
      Parsed<PoolSetCommand>({"pool", "set", "--device", "GPU-1", "t", "--reset-peaks",
                              "--reuse-follow-event-dependencies", "on",
                              "--reuse-opportunistic=off", "--reuse-internal-dependencies", "off"})
          .request;
  EXPECT_EQ(request.device_uuid(), "GPU-1");
  EXPECT_FALSE(request.has_release_threshold_bytes());
  EXPECT_TRUE(request.reuse_follow_event_dependencies());
  EXPECT_TRUE(request.has_reuse_allow_opportunistic());
  EXPECT_FALSE(request.reuse_allow_opportunistic());
  EXPECT_TRUE(request.has_reuse_allow_internal_dependencies());
  EXPECT_FALSE(request.reuse_allow_internal_dependencies());
  EXPECT_TRUE(request.reset_peaks());
  EXPECT_TRUE(Parsed<PoolSetCommand>({"pool", "set", "t", "--reset-peaks"}).request.reset_peaks());
}

TEST(CommandLineTest, PoolTrim) {
  v1::TrimPoolRequest request = Parsed<PoolTrimCommand>({"pool", "trim", "t"}).request;
  EXPECT_EQ(request.tenant(), "t");
  EXPECT_EQ(request.device_uuid(), "");
  EXPECT_EQ(request.keep_bytes(), 0u);
  request = Parsed<PoolTrimCommand>({"pool", "trim", "t", "--to", "2K", "--device", "1"}).request;
  EXPECT_EQ(request.device_uuid(), "1");
  EXPECT_EQ(request.keep_bytes(), 2048u);
}

TEST(CommandLineTest, Hold) {
  HoldCommand hold = Parsed<HoldCommand>({"hold", "--bytes", "1GiB"});
  EXPECT_EQ(hold.bytes, uint64_t{1} << 30);
  EXPECT_EQ(hold.device, "");
  EXPECT_EQ(hold.count, 1);
  EXPECT_EQ(hold.duration, std::nullopt);
  EXPECT_EQ(hold.tenant, "");
  EXPECT_FALSE(hold.fill);
  hold = Parsed<HoldCommand>({"hold", "--bytes=1.5 MiB", "--device", "1", "--count", "3", "--for",
                              "1m30s", "--tenant", "t", "--fill"});
  EXPECT_EQ(hold.bytes, uint64_t{3} << 19);
  EXPECT_EQ(hold.device, "1");
  EXPECT_EQ(hold.count, 3);
  EXPECT_EQ(hold.duration, absl::Seconds(90));
  EXPECT_EQ(hold.tenant, "t");
  EXPECT_TRUE(hold.fill);
  EXPECT_EQ(hold.wait, absl::ZeroDuration());
  EXPECT_FALSE(hold.revocable);
  hold = Parsed<HoldCommand>({"hold", "--bytes", "1", "--wait", "1h", "--revocable"});
  EXPECT_EQ(hold.wait, absl::Hours(1));
  EXPECT_TRUE(hold.revocable);
  hold = Parsed<HoldCommand>({"hold", "--bytes", "1", "--wait", "forever"});
  EXPECT_EQ(hold.wait, absl::InfiniteDuration());
  EXPECT_NE(ParseCommandLine({"hold", "--open", "gmt_", "--wait", "1h"}).error, "");
  EXPECT_NE(ParseCommandLine({"hold", "--bytes", "1", "--wait", "-1s"}).error, "");
  EXPECT_EQ(Parsed<HoldCommand>({"hold", "--bytes", "1", "--for", "10s"}).duration,
            absl::Seconds(10));
  EXPECT_EQ(Parsed<HoldCommand>({"hold", "--bytes", "1", "--for", "1m"}).duration,
            absl::Minutes(1));
}

TEST(CommandLineTest, HoldOfAKind) {
  HoldCommand hold = Parsed<HoldCommand>({"hold", "--bytes", "1"});
  EXPECT_EQ(hold.kind, Kind::kDefault);
  EXPECT_THAT(hold.map_devices, IsEmpty());
  EXPECT_FALSE(hold.show_handle);
  for (const auto& [word, kind] :
       {std::pair{"vmm", Kind::kVmm}, {"mempool", Kind::kMempool}, {"pinned", Kind::kPinned}}) {
    EXPECT_EQ(Parsed<HoldCommand>({"hold", "--bytes", "1", "--kind", word}).kind, kind);
  }
  hold = Parsed<HoldCommand>({"hold", "--bytes", "1", "--kind", "ipc", "--show-handle", "--device",
                              "most-free", "--map-device", "0", "--map-device", "GPU-1"});
  EXPECT_EQ(hold.kind, Kind::kIpc);
  EXPECT_TRUE(hold.show_handle);
  EXPECT_EQ(hold.device, "most-free");
  EXPECT_THAT(hold.map_devices, ElementsAre("0", "GPU-1"));
}

TEST(CommandLineTest, HoldOfTickets) {
  HoldCommand hold = Parsed<HoldCommand>(
      {"hold", "--open", "gmt_a", "--open", "gmt_b", "--read-only", "--map-device", "0"});
  EXPECT_THAT(hold.tickets, ElementsAre("gmt_a", "gmt_b"));
  EXPECT_TRUE(hold.read_only);
  EXPECT_THAT(hold.map_devices, ElementsAre("0"));
  EXPECT_EQ(hold.bytes, 0u);
  // Their kind is known only once they are open.
  EXPECT_TRUE(Parsed<HoldCommand>({"hold", "--open", "gmt_a", "--show-handle"}).show_handle);
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
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--for", "10"}),
            "--for: \"10\" is not a duration (expected one such as 10s, 1m30s, 500ms)");
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--for", "0s"}),
            "--for: \"0s\" is not a duration (expected one such as 10s, 1m30s, 500ms)");
  EXPECT_EQ(ErrorOf({"quota", "set", "t", "--parent", "lab"}),
            "--parent: the tenant that another one is under is said in the configuration (parent = "
            "…); write it there, then gpumemctl reload");
  EXPECT_EQ(ErrorOf({"quota", "set", "t", "--release", "never"}),
            "--release: \"never\" is not a release policy (expected trust or on-exit)");
  EXPECT_NE(ErrorOf({"quota", "set", "t", "--scrub", "--no-scrub"}), "");
  EXPECT_NE(ErrorOf({"quota", "set", "t", "--scrub=false"}), "");
  EXPECT_NE(ErrorOf({"quota", "unset"}), "");
  EXPECT_NE(ErrorOf({"quota", "unset", "t", "--limit=3"}), "");
  EXPECT_EQ(ErrorOf({"hold"}), "hold: nothing to hold: say --bytes SIZE, or --open TICKET");
  for (const std::vector<std::string>& of_new_ones : std::vector<std::vector<std::string>>{
           {"--bytes", "1"}, {"--kind", "ipc"}, {"--device", "0"}, {"--count", "1"}}) {
    EXPECT_EQ(ErrorOf({"hold", "--open", "t", of_new_ones[0], of_new_ones[1]}),
              "--open: --bytes, --kind, --device, --count and --wait are for new segments");
  }
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--read-only"}),
            "--read-only: only for segments that --open opens");
  EXPECT_EQ(ErrorOf({"hold", "--open", "t", "--read-only", "--fill"}),
            "--fill: not with --read-only");
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--map-device", "0", "--fill"}),
            "--fill: not with --map-device");
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--kind", "shm"}),
            "--kind: \"shm\" is not a kind (expected one of vmm, mempool, ipc, pinned)");
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "1", "--show-handle"}),
            "--show-handle: only segments of --kind ipc have a handle");
  EXPECT_EQ(ErrorOf({"pool", "set", "--reset-peaks"}), "TENANT is required");
  EXPECT_EQ(ErrorOf({"pool", "set", "t"}),
            "pool set: nothing to change: name an attribute, such as --release-threshold 1GiB");
  EXPECT_EQ(ErrorOf({"pool", "set", "t", "--reuse-opportunistic", "yes"}),
            "--reuse-opportunistic: \"yes\" is not a switch (expected on or off)");
  EXPECT_EQ(ErrorOf({"pool", "trim"}), "TENANT is required");
  EXPECT_THAT(ErrorOf({"pool", "trim", "t", "--to", "some"}), HasSubstr("--to: "));
  EXPECT_EQ(ErrorOf({"hold", "--bytes", "0"}), "--bytes: a segment has at least one byte");
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

TEST(CommandLineTest, HelpTeaches) {
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
