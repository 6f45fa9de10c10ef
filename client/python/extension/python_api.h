// SPDX-License-Identifier: Apache-2.0
// Python's stable ABI, as of CPython 3.9: one binary serves that version and all later ones.
//
// The buffer protocol joined the stable ABI in 3.11, but works before: PyType_FromSpec takes its
// two slots since 3.9 (https://docs.python.org/3/c-api/type.html, "Changed in version 3.9"). Their
// struct is that of PEP 3118, which has never changed and became part of the stable ABI unchanged.
// The declarations that the headers omit for 3.9 follow, under names of our own.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03090000
#include <Python.h>

namespace gpumem::python {

// Py_buffer.
struct Buffer {
  void* buf;
  PyObject* obj;
  Py_ssize_t len;
  Py_ssize_t itemsize;
  int readonly;
  int ndim;
  char* format;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  Py_ssize_t* suboffsets;
  void* internal;
};

// Py_bf_getbuffer and Py_bf_releasebuffer.
inline constexpr int kGetBufferSlot = 1;
inline constexpr int kReleaseBufferSlot = 2;

// METH_FASTCALL | METH_KEYWORDS, and the type of such a function. In the stable ABI since 3.10,
// unchanged since 3.7 (https://docs.python.org/3/c-api/structures.html#c.METH_FASTCALL).
inline constexpr int kFastCall = 0x0080 | METH_KEYWORDS;
using FastCall = PyObject* (*)(PyObject* self, PyObject* const* arguments, Py_ssize_t count,
                               PyObject* names);

// PyBUF_….
inline constexpr int kBufferWritable = 0x0001;
inline constexpr int kBufferFormat = 0x0004;
inline constexpr int kBufferNd = 0x0008;
inline constexpr int kBufferStrides = 0x0010 | kBufferNd;
inline constexpr int kBufferCContiguous = 0x0020 | kBufferStrides;
inline constexpr int kBufferFContiguous = 0x0040 | kBufferStrides;
inline constexpr int kBufferAnyContiguous = 0x0080 | kBufferStrides;

}  // namespace gpumem::python
