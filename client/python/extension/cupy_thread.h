// What CuPy knows for each thread and tells no allocator: the current stream, and the memory hooks
// that are in force.
//
// All of it is guarded by the interpreter's lock (GIL).
#pragma once

#include <cstdint>

#include "client/python/extension/python_api.h"

namespace gpumem::python {

class CurrentStream {
 public:
  // A capsule of Cython's __pyx_capi__, whose name is the C signature, or a callable; or None.
  void Set(PyObject* source);
  bool IsKnown() const { return source_ != nullptr; }
  void Drop() { Py_CLEAR(source_); }

  // The calling thread's. Null where none is known.
  void* Ask() const { return in_c_ == nullptr ? AskInPython() : reinterpret_cast<void*>(in_c_(0)); }

 private:
  void* AskInPython() const;

  PyObject* source_ = nullptr;
  // With the argument that cpdef functions take, and which does no harm where there is none:
  // whether overrides are to be looked for.
  intptr_t (*in_c_)(int) = nullptr;
};

// CuPy has a dict of hooks for each thread, the same for as long as that lives, and finds it by a
// threading.local. That takes half as long as all that an allocation and its end do in here, so it
// is found once for each thread. (CuPy's own pools ask first whether the thread has a dict, and
// look into it from then on.)
class MemoryHooks {
 public:
  // cupy.cuda.memory_hook.get_memory_hooks.
  void Set(PyObject* get_memory_hooks);
  void Drop() { Py_CLEAR(get_); }

  // In the calling thread, also while an exception is on its way.
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
  // PyThreadState_GetID() of the thread's state whose end has begun: what Python keeps for the
  // thread is gone then; who asks for it makes it anew, and nobody ends that. 0: none.
  static inline thread_local constinit uint64_t ending = 0;
  PyObject* get_ = nullptr;
};

}  // namespace gpumem::python
