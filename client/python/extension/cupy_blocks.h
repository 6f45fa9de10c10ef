// SPDX-License-Identifier: Apache-2.0
// The blocks of CuPy's allocator, for gpumem/cupy.py: from a pool, in the order of CuPy's current
// stream.
//
// No Python runs when CuPy makes an array. CuPy's CFunctionAllocator calls Malloc and Free, passes
// no stream to either, and does not check for a null pointer. Therefore:
// - Malloc asks CuPy for the stream by a C function (Cython exports it in __pyx_capi__).
// - A block is freed on the stream that it was allocated for, as with CuPy's own pool.
// - The allocator that cupy.cuda.set_allocator gets (cupy.cc) checks whether Malloc was refused.
//
// Guarded by the interpreter's lock (GIL), which CuPy holds whenever it calls.
#pragma once

#include <array>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "client/python/extension/block_map.h"
#include "client/python/extension/cupy_thread.h"
#include "client/python/extension/handle.h"
#include "client/python/extension/python_api.h"
#include "gpumem/gpumem.h"

namespace gpumem::python::cupy {

// Calls CFunctionAllocator.malloc: bytes -> MemoryPointer.
class Maker {
 public:
  void Set(PyObject* malloc) {
    Py_INCREF(malloc);
    Drop();
    malloc_ = malloc;
    const bool is_fast =
        PyCFunction_CheckExact(malloc) != 0 && PyCFunction_GetFlags(malloc) == kFastCall;
    if (!is_fast) return;
    fast_ = reinterpret_cast<FastCall>(reinterpret_cast<void*>(PyCFunction_GetFunction(malloc)));
    allocator_ = PyCFunction_GetSelf(malloc);
  }
  void Drop() {
    fast_ = nullptr;
    Py_CLEAR(malloc_);
  }

  PyObject* operator()(PyObject* bytes) const {
    // Calls it as the interpreter does. The interpreter's function for this (PyObject_Vectorcall)
    // has no name in the stable ABI of CPython 3.9.
    if (fast_ != nullptr) [[likely]]
      return fast_(allocator_, &bytes, 1, nullptr);
    return PyObject_CallFunctionObjArgs(malloc_, bytes, nullptr);
  }

 private:
  PyObject* malloc_ = nullptr;
  FastCall fast_ = nullptr;
  PyObject* allocator_ = nullptr;  // kept alive by malloc_
};

struct Live {
  void* stream;
  size_t* of_stream;  // how many blocks of the stream are live or deferred
  size_t bytes;
  gpumem_pool* pool;
};

struct Late {
  void* pointer;
  Live live;
};

// The state of one allocator. With a current stream, blocks are allocated for that stream and freed
// on it. Without one, CuPy's own pool takes its memory from this: it works as cudaMalloc and
// cudaFree, and CuPy calls the hooks.
struct State {
  Handle* chosen = nullptr;  // the pool; null: the default pool of the current device
  int chosen_device = 0;     // the pool's device
  CurrentStream current_stream;
  MemoryHooks hooks;
  Maker make;
  PyObject* on_refusal = nullptr;     // (bytes, error, attempt): raises, or None: try again
  PyObject* on_new_stream = nullptr;  // (stream, [streams without blocks]) -> [those forgotten]
  PyObject* with_hooks = nullptr;     // (bytes, allocator without hooks) -> MemoryPointer
  PyObject* on_free = nullptr;        // (device, bytes, pointer, whether it is done)
  std::array<gpumem_pool*, 64> defaults = {};
  BlockMap<Live> live;
  std::unordered_map<void*, size_t> streams;  // those that CuPy has used, and their live blocks
  void* last_stream = nullptr;                // the stream of the last call, …
  size_t* of_last_stream = nullptr;           // … and its blocks; null: look it up
  std::vector<Late> late;                     // freed while their stream was being captured
  int giving = 0;          // calls of Free in progress: other threads run meanwhile
  bool abandoned = false;  // its allocator is gone: destroyed with the last block
};

// The refusal of this thread's last failed Malloc.
class Refusal {
 public:
  // GPUMEM_OK: it was not refused.
  [[gnu::tls_model("initial-exec")]] static inline thread_local constinit int status = GPUMEM_OK;
  // Raises the error. Always returns null.
  static PyObject* Raise();
};

// CFunctionAllocator's functions; `param` is the State. Malloc returns null if it is refused.
void* Malloc(void* param, size_t bytes, int device);
void Free(void* param, void* pointer, int device);

// Ends the state's allocator. Deletes the state, or leaves that to the Free of its last block.
void Abandon(State* state);

// Returns a new reference; null for None.
PyObject* GivenOrNull(PyObject* object);

}  // namespace gpumem::python::cupy
