// SPDX-License-Identifier: Apache-2.0
// The views in the wide form, and without headers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/cli/views/views.h"
#include "client/cli/views/views_samples.h"

namespace gpumem::cli {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// The first line of a view in the wide form, and the line that begins with `begin`.
std::string WideLines(const std::string& view, absl::string_view begin) {
  const std::vector<std::string> lines = absl::StrSplit(view, '\n');
  for (const std::string& line : lines) {
    if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), begin)) {
      return absl::StrCat(lines.front(), "\n", line);
    }
  }
  return view;
}

TEST(LayoutTest, TheWideFormHasWhatTablesHide) {
  const Layout wide(kAnyWidth, true, /*with_details=*/true);
  v1::ListSessionsResponse sessions = TwoSessions();
  sessions.mutable_sessions(0)->set_gid(1002);
  sessions.mutable_sessions(0)->set_rule("rule 2 (uid = 1000)");
  sessions.mutable_sessions(0)->set_cgroup("/train.slice/\x1b[2J");
  sessions.mutable_sessions(0)->set_serves_suspension(true);
  sessions.mutable_sessions(0)->set_swappable(true);
  sessions.mutable_sessions(0)->set_idle_ms(65'000);
  std::string ps = SessionsView(sessions, false, wide);
  EXPECT_THAT(WideLines(ps, "7"),
              AllOf(HasSubstr("  SUSPENDS    IDLE   GID  RULE                 CGROUP\n"),
                    EndsWith("  3m05s  swappable  1m05s  1002  rule 2 (uid = 1000)  "
                             "/train.slice/?[2J")));
  EXPECT_THAT(WideLines(ps, "12"), EndsWith("  -            0ms     0  -                    -"));
  sessions.mutable_sessions(0)->set_suspension_asked(true);
  sessions.mutable_sessions(1)->set_serves_suspension(true);
  ps = SessionsView(sessions, false, wide);
  EXPECT_THAT(WideLines(ps, "7"), HasSubstr("  asked     1m05s  "));
  EXPECT_THAT(WideLines(ps, "12"), HasSubstr("  operator    0ms  "));

  v1::ListWaitingResponse waiting;
  v1::WaitingInfo* request = waiting.add_waiting();
  request->set_position(1);
  request->set_kind(v1::KIND_IPC);
  request->set_revocable(true);
  request->set_device_uuid(kUuid0);
  EXPECT_THAT(WaitingView(waiting, TwoDevices(), false, wide),
              AllOf(HasSubstr("KIND  REVOCABLE  DEVICE UUID\n"),
                    HasSubstr(absl::StrCat("ipc   yes        ", kUuid0, "\n"))));

  v1::ListSegmentsResponse segments;
  segments.add_segments()->set_device_uuid(kUuid0);
  segments.mutable_segments(0)->set_publications(2);
  EXPECT_THAT(SegmentsView(segments, TwoDevices(), false, wide),
              AllOf(HasSubstr("  PUBLICATIONS  DEVICE UUID\n"),
                    HasSubstr(absl::StrCat("             2  ", kUuid0, "\n"))));

  v1::ListPublicationsResponse publications;
  v1::PublicationInfo* publication = publications.add_publications();
  publication->set_metadata_bytes(kMiB);
  publication->set_expire_after_ms(60'000);
  publication->set_publisher_session_id(7);
  publication->set_content_id("digest of many bytes");
  publications.add_publications();
  EXPECT_THAT(PublicationsView(publications, false, wide),
              AllOf(HasSubstr("  METADATA  EXPIRES AFTER  PUBLISHED BY  CONTENT\n"),
                    HasSubstr("  1.00 MiB          1m00s     session 7  646967657374206f\n"),
                    HasSubstr("       0 B              -             -  -\n")));

  DeviceList devices = GpusAndPinnedMemory();
  devices[0].set_pci_bus_id("00000000:1B:00.0");
  devices[0].set_granularity_bytes(2 * kMiB);
  devices[0].set_pool_granularity_bytes(32 * kMiB);
  EXPECT_THAT(DevicesView(devices, false, wide),
              AllOf(HasSubstr("  BACKEND  PCI BUS ID\n"), HasSubstr("cuda     00000000:1B:00.0\n"),
                    HasSubstr("  GRANULARITY   OF POOLS\n"), HasSubstr("2.00 MiB  32.00 MiB\n")));

  const v1::PoolInfo pool = [] {
    v1::PoolInfo info;
    info.set_device_uuid(kUuid1);
    return info;
  }();
  EXPECT_THAT(PoolsView({pool}, TwoDevices(), false, wide),
              HasSubstr(absl::StrCat("---    ", kUuid1, "\n")));
}

TEST(LayoutTest, WithoutHeadersThereAreRowsAlone) {
  const Layout bare(kAnyWidth, /*with_headers=*/false);
  EXPECT_EQ(DevicesView(TwoDevices(), false, bare),
            "    0  HOST-00000000-0000-0000-0000-000000000000  host memory  host\n"
            "    1  HOST-00000001-0000-0000-0000-000000000000  host memory  host\n"
            "\n"
            "    0  8.00 GiB  1.50 GiB   19%            -  -        vmm\n"
            "    1  8.00 GiB       0 B    0%     7.00 GiB  -        vmm\n");
  EXPECT_THAT(DevicesView(GpusAndPinnedMemory(), false, bare),
              EndsWith("\n\n    0  self     yes+a 0  no\n"
                       "    1  yes+a 0  self     yes 1\n"
                       "    2  no       yes 1    self\n"));
  v1::GetStatusResponse status;
  for (const v1::Device& device : TwoDevices()) *status.add_devices() = device;
  v1::ForeignProcess* process = status.add_foreign_processes();
  process->set_device_uuid(kUuid1);
  process->set_pid(4711);
  const std::string text = StatusView(status, false, bare);
  EXPECT_THAT(text, HasSubstr(DevicesView(TwoDevices(), false, bare)));
  EXPECT_THAT(text, MatchesRegex(".*\n\n1 HOST-00000001  4711 +-\n"));
  v1::ListWaitingResponse waiting;
  waiting.add_waiting()->set_count(1);
  EXPECT_THAT(WaitingView(waiting, TwoDevices(), false, bare),
              MatchesRegex("\n +0 +0 +0 B +0ms  memory on its way back\n"));
}

}  // namespace
}  // namespace gpumem::cli
