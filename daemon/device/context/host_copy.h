// SPDX-License-Identifier: Apache-2.0
// Copies between memfds and the host tier.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "daemon/device/context/context.h"
#include "daemon/device/context/tier_file.h"

namespace gpumemd {

// Keeps the tier's file mapped. Not thread-safe. Statuses as Context::StartCopy.
class HostCopy {
 public:
  // Copies all of it before it returns. Segments are sealed memfds (memfd.h).
  absl::Status Run(const CopyBatch& batch);

 private:
  std::unique_ptr<TierFile> file_;  // of the last batch
};

}  // namespace gpumemd
