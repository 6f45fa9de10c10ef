// SPDX-License-Identifier: Apache-2.0
// Which of gpumemd's devices are GPUs. Pure.
#pragma once

#include "proto/gpumem/v1/memory.pb.h"

namespace gpumem::kubernetes {

// True if the device is a GPU, and not memory of the host.
bool IsGpu(const v1::Device& device);

}  // namespace gpumem::kubernetes
