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

enum class SuspensionAction { kSuspend, kResume, kDemote, kPromote };

// The session is asked to do this to its segments.
struct SuspensionAsked {
  SuspensionAction action = SuspensionAction::kSuspend;
  std::string tag;      // of the segments; empty: all
  absl::Duration left;  // in which it helps; above zero
  SuspensionCause cause = SuspensionCause::kOperator;
};
struct SuspensionServer {
  std::function<void(const SuspensionAsked&)> serve;  // empty: the session is not asked
  std::optional<bool> swappable;                      // as in SuspensionHandlers
  bool demotes = false;                               // false: it is not asked to demote or promote
};

// See Client::StartWatch. With `suspension`, the daemon may ask the session to suspend
// (Client::ServeSuspensions). It is called as the handlers are.
absl::StatusOr<std::unique_ptr<Watch>> StartWatch(std::shared_ptr<Session> session,
                                                  WatchHandlers handlers,
                                                  SuspensionServer suspension = {});

}  // namespace gpumem::internal
