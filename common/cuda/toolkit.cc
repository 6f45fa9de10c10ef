// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/toolkit.h"

#include "absl/strings/str_cat.h"
#include "common/cuda/driver.h"

namespace gpumem {

std::string CudaToolkit() {
#if GPUMEM_WITH_CUDA
  return absl::StrCat(CUDA_VERSION / 1000, ".", CUDA_VERSION % 1000 / 10);
#else
  return "";
#endif
}

std::string BuiltWith() {
  const std::string toolkit = CudaToolkit();
  return toolkit.empty() ? "host backend, built without CUDA" : absl::StrCat("CUDA ", toolkit);
}

}  // namespace gpumem
