// SPDX-License-Identifier: Apache-2.0
// Shared by segments and publications.
#pragma once

#include "client/python/extension/python_api.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {

// Returns a Handle, which takes ownership of the segment.
PyObject* NewSegment(gpumem_segment* segment);

// (pointer, bytes, device, kind, backend, lease, segment, reused, registered, revocable)
PyObject* ToTuple(const gpumem_segment_info& info);

}  // namespace gpumem::python
