// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/gpu.h"

#include "common/kind.h"
#include "common/kind_proto.h"

namespace gpumem::kubernetes {

bool IsGpu(const v1::Device& device) {
  if (device.kinds().empty()) return false;
  const auto kind = FromProto(device.kinds(0));
  return kind.has_value() && !TraitsOf(*kind).host_memory;
}

}  // namespace gpumem::kubernetes
