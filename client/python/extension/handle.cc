// SPDX-License-Identifier: Apache-2.0
#include "client/python/extension/handle.h"

#include <array>
#include <string>
#include <utility>

#include "client/python/extension/call.h"
#include "client/python/extension/cuda_sync.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {

PyTypeObject* handle_type = nullptr;

namespace {

constexpr std::array<const char*, 10> kNames = {"client",       "segment",    "pool",  "block",
                                                "shared block", "attachment", "token", "event",
                                                "watch",        "array"};

const char* NameOf(Holds holds) { return kNames[static_cast<size_t>(holds)]; }

// Destroys the handle now, regardless of uses and views. Returns the C ABI's status, as far as it
// is known without a wait for the daemon if `reports` is false; its last error says more.
int End(Handle& handle, bool reports = false) {
  if (handle.pointer == nullptr) return GPUMEM_OK;
  handle.closing = true;
  // Other threads run meanwhile. They see the handle as destroyed, so none destroys it twice or
  // makes a view of memory that is about to go.
  Handle ending = {};
  ending.pointer = std::exchange(handle.pointer, nullptr);
  ending.parent = handle.parent;
  ending.stream = handle.stream;
  ending.reports = reports;
  const int status = WithoutGil([&] {
    if (handle.on_cuda) SynchronizeCuda();
    return handle.destroy(ending);
  });
  if (Handle* const parent = std::exchange(handle.parent, nullptr); parent != nullptr) {
    DropView(*parent);
    Py_DECREF(reinterpret_cast<PyObject*>(parent));
  }
  return status;
}

// Destroys the handle if that was deferred and is due.
void EndIfDue(Handle& handle) {
  if (handle.closing && handle.uses == 0 && handle.views == 0) End(handle);
}

PyObject* Close(PyObject* self, PyObject* args) {
  auto& handle = *reinterpret_cast<Handle*>(self);
  int defer = 0;
  if (!PyArg_ParseTuple(args, "|p", &defer)) return nullptr;
  if (handle.closing || handle.pointer == nullptr) return None();
  if (defer == 0 && handle.views > 0) {
    const bool is_pool = handle.holds == Holds::kPool;
    return RaiseOwn(
        GPUMEM_FAILED_PRECONDITION,
        std::string("the ") + NameOf(handle.holds) + " is in use by " +
            std::to_string(handle.views) +
            (is_pool ? " blocks: free them first"
                     : " views (arrays, memoryviews, DLPack capsules): drop them first, or use "
                       "close(defer=True), which closes it with the last view"));
  }
  if (handle.views > 0 || handle.uses > 0) {
    handle.closing = true;
    return None();
  }
  const int status = End(handle, /*reports=*/defer == 0);
  // The memory is unmapped in any case. A deferred close reports no error: it may be the end of a
  // with block, which an exception that says more may be leaving.
  return status == GPUMEM_OK || defer != 0 ? None() : Raise(status);
}

PyObject* GetClosed(PyObject* self, void*) {
  const auto& handle = *reinterpret_cast<Handle*>(self);
  return PyBool_FromLong(handle.closing || handle.pointer == nullptr);
}

PyObject* GetViews(PyObject* self, void*) {
  return PyLong_FromSsize_t(reinterpret_cast<Handle*>(self)->views);
}

PyObject* GetStream(PyObject* self, void*) {
  return PyLong_FromVoidPtr(reinterpret_cast<Handle*>(self)->stream);
}

int SetStream(PyObject* self, PyObject* value, void*) {
  void* stream = nullptr;
  if (value == nullptr || ToPointer(value, &stream) == 0) return -1;
  reinterpret_cast<Handle*>(self)->stream = stream;
  return 0;
}

// A callback may refer to the object that holds its watch, if it is a method of that object.
int Traverse(PyObject* self, visitproc visit, void* arg) {
  auto& handle = *reinterpret_cast<Handle*>(self);
  Py_VISIT(handle.callback);
  Py_VISIT(reinterpret_cast<PyObject*>(handle.parent));
  Py_VISIT(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  return 0;
}

// Called by the garbage collector before it clears anything: disables the callback.
void Finalize(PyObject* self) {
  auto& handle = *reinterpret_cast<Handle*>(self);
  if (handle.callback == nullptr) return;
  PyObject *type_of_error, *error, *traceback;
  PyErr_Fetch(&type_of_error, &error, &traceback);
  End(handle);
  PyErr_Restore(type_of_error, error, traceback);
}

int Clear(PyObject* self) {
  Finalize(self);
  Py_CLEAR(reinterpret_cast<Handle*>(self)->callback);
  return 0;
}

void Deallocate(PyObject* self) {
  PyObject_GC_UnTrack(self);
  auto& handle = *reinterpret_cast<Handle*>(self);
  // Keeps an exception that is propagating; an error of this function cannot be reported.
  PyObject *type_of_error, *error, *traceback;
  PyErr_Fetch(&type_of_error, &error, &traceback);
  End(handle);
  Py_XDECREF(handle.callback);
  PyErr_Restore(type_of_error, error, traceback);
  PyTypeObject* const type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

// Only the module's functions make handles.
PyObject* Refuse(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "only functions of gpumem create handles");
  return nullptr;
}

PyMethodDef methods[] = {
    {"close", Close, METH_VARARGS,
     "close(defer=False): destroys it. While it has views, raises; with defer, the end of the last "
     "view destroys it"},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef properties[] = {
    {"closed", GetClosed, nullptr, "True if it is destroyed, or will be with its last view",
     nullptr},
    {"views", GetViews, nullptr, "the number of views of the memory", nullptr},
    {"stream", GetStream, SetStream, "the stream on which a block is freed", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(Deallocate)},
                       {Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
                       {Py_tp_finalize, reinterpret_cast<void*>(Finalize)},
                       {Py_tp_clear, reinterpret_cast<void*>(Clear)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, properties},
                       {Py_tp_new, reinterpret_cast<void*>(Refuse)},
                       {Py_tp_doc, const_cast<char*>("an object of the C library")},
                       {0, nullptr}};

PyType_Spec spec = {"gpumem._gpumem.Handle", sizeof(Handle), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

Handle* NewHandle(Holds holds, void* pointer, int (*destroy)(Handle& handle), Handle* parent) {
  auto* const handle = reinterpret_cast<Handle*>(PyType_GenericAlloc(handle_type, 0));
  if (handle == nullptr) {
    Handle ending = {};
    ending.pointer = pointer;
    ending.parent = parent;
    destroy(ending);
    return nullptr;
  }
  PyObject_GC_UnTrack(handle);  // without a callback it is in no cycle
  handle->holds = holds;
  handle->pointer = pointer;
  handle->destroy = destroy;
  handle->parent = parent;
  if (parent != nullptr) {
    Py_INCREF(reinterpret_cast<PyObject*>(parent));
    AddView(*parent);
  }
  return handle;
}

void KeepCallback(Handle& handle, PyObject* callback) {
  Py_INCREF(callback);
  handle.callback = callback;
  PyObject_GC_Track(reinterpret_cast<PyObject*>(&handle));
}

void AddView(Handle& handle) { ++handle.views; }

void DropView(Handle& handle) {
  --handle.views;
  EndIfDue(handle);
}

Use::~Use() {
  if (handle_ == nullptr) return;
  --handle_->uses;
  EndIfDue(*handle_);
  Py_DECREF(reinterpret_cast<PyObject*>(handle_));
}

int Use::Begin(PyObject* object, Holds holds, bool or_none) {
  if (or_none && object == Py_None) return 1;
  if (Py_TYPE(object) != handle_type) {
    PyErr_Format(PyExc_TypeError, "expected a handle of a %s", NameOf(holds));
    return 0;
  }
  auto* const handle = reinterpret_cast<Handle*>(object);
  if (handle->holds != holds) {
    PyErr_Format(PyExc_TypeError, "expected a handle of a %s, not of a %s", NameOf(holds),
                 NameOf(handle->holds));
    return 0;
  }
  if (handle->pointer == nullptr || handle->closing) {
    RaiseOwn(GPUMEM_FAILED_PRECONDITION, std::string("the ") + NameOf(holds) + " is closed");
    return 0;
  }
  Py_INCREF(object);
  ++handle->uses;
  handle_ = handle;
  return 1;
}

bool AddHandleType(PyObject* module) {
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) return false;
  handle_type = reinterpret_cast<PyTypeObject*>(type);
  Py_INCREF(type);
  if (PyModule_AddObject(module, "Handle", type) == 0) return true;
  Py_DECREF(type);
  return false;
}

}  // namespace gpumem::python
