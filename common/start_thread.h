// Threads where there may be no more of them: the number of a service's threads is limited.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace gpumem {

// RESOURCE_EXHAUSTED where the system refuses another thread, which std::thread would throw.
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
