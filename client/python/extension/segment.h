// What segments and publications have in common.
#pragma once

#include "client/python/extension/python_api.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {

// A Handle, which takes the segment over.
PyObject* NewSegment(gpumem_segment* segment);

// (pointer, bytes, device, kind, backend, lease, segment, reused, registered, revocable)
PyObject* ToTuple(const gpumem_segment_info& info);

}  // namespace gpumem::python
