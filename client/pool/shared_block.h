// What a client has opened of other pools' segments: each once, however many blocks of it are open.
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

  // Those of these tickets, opened so; by `client` where nobody here has them open.
  absl::StatusOr<std::shared_ptr<const Run>> Open(Client& client,
                                                  const std::vector<std::string>& tickets,
                                                  const OpenOptions& options);

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::weak_ptr<const Run>> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::internal
