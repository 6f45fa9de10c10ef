// SPDX-License-Identifier: Apache-2.0
// What a broker is made of, and what it inherits.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/node_clock.h"
#include "common/unique_fd.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/continuity.h"
#include "daemon/core/broker/observer.h"
#include "daemon/core/broker/suspension/copies.h"
#include "daemon/core/broker/threads.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/device/device.h"

namespace gpumemd {

struct BrokerOptions {
  std::vector<std::unique_ptr<Device>> devices;
  Bounds bounds;
  Revocations::Times revocation;
  SwapPolicy::Times swaps;
  std::function<absl::Time()> now = absl::Now;
  // For byte-seconds (admission/usage.h).
  UsageClock usage_clock = [] { return absl::Nanoseconds(gpumem::NodeClockNs()); };
  // Returns unguessable bits.
  std::function<Secret()> random;
  BrokerObserver* observer = nullptr;  // outlives the broker
  Continuity* continuity = nullptr;    // outlives the broker; null: nothing survives this process
  // Sign of life, for a watchdog. The broker's clock thread calls it right after it has held the
  // mutex, and without the mutex. It is called every `heartbeat_interval`. After a change it is
  // called as soon as `heartbeat_pause` has passed since the last call. No device call can delay
  // it. Must return soon.
  std::function<void(const BrokerLoad&)> heartbeat;  // null: no heartbeat, at no cost
  absl::Duration heartbeat_interval = absl::InfiniteDuration();
  absl::Duration heartbeat_pause = absl::Seconds(1);
  AuditSink* audit = nullptr;  // outlives the broker; null: no audit
  Threads* threads = nullptr;  // outlives the broker; null: the system's
  // How long contents wait until a further thread begins to copy them to the host tier.
  absl::Duration copy_hold = Copies::kHold;
};

// State that an earlier broker has left.
struct Inheritance {
  JournalImage image;
  absl::flat_hash_map<SegmentId, gpumem::UniqueFd> memory;
  absl::flat_hash_map<PublicationId, gpumem::UniqueFd> metadata;
  // Sessions whose processes are alive, with their present details.
  absl::btree_map<SessionId, SessionDetails> sessions;
};

}  // namespace gpumemd
