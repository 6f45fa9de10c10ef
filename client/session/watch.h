// SPDX-License-Identifier: Apache-2.0
// The thread behind a Watch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/session.h"
#include "gpumem/client.h"
#include "gpumem/suspend.h"

namespace gpumem::internal {

// The session is asked to suspend its segments, or to resume them.
struct SuspensionAsked {
  bool resume = false;
  std::string tag;      // of the segments; empty: all
  absl::Duration left;  // in which it helps; above zero
  SuspensionCause cause = SuspensionCause::kOperator;
};
struct SuspensionServer {
  std::function<void(const SuspensionAsked&)> serve;  // empty: the session is not asked
  std::optional<bool> swappable;                      // as in SuspensionHandlers
};

// See Client::StartWatch. With `suspension`, the daemon may ask the session to suspend
// (Client::ServeSuspensions). It is called as the handlers are.
absl::StatusOr<std::unique_ptr<Watch>> StartWatch(std::shared_ptr<Session> session,
                                                  WatchHandlers handlers,
                                                  SuspensionServer suspension = {});

}  // namespace gpumem::internal
