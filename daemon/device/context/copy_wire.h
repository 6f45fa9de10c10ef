// SPDX-License-Identifier: Apache-2.0
// A batch of copies as a message to a context process: the ContextRequest, its parts, their
// extents. Its descriptors are the tier's file and one for each part.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/unix_channel.h"
#include "daemon/device/context/context.h"
#include "daemon/device/context/wire.h"

namespace gpumemd {

struct CopyMessage {
  std::string bytes;
  std::vector<int> fds;  // borrowed from the batch
};

//   INTERNAL  it is too large for one message
absl::StatusOr<CopyMessage> EncodeCopy(const CopyBatch& batch);

// Returns the batch, with the descriptors of `message`, which owns them.
//   INTERNAL  it is malformed
absl::StatusOr<CopyBatch> DecodeCopy(const ContextRequest& request,
                                     const gpumem::UnixMessage& message);

}  // namespace gpumemd
