// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/top_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/text/table.h"
#include "client/cli/views/views_samples.h"

namespace gpumem::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::DeviceUsage Usage(const char* uuid, uint64_t leased, uint64_t retained, uint64_t lingering) {
  v1::DeviceUsage usage;
  usage.set_device_uuid(uuid);
  usage.set_leased_bytes(leased);
  usage.set_retained_bytes(retained);
  usage.set_lingering_bytes(lingering);
  usage.set_charged_bytes(leased + retained + lingering);
  return usage;
}

TopData Data() {
  TopData data;
  data.status.set_version("0.1.0");
  data.status.set_uptime_ms(185'000);
  data.status.set_sessions(2);
  data.status.set_segments(3);
  for (const v1::Device& device : TwoDevices()) *data.status.add_devices() = device;
  data.tenants = TwoTenants();
  v1::Usage* training = data.tenants.mutable_tenants(0)->mutable_usage();
  *training->add_devices() = Usage(kUuid0, 64 * kMiB, 32 * kMiB, 0);
  v1::Usage* user = data.tenants.mutable_tenants(1)->mutable_usage();
  *user->add_devices() = Usage(kUuid0, kGiB, 0, 256 * kMiB);
  user->mutable_devices(0)->set_waiting_bytes(2 * kGiB);
  data.sessions = TwoSessions();
  return data;
}

// Many tenants; t00 is the largest.
TopData ManyTenants(int count) {
  TopData data = Data();
  data.tenants.clear_tenants();
  for (int i = 0; i < count; ++i) {
    v1::Usage* usage = data.tenants.add_tenants()->mutable_usage();
    usage->set_tenant(absl::StrCat("t", i < 10 ? "0" : "", i));
    *usage->add_devices() = Usage(kUuid0, static_cast<uint64_t>(count - i) * kMiB, 0, 0);
  }
  return data;
}

std::string Shown(const TopData& data, TopState state, size_t rows = 0, size_t columns = 80) {
  return ToString(TopView(data, rows, columns, &state), false, columns);
}

KeyPress Character(char c) { return {Key::kCharacter, c}; }

TEST(TopViewTest, SuspendedAndDemotedBytesOfTenants) {
  TopData data = Data();
  EXPECT_THAT(Shown(data, {}), Not(HasSubstr("SUSPENDED")));
  v1::Usage* training = data.tenants.mutable_tenants(0)->mutable_usage();
  *training->add_devices() = Usage("TIER-00000000-0000-0000-0000-000000000000", 16 * kMiB, 0, 0);
  EXPECT_THAT(Shown(data, {}, 0, 120), AllOf(HasSubstr("  SUSPENDED  "), HasSubstr(" 16.00 MiB ")));
  EXPECT_THAT(Shown(data, {}, 0, 120), Not(HasSubstr("DEMOTED")));
  training->set_demoted_bytes(24 * kMiB);
  EXPECT_THAT(Shown(data, {}, 0, 120), AllOf(HasSubstr("  DEMOTED  "), HasSubstr(" 24.00 MiB ")));
}

TEST(TopViewTest, ByTenantTheLargestFirst) {
  EXPECT_EQ(Shown(Data(), {}),
            "gpumemd 0.1.0  up 3m05s  2 tenants, 2 sessions, 3 segments\n"
            "0 HOST-00000000 [|||            19%] 1.50 GiB of 8.00 GiB\n"
            "1 HOST-00000001 [                0%] 0 B of 8.00 GiB, 1.00 GiB past\n"
            "\n"
            "TENANT           HELD   RETAINED   LINGERING  WAITS FOR  SEGMENTS  SESSIONS\n"
            "user-1001    1.25 GiB          -  256.00 MiB   2.00 GiB         1         1\n"
            "training   104.00 MiB  32.00 MiB           -          -         2         1\n");
}

TEST(TopViewTest, HeadersCanBeLeftOutWhereNoScreenIsDrawn) {
  TopState state;
  state.headers = false;
  EXPECT_THAT(Shown(Data(), state), AllOf(Not(HasSubstr("TENANT")), HasSubstr("\n\nuser-1001 "),
                                          HasSubstr("\ntraining ")));
  EXPECT_THAT(Shown(Data(), state, 24), HasSubstr("TENANT"));
}

TEST(TopViewTest, GpusHaveTheirModel) {
  TopData data = Data();
  for (v1::Device& device : *data.status.mutable_devices()) {
    device.set_backend(v1::BACKEND_CUDA);
    device.set_name("NVIDIA H100 80GB HBM3");
  }
  EXPECT_THAT(
      Shown(data, {}),
      HasSubstr("\n0 HOST-00000000 H100 80GB H~ [|||            19%] 1.50 GiB of 8.00 GiB\n"));
  EXPECT_THAT(
      Shown(data, {}, 0, 120),
      HasSubstr("\n0 HOST-00000000 H100 80GB HBM3 [|||||                    19%] 1.50 GiB of"));
  // Narrow terminals have no room for it.
  EXPECT_THAT(Shown(data, {}, 0, 60), Not(HasSubstr("H1")));
}

TEST(TopViewTest, ByProcess) {
  TopData data = Data();
  // A second session of the first process.
  v1::SessionInfo* second = data.sessions.add_sessions();
  *second = data.sessions.sessions(0);
  second->set_session_id(13);
  second->set_leased_bytes(2 * kGiB);
  second->set_age_ms(1000);
  const std::string wide = Shown(data, {.by = TopBy::kProcess}, 0, 200);
  EXPECT_THAT(wide, HasSubstr(" PID   UID  TENANT     COMMAND  NAME       STATE          HELD  "
                              "LEASES  SESSIONS    AGE\n"
                              "4242  1000  training   python3  trainer-3  live       2.06 GiB  "
                              "     4         2  3m05s\n"
                              "   7  1001  user-1001                      lingering  1.00 GiB  "
                              "     0         1  1d01h\n"));
  const std::string narrow = Shown(data, {.by = TopBy::kProcess}, 0, 80);
  EXPECT_THAT(narrow, HasSubstr("LEASES"));
  EXPECT_THAT(narrow, Not(HasSubstr("SESSIONS")));
  data.sessions.mutable_sessions(0)->set_unbrokered_bytes(3 * kGiB);
  EXPECT_THAT(Shown(data, {.by = TopBy::kProcess}, 0, 200),
              AllOf(HasSubstr("  PAST BROKER  "), HasSubstr("     3.00 GiB  ")));
  EXPECT_LT(Shown(data, {.by = TopBy::kProcess, .sort = TopSort::kName}).find("user-1001"),
            Shown(data, {.by = TopBy::kProcess, .sort = TopSort::kName}).find("4242"));
}

// A column is dropped before a name is truncated.
TEST(TopViewTest, LongNamesAreWholeIn80Columns) {
  TopData data = Data();
  data.tenants.mutable_tenants(0)->mutable_usage()->set_tenant("pod-0a1b2c3d4e5f6789");
  data.tenants.mutable_tenants(0)->mutable_usage()->set_denials(1000000);
  const std::string tenants = Shown(data, {});
  EXPECT_THAT(tenants, AllOf(HasSubstr("pod-0a1b2c3d4e5f6789  "), HasSubstr("LINGERING")));
  data.sessions.mutable_sessions(0)->set_tenant("slurm-job-123456");
  data.sessions.mutable_sessions(0)->set_command("python3.11-train");
  EXPECT_THAT(Shown(data, {.by = TopBy::kProcess}), HasSubstr("slurm-job-123456  "));
}

TEST(TopViewTest, ByDevice) {
  const std::string text = Shown(Data(), {.by = TopBy::kDevice}, 0, 200);
  EXPECT_THAT(text,
              HasSubstr("DEVICE           NAME             HELD    LEASED   RETAINED   LINGERING  "
                        "PAST BROKER      FREE  TENANTS\n"
                        "0 HOST-00000000  host memory  1.34 GiB  1.06 GiB  32.00 MiB  256.00 MiB  "
                        "          -  6.66 GiB        2\n"
                        "1 HOST-00000001  host memory       0 B         -          -           -  "
                        "   1.00 GiB  7.00 GiB        0\n"));
}

TEST(TopViewTest, EveryLineFitsTheScreenWhateverItIs) {
  for (const size_t columns : {20u, 60u, 80u, 200u}) {
    for (const size_t rows : {1u, 2u, 5u, 24u, 60u}) {
      for (const TopBy by : {TopBy::kTenant, TopBy::kProcess, TopBy::kDevice}) {
        for (const bool help : {false, true}) {
          TopState state{.by = by, .help = help};
          const std::vector<Line> lines = TopView(ManyTenants(40), rows, columns, &state);
          EXPECT_EQ(lines.size(), rows);
          for (const Line& line : lines) {
            EXPECT_LE(WidthOf(line.ToString(false, columns)), columns);
          }
        }
      }
    }
  }
  // In 80 columns only names are truncated.
  TopState state;
  for (const Line& line : TopView(ManyTenants(40), 24, 80, &state)) EXPECT_LE(line.width(), 80u);
}

TEST(TopViewTest, ScrollsAndStopsAtTheEnds) {
  const TopData data = ManyTenants(40);
  TopState state;
  const size_t page = TopPage(data, 24);
  EXPECT_EQ(page, 18u);
  EXPECT_THAT(Shown(data, state, 24), AllOf(HasSubstr("t00"), HasSubstr("t17"),
                                            Not(HasSubstr("t18")), HasSubstr("1-18 of 40")));
  EXPECT_TRUE(Press({Key::kDown}, page, &state));
  EXPECT_THAT(Shown(data, state, 24),
              AllOf(Not(HasSubstr("t00")), HasSubstr("t18"), HasSubstr("2-19 of 40")));
  EXPECT_TRUE(Press({Key::kPageDown}, page, &state));
  EXPECT_THAT(Shown(data, state, 24), HasSubstr("20-37 of 40"));
  EXPECT_TRUE(Press({Key::kEnd}, page, &state));
  TopView(data, 24, 80, &state);
  EXPECT_EQ(state.first, 22u);
  EXPECT_TRUE(Press({Key::kPageUp}, page, &state));
  EXPECT_EQ(state.first, 4u);
  EXPECT_TRUE(Press({Key::kPageUp}, page, &state));
  EXPECT_EQ(state.first, 0u);
  EXPECT_TRUE(Press({Key::kUp}, page, &state));
  EXPECT_EQ(state.first, 0u);
}

TEST(TopViewTest, KeysChangeWhatIsSeen) {
  TopState state;
  EXPECT_TRUE(Press(Character('p'), 10, &state));
  EXPECT_EQ(state.by, TopBy::kProcess);
  for (const TopSort sort : {TopSort::kName, TopSort::kCount, TopSort::kAge, TopSort::kSize}) {
    EXPECT_TRUE(Press(Character('s'), 10, &state));
    EXPECT_EQ(state.sort, sort);
  }
  state.sort = TopSort::kAge;
  EXPECT_TRUE(Press(Character('d'), 10, &state));
  EXPECT_EQ(state.by, TopBy::kDevice);
  EXPECT_EQ(state.sort, TopSort::kSize);  // devices have no age
  for (const TopSort sort : {TopSort::kName, TopSort::kCount, TopSort::kSize}) {
    EXPECT_TRUE(Press(Character('s'), 10, &state));
    EXPECT_EQ(state.sort, sort);
  }
  EXPECT_TRUE(Press(Character('t'), 10, &state));
  EXPECT_EQ(state.by, TopBy::kTenant);
  EXPECT_TRUE(Press(Character('b'), 10, &state));
  EXPECT_TRUE(state.exact);
  EXPECT_TRUE(Press(Character('?'), 10, &state));
  EXPECT_THAT(Shown(Data(), state, 24), HasSubstr("by tenant, process, device"));
  EXPECT_TRUE(Press({Key::kEscape}, 10, &state));
  EXPECT_FALSE(state.help);
  EXPECT_TRUE(Press({Key::kOther}, 10, &state));
  EXPECT_TRUE(Press(Character('x'), 10, &state));
  EXPECT_FALSE(Press(Character('q'), 10, &state));
}

TEST(TopViewTest, SaysWhatIsWrong) {
  TopData data = Data();
  data.status.set_draining(true);
  data.status.add_notices("persistence mode is off");
  const std::string text = Shown(data, {.trouble = "no answer for 3s"}, 0, 200);
  EXPECT_THAT(text, HasSubstr("draining  1 notice (status)  no answer for 3s\n"));
}

}  // namespace
}  // namespace gpumem::cli
