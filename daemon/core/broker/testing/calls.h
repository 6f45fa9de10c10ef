// SPDX-License-Identifier: Apache-2.0
// What tests of a broker begin with: sessions, calls in their name, and who is told.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/core/broker/broker.h"

namespace gpumemd {

// For BrokerOptions::random: the n-th secret begins with n, up to 65535, the lower byte first.
inline std::function<Secret()> CountedSecrets() {
  return [n = uint16_t{0}]() mutable {
    ++n;
    return Secret{static_cast<uint8_t>(n), static_cast<uint8_t>(n >> 8)};
  };
}

// Returns the token as a client sends it; valid as long as the session.
inline absl::string_view TokenOf(const Broker::NewSession& session) {
  return {reinterpret_cast<const char*>(session.token.data()), session.token.size()};
}

// Begins a call of the session. Requires that it may.
inline Broker::Call CallIn(Broker& broker, const Broker::NewSession& session) {
  absl::StatusOr<Broker::Call> call = broker.Authenticate(TokenOf(session));
  EXPECT_TRUE(call.ok()) << call.status();
  return *std::move(call);
}

// Acquires without waiting. Requires that it succeeds.
inline std::vector<LeaseId> AcquireIn(Broker& broker, const Broker::Call& call,
                                      const AcquireSpec& spec) {
  const auto leases = broker.Acquire(call, spec, absl::InfinitePast(),
                                     [](const Broker::Handover&) { return absl::OkStatus(); });
  EXPECT_TRUE(leases.ok()) << leases.status();
  std::vector<LeaseId> ids;
  if (!leases.ok()) return ids;
  for (const LeaseView& lease : *leases) ids.push_back(lease.lease);
  return ids;
}

// Ignores what it is told.
class QuietObserver : public BrokerObserver {
 public:
  void SessionForgotten(SessionId) override {}
  void QuotaChanged(absl::string_view) override {}
  void DrainingChanged(bool) override {}
  void SegmentsLost(SessionId) override {}
  void Pressed(const Pressure&) override {}
  void Revoked(SessionId) override {}
  void SuspensionRequested(SessionId) override {}
  void EndProcess(SessionId, bool) override {}
  void ContextLost(const std::string&, size_t) override {}
};

}  // namespace gpumemd
