// Kinds as the protocol names them.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "daemon/device/device.h"
#include "proto/gpumem/v1/broker.pb.h"

namespace gpumemd {

gpumem::v1::Kind ToProto(Kind kind);

// Returns nullopt for UNSPECIFIED, which leaves the choice to the callee.
//   UNIMPLEMENTED  this daemon does not know it
absl::StatusOr<std::optional<Kind>> FromProto(gpumem::v1::Kind kind);

}  // namespace gpumemd
