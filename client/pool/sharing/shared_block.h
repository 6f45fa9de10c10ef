// SPDX-License-Identifier: Apache-2.0
// The segments of other pools that a client has opened: each once, for any number of open blocks.
//
// Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "gpumem/client.h"

namespace gpumem::internal {

class OpenedSegments {
 public:
  // Segments that lie one after another.
  using Run = std::vector<Segment>;

  // Returns the segments of these tickets, opened with these options; opens them if they are not
  // open yet.
  absl::StatusOr<std::shared_ptr<const Run>> Open(Client& client,
                                                  const std::vector<std::string>& tickets,
                                                  const OpenOptions& options);

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::weak_ptr<const Run>> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::internal
