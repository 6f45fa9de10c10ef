// SPDX-License-Identifier: Apache-2.0
// The headers of the CUDA driver, with all versions and variants of its functions under the names
// that libcuda exports. Without a toolkit, or with one before 12.8, the preload is built empty.
#pragma once

#define GPUMEM_PRELOAD_BUILT 0
#if GPUMEM_WITH_CUDA
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#if CUDA_VERSION >= 12080
#undef GPUMEM_PRELOAD_BUILT
#define GPUMEM_PRELOAD_BUILT 1
#endif
#endif
