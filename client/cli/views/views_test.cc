// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/views.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "client/cli/text/format.h"
#include "client/cli/views/views_samples.h"

namespace gpumem::cli {
namespace {

v1::GetStatusResponse Status() {
  v1::GetStatusResponse status;
  status.set_version("0.1.0");
  status.set_pid(4242);
  status.set_backend(v1::BACKEND_HOST);
  status.set_cuda_toolkit("13.0");
  status.set_uptime_ms(185'000);
  status.set_sessions(2);
  status.set_tenants(2);
  status.set_segments(1);
  status.set_runtime_dir("/run/gpumem");
  for (const v1::Device& device : TwoDevices()) *status.add_devices() = device;
  return status;
}

TEST(FormatTest, Sizes) {
  EXPECT_EQ(Size(3 * kGiB / 2, false), "1.50 GiB");
  EXPECT_EQ(Size(3 * kGiB / 2, true), "1610612736");
}

TEST(FormatTest, Ages) {
  EXPECT_EQ(Age(0), "0ms");
  EXPECT_EQ(Age(999), "999ms");
  EXPECT_EQ(Age(59'999), "59s");
  EXPECT_EQ(Age(60'000), "1m00s");
  EXPECT_EQ(Age(3'599'000), "59m59s");
  EXPECT_EQ(Age(3'600'000), "1h00m");
  EXPECT_EQ(Age(86'400'000), "1d00h");
}

TEST(FormatTest, PercentNeverRoundsToNothingOrAll) {
  EXPECT_EQ(Percent(0, 0), "-");
  EXPECT_EQ(Percent(0, 10), "0%");
  EXPECT_EQ(Percent(1, 1000), "<1%");
  EXPECT_EQ(Percent(375, 1000), "38%");
  EXPECT_EQ(Percent(999, 1000), "99%");
  EXPECT_EQ(Percent(1000, 1000), "100%");
  EXPECT_EQ(Percent(1500, 1000), "150%");
}

TEST(FormatTest, ShortDeviceIsUnambiguous) {
  DeviceList devices = TwoDevices();
  EXPECT_EQ(ShortDevice(devices, kUuid0), "0 HOST-00000000");
  EXPECT_EQ(ShortDevice(devices, kUuid1), "1 HOST-00000001");
  EXPECT_EQ(ShortDevice(devices, "gone"), "gone");
  EXPECT_EQ(ShortDevice(GpusAndPinnedMemory(), kPinnedUuid), "3 PINNED");
  EXPECT_EQ(ResolveDevice(GpusAndPinnedMemory(), "PINNED").value(), kPinnedUuid);
  devices[1].set_device_uuid("TIER-00000000-0000-0000-0000-000000000000");
  EXPECT_EQ(ShortDevice(devices, devices[1].device_uuid()), "1 TIER");
  EXPECT_EQ(ResolveDevice(devices, "TIER").value(), devices[1].device_uuid());
  devices[1].set_device_uuid("HOST-00000000-0001-0000-0000-000000000000");
  EXPECT_EQ(ShortDevice(devices, kUuid0), "0 HOST-00000000-0000");
}

TEST(ResolveDeviceTest, ByIndexUuidOrBeginning) {
  DeviceList devices = TwoDevices();
  EXPECT_EQ(ResolveDevice(devices, "1").value(), kUuid1);
  EXPECT_EQ(ResolveDevice(devices, kUuid0).value(), kUuid0);
  EXPECT_EQ(ResolveDevice(devices, "HOST-00000001").value(), kUuid1);
  EXPECT_EQ(ResolveDevice(devices, "HOST-0").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ResolveDevice(devices, "2").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ResolveDevice(devices, "GPU").status().message(),
            "there is no device \"GPU\" (see gpumemctl devices)");
  EXPECT_EQ(ResolveDevice({}, "0").status().code(), absl::StatusCode::kNotFound);
}

TEST(ViewsTest, Devices) {
  EXPECT_EQ(DevicesView(TwoDevices(), false),
            "INDEX  UUID                                       NAME         BACKEND\n"
            "    0  HOST-00000000-0000-0000-0000-000000000000  host memory  host\n"
            "    1  HOST-00000001-0000-0000-0000-000000000000  host memory  host\n"
            "\n"
            "INDEX  CAPACITY   CHARGED  USED  DRIVER FREE  CONTEXT  KINDS\n"
            "    0  8.00 GiB  1.50 GiB   19%            -  -        vmm\n"
            "    1  8.00 GiB       0 B    0%     7.00 GiB  -        vmm\n");
  EXPECT_EQ(DevicesView({}, false), "The daemon has no devices.\n");
}

TEST(ViewsTest, DevicesWithPeers) {
  EXPECT_EQ(DevicesView(GpusAndPinnedMemory(), false),
            "INDEX  UUID                                         NAME         BACKEND\n"
            "    0  GPU-0f2b1a30-0000-0000-0000-000000000000     NVIDIA H200  cuda\n"
            "    1  GPU-1f2b1a30-0000-0000-0000-000000000000     NVIDIA H200  cuda\n"
            "    2  GPU-2f2b1a30-0000-0000-0000-000000000000     NVIDIA H200  cuda\n"
            "    3  PINNED-00000000-0000-0000-0000-000000000000  host memory  host\n"
            "\n"
            "INDEX    CAPACITY   CHARGED  USED  DRIVER FREE  CONTEXT   KINDS\n"
            "    0  139.00 GiB       0 B    0%   100.00 GiB  -         vmm,mempool,ipc\n"
            "    1  139.00 GiB       0 B    0%   100.00 GiB  pid 4242  vmm,mempool,ipc\n"
            "    2  139.00 GiB       0 B    0%   100.00 GiB  -         vmm,mempool,ipc\n"
            "    3   64.00 GiB  1.00 GiB    2%            -  -         pinned\n"
            "\n"
            "PEERS  0        1        2\n"
            "    0  self     yes+a 0  no\n"
            "    1  yes+a 0  self     yes 1\n"
            "    2  no       yes 1    self\n"
            "Whether the GPU of the row can use the memory of the column's.\n"
            "+a: with atomic operations of the link; number: the link's rank, 0 is the "
            "fastest.\n");
}

TEST(ViewsTest, Status) {
  v1::GetStatusResponse status = Status();
  EXPECT_EQ(StatusView(status, false),
            "gpumemd 0.1.0 (pid 4242), up 3m05s, admitting\n"
            "backend      host\n"
            "runtime dir  /run/gpumem\n"
            "config       built-in defaults\n"
            "holds        1 segment for 2 sessions and 2 tenants\n"
            "\n" +
                DevicesView(TwoDevices(), false));
  status.clear_devices();
  status.set_draining(true);
  status.set_config_file("/etc/gpumem/gpumemd.toml");
  status.add_notices("persistence mode is off");
  status.set_cuda_toolkit("");
  EXPECT_EQ(StatusView(status, false),
            "gpumemd 0.1.0 (pid 4242), up 3m05s, draining: admits nothing new\n"
            "backend      host, built without CUDA\n"
            "runtime dir  /run/gpumem\n"
            "config       /etc/gpumem/gpumemd.toml\n"
            "holds        1 segment for 2 sessions and 2 tenants\n"
            "notice       persistence mode is off\n"
            "\n"
            "The daemon has no devices.\n");
  status.clear_cuda_toolkit();  // an older daemon
  EXPECT_THAT(StatusView(status, false), testing::HasSubstr("backend      host\n"));
}

TEST(ViewsTest, Sessions) {
  EXPECT_EQ(
      SessionsView(TwoSessions(), false),
      "SESSION  TENANT     STATE       PID   UID  NAME       COMMAND  LEASES     LEASED    AGE\n"
      "      7  training   live       4242  1000  trainer-3  python3       2  64.00 MiB  3m05s\n"
      "     12  user-1001  lingering     7  1001                           0   1.00 GiB  1d01h\n");
  EXPECT_EQ(SessionsView({}, false), "No sessions.\n");
}

TEST(ViewsTest, WhoWaitsAndForWhat) {
  v1::ListWaitingResponse response;
  const DeviceList devices = TwoDevices();
  EXPECT_EQ(WaitingView(response, devices, false), "");
  v1::WaitingInfo waiting;
  waiting.set_session_id(7);
  waiting.set_tenant("training");
  waiting.set_device_uuid(kUuid0);
  waiting.set_bytes(4 * kGiB);
  waiting.set_count(1);
  waiting.set_age_ms(12'000);
  waiting.set_position(1);
  v1::Denial& denial = *waiting.mutable_blocked_by();
  denial.set_cause(v1::Denial::CAUSE_CAPACITY);
  v1::Denial::Holder* holder = denial.add_holders();
  holder->set_tenant("serving");
  holder->set_used(6 * kGiB);
  *response.add_waiting() = waiting;
  denial.Clear();
  denial.set_cause(v1::Denial::CAUSE_DEVICE_LIMIT);
  denial.set_limit(8 * kGiB);
  denial.set_limited_tenant("team");
  waiting.set_position(2);
  waiting.set_count(3);
  *response.add_waiting() = waiting;
  denial.Clear();
  waiting.set_position(3);
  *response.add_waiting() = waiting;
  EXPECT_EQ(
      WaitingView(response, devices, false),
      "\nWaiting for memory, in the order in which they are served:\n"
      "PLACE  DEVICE           SESSION  TENANT        ASKS FOR  WAITS  FOR\n"
      "    1  0 HOST-00000000        7  training      4.00 GiB    12s  memory of serving (6.00 "
      "GiB)\n"
      "    2  0 HOST-00000000        7  training  3 x 4.00 GiB    12s  tenant team's limit of 8.00 "
      "GiB\n"
      "    3  0 HOST-00000000        7  training  3 x 4.00 GiB    12s  memory on its way back\n");
}

TEST(ViewsTest, MemoryPastTheBrokerIsShownWhereThereIsAny) {
  v1::ListSessionsResponse sessions = TwoSessions();
  sessions.mutable_sessions(0)->set_unbrokered_bytes(3 * kGiB / 2);
  EXPECT_EQ(SessionsView(sessions, false),
            "SESSION  TENANT     STATE       PID   UID  NAME       COMMAND  LEASES     LEASED  "
            "UNBROKERED    AGE\n"
            "      7  training   live       4242  1000  trainer-3  python3       2  64.00 MiB  "
            "  1.50 GiB  3m05s\n"
            "     12  user-1001  lingering     7  1001                           0   1.00 GiB  "
            "         -  1d01h\n");
  v1::GetStatusResponse status = Status();
  v1::ForeignProcess* process = status.add_foreign_processes();
  process->set_device_uuid(kUuid1);
  process->set_pid(4711);
  process->set_command("python3");
  process->set_bytes(kGiB);
  process = status.add_foreign_processes();
  process->set_device_uuid(kUuid0);
  const std::string view = StatusView(status, false);
  EXPECT_EQ(view.substr(view.rfind("\n\n") + 2),
            "DEVICE            PID  COMMAND      USES\n"
            "1 HOST-00000001  4711  python3  1.00 GiB\n"
            "0 HOST-00000000     -                  -\n"
            "Used by processes without a session: 1.00 GiB.\n");
}

TEST(ViewsTest, ASessionThatIsAway) {
  v1::ListSessionsResponse response;
  response.add_sessions()->set_state(v1::SessionInfo::STATE_AWAY);
  EXPECT_THAT(SessionsView(response, false), ::testing::HasSubstr("away"));
}

TEST(ViewsTest, SuspendedMemory) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  using ::testing::Not;
  v1::ListSessionsResponse sessions = TwoSessions();
  EXPECT_THAT(SessionsView(sessions, false), Not(HasSubstr("SUSPENDED")));
  sessions.mutable_sessions(0)->set_suspended_bytes(8 * kMiB);
  EXPECT_THAT(SessionsView(sessions, false),
              AllOf(HasSubstr("  LEASED  SUSPENDED  "), HasSubstr("64.00 MiB   8.00 MiB  "),
                    HasSubstr("1.00 GiB          -  "), Not(HasSubstr("DEMOTED"))));
  sessions.mutable_sessions(1)->set_demoted_bytes(kMiB);
  EXPECT_THAT(SessionsView(sessions, false),
              AllOf(HasSubstr("  SUSPENDED   DEMOTED  "), HasSubstr("  -  1.00 MiB  ")));

  DeviceList devices = TwoDevices();
  v1::Device& tier = devices.emplace_back();
  tier.set_index(2);
  tier.set_device_uuid("TIER-00000000-0000-0000-0000-000000000000");
  v1::ListSegmentsResponse segments;
  v1::SegmentInfo* segment = segments.add_segments();
  segment->set_device_uuid(tier.device_uuid());
  segment->set_home_uuid(kUuid1);
  segment->set_kind(v1::KIND_TIER);
  segment->set_state(v1::SegmentInfo::STATE_LEASED);
  segment->set_leases(2);
  segment->set_suspended(2);
  *segments.add_segments() = *segment;
  segment = segments.mutable_segments(1);
  segment->set_device_uuid(kUuid1);
  segment->clear_home_uuid();
  segment->set_suspended(1);
  EXPECT_THAT(SegmentsView(segments, devices, false),
              AllOf(HasSubstr("2 TIER of 1 HOST-00000001  tier"), HasSubstr("  leased, suspended "),
                    HasSubstr("  leased, partly suspended ")));
  segments.mutable_segments(0)->set_dropped_bytes(kMiB);
  EXPECT_THAT(SegmentsView(segments, devices, false), HasSubstr("  leased, suspended, dropped "));
  segments.mutable_segments(1)->set_kind(v1::KIND_HOST);
  segments.mutable_segments(1)->set_home_uuid(kUuid1);
  EXPECT_THAT(SegmentsView(segments, devices, false), HasSubstr(", demoted "));
}

TEST(ViewsTest, Publications) {
  v1::ListPublicationsResponse response;
  v1::PublicationInfo* one = response.add_publications();
  one->set_tenant("training");
  one->set_name("weights");
  one->set_version(3);
  one->set_segments(60);
  one->set_bytes(1208 * kMiB);
  one->set_access(v1::PUBLICATION_ACCESS_ANY);
  one->set_attached_sessions(2);
  one->set_publisher_pid(4711);
  one->set_publisher_client_name("loader");
  one->set_age_ms(5000);
  one = response.add_publications();
  one->set_tenant("b");
  one->set_name("cache");
  one->set_version(1);
  one->set_segments(1);
  one->set_bytes(kMiB);
  one->set_expire_after_ms(60000);
  one->set_expires_in_ms(30000);
  EXPECT_EQ(
      PublicationsView(response, false),
      "PUBLICATION       VERSION  SEGMENTS      SIZE  FOR         ATTACHED  STAYS             "
      " PUBLISHER                AGE\n"
      "training/weights        3        60  1.18 GiB  any tenant         2  until unpublished "
      " loader (pid 4711, gone)   5s\n"
      "b/cache                 1         1  1.00 MiB  its tenant         0  for 30s           "
      " -                        0ms\n");
  response.mutable_publications(0)->set_publisher_alive(true);
  response.mutable_publications(0)->set_ephemeral(true);
  response.mutable_publications(1)->set_expires_in_ms(0);
  const std::string view = PublicationsView(response, false);
  EXPECT_THAT(view, ::testing::HasSubstr("with its publisher  loader (pid 4711)"));
  EXPECT_THAT(view, ::testing::HasSubstr("in use, then 1m00s"));
  EXPECT_EQ(PublicationsView({}, false), "No publications.\n");
}

TEST(ViewsTest, Segments) {
  v1::ListSegmentsResponse response;
  v1::SegmentInfo* segment = response.add_segments();
  segment->set_segment_id(9);
  segment->set_tenant("training");
  segment->set_device_uuid(kUuid1);
  segment->set_kind(v1::KIND_VMM);
  segment->set_size_bytes(64 * kMiB);
  segment->set_state(v1::SegmentInfo::STATE_LEASED);
  segment->add_session_ids(7);
  segment->add_session_ids(8);
  segment->set_leases(2);
  segment->set_age_ms(5000);
  segment = response.add_segments();
  segment->set_segment_id(10);
  segment->set_tenant("b");
  segment->set_device_uuid(kUuid0);
  segment->set_kind(v1::KIND_VMM);
  segment->set_size_bytes(kMiB);
  segment->set_state(v1::SegmentInfo::STATE_RETAINED);
  EXPECT_EQ(
      SegmentsView(response, TwoDevices(), false),
      "SEGMENT  TENANT    DEVICE           KIND       SIZE  STATE     LEASES  SESSIONS  AGE\n"
      "      9  training  1 HOST-00000001  vmm   64.00 MiB  leased         2  7,8        5s\n"
      "     10  b         0 HOST-00000000  vmm    1.00 MiB  retained       0  -         0ms\n");
  response.mutable_segments(0)->set_kind(v1::KIND_MEMPOOL);
  response.mutable_segments(0)->set_lost(true);
  response.mutable_segments(1)->set_kind(v1::KIND_PINNED);
  EXPECT_EQ(SegmentsView(response, TwoDevices(), false),
            "SEGMENT  TENANT    DEVICE           KIND          SIZE  STATE         LEASES  "
            "SESSIONS  AGE\n"
            "      9  training  1 HOST-00000001  mempool  64.00 MiB  leased, lost       2  7,8     "
            "   5s\n"
            "     10  b         0 HOST-00000000  pinned    1.00 MiB  retained           0  -       "
            "  0ms\n");
  EXPECT_EQ(SegmentsView({}, {}, false), "No segments.\n");
}

TEST(ViewsTest, Pools) {
  PoolList pools(2);
  pools[0].set_tenant("training");
  pools[0].set_device_uuid(kUuid0);
  pools[0].set_segments(3);
  pools[0].set_max_bytes(4 * kGiB);
  pools[0].set_reserved_bytes(256 * kMiB);
  pools[0].set_reserved_peak_bytes(kGiB);
  pools[0].set_used_bytes(192 * kMiB);
  pools[0].set_used_peak_bytes(kGiB);
  pools[0].set_release_threshold_bytes(512 * kMiB);
  pools[0].set_reuse_follow_event_dependencies(true);
  pools[0].set_reuse_allow_opportunistic(true);
  pools[0].set_reuse_allow_internal_dependencies(true);
  pools[1].set_tenant("b");
  pools[1].set_device_uuid(kUuid1);
  pools[1].set_reuse_allow_internal_dependencies(true);
  pools[1].set_release_threshold_bytes(UINT64_MAX);
  EXPECT_EQ(
      PoolsView(pools, TwoDevices(), false),
      "TENANT    DEVICE           SEGMENTS    RESERVED      PEAK        USED      PEAK       MAX  "
      " THRESHOLD  REUSE\n"
      "training  0 HOST-00000000         3  256.00 MiB  1.00 GiB  192.00 MiB  1.00 GiB  4.00 GiB  "
      "512.00 MiB  eoi\n"
      "b         1 HOST-00000001         0         0 B       0 B         0 B       0 B      none  "
      "       all  --i\n"
      "REUSE across streams: e follows events, o opportunistic, i internal dependencies.\n");
  EXPECT_EQ(PoolsView({}, {}, false),
            "No pools: a tenant has one on a device while it has segments of kind mempool "
            "there.\n");
}

TEST(ViewsTest, Reload) {
  v1::ReloadResponse response;
  response.set_config_file("/etc/gpumem/gpumemd.toml");
  EXPECT_EQ(ReloadView(response), "Reloaded /etc/gpumem/gpumemd.toml: nothing is different.\n");
  response.add_changes("tenant \"a\": new");
  response.add_notices("persistence mode is off");
  EXPECT_EQ(ReloadView(response),
            "Reloaded /etc/gpumem/gpumemd.toml:\n"
            "  tenant \"a\": new\n"
            "notice: persistence mode is off\n");
}

TEST(ViewsTest, SessionsIn80Columns) {
  v1::ListSessionsResponse sessions = TwoSessions();
  sessions.mutable_sessions(0)->set_tenant("a-tenant-with-a-long-name");
  sessions.mutable_sessions(0)->set_command("a-long-command");
  EXPECT_EQ(SessionsView(sessions, false, 80),
            "SESSION  TENANT       STATE       PID  NAME       COMMAND          LEASED    AGE\n"
            "      7  a-tenant-w~  live       4242  trainer-3  a-long-comm~  64.00 MiB  3m05s\n"
            "     12  user-1001    lingering     7                            1.00 GiB  1d01h\n");
}

}  // namespace
}  // namespace gpumem::cli
