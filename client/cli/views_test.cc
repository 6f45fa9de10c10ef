#include "client/cli/views.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "client/cli/format.h"

namespace gpumem::cli {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr char kUuid0[] = "HOST-00000000-0000-0000-0000-000000000000";
constexpr char kUuid1[] = "HOST-00000001-0000-0000-0000-000000000000";
constexpr char kPinnedUuid[] = "PINNED-00000000-0000-0000-0000-000000000000";

DeviceList TwoDevices() {
  DeviceList devices(2);
  for (uint32_t i = 0; i < 2; ++i) {
    devices[i].set_index(i);
    devices[i].set_name("host memory");
    devices[i].set_backend(v1::BACKEND_HOST);
    devices[i].set_device_uuid(i == 0 ? kUuid0 : kUuid1);
    devices[i].set_capacity_bytes(8 * kGiB);
    devices[i].add_kinds(v1::KIND_VMM);
  }
  devices[0].set_charged_bytes(3 * kGiB / 2);
  devices[1].set_driver_free_bytes(7 * kGiB);
  return devices;
}

// As a node shows them that has two GPUs with a link between them and a third without.
DeviceList GpusAndPinnedMemory() {
  DeviceList devices(4);
  for (uint32_t i = 0; i < 3; ++i) {
    devices[i].set_index(i);
    devices[i].set_name("NVIDIA H200");
    devices[i].set_backend(v1::BACKEND_CUDA);
    devices[i].set_device_uuid("GPU-" + std::to_string(i) + "f2b1a30-0000-0000-0000-000000000000");
    devices[i].set_capacity_bytes(139 * kGiB);
    devices[i].set_driver_free_bytes(100 * kGiB);
    for (v1::Kind kind : {v1::KIND_VMM, v1::KIND_MEMPOOL, v1::KIND_IPC}) devices[i].add_kinds(kind);
  }
  devices[1].set_context_pid(4242);
  for (uint32_t i = 0; i < 3; ++i) {
    for (uint32_t j = 0; j < 3; ++j) {
      if (i == j) continue;
      v1::PeerAccess* peer = devices[i].add_peers();
      peer->set_device_uuid(devices[j].device_uuid());
      peer->set_access(i + j != 2);
      peer->set_native_atomics(i + j == 1);
      peer->set_performance_rank(i + j == 3 ? 1 : 0);
    }
  }
  devices[3].set_index(3);
  devices[3].set_name("host memory");
  devices[3].set_backend(v1::BACKEND_HOST);
  devices[3].set_device_uuid(kPinnedUuid);
  devices[3].set_capacity_bytes(64 * kGiB);
  devices[3].set_charged_bytes(kGiB);
  devices[3].add_kinds(v1::KIND_PINNED);
  return devices;
}

v1::ListSessionsResponse TwoSessions() {
  v1::ListSessionsResponse response;
  v1::SessionInfo* session = response.add_sessions();
  session->set_session_id(7);
  session->set_tenant("training");
  session->set_state(v1::SessionInfo::STATE_LIVE);
  session->set_pid(4242);
  session->set_uid(1000);
  session->set_client_name("trainer-3");
  session->set_command("python3");
  session->set_leases(2);
  session->set_leased_bytes(64 * kMiB);
  session->set_age_ms(185'000);
  session = response.add_sessions();
  session->set_session_id(12);
  session->set_tenant("user-1001");
  session->set_state(v1::SessionInfo::STATE_LINGERING);
  session->set_pid(7);
  session->set_uid(1001);
  session->set_leased_bytes(kGiB);
  session->set_age_ms(90'000'000);
  return response;
}

v1::ListTenantsResponse TwoTenants() {
  v1::ListTenantsResponse response;
  v1::TenantInfo* tenant = response.add_tenants();
  tenant->mutable_usage()->set_tenant("training");
  tenant->mutable_usage()->set_charged_bytes(64 * kMiB);
  tenant->mutable_usage()->set_segments(2);
  tenant->mutable_usage()->set_sessions(1);
  tenant->mutable_quota()->set_limit_bytes(4 * kGiB);
  tenant->mutable_quota()->set_max_segments(16);
  tenant->mutable_quota()->set_pinned_limit_bytes(kGiB);
  v1::DeviceUsage* pinned = tenant->mutable_usage()->add_devices();
  pinned->set_device_uuid(kPinnedUuid);
  pinned->set_charged_bytes(8 * kMiB);
  tenant->set_configured(true);
  tenant = response.add_tenants();
  tenant->mutable_usage()->set_tenant("user-1001");
  tenant->mutable_usage()->set_charged_bytes(kGiB);
  tenant->mutable_usage()->set_segments(1);
  tenant->mutable_usage()->set_sessions(1);
  tenant->mutable_usage()->set_denials(3);
  tenant->mutable_quota()->set_total_limit_bytes(2 * kGiB);
  tenant->mutable_quota()->add_devices()->set_device_uuid(kUuid0);
  return response;
}

v1::GetStatusResponse Status() {
  v1::GetStatusResponse status;
  status.set_version("0.1.0");
  status.set_pid(4242);
  status.set_backend(v1::BACKEND_HOST);
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
            "there is no device \"GPU\" (gpumemctl devices lists those that there are)");
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
  EXPECT_EQ(StatusView(status, false),
            "gpumemd 0.1.0 (pid 4242), up 3m05s, draining: admits nothing new\n"
            "backend      host\n"
            "runtime dir  /run/gpumem\n"
            "config       /etc/gpumem/gpumemd.toml\n"
            "holds        1 segment for 2 sessions and 2 tenants\n"
            "notice       persistence mode is off\n"
            "\n"
            "The daemon has no devices.\n");
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

TEST(ViewsTest, Tenants) {
  EXPECT_EQ(TenantsView(TwoTenants(), false),
            "TENANT       CHARGED      LIMIT  TOTAL LIMIT    PINNED     LIMIT  SEGMENTS  SESSIONS  "
            "DENIALS  MADE BY\n"
            "training   64.00 MiB   4.00 GiB         none  8.00 MiB  1.00 GiB   2 of 16         1  "
            "      0  config\n"
            "user-1001   1.00 GiB  by device     2.00 GiB       0 B      none         1         1  "
            "      3  rule\n");
  EXPECT_EQ(TenantsView({}, false), "No tenants.\n");
}

// What the daemon says of a tenant with a limit, an override of it, and pinned memory.
v1::GetQuotaResponse TrainingQuota() {
  v1::GetQuotaResponse response;
  v1::Quota& quota = *response.mutable_quota();
  quota.set_limit_bytes(4 * kGiB);
  quota.set_max_segments(16);
  quota.set_max_retained_bytes(0);
  quota.set_pinned_limit_bytes(kGiB);
  v1::Usage& usage = *response.mutable_usage();
  usage.set_tenant("training");
  usage.set_charged_bytes(64 * kMiB);
  usage.set_segments(1);
  usage.set_sessions(2);
  v1::DeviceUsage* device = usage.add_devices();
  device->set_device_uuid(kUuid0);
  device->set_charged_bytes(64 * kMiB);
  device->set_leased_bytes(64 * kMiB);
  device->set_limit_bytes(4 * kGiB);
  device->set_peak_bytes(kGiB);
  device = usage.add_devices();
  device->set_device_uuid(kPinnedUuid);
  device->set_charged_bytes(2 * kMiB);
  device->set_retained_bytes(2 * kMiB);
  device->set_limit_bytes(kGiB);
  device->set_peak_bytes(2 * kMiB);
  return response;
}

DeviceList TwoDevicesAndPinnedMemory() {
  DeviceList devices = TwoDevices();
  devices.push_back(GpusAndPinnedMemory().back());
  return devices;
}

TEST(ViewsTest, Quota) {
  EXPECT_EQ(
      QuotaView(TrainingQuota(), TwoDevicesAndPinnedMemory(), false),
      "TENANT training                     USED     LIMIT\n"
      "bytes on all devices           64.00 MiB      none\n"
      "bytes of pinned host memory     2.00 MiB  1.00 GiB\n"
      "segments                               1        16\n"
      "sessions                               2      none\n"
      "calls in flight                        0      none\n"
      "requests that wait                     0      none\n"
      "retained bytes on each device                  0 B\n"
      "denials                                0         -\n"
      "\n"
      "SETTING\n"
      "under tenant  -\n"
      "priority      0\n"
      "kind          the device's default\n"
      "scrub         no\n"
      "revocable     no\n"
      "release       trust\n"
      "\n"
      "DEVICE             CHARGED     LIMIT  USED     LEASED  RETAINED  LINGERING      PEAK\n"
      "0 HOST-00000000  64.00 MiB  4.00 GiB    2%  64.00 MiB       0 B        0 B  1.00 GiB\n"
      "3 PINNED          2.00 MiB  1.00 GiB   <1%        0 B  2.00 MiB        0 B  2.00 MiB\n");
}

TEST(ViewsTest, QuotaWithGuaranteeAndWhatOperatorsSet) {
  v1::GetQuotaResponse response = TrainingQuota();
  v1::Quota& quota = *response.mutable_quota();
  quota.set_guarantee_bytes(32 * kMiB);
  quota.set_priority(-5);
  quota.set_kind(v1::KIND_IPC);
  quota.set_scrub(true);
  quota.set_revocable(true);
  quota.set_release(v1::RELEASE_POLICY_ON_EXIT);
  quota.set_parent("lab");
  quota.set_max_waiting(4);
  v1::Usage& usage = *response.mutable_usage();
  usage.set_waiting(1);
  usage.mutable_devices(0)->set_borrowed_bytes(32 * kMiB);
  usage.mutable_devices(0)->set_waiting(1);
  usage.mutable_devices(0)->set_waiting_bytes(8 * kMiB);
  for (const char* field : {"guarantee_bytes", "limit_bytes", "pinned_limit_bytes", "priority",
                            "max_waiting", "scrub"}) {
    response.add_overridden(field);
  }
  EXPECT_EQ(
      QuotaView(response, TwoDevicesAndPinnedMemory(), false),
      "TENANT training                     USED      LIMIT\n"
      "bytes on all devices           64.00 MiB       none\n"
      "bytes of pinned host memory     2.00 MiB  1.00 GiB*\n"
      "segments                               1         16\n"
      "sessions                               2       none\n"
      "calls in flight                        0       none\n"
      "requests that wait                     1         4*\n"
      "retained bytes on each device                   0 B\n"
      "denials                                0          -\n"
      "\n"
      "SETTING\n"
      "under tenant  lab\n"
      "priority      -5*\n"
      "kind          ipc\n"
      "scrub         yes*\n"
      "revocable     yes\n"
      "release       on-exit\n"
      "\n"
      "DEVICE             CHARGED   GUARANTEE   BORROWED      LIMIT  USED     LEASED  RETAINED  "
      "LINGERING      PEAK  WAITING FOR\n"
      "0 HOST-00000000  64.00 MiB  32.00 MiB*  32.00 MiB  4.00 GiB*    2%  64.00 MiB       0 B  "
      "      0 B  1.00 GiB     8.00 MiB\n"
      "3 PINNED          2.00 MiB           -          -  1.00 GiB*   <1%        0 B  2.00 MiB  "
      "      0 B  2.00 MiB          0 B\n"
      "* as operators set it, over what the configuration says (gpumemctl quota unset training "
      "takes it back)\n");
  EXPECT_NE(QuotaView(response, TwoDevicesAndPinnedMemory(), true).find(" 33554432* "),
            std::string::npos);
}

TEST(ViewsTest, TenantsStandUnderThatWhichTheyAreUnder) {
  v1::ListTenantsResponse response;
  const auto add = [&](const char* name, const char* parent) {
    v1::TenantInfo& tenant = *response.add_tenants();
    tenant.mutable_usage()->set_tenant(name);
    tenant.mutable_quota()->set_parent(parent);
    for (const char* uuid : {kUuid0, kUuid1, kPinnedUuid}) {
      v1::DeviceUsage& device = *tenant.mutable_usage()->add_devices();
      device.set_device_uuid(uuid);
      device.set_limit_bytes(4 * kGiB);
    }
    return &tenant;
  };
  v1::TenantInfo* alice = add("alice", "lab");
  alice->mutable_quota()->set_priority(3);
  alice->add_overridden("priority");
  alice->mutable_usage()->set_waiting(2);
  alice->mutable_quota()->set_max_waiting(4);
  v1::TenantInfo* lab = add("lab", "");
  lab->set_configured(true);
  // Bytes of a percentage are the same on equal devices.
  lab->mutable_quota()->add_devices()->set_device_uuid(kUuid0);
  v1::DeviceGuarantee& guarantee = *lab->mutable_quota()->add_guarantees();
  guarantee.set_device_uuid(kUuid0);
  guarantee.set_guarantee_bytes(kGiB);
  add("left", "gone")->add_overridden("scrub");
  EXPECT_EQ(TenantsView(response, false),
            "TENANT   CHARGED  GUARANTEE     LIMIT  PRIORITY  WAITING  SEGMENTS  SESSIONS  DENIALS "
            " MADE BY\n"
            "lab          0 B  by device  4.00 GiB         0        0         0         0        0 "
            " config\n"
            "  alice      0 B          -      none        3*   2 of 4         0         0        0 "
            " rule\n"
            "left         0 B          -      none         0        0         0         0        0 "
            " rule*\n"
            "* as operators set it (gpumemctl quota get TENANT shows what; quota unset takes it "
            "back)\n");
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

TEST(ViewsTest, TopPutsTheLargestFirst) {
  EXPECT_EQ(
      TopView(Status(), TwoTenants(), TwoSessions(), false),
      "gpumemd 0.1.0  host  up 3m05s  2 sessions  1 segment\n"
      "\n"
      "DEVICE           NAME          CHARGED  CAPACITY  USED\n"
      "0 HOST-00000000  host memory  1.50 GiB  8.00 GiB   19%  [####----------------]\n"
      "1 HOST-00000001  host memory       0 B  8.00 GiB    0%  [--------------------]\n"
      "\n"
      "TENANT       CHARGED      LIMIT  TOTAL LIMIT    PINNED     LIMIT  SEGMENTS  SESSIONS  "
      "DENIALS  MADE BY\n"
      "user-1001   1.00 GiB  by device     2.00 GiB       0 B      none         1         1  "
      "      3  rule\n"
      "training   64.00 MiB   4.00 GiB         none  8.00 MiB  1.00 GiB   2 of 16         1  "
      "      0  config\n"
      "\n"
      "SESSION  TENANT     STATE       PID   UID  NAME       COMMAND  LEASES     LEASED    AGE\n"
      "     12  user-1001  lingering     7  1001                           0   1.00 GiB  1d01h\n"
      "      7  training   live       4242  1000  trainer-3  python3       2  64.00 MiB  3m05s\n");
}

}  // namespace
}  // namespace gpumem::cli
