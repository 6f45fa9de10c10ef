// SPDX-License-Identifier: Apache-2.0
// Passes the broker's events on to watches and sessions.
//
// The broker's threads call it before the hub and the sessions are made, and until after they have
// ended. It outlives the broker, and relays only while there is such a part.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/observer.h"
#include "daemon/server/part_relay.h"
#include "daemon/transport/service/watch_hub.h"
#include "daemon/transport/session_server.h"

namespace gpumemd {

// Thread-safe.
class ObserverRelay final : public BrokerObserver {
 public:
  // `audit` outlives this.
  explicit ObserverRelay(AuditSink* audit) : audit_(audit) {}

  // Return the relays, for the owners of these parts (RelayedPart).
  PartRelay<WatchHub>* hub() { return &hub_; }
  PartRelay<SessionServer>* sessions() { return &sessions_; }

  void SessionForgotten(SessionId session) override;
  void QuotaChanged(absl::string_view tenant) override;
  void DrainingChanged(bool draining) override;
  void SegmentsLost(SessionId session) override;
  void Pressed(const Pressure& pressure) override;
  void Revoked(SessionId session) override;
  void SuspensionRequested(SessionId session) override;
  void EndProcess(SessionId session, bool kill) override;
  void ContextLost(const std::string& device_uuid, size_t segments) override;

 private:
  AuditSink* const audit_;
  PartRelay<WatchHub> hub_;
  PartRelay<SessionServer> sessions_;
};

}  // namespace gpumemd
