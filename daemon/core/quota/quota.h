// SPDX-License-Identifier: Apache-2.0
// A tenant's limits, in the units that the ledger counts in.
//
// The configuration also allows percentages of a device ("50%"). Before they get here, they are
// resolved to bytes for the devices that the daemon found (daemon/config/config.h). The bytes are
// in device_limits and device_max_retained.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "daemon/device/device.h"

namespace gpumemd {

enum class ReleasePolicy {
  kTrust,   // a client that releases a lease is trusted to have unmapped the memory
  kOnExit,  // the memory stays charged (lingering) until the client's process is gone
};

// How programs that know nothing of gpumem get memory (client/preload).
enum class PreloadMode {
  kAccount,  // the driver allocates, and the tenant is charged first
  kBroker,   // memory of gpumem, through a pool of the process
};

// The holders of requested memory that a denial names to a worker. Operators see all.
enum class HoldersShown {
  kAll,
  kOwn,  // the worker's tenant, and all under the same topmost tenant
  kNone,
};

// An absent limit is no limit of the tenant. The device's capacity then bounds bytes, and the
// daemon's own bounds limit counts.
struct Quota {
  std::optional<uint64_t> limit_bytes;            // on any one device
  std::map<std::string, uint64_t> device_limits;  // by UUID; overrides limit_bytes
  std::optional<uint64_t> total_limit_bytes;      // over all devices
  std::optional<uint64_t> pinned_limit_bytes;     // of pinned host memory; no other limit counts it
  std::optional<uint64_t> tier_limit_bytes;       // of the host tier; no other limit counts it
  std::optional<uint32_t> max_segments;
  std::optional<uint32_t> max_sessions;
  std::optional<uint32_t> max_in_flight;  // calls being answered at one time
  std::optional<uint32_t> max_waiting;    // requests that wait for memory at one time
  std::optional<uint32_t> max_publications;
  std::optional<uint64_t> max_retained_bytes;           // on any one device
  std::map<std::string, uint64_t> device_max_retained;  // by UUID; overrides max_retained_bytes
  std::optional<uint64_t> guarantee_bytes;              // on any one GPU, always available
  std::map<std::string, uint64_t> device_guarantees;    // by UUID; overrides guarantee_bytes
  int32_t priority = 0;                                 // among waiters: the higher first
  std::optional<Kind> kind;  // of requests that name none; absent: the device's default
  bool scrub = false;        // memory is never reused with its old contents
  bool revocable = false;    // all leases may be revoked
  bool swappable = false;    // sessions may be asked to suspend when others need their memory
  // How long a session keeps what it got or resumed, before it may be asked.
  absl::Duration min_residence = absl::Seconds(10);
  // After what time without activity it is asked although no request waits. Zero: never.
  absl::Duration idle_suspend = absl::ZeroDuration();
  ReleasePolicy release = ReleasePolicy::kTrust;
  std::optional<PreloadMode> preload;  // absent: as in the parent; without one, kAccount
  // The tenant whose quota this one's charges also count against; empty: none.
  std::string parent;

  bool operator==(const Quota&) const = default;
};

// Calls visit(FIELD, MEMBER) for each member of a Quota, in the order of the audit's changes. FIELD
// is its name in common/quota_keys.h. The name "max_retained_bytes" is there twice: its bytes on
// single devices come from percentages of the configuration, and the protocol does not have them.
template <typename Visit>
constexpr void ForEachQuotaField(Visit visit) {
  visit("limit_bytes", &Quota::limit_bytes);
  visit("devices", &Quota::device_limits);
  visit("total_limit_bytes", &Quota::total_limit_bytes);
  visit("pinned_limit_bytes", &Quota::pinned_limit_bytes);
  visit("tier_limit_bytes", &Quota::tier_limit_bytes);
  visit("max_segments", &Quota::max_segments);
  visit("max_sessions", &Quota::max_sessions);
  visit("max_in_flight", &Quota::max_in_flight);
  visit("max_waiting", &Quota::max_waiting);
  visit("max_publications", &Quota::max_publications);
  visit("max_retained_bytes", &Quota::max_retained_bytes);
  visit("max_retained_bytes", &Quota::device_max_retained);
  visit("guarantee_bytes", &Quota::guarantee_bytes);
  visit("guarantees", &Quota::device_guarantees);
  visit("priority", &Quota::priority);
  visit("kind", &Quota::kind);
  visit("scrub", &Quota::scrub);
  visit("revocable", &Quota::revocable);
  visit("swappable", &Quota::swappable);
  visit("min_residence_ms", &Quota::min_residence);
  visit("idle_suspend_ms", &Quota::idle_suspend);
  visit("release", &Quota::release);
  visit("preload", &Quota::preload);
  visit("parent", &Quota::parent);
}

}  // namespace gpumemd
