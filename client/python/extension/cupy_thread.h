// SPDX-License-Identifier: Apache-2.0
// Per-thread facts that CuPy does not pass to allocators: the current stream and the active memory
// hooks.
//
// Guarded by the interpreter's lock (GIL).
#pragma once

#include <cstdint>

#include "client/python/extension/python_api.h"

namespace gpumem::python {

class CurrentStream {
 public:
  // Takes a capsule of Cython's __pyx_capi__, whose name is the C signature, or a callable, or
  // None.
  void Set(PyObject* source);
  bool IsKnown() const { return source_ != nullptr; }
  void Drop() { Py_CLEAR(source_); }

  // Returns the calling thread's current stream; null if none is known.
  void* Ask() const { return in_c_ == nullptr ? AskInPython() : reinterpret_cast<void*>(in_c_(0)); }

 private:
  void* AskInPython() const;

  PyObject* source_ = nullptr;
  // The argument is the one that cpdef functions take: whether to look for overrides. It does no
  // harm where the function takes none.
  intptr_t (*in_c_)(int) = nullptr;
};

// CuPy has a dict of hooks for each thread, the same for the thread's life, and finds it by a
// threading.local. That takes half as long as an allocation and its free do in here, so it is found
// once for each thread. (CuPy's own pools ask first whether the thread has a dict, and look into it
// after that.)
class MemoryHooks {
 public:
  // Takes cupy.cuda.memory_hook.get_memory_hooks.
  void Set(PyObject* get_memory_hooks);
  void Drop() { Py_CLEAR(get_); }

  // True if the calling thread has hooks. May be called while an exception is propagating.
  bool AreInForce() const {
    if (of_thread == nullptr) [[unlikely]]
      return Find();
    return PyDict_Size(of_thread) != 0;
  }

 private:
  bool Find() const;
  static void Keep(PyObject* hooks);
  static void Forget(PyObject* keeper);

  [[gnu::tls_model("initial-exec")]] static inline thread_local constinit PyObject* of_thread =
      nullptr;
  // PyThreadState_GetID() of the thread state whose end has begun; 0: none. Python's data of the
  // thread is gone by then. Asking for it would make it anew, and it would leak.
  static inline thread_local constinit uint64_t ending = 0;
  PyObject* get_ = nullptr;
};

}  // namespace gpumem::python
