// SPDX-License-Identifier: Apache-2.0
// The broker's measurements at one moment: plain values, for the metrics.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/core/admission/account.h"
#include "daemon/core/denial.h"
#include "daemon/core/latency.h"
#include "daemon/device/device.h"

namespace gpumemd {

inline constexpr size_t kKinds = std::size(gpumem::kKindTable);

// The ledger's part, all of the same moment.
struct LedgerMeasures {
  struct OnDevice {
    // Including the tenants under it.
    std::array<uint64_t, kSegmentStates> charged{};  // bytes, by SegmentState
    uint64_t limit = 0;
    uint64_t guarantee = 0;
    uint64_t revocable = 0;
    uint32_t waiting = 0;     // requests that asked to wait
    uint64_t waited_for = 0;  // bytes
    // Of this tenant's processes alone.
    uint64_t unbrokered = 0;
    bool ever_charged = false;
  };
  struct Tenant {
    std::string name;
    std::string parent;             // empty: none
    std::vector<OnDevice> devices;  // same order as `devices` below
    uint32_t sessions = 0;          // up to `demoted`: including tenants under it
    uint64_t segments = 0;
    uint32_t publications = 0;
    uint64_t demoted = 0;                       // bytes (records::Tenant::demoted_bytes)
    std::map<Denial::Cause, uint64_t> denials;  // of this tenant alone
  };
  struct Device {
    uint64_t charged = 0;
    // Bytes since the daemon began. The last two: moved to the host tier, and back.
    uint64_t reclaimed = 0, suspended = 0, resumed = 0;
  };
  std::vector<Tenant> tenants;  // by name
  std::vector<Device> devices;
  bool draining = false;
};

// Requests of the daemon that sessions suspend (SwapPolicy), since it began.
struct SwapCounts {
  uint64_t asked_for_waiters = 0, asked_idle = 0;
  uint64_t suspended = 0, ignored = 0, refused = 0, gone = 0;  // how they ended
};

struct Measures : LedgerMeasures {
  std::vector<DeviceInfo> device_infos;
  struct Acquires {
    Kind kind = Kind::kVmm;
    bool waited = false;
    LatencyCounts latency;  // from the request until its client had its descriptors
  };
  std::vector<Acquires> acquires;  // of all kinds that the devices make
  SwapCounts swaps;
  LatencyCounts suspends;    // until the contents were in the host tier
  LatencyCounts resumes[2];  // until the client had its descriptors, by whether it waited
  // How long the broker's mutex was held: each time, and at most.
  LatencyCounts lock_holds;
  absl::Duration longest_lock_hold;
};

}  // namespace gpumemd
