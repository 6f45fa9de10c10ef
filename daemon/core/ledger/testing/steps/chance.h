// SPDX-License-Identifier: Apache-2.0
// The random choices of the model test: tenants, amounts, limits. The numbers are small, so that
// requests often conflict.
#pragma once

#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "daemon/core/ledger/ledger.h"

namespace gpumemd::steps {

class Chance {
 public:
  explicit Chance(uint64_t seed) : random_(seed), long_queues_(In100(15)) {}

  // True if many requests wait, come and go in this episode.
  bool long_queues() const { return long_queues_; }

  uint64_t Below(uint64_t n) { return random_() % n; }
  bool In100(uint64_t percent) { return Below(100) < percent; }

  template <typename Container>
  auto& Of(Container& container) {
    return *std::next(container.begin(), static_cast<ptrdiff_t>(Below(container.size())));
  }

  std::string Tenant() {
    static constexpr const char* kTenants[] = {"alpha", "beta", "gamma", "uid1", "uid2"};
    return kTenants[Below(std::size(kTenants))];
  }

  std::vector<DeviceInfo> Devices() {
    return {{.uuid = "A",
             .capacity_bytes = 24 + Below(25),
             .granularity_bytes = 2,
             .kinds = {Kind::kVmm, Kind::kMempool, Kind::kDriver}},
            {.uuid = "B",
             .capacity_bytes = 30 + Below(34),  // often no multiple of 4
             .granularity_bytes = 4,
             .pool_granularity_bytes = 8,
             .kinds = {Kind::kVmm, Kind::kMempool, Kind::kIpc, Kind::kDriver}},
            {.uuid = "P",
             .capacity_bytes = 12 + Below(12),
             .granularity_bytes = 2,
             .kinds = {Kind::kPinned, Kind::kHost}}};
  }
  std::string Device() { return In100(45) ? "A" : In100(80) ? "B" : "P"; }

  Bounds DaemonBounds() {
    const bool few_leases = In100(40);
    const auto leases = [&](uint32_t least) {
      return few_leases ? least + static_cast<uint32_t>(Below(40)) : UINT32_MAX;
    };
    return {
        .max_sessions = (long_queues_ ? 12 : 6) + static_cast<uint32_t>(Below(4)),
        .max_segments = (long_queues_ && In100(70) ? 500 : 12) + static_cast<uint32_t>(Below(25)),
        .max_leases_per_session = leases(5),
        .max_leases_per_tenant = leases(8),
        .max_leases = leases(12),
        .max_claims_per_session = 2 + static_cast<uint32_t>(Below(3)),
        .max_claims_per_tenant = 3 + static_cast<uint32_t>(Below(4)),
        .max_waiting = (long_queues_ ? 40 : 2) + static_cast<uint32_t>(Below(4)),
        .max_events = 6 + static_cast<uint32_t>(Below(6)),
        .max_events_per_tenant = 3 + static_cast<uint32_t>(Below(5)),
        .max_events_per_session = 2 + static_cast<uint32_t>(Below(3)),
        .max_events_per_segment = 1 + static_cast<uint32_t>(Below(3)),
        .max_publications = 3 + static_cast<uint32_t>(Below(5)),
        .max_metadata_bytes = 60 + Below(100),
        .max_metadata_bytes_per_tenant = 40 + Below(60),
        .max_made_per_uid = 2 + static_cast<uint32_t>(Below(3)),
        .max_lasting_per_uid = 1 + static_cast<uint32_t>(Below(3))};
  }

  // Returns a kind that sessions can acquire.
  Kind AnyKind() {
    if (In100(5)) return Kind::kDriver;
    // Pools more often: their states are many.
    static constexpr Kind kKinds[] = {Kind::kVmm,     Kind::kMempool, Kind::kMempool,
                                      Kind::kMempool, Kind::kMempool, Kind::kIpc,
                                      Kind::kPinned,  Kind::kHost};
    return kKinds[Below(std::size(kKinds))];
  }

  // `sound`: all guarantees can be kept at the same time.
  Quota TenantQuota(bool sound) {
    Quota quota;
    if (In100(50)) quota.guarantee_bytes = Below(sound ? 9 : 30);
    if (In100(10)) quota.device_guarantees[Device()] = Below(sound ? 9 : 30);
    if (In100(60)) quota.priority = static_cast<int32_t>(Below(4)) - 1;
    if (In100(12)) quota.kind = AnyKind();
    if (In100(8)) quota.scrub = true;
    if (In100(8)) quota.revocable = true;
    if (In100(20)) quota.max_waiting = static_cast<uint32_t>(Below(long_queues_ ? 12 : 3));
    if (In100(25)) quota.max_publications = static_cast<uint32_t>(Below(4));
    if (In100(30)) quota.limit_bytes = Below(60);
    if (In100(15)) quota.device_limits[Device()] = Below(60);
    if (In100(25)) quota.total_limit_bytes = 6 + Below(70);
    if (In100(25)) quota.pinned_limit_bytes = Below(20);
    if (In100(25)) quota.max_segments = static_cast<uint32_t>(2 + Below(14));
    if (In100(25)) quota.max_sessions = static_cast<uint32_t>(Below(5));
    if (In100(30)) quota.max_in_flight = static_cast<uint32_t>(Below(5));
    if (In100(30)) quota.max_retained_bytes = 6 * Below(5);
    if (In100(15)) quota.device_max_retained[Device()] = 6 * Below(5);
    if (In100(20)) quota.release = ReleasePolicy::kOnExit;
    return quota;
  }

  // Returns the parent of a tenant: one that comes later, so that there are no cycles. Now and then
  // it makes a cycle, or does not exist.
  std::string Parent(const std::string& tenant) {
    if (In100(2)) return In100(50) ? "nobody" : Tenant();
    if (In100(50)) return "";
    if (tenant == "alpha") return In100(50) ? "beta" : "gamma";
    return tenant == "gamma" ? "" : In100(70) ? "gamma" : tenant == "beta" ? "" : "beta";
  }

  // Of common sizes or any size; few or many; now and then nonsense.
  AcquireSpec Spec(const std::vector<DeviceInfo>& devices) {
    AcquireSpec spec;
    const size_t device = Below(devices.size());
    const uint64_t capacity = devices[device].capacity_bytes;
    if (device != 0 || In100(50)) spec.device_uuid = devices[device].uuid;
    if (In100(1)) spec.device_uuid = "elsewhere";
    spec.bytes = 1 + Below(In100(80) ? 8 : capacity);
    if (In100(2)) spec.bytes = capacity + Below(2);
    if (In100(1)) spec.bytes = 0;
    spec.count = In100(70) ? 1 : static_cast<uint32_t>(1 + Below(5));
    if (In100(1)) {
      spec.count = In100(50) ? 0 : static_cast<uint32_t>(kMaxSegmentsPerCall + Below(2));
    }
    if (In100(50)) {
      spec.kind = In100(70) ? Of(devices[device].kinds) : AnyKind();
    }
    if (In100(1)) spec.kind = static_cast<Kind>(9);
    if (In100(15)) {
      spec.most_free = true;
      if (In100(95)) spec.device_uuid.clear();
      if (In100(30)) spec.among.push_back(In100(2) ? "elsewhere" : Device());
    }
    spec.waits = In100(long_queues_ ? 90 : 25);
    spec.revocable = In100(10);
    return spec;
  }

  // One of few processes, or one of which only the pid is known.
  PeerIdentity Process() {
    return {.pid = static_cast<pid_t>(1 + Below(4)), .start_time = In100(80) ? 1u : 0u};
  }

  // A name that is used often, or an invalid one.
  std::string EventName() {
    if (In100(3)) return In100(50) ? "" : In100(50) ? std::string(65, 'x') : "two\nlines";
    return std::string(1, static_cast<char>('a' + Below(4)));
  }

  // Never the same twice.
  Secret NewSecret() {
    Secret secret{};
    const uint64_t bits = ++secrets_;
    std::memcpy(secret.data(), &bits, sizeof bits);
    return secret;
  }

 private:
  std::mt19937_64 random_;
  const bool long_queues_;
  uint64_t secrets_ = 0;
};

}  // namespace gpumemd::steps
