// SPDX-License-Identifier: Apache-2.0
// The thread behind a Watch.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/session/session.h"
#include "gpumem/client.h"

namespace gpumem::internal {

// Called when an operator asks the session to suspend its segments, or to resume them. `left`: how
// long the operator still waits; above zero.
using SuspensionHandler = std::function<void(bool resume, absl::Duration left)>;

// See Client::StartWatch. With `suspension`, the daemon may ask the session to suspend
// (Client::ServeSuspensions). It is called as the handlers are.
absl::StatusOr<std::unique_ptr<Watch>> StartWatch(std::shared_ptr<Session> session,
                                                  WatchHandlers handlers,
                                                  SuspensionHandler suspension = nullptr);

}  // namespace gpumem::internal
