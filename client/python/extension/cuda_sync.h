// Waits for a GPU's work before memory goes that it may use.
#pragma once

namespace gpumem::python {

// Waits until all work is done that this process has submitted, on every device where it has a
// primary context (that of the CUDA runtime and so of the frameworks): what cudaFree does. Nothing
// where the process has not loaded the driver. To be called without the GIL.
void SynchronizeCuda();

}  // namespace gpumem::python
