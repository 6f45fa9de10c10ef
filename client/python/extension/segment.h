// SPDX-License-Identifier: Apache-2.0
// Shared by segments, suspended segments and publications.
#pragma once

#include <cstddef>
#include <vector>

#include "client/python/extension/handle.h"
#include "client/python/extension/python_api.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {

// Returns a Handle, which takes ownership of the segment.
PyObject* NewSegment(gpumem_segment* segment);

// (pointer, bytes, device, kind, backend, lease, segment, reused, registered, revocable,
//  tag, scratch)
PyObject* ToTuple(const gpumem_segment_info& info);

// Pins the segments of a list for this object's life.
class SegmentUses {
 public:
  SegmentUses() = default;
  ~SegmentUses();
  SegmentUses(const SegmentUses&) = delete;
  SegmentUses& operator=(const SegmentUses&) = delete;

  // Converter for PyArg_ParseTuple ("O&"): requires a list of open handles of segments, or raises.
  static int Parse(PyObject* object, void* uses);
  gpumem_segment* const* data() const { return segments_.data(); }
  size_t size() const { return segments_.size(); }

 private:
  std::vector<Use*> uses_;
  std::vector<gpumem_segment*> segments_;
};

}  // namespace gpumem::python
