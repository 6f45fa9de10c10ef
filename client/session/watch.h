// SPDX-License-Identifier: Apache-2.0
// The thread behind a Watch.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/session/session.h"
#include "gpumem/client.h"

namespace gpumem::internal {

// See Client::StartWatch.
absl::StatusOr<std::unique_ptr<Watch>> StartWatch(std::shared_ptr<Session> session,
                                                  WatchHandlers handlers);

}  // namespace gpumem::internal
