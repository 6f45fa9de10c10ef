// SPDX-License-Identifier: Apache-2.0
// What the CUDA driver takes for a process beyond what the process has charged: its context,
// modules, local memory.
//
// A process that has its driver's memory charged (kind driver) is to be charged for all of it. What
// the driver takes by itself is known afterwards only (daemon/unbrokered): it is charged without a
// question, also above a limit. A tenant above its limit gets nothing new.
//
// The charge is leases of kind driver that the session holds and does not know of. They have
// kOverheadTag, which no client can choose, and no client can release them. They end with the
// session or its process, and outlive the daemon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/leases.h"
#include "daemon/core/ledger/operations.h"
#include "daemon/core/ledger/records.h"

namespace gpumemd {

// Of one session on one device.
struct DriverOverhead {
  SessionId session{};
  std::string device_uuid;
  uint64_t bytes = 0;
};

// Returns INTERNAL if the session's sums of driver memory are wrong.
absl::Status CheckDriverBytes(const LedgerState& state, SessionId id,
                              const records::Session& session);

// Adds a session's driver memory to its view, and its overheads.
void AddDriverBytes(const LedgerState& state, const records::Session& session, SessionView& view);

class Overheads {
 public:
  // All must outlive this.
  Overheads(LedgerBase* base, Leases* leases, Operations* operations)
      : state_(base->state), leases_(*leases), operations_(*operations) {}

  // Charges the session's overhead on the device: about `bytes`, rounded down to the device's
  // granularity, and no more than the device has left. Returns the new segments: their memory
  // exists. Does nothing for a session that has ended, or an unknown device.
  std::vector<SegmentId> Set(const DriverOverhead& overhead);

 private:
  LedgerState& state_;
  Leases& leases_;
  Operations& operations_;
};

}  // namespace gpumemd
