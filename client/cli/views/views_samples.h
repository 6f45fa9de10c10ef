// SPDX-License-Identifier: Apache-2.0
// Sample data for the tests of the views.
#pragma once

#include <cstdint>

#include "client/cli/views/views.h"
#include "common/bytes.h"

namespace gpumem::cli {

inline constexpr char kUuid0[] = "HOST-00000000-0000-0000-0000-000000000000";
inline constexpr char kUuid1[] = "HOST-00000001-0000-0000-0000-000000000000";
inline constexpr char kPinnedUuid[] = "PINNED-00000000-0000-0000-0000-000000000000";

inline DeviceList TwoDevices() {
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

// As on a node with two linked GPUs and a third without a link.
inline DeviceList GpusAndPinnedMemory() {
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

inline v1::ListSessionsResponse TwoSessions() {
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

inline v1::ListTenantsResponse TwoTenants() {
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

}  // namespace gpumem::cli
