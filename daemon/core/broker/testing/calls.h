// SPDX-License-Identifier: Apache-2.0
// Sessions of a broker in tests: their secrets, and calls in their name.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/strings/string_view.h"
#include "daemon/core/broker/broker.h"

namespace gpumemd {

// For BrokerOptions::random: the n-th secret begins with n, up to 255.
inline std::function<Secret()> CountedSecrets() {
  return [n = uint8_t{0}]() mutable { return Secret{++n}; };
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

}  // namespace gpumemd
