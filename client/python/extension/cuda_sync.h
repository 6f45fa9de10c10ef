// SPDX-License-Identifier: Apache-2.0
// Waits for a GPU's work before memory that it may use is freed.
#pragma once

namespace gpumem::python {

// Blocks until all work that this process has submitted is done, on every device with a primary
// context of this process. That is the context of the CUDA runtime and so of the frameworks;
// cudaFree waits in the same way. Does nothing if the process has not loaded the driver. Call it
// without the GIL.
void SynchronizeCuda();

}  // namespace gpumem::python
