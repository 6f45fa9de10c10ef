// SPDX-License-Identifier: Apache-2.0
// The journal's records of tenants that were made at run time (ledger/made/made_tenants.h). A
// daemon that does not know them cannot do without them: it would give these tenants other limits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "daemon/core/ids.h"
#include "daemon/core/journal/types.h"

namespace gpumemd::journal {

struct MadeTenant {
  static constexpr Type kType = Type::kMadeTenant;
  using Key = MadeTenantId;

  MadeTenantId id{};
  int64_t created_ns = 0;
  SessionId session{};     // that made it, and may have ended; 0: an operator
  bool uid_known = false;  // of its maker
  uid_t uid = 0;
  bool ending = false;
  TenantName name;
  TenantName parent;  // empty: its base's
  OwnerTag owner;
  bool lasting = false;          // since version 7
  std::optional<uint32_t> user;  // the uid for whom an operator made it; since version 8

  Key key() const { return id; }
  static MadeTenant OfKey(Key key) { return {.id = key}; }
  static constexpr void KeyFields(auto& self, auto&& visit) { visit(self.id); }
  static constexpr void Fields(auto& self, auto&& visit) {
    visit(self.created_ns), visit(self.session), visit(self.uid_known), visit(self.uid),
        visit(self.ending), visit(self.name), visit(self.parent), visit(self.owner),
        visit(self.lasting), visit(self.user);
  }
  bool operator==(const MadeTenant&) const = default;
};

// The quota that it was made with (QuotaOverride), without the values of single devices. The bits
// of `set` and `clear` are the numbers of the fields (common/quota_keys.h). A value counts if its
// field is set.
struct MadeTenantQuota {
  static constexpr Type kType = Type::kMadeTenantQuota;
  using Key = MadeTenantId;

  MadeTenantId id{};
  uint64_t set = 0, clear = 0;
  uint64_t limit_bytes = 0, total_limit_bytes = 0, pinned_limit_bytes = 0, tier_limit_bytes = 0;
  uint64_t max_retained_bytes = 0, guarantee_bytes = 0;
  uint32_t max_segments = 0, max_sessions = 0, max_in_flight = 0, max_waiting = 0;
  uint32_t max_publications = 0;
  int32_t priority = 0;
  int64_t min_residence_ns = 0, idle_suspend_ns = 0;
  uint8_t kind = 0;  // its number (common/kind.h); 0: the device's default
  bool scrub = false, revocable = false, swappable = false;
  bool on_exit = false;  // ReleasePolicy::kOnExit
  uint8_t preload = 0;   // PreloadMode

  Key key() const { return id; }
  static MadeTenantQuota OfKey(Key key) { return {.id = key}; }
  static constexpr void KeyFields(auto& self, auto&& visit) { visit(self.id); }
  static constexpr void Fields(auto& self, auto&& visit) {
    visit(self.set), visit(self.clear), visit(self.limit_bytes), visit(self.total_limit_bytes),
        visit(self.pinned_limit_bytes), visit(self.tier_limit_bytes),
        visit(self.max_retained_bytes), visit(self.guarantee_bytes), visit(self.max_segments),
        visit(self.max_sessions), visit(self.max_in_flight), visit(self.max_waiting),
        visit(self.max_publications), visit(self.priority), visit(self.min_residence_ns),
        visit(self.idle_suspend_ns), visit(self.kind), visit(self.scrub), visit(self.revocable),
        visit(self.swappable), visit(self.on_exit), visit(self.preload);
  }
  bool operator==(const MadeTenantQuota&) const = default;
};

// The values for one device that it was made with. The index tells a tenant's devices apart, and
// means nothing else.
struct MadeTenantDevice {
  static constexpr Type kType = Type::kMadeTenantDevice;
  using Key = std::pair<MadeTenantId, uint32_t>;

  MadeTenantId tenant{};
  uint32_t index = 0;
  std::optional<uint64_t> limit_bytes;
  std::optional<uint64_t> guarantee_bytes;
  DeviceUuid device_uuid;

  Key key() const { return {tenant, index}; }
  static MadeTenantDevice OfKey(Key key) { return {.tenant = key.first, .index = key.second}; }
  static constexpr void KeyFields(auto& self, auto&& visit) {
    visit(self.tenant), visit(self.index);
  }
  static constexpr void Fields(auto& self, auto&& visit) {
    visit(self.limit_bytes), visit(self.guarantee_bytes), visit(self.device_uuid);
  }
  bool operator==(const MadeTenantDevice&) const = default;
};

// What a made tenant has used of a device (daemon/core/admission/usage.h), as of the last change of
// its charge. An older daemon does without it, and begins its figures anew.
struct MadeTenantUse {
  static constexpr Type kType = Type::kMadeTenantUse;
  using Key = std::pair<MadeTenantId, DeviceUuid>;

  MadeTenantId tenant{};
  DeviceUuid device_uuid;
  uint64_t byte_seconds = 0;
  uint32_t byte_ns = 0;  // above byte_seconds: byte-nanoseconds, less than one byte-second
  int64_t at_ns = 0;     // when the charge changed; by the clock that is monotonic for this boot
  uint64_t charged_bytes = 0;  // since then
  uint64_t peak_bytes = 0;

  Key key() const { return {tenant, device_uuid}; }
  static MadeTenantUse OfKey(const Key& key) {
    return {.tenant = key.first, .device_uuid = key.second};
  }
  static constexpr void KeyFields(auto& self, auto&& visit) {
    visit(self.tenant), visit(self.device_uuid);
  }
  static constexpr void Fields(auto& self, auto&& visit) {
    visit(self.byte_seconds), visit(self.byte_ns), visit(self.at_ns), visit(self.charged_bytes),
        visit(self.peak_bytes);
  }
  bool operator==(const MadeTenantUse&) const = default;
};

}  // namespace gpumemd::journal
