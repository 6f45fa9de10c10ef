// SPDX-License-Identifier: Apache-2.0
// _gpumem.Handle: one handle of the C ABI (gpumem/gpumem.h) as a Python object, which destroys it.
//
// A handle counts the views of its memory: arrays, memoryviews, DLPack capsules, the blocks of a
// pool. While it has views, close() is refused or deferred until the last view is gone. Close also
// waits for calls in other threads that use the handle and have released the interpreter's lock
// (GIL). Guarded by that lock.
#pragma once

#include <cstdint>

#include "client/python/extension/python_api.h"

namespace gpumem::python {

enum class Holds {
  kClient,
  kSegment,
  kPool,
  kBlock,
  kSharedBlock,
  kAttachment,
  kClaim,
  kCancelToken,
  kEvent,
  kWatch,
  kForeign,  // a DLManagedTensor of another library
};

struct Handle {
  PyObject_HEAD;
  void* pointer;  // null: destroyed
  // Destroys `pointer`; returns enum gpumem_status. Called without the GIL, and with a copy of
  // pointer, parent, stream and reports: the handle itself is already marked as destroyed.
  int (*destroy)(Handle& handle);
  Handle* parent;      // needed by this handle, which counts as a view of it; may be null
  PyObject* callback;  // released with the handle; may be null
  void* stream;        // of a block: the stream on which it is freed
  Py_ssize_t uses;     // calls that are using it now
  Py_ssize_t views;
  Holds holds;
  bool closing;  // destroyed with the last use and the last view
  bool on_cuda;  // GPU work may be using it: synchronized before it is destroyed
  bool reports;  // of destroy(): the caller needs the status; else it need not wait for the daemon
};

extern PyTypeObject* handle_type;

// Takes ownership of `pointer`, also on failure (null, with an exception: no memory).
Handle* NewHandle(Holds holds, void* pointer, int (*destroy)(Handle& handle), Handle* parent);

// Keeps a new handle's callback, which is released with the handle. Call at most once.
void KeepCallback(Handle& handle, PyObject* callback);

// Requires a handle that is not destroyed and that the caller holds.
void AddView(Handle& handle);
// May destroy the handle.
void DropView(Handle& handle);

// Pins a handle and its pointer during a call.
class Use {
 public:
  Use() = default;
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  // Converter for PyArg_ParseTuple ("O&"): requires an open handle of the right type, or raises.
  template <Holds kHolds>
  static int Parse(PyObject* object, void* use) {
    return static_cast<Use*>(use)->Begin(object, kHolds, /*or_none=*/false);
  }
  // Like Parse(), but accepts None.
  template <Holds kHolds>
  static int ParseOrNone(PyObject* object, void* use) {
    return static_cast<Use*>(use)->Begin(object, kHolds, /*or_none=*/true);
  }

  Handle* handle() const { return handle_; }
  template <typename Type>
  Type* get() const {
    return handle_ == nullptr ? nullptr : static_cast<Type*>(handle_->pointer);
  }

 private:
  int Begin(PyObject* object, Holds holds, bool or_none);
  Handle* handle_ = nullptr;
};

// Adds the type to the module. False: an exception is set.
bool AddHandleType(PyObject* module);

}  // namespace gpumem::python
