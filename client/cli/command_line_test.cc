#include "client/cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

namespace gpumem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The command that the arguments stand for; fails the test where it is another.
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
  ASSERT_EQ(request.quota().devices_size(), 2);
  EXPECT_EQ(request.quota().devices(0).device_uuid(), "0");
  EXPECT_EQ(request.quota().devices(0).limit_bytes(), uint64_t{1} << 30);
  EXPECT_EQ(request.quota().devices(1).device_uuid(), "GPU-1");
  EXPECT_EQ(request.quota().devices(1).limit_bytes(), uint64_t{2} << 30);
  EXPECT_THAT(request.clear(), ElementsAre("total_limit_bytes", "max_retained_bytes"));

  request = Parsed<QuotaSetCommand>({"quota", "set", "--max-segments=0", "--total-limit=1TiB",
                                     "--max-in-flight=3", "--max-retained=0", "t"})
                .request;
  EXPECT_EQ(request.tenant(), "t");
  EXPECT_TRUE(request.quota().has_max_segments());
  EXPECT_EQ(request.quota().max_segments(), 0u);
  EXPECT_EQ(request.quota().total_limit_bytes(), uint64_t{1} << 40);
  EXPECT_EQ(request.quota().max_in_flight(), 3u);
  EXPECT_TRUE(request.quota().has_max_retained_bytes());
  EXPECT_THAT(request.clear(), IsEmpty());
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
  EXPECT_EQ(Parsed<HoldCommand>({"hold", "--bytes", "1", "--for", "10s"}).duration,
            absl::Seconds(10));
  EXPECT_EQ(Parsed<HoldCommand>({"hold", "--bytes", "1", "--for", "1m"}).duration,
            absl::Minutes(1));
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
  EXPECT_EQ(ErrorOf({"hold"}), "--bytes is required");
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
  EXPECT_EQ(ErrorOf({"quota", "set", "t", "--clear", "limits"}),
            "--clear: \"limits\" is not a limit (expected one of device, limit, max-in-flight, "
            "max-retained, max-segments, max-sessions, total-limit)");
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
  EXPECT_FALSE(ParseCommandLine({"hold"}).global.json);
}

TEST(CommandLineTest, HelpTeaches) {
  CommandLine line = ParseCommandLine({"--help"});
  EXPECT_FALSE(line.command.has_value());
  EXPECT_EQ(line.error, "");
  EXPECT_THAT(line.text, HasSubstr("Exit codes:"));
  EXPECT_THAT(line.text, HasSubstr("gpumemctl hold --bytes 1GiB --for 10s"));
  EXPECT_THAT(ParseCommandLine({"hold", "--help"}).text, HasSubstr("--count"));
  EXPECT_THAT(ParseCommandLine({"quota", "set", "-h"}).text, HasSubstr("--total-limit"));
  EXPECT_THAT(ParseCommandLine({"--version"}).text, HasSubstr("gpumemctl 0."));
}

}  // namespace
}  // namespace gpumem::cli
