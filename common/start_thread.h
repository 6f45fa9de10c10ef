// SPDX-License-Identifier: Apache-2.0
// Starts threads where their number may be exhausted: the number of a service's threads is limited.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace gpumem {

// Starts a thread. RESOURCE_EXHAUSTED if the system refuses it, in place of std::thread's
// exception.
template <typename Work>
absl::StatusOr<std::thread> StartThread(Work work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("no further thread can be started (",
                                                     error.code().message(),
                                                     "); raise the limits on processes and tasks"));
  }
}

}  // namespace gpumem
