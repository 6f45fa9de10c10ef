// SPDX-License-Identifier: Apache-2.0
// _gpumem.Memory: bytes that a handle keeps, with the shape of an array. The base of
// gpumem.Segment, gpumem.Block and gpumem.Array.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/python/extension/handle.h"
#include "client/python/extension/python_api.h"

namespace gpumem::python {

// The contents of a Memory. A separate C++ object, since Python allocates the Memory itself.
struct Layout {
  Handle* keep = nullptr;  // may be null: no bytes
  void* pointer = nullptr;
  uint64_t bytes = 0;
  bool readonly = false;
  bool host = false;     // the CPU can use it
  bool counted = false;  // itself a view of `keep`; else only its exports are
  std::string format;    // in the struct module's notation; empty: none
  Py_ssize_t itemsize = 1;
  std::vector<Py_ssize_t> shape;
  std::vector<Py_ssize_t> strides;  // in bytes
};

struct Memory {
  PyObject_HEAD;
  Layout* layout;  // null before __init__
};

extern PyTypeObject* memory_type;

// Returns the layout of a Memory whose memory still exists; else null, with an exception.
Layout* LayoutOf(PyObject* object);

// Appends the numbers of a sequence, one for each dimension. False: an exception is set.
bool ToSizes(PyObject* sequence, std::vector<Py_ssize_t>* sizes);

bool AddMemoryType(PyObject* module);

}  // namespace gpumem::python
