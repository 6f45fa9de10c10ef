// SPDX-License-Identifier: Apache-2.0
#include "client/python/extension/memory.h"

#include "client/python/extension/call.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {

PyTypeObject* memory_type = nullptr;

namespace {

// NumPy 1 has room for no more on its stack, and does not check.
constexpr Py_ssize_t kMaxDimensions = 32;

void Forget(Layout* layout) {
  if (layout == nullptr) return;
  if (layout->keep != nullptr) {
    if (layout->counted) DropView(*layout->keep);
    Py_DECREF(reinterpret_cast<PyObject*>(layout->keep));
  }
  delete layout;
}

// (keep, pointer, bytes, readonly, host, counted, format, itemsize, shape, strides)
int Initialize(PyObject* self, PyObject* args, PyObject*) {
  auto& memory = *reinterpret_cast<Memory*>(self);
  PyObject *keep, *shape, *strides;
  void* pointer = nullptr;
  uint64_t bytes = 0;
  int readonly, host, counted;
  const char* format;
  Py_ssize_t itemsize;
  if (!PyArg_ParseTuple(args, "OO&O&pppznOO", &keep, ToPointer, &pointer, ToUint64, &bytes,
                        &readonly, &host, &counted, &format, &itemsize, &shape, &strides)) {
    return -1;
  }
  if (memory.layout != nullptr) {
    PyErr_SetString(PyExc_TypeError, "the memory is already initialized");
    return -1;
  }
  Handle* handle = nullptr;
  if (keep != Py_None) {
    if (Py_TYPE(keep) != handle_type) {
      PyErr_SetString(PyExc_TypeError, "the owner of the memory must be a handle");
      return -1;
    }
    handle = reinterpret_cast<Handle*>(keep);
  }
  if (itemsize <= 0) {
    PyErr_SetString(PyExc_ValueError, "the size of an element must be at least one byte");
    return -1;
  }
  auto* const layout = new Layout{.keep = handle,
                                  .pointer = pointer,
                                  .bytes = bytes,
                                  .readonly = readonly != 0,
                                  .host = host != 0,
                                  .counted = counted != 0,
                                  .format = format == nullptr ? "" : format,
                                  .itemsize = itemsize};
  if (!ToSizes(shape, &layout->shape) || !ToSizes(strides, &layout->strides) ||
      layout->shape.size() != layout->strides.size()) {
    if (PyErr_Occurred() == nullptr) {
      PyErr_SetString(PyExc_ValueError, "shape and strides differ in length");
    }
    delete layout;
    return -1;
  }
  // Checked here, since other threads may have run above, while the numbers were made.
  if (handle != nullptr && handle->pointer == nullptr) {
    RaiseOwn(GPUMEM_FAILED_PRECONDITION, "the memory to view is closed");
    delete layout;
    return -1;
  }
  if (handle != nullptr) {
    Py_INCREF(keep);
    if (layout->counted) AddView(*handle);
  }
  memory.layout = layout;
  return 0;
}

void Deallocate(PyObject* self) {
  auto& memory = *reinterpret_cast<Memory*>(self);
  PyObject *type_of_error, *error, *traceback;
  PyErr_Fetch(&type_of_error, &error, &traceback);
  Forget(memory.layout);
  memory.layout = nullptr;
  PyErr_Restore(type_of_error, error, traceback);
  PyTypeObject* const type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

// True if the elements are contiguous, with the last index (C) or the first (F) running fastest.
bool IsContiguous(const Layout& layout, bool fortran) {
  Py_ssize_t expected = layout.itemsize;
  const size_t count = layout.shape.size();
  for (const Py_ssize_t extent : layout.shape) {
    if (extent == 0) return true;
  }
  for (size_t i = 0; i < count; ++i) {
    const size_t at = fortran ? i : count - 1 - i;
    if (layout.shape[at] != 1 && layout.strides[at] != expected) return false;
    expected *= layout.shape[at];
  }
  return true;
}

int RefuseBuffer(Buffer* buffer, const char* why) {
  buffer->obj = nullptr;
  PyErr_SetString(PyExc_BufferError, why);
  return -1;
}

Py_ssize_t CountElements(const Layout& layout) {
  Py_ssize_t count = 1;
  for (const Py_ssize_t extent : layout.shape) count *= extent;
  return count;
}

int GetBuffer(PyObject* self, Buffer* buffer, int flags) {
  if (buffer == nullptr) {
    PyErr_SetString(PyExc_BufferError, "the buffer is null");
    return -1;
  }
  buffer->obj = nullptr;
  Layout* const layout = LayoutOf(self);
  if (layout == nullptr) return -1;
  const auto wants = [flags](int what) { return (flags & what) == what; };
  if (!layout->host) {
    return RefuseBuffer(buffer,
                        "the CPU cannot read a GPU's memory: use __cuda_array_interface__ or "
                        "__dlpack__");
  }
  if (layout->readonly && wants(kBufferWritable)) {
    return RefuseBuffer(buffer, "the memory was opened read-only");
  }
  if (layout->format.empty()) {
    return RefuseBuffer(
        buffer, "buffers have no format for this dtype: use view() with another, or DLPack");
  }
  const bool c_order = IsContiguous(*layout, /*fortran=*/false);
  const bool f_order = IsContiguous(*layout, /*fortran=*/true);
  if (((!wants(kBufferStrides) || wants(kBufferCContiguous)) && !c_order) ||
      (wants(kBufferFContiguous) && !f_order) ||
      (wants(kBufferAnyContiguous) && !c_order && !f_order)) {
    return RefuseBuffer(
        buffer, "the elements of the array are not contiguous: request strides, or copy it first");
  }
  const bool nd = wants(kBufferNd);
  *buffer = {
      .buf = layout->pointer,
      .obj = self,
      .len = CountElements(*layout) * layout->itemsize,
      .itemsize = layout->itemsize,
      .readonly = layout->readonly ? 1 : 0,
      .ndim = nd ? static_cast<int>(layout->shape.size()) : 1,
      .format = wants(kBufferFormat) ? layout->format.data() : nullptr,
      .shape = nd && !layout->shape.empty() ? layout->shape.data() : nullptr,
      .strides = wants(kBufferStrides) && !layout->shape.empty() ? layout->strides.data() : nullptr,
      .suboffsets = nullptr,
      .internal = nullptr};
  Py_INCREF(self);
  if (!layout->counted && layout->keep != nullptr) AddView(*layout->keep);
  return 0;
}

void ReleaseBuffer(PyObject* self, Buffer*) {
  Layout* const layout = reinterpret_cast<Memory*>(self)->layout;
  if (!layout->counted && layout->keep != nullptr) DropView(*layout->keep);
}

PyObject* GetPointer(PyObject* self, void*) {
  Layout* const layout = LayoutOf(self);
  return layout == nullptr ? nullptr : PyLong_FromVoidPtr(layout->pointer);
}

PyObject* GetBytes(PyObject* self, void*) {
  Layout* const layout = LayoutOf(self);
  return layout == nullptr ? nullptr : PyLong_FromUnsignedLongLong(layout->bytes);
}

PyObject* GetReadonly(PyObject* self, void*) {
  Layout* const layout = LayoutOf(self);
  return layout == nullptr ? nullptr : PyBool_FromLong(layout->readonly);
}

PyObject* GetHost(PyObject* self, void*) {
  Layout* const layout = LayoutOf(self);
  return layout == nullptr ? nullptr : PyBool_FromLong(layout->host);
}

PyObject* GetContiguous(PyObject* self, void* fortran) {
  Layout* const layout = LayoutOf(self);
  return layout == nullptr ? nullptr : PyBool_FromLong(IsContiguous(*layout, fortran != nullptr));
}

PyGetSetDef properties[] = {
    {"ptr", GetPointer, nullptr, "the address, for the device or the CPU", nullptr},
    {"nbytes", GetBytes, nullptr, "the size in bytes", nullptr},
    {"readonly", GetReadonly, nullptr, "True if it is mapped read-only", nullptr},
    {"on_host", GetHost, nullptr, "True if the CPU can use the address", nullptr},
    {"c_contiguous", GetContiguous, nullptr, "True if the last index runs fastest, without gaps",
     nullptr},
    {"f_contiguous", GetContiguous, nullptr, "True if the first index runs fastest, without gaps",
     &memory_type},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
                       {Py_tp_init, reinterpret_cast<void*>(Initialize)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(Deallocate)},
                       {Py_tp_getset, properties},
                       {kGetBufferSlot, reinterpret_cast<void*>(GetBuffer)},
                       {kReleaseBufferSlot, reinterpret_cast<void*>(ReleaseBuffer)},
                       {Py_tp_doc, const_cast<char*>("memory that a handle keeps alive")},
                       {0, nullptr}};

PyType_Spec spec = {"gpumem._gpumem.Memory", sizeof(Memory), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};

}  // namespace

bool ToSizes(PyObject* sequence, std::vector<Py_ssize_t>* sizes) {
  const Py_ssize_t count = PySequence_Size(sequence);
  if (count < 0) return false;
  if (count > kMaxDimensions) {
    PyErr_SetString(PyExc_ValueError, "an array can have at most 32 dimensions");
    return false;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const item = PySequence_GetItem(sequence, i);
    if (item == nullptr) return false;
    sizes->push_back(PyLong_AsSsize_t(item));
    Py_DECREF(item);
    if (sizes->back() == -1 && PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

Layout* LayoutOf(PyObject* object) {
  if (PyObject_IsInstance(object, reinterpret_cast<PyObject*>(memory_type)) != 1) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_TypeError, "expected a gpumem.Memory");
    return nullptr;
  }
  Layout* const layout = reinterpret_cast<Memory*>(object)->layout;
  // A counted view holds its memory; other views may see it closed.
  if (layout != nullptr && (layout->counted || layout->keep == nullptr ||
                            (layout->keep->pointer != nullptr && !layout->keep->closing))) {
    return layout;
  }
  RaiseOwn(GPUMEM_FAILED_PRECONDITION, "the memory is closed");
  return nullptr;
}

bool AddMemoryType(PyObject* module) {
  PyObject* const type = PyType_FromSpec(&spec);
  if (type == nullptr) return false;
  memory_type = reinterpret_cast<PyTypeObject*>(type);
  Py_INCREF(type);
  if (PyModule_AddObject(module, "Memory", type) == 0) return true;
  Py_DECREF(type);
  return false;
}

}  // namespace gpumem::python
