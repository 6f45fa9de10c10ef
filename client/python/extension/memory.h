// _gpumem.Memory: bytes that a handle keeps, with the shape of an array. The base of
// gpumem.Segment, gpumem.Block and gpumem.Array.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/python/extension/handle.h"
#include "client/python/extension/python_api.h"

namespace gpumem::python {

// What a Memory is; a C++ object of its own, since Python allocates the other.
struct Layout {
  Handle* keep = nullptr;  // may be null: of zero bytes
  void* pointer = nullptr;
  uint64_t bytes = 0;
  bool readonly = false;
  bool host = false;     // the CPU can use it
  bool counted = false;  // is itself a view of `keep`, else only what is exported of it
  std::string format;    // as the struct module has it; empty: there is none
  Py_ssize_t itemsize = 1;
  std::vector<Py_ssize_t> shape;
  std::vector<Py_ssize_t> strides;  // in bytes
};

struct Memory {
  PyObject_HEAD;
  Layout* layout;  // null before __init__
};

extern PyTypeObject* memory_type;

// The layout of an object that is a Memory and whose memory is still there; else null, with an
// exception.
Layout* LayoutOf(PyObject* object);

bool AddMemoryType(PyObject* module);

}  // namespace gpumem::python
