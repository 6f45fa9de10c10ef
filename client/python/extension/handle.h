// _gpumem.Handle: one handle of the C ABI (gpumem/gpumem.h) as a Python object, which ends it.
//
// A handle counts who looks at its memory (arrays, memoryviews, DLPack capsules, the blocks of a
// pool). While somebody does it does not end: close() is refused, or puts the end off until the
// last of them is gone. It also waits for calls that use it in other threads, which release the
// interpreter's lock (GIL). All of it is guarded by that lock.
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
  kCancelToken,
  kEvent,
  kWatch,
  kForeign,  // a DLManagedTensor of another library
};

struct Handle {
  PyObject_HEAD;
  void* pointer;  // null: it has ended
  // Ends what `pointer` is; answers enum gpumem_status. Called without the GIL, and with a copy of
  // pointer, parent and stream: the handle itself has ended by then.
  int (*destroy)(Handle& handle);
  Handle* parent;      // what it needs, and counts as a view of; may be null
  PyObject* callback;  // goes with it; may be null
  void* stream;        // of a block: on which it is freed
  Py_ssize_t uses;     // calls that have it now
  Py_ssize_t views;
  Holds holds;
  bool closing;  // ends with the last use and the last view
  bool on_cuda;  // GPU work may be using it: waited for before its end
};

extern PyTypeObject* handle_type;

// Takes over `pointer`, also where it fails (null, with an exception: no memory).
Handle* NewHandle(Holds holds, void* pointer, int (*destroy)(Handle& handle), Handle* parent);

// What a new handle's library calls: it goes with the handle, once.
void KeepCallback(Handle& handle, PyObject* callback);

// Of a handle that has not ended, and that the caller holds.
void AddView(Handle& handle);
// May end it.
void DropView(Handle& handle);

// For the time of a call: the handle stays, and its pointer with it.
class Use {
 public:
  Use() = default;
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  // Of PyArg_ParseTuple ("O&"): an open handle that holds the right thing, or an exception.
  template <Holds kHolds>
  static int Parse(PyObject* object, void* use) {
    return static_cast<Use*>(use)->Begin(object, kHolds, /*or_none=*/false);
  }
  // The same, or None.
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
