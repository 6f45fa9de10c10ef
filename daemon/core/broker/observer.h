// SPDX-License-Identifier: Apache-2.0
// What the broker reports to the services and to people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"

namespace gpumemd {

// A session was denied memory that others have, or waits for it.
struct Pressure {
  std::string tenant;       // whose sessions, and those of tenants under it, might give memory;
                            // empty: all tenants above their guarantees
  std::string device_uuid;  // empty: any
  uint64_t bytes = 0;       // missing
  absl::Time until = absl::InfiniteFuture();  // when giving memory back no longer helps
};

// Callbacks from the broker to the services. Called under the broker's mutex, except ContextLost
// and EndProcess. Each must return at once and must not call the broker.
class BrokerObserver {
 public:
  virtual ~BrokerObserver() = default;
  // Nothing of this session is left: its process need not be watched any more.
  virtual void SessionForgotten(SessionId session) = 0;
  // The tenant's quota has changed; with an empty name, any tenant's may have.
  virtual void QuotaChanged(absl::string_view tenant) = 0;
  virtual void DrainingChanged(bool draining) = 0;
  // Some of the session's segments are lost.
  virtual void SegmentsLost(SessionId session) = 0;
  // Memory that others might give back was denied, or a request waits for it.
  virtual void Pressed(const Pressure& pressure) = 0;
  // Some of the session's leases are being revoked.
  virtual void Revoked(SessionId session) = 0;
  // An operator has asked the session to suspend its leases or to resume them, or the policy to
  // suspend them.
  virtual void SuspensionRequested(SessionId session) = 0;
  // The session's process did not give up revoked memory in time. It is to be asked to end
  // (SIGTERM), or with `kill` ended by force (SIGKILL).
  virtual void EndProcess(SessionId session, bool kill) = 0;
  // A device's context is gone, and `segments` segments with it.
  virtual void ContextLost(const std::string& device_uuid, size_t segments) = 0;
};

// The load, as shown to people.
struct BrokerLoad {
  size_t sessions = 0;
  uint64_t charged = 0;  // on all devices, without pinned memory
  uint64_t pinned = 0;   // charged
  uint64_t tier = 0;     // charged, in the host tier
  size_t waiting = 0;    // requests
  bool draining = false;

  bool operator==(const BrokerLoad&) const = default;
};

}  // namespace gpumemd
