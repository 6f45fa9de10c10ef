// SPDX-License-Identifier: Apache-2.0
// Opens memory of the host backend that another process owns and exports as 64 bytes: kinds ipc and
// mempool (host_ipc.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/export_data.h"
#include "common/mapping/shared_openings.h"

namespace gpumem {

// Requests the memory of `data` from the owner at `socket_path`, and maps all of it. `kind` is for
// the messages.
//   NOT_FOUND           its owner has freed it or is gone
//   DEADLINE_EXCEEDED   the owner does not answer
//   RESOURCE_EXHAUSTED  out of addresses, memory or descriptors
absl::StatusOr<std::unique_ptr<Opening>> OpenFromOwner(const std::string& socket_path,
                                                       const ExportData& data,
                                                       absl::string_view kind);

}  // namespace gpumem
