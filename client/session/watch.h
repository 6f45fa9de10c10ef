// SPDX-License-Identifier: Apache-2.0
// The thread behind a Watch.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/session.h"
#include "gpumem/client.h"

namespace gpumem::internal {

// An operator asks the session to suspend its segments, or to resume them.
struct SuspensionRequest {
  bool resume = false;
  std::string tag;      // of the segments; empty: all
  absl::Duration left;  // how long the operator still waits; above zero
};
using SuspensionHandler = std::function<void(const SuspensionRequest&)>;

// See Client::StartWatch. With `suspension`, the daemon may ask the session to suspend
// (Client::ServeSuspensions). It is called as the handlers are.
absl::StatusOr<std::unique_ptr<Watch>> StartWatch(std::shared_ptr<Session> session,
                                                  WatchHandlers handlers,
                                                  SuspensionHandler suspension = nullptr);

}  // namespace gpumem::internal
