// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "absl/status/status.h"
#include "common/mapping/mapping.h"

namespace gpumem {

absl::StatusOr<Reserved> Mapping::DetachMemory() {
  return absl::UnimplementedError(
      "only memory of kind vmm can be unmapped while its addresses stay reserved");
}

absl::StatusOr<Reserved> Detach(std::unique_ptr<Mapping>& mapping) {
  absl::StatusOr<Reserved> reserved = mapping->DetachMemory();
  if (reserved.ok()) mapping.reset();
  return reserved;
}

}  // namespace gpumem
