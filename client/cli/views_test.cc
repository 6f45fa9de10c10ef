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
  EXPECT_EQ(
      DevicesView(TwoDevices(), false),
      "INDEX  NAME         UUID                                       BACKEND  CAPACITY   CHARGED"
      "  USED  DRIVER FREE  KINDS\n"
      "    0  host memory  HOST-00000000-0000-0000-0000-000000000000  host     8.00 GiB  1.50 GiB"
      "   19%            -  vmm\n"
      "    1  host memory  HOST-00000001-0000-0000-0000-000000000000  host     8.00 GiB       0 B"
      "    0%     7.00 GiB  vmm\n");
  EXPECT_EQ(DevicesView({}, false), "The daemon has no devices.\n");
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
  EXPECT_EQ(SegmentsView({}, {}, false), "No segments.\n");
}

TEST(ViewsTest, Tenants) {
  EXPECT_EQ(TenantsView(TwoTenants(), false),
            "TENANT       CHARGED  LIMIT EACH DEVICE  LIMIT IN ALL  SEGMENTS  SESSIONS  DENIALS  "
            "MADE BY\n"
            "training   64.00 MiB           4.00 GiB          none   2 of 16         1        0  "
            "configuration\n"
            "user-1001   1.00 GiB          by device      2.00 GiB         1         1        3  "
            "rule\n");
  EXPECT_EQ(TenantsView({}, false), "No tenants.\n");
}

TEST(ViewsTest, Quota) {
  v1::Quota quota;
  quota.set_limit_bytes(4 * kGiB);
  quota.set_max_segments(16);
  quota.set_max_retained_bytes(0);
  v1::Usage usage;
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
  EXPECT_EQ(
      QuotaView(quota, usage, TwoDevices(), false),
      "TENANT training                     USED  LIMIT\n"
      "bytes on all devices           64.00 MiB   none\n"
      "segments                               1     16\n"
      "sessions                               2   none\n"
      "calls in flight                        0   none\n"
      "retained bytes on each device               0 B\n"
      "denials                                0      -\n"
      "\n"
      "DEVICE             CHARGED     LIMIT  USED     LEASED  RETAINED  LINGERING      PEAK\n"
      "0 HOST-00000000  64.00 MiB  4.00 GiB    2%  64.00 MiB       0 B        0 B  1.00 GiB\n");
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
      "TENANT       CHARGED  LIMIT EACH DEVICE  LIMIT IN ALL  SEGMENTS  SESSIONS  DENIALS  "
      "MADE BY\n"
      "user-1001   1.00 GiB          by device      2.00 GiB         1         1        3  rule\n"
      "training   64.00 MiB           4.00 GiB          none   2 of 16         1        0  "
      "configuration\n"
      "\n"
      "SESSION  TENANT     STATE       PID   UID  NAME       COMMAND  LEASES     LEASED    AGE\n"
      "     12  user-1001  lingering     7  1001                           0   1.00 GiB  1d01h\n"
      "      7  training   live       4242  1000  trainer-3  python3       2  64.00 MiB  3m05s\n");
}

}  // namespace
}  // namespace gpumem::cli
