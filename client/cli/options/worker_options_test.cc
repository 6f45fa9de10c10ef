// SPDX-License-Identifier: Apache-2.0
// The options of gpumemctl hold, publish and fetch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "client/cli/options/testing/parsed_command.h"

namespace gpumem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CommandLineTest, Hold) {
  HoldCommand hold = Parsed<HoldCommand>({"hold", "--size", "1GiB"});
  EXPECT_EQ(hold.bytes, uint64_t{1} << 30);
  EXPECT_EQ(hold.device, "");
  EXPECT_EQ(hold.count, 1);
  EXPECT_EQ(hold.duration, std::nullopt);
  EXPECT_EQ(hold.as, "");
  EXPECT_FALSE(hold.fill);
  hold = Parsed<HoldCommand>({"hold", "--size=1.5 MiB", "--device", "1", "--count", "3", "--for",
                              "1m30s", "--as", "t", "--fill"});
  EXPECT_EQ(hold.bytes, uint64_t{3} << 19);
  EXPECT_EQ(hold.device, "1");
  EXPECT_EQ(hold.count, 3);
  EXPECT_EQ(hold.duration, absl::Seconds(90));
  EXPECT_EQ(hold.as, "t");
  EXPECT_TRUE(hold.fill);
  EXPECT_EQ(hold.wait, absl::ZeroDuration());
  EXPECT_FALSE(hold.revocable);
  hold = Parsed<HoldCommand>({"hold", "--size", "1", "--wait", "1h", "--revocable"});
  EXPECT_EQ(hold.wait, absl::Hours(1));
  EXPECT_TRUE(hold.revocable);
  hold = Parsed<HoldCommand>({"hold", "--size", "1", "--wait", "forever"});
  EXPECT_EQ(hold.wait, absl::InfiniteDuration());
  EXPECT_NE(ParseCommandLine({"hold", "--open", "gmt_", "--wait", "1h"}).error, "");
  EXPECT_NE(ParseCommandLine({"hold", "--size", "1", "--wait", "-1s"}).error, "");
  EXPECT_EQ(Parsed<HoldCommand>({"hold", "--size", "1", "--for", "10s"}).duration,
            absl::Seconds(10));
  EXPECT_EQ(Parsed<HoldCommand>({"hold", "--size", "1", "--for", "1m"}).duration, absl::Minutes(1));
}

TEST(CommandLineTest, HoldOfAKind) {
  HoldCommand hold = Parsed<HoldCommand>({"hold", "--size", "1"});
  EXPECT_EQ(hold.kind, Kind::kDefault);
  EXPECT_THAT(hold.map_devices, IsEmpty());
  EXPECT_FALSE(hold.show_handle);
  for (const auto& [word, kind] :
       {std::pair{"vmm", Kind::kVmm}, {"mempool", Kind::kMempool}, {"pinned", Kind::kPinned}}) {
    EXPECT_EQ(Parsed<HoldCommand>({"hold", "--size", "1", "--kind", word}).kind, kind);
  }
  hold = Parsed<HoldCommand>({"hold", "--size", "1", "--kind", "ipc", "--show-handle", "--device",
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

TEST(CommandLineTest, FormatsOfFiles) {
  PublishCommand publish = Parsed<PublishCommand>({"publish", "m", "--file", "a", "b"});
  EXPECT_THAT(publish.files, ElementsAre("a", "b"));
  EXPECT_EQ(publish.format, FileFormat::kByName);
  publish = Parsed<PublishCommand>({"publish", "m", "--file", "a", "--format", "bytes"});
  EXPECT_EQ(publish.format, FileFormat::kBytes);
  publish = Parsed<PublishCommand>({"publish", "m", "--file", "a", "--format", "safetensors"});
  EXPECT_EQ(publish.format, FileFormat::kSafetensors);
  EXPECT_EQ(ErrorOf({"publish", "m", "--file", "a", "--format", "pickle"}),
            "--format: \"pickle\" is not one of auto, bytes, safetensors");
  EXPECT_FALSE(Parsed<FetchCommand>({"fetch", "m", "--out", "a"}).safetensors);
  EXPECT_TRUE(
      Parsed<FetchCommand>({"fetch", "m", "--out", "a", "--format", "safetensors"}).safetensors);
}

}  // namespace
}  // namespace gpumem::cli
