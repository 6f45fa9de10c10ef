// SPDX-License-Identifier: Apache-2.0
// Fetches the overview of one other node.
//
// Beast rather than cpp-httplib, which the plug-ins for Kubernetes use: it bounds the head of an
// answer, one deadline holds for all steps, and no peer needs a thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/web/peers/peer.h"

namespace gpumem::web {

struct FetchLimits {
  absl::Duration time = absl::Seconds(3);  // from the connection to the last byte
  uint32_t head_bytes = 8 * 1024;
  uint64_t body_bytes = 64 * 1024;
};

// Fetches PEER/api/v1/overview, and follows no redirect. Calls `done` once, on the context's
// thread, not at all if the context ends before.
//   DEADLINE_EXCEEDED    the time is over
//   RESOURCE_EXHAUSTED   the answer is too large
//   FAILED_PRECONDITION  the answer is no success
//   UNAVAILABLE          no connection, no valid certificate, or no HTTP
void Fetch(boost::asio::io_context* context, boost::asio::ssl::context* tls, const Peer& peer,
           const FetchLimits& limits, std::function<void(absl::StatusOr<std::string>)> done);

}  // namespace gpumem::web
