// SPDX-License-Identifier: Apache-2.0
// DLPack, both ways: https://dmlc.github.io/dlpack/latest/c_api.html and python_spec.html. The
// structs are those of dlpack.h 1.0 (1.1 has more types); the unversioned ones are those of 0.x.
#include <algorithm>
#include <string>
#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "client/python/extension/memory.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: C order
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

struct DLManagedTensorVersioned {
  uint32_t major;
  uint32_t minor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
};

constexpr uint64_t kReadOnlyFlag = 1;
constexpr uint8_t kFirstOfMinor1 = 7;  // of the types: kDLFloat8_e3m4

template <typename Managed>
constexpr bool kIsVersioned = false;
template <>
constexpr bool kIsVersioned<DLManagedTensorVersioned> = true;

template <typename Managed>
constexpr const char* kName = kIsVersioned<Managed> ? "dltensor_versioned" : "dltensor";
template <typename Managed>
constexpr const char* kUsedName =
    kIsVersioned<Managed> ? "used_dltensor_versioned" : "used_dltensor";

template <typename Managed>
struct Exported {
  Managed managed;
  PyObject* keeps;  // a Memory, or a handle of which this is a view
  std::vector<int64_t> shape, strides;
};

void LetGo(PyObject* keeps) {
  if (Py_TYPE(keeps) == handle_type) {
    PyObject *type_of_error, *error, *traceback;
    PyErr_Fetch(&type_of_error, &error, &traceback);
    DropView(*reinterpret_cast<Handle*>(keeps));
    PyErr_Restore(type_of_error, error, traceback);
  }
  Py_DECREF(keeps);
}

// Called by the consumer that took the tensor over, in any thread, with the GIL or without.
template <typename Managed>
void Delete(Managed* managed) {
  auto* const exported = static_cast<Exported<Managed>*>(managed->manager_ctx);
  if (Py_IsInitialized() != 0) {
    const PyGILState_STATE state = PyGILState_Ensure();
    LetGo(exported->keeps);
    PyGILState_Release(state);
  }
  delete exported;
}

template <typename Managed>
void DestroyCapsule(PyObject* capsule) {
  // Still has its first name: no consumer has taken the tensor over.
  if (PyCapsule_IsValid(capsule, kName<Managed>) == 0) return;
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, kName<Managed>));
  managed->deleter(managed);
}

template <typename Managed>
PyObject* ExportAs(PyObject* keeps, const Layout& layout, DLDevice device, DLDataType dtype) {
  auto* const exported = new Exported<Managed>{};
  exported->keeps = keeps;
  for (const Py_ssize_t extent : layout.shape) exported->shape.push_back(extent);
  for (const Py_ssize_t stride : layout.strides) {
    exported->strides.push_back(stride / layout.itemsize);
  }
  Managed& managed = exported->managed;
  managed.manager_ctx = exported;
  managed.deleter = Delete<Managed>;
  managed.dl_tensor = {.data = layout.pointer,
                       .device = device,
                       .ndim = static_cast<int32_t>(layout.shape.size()),
                       .dtype = dtype,
                       .shape = exported->shape.data(),
                       .strides = exported->strides.data(),
                       .byte_offset = 0};
  if constexpr (kIsVersioned<Managed>) {
    managed.major = 1;
    managed.minor = dtype.code >= kFirstOfMinor1 ? 1 : 0;
    managed.flags = layout.readonly ? kReadOnlyFlag : 0;
  }
  PyObject* const capsule = PyCapsule_New(&managed, kName<Managed>, DestroyCapsule<Managed>);
  if (capsule == nullptr) {
    delete exported;
    return nullptr;
  }
  Py_INCREF(keeps);
  return capsule;
}

bool CheckStrides(const Layout& layout) {
  for (const Py_ssize_t stride : layout.strides) {
    if (stride % layout.itemsize != 0) {
      PyErr_SetString(
          PyExc_BufferError,
          "DLPack needs strides that are multiples of the element size: copy the array first");
      return false;
    }
  }
  return true;
}

// (memory, device_type, device_id, code, bits, versioned) -> capsule
PyObject* Export(PyObject*, PyObject* args) {
  PyObject* memory;
  int device_type, device_id, code, bits, versioned;
  if (!PyArg_ParseTuple(args, "Oiiiip", &memory, &device_type, &device_id, &code, &bits,
                        &versioned)) {
    return nullptr;
  }
  Layout* const layout = LayoutOf(memory);
  if (layout == nullptr) return nullptr;
  if (!layout->counted && layout->keep != nullptr) {
    PyErr_SetString(PyExc_TypeError,
                    "only an array can be exported: call array() on the memory first");
    return nullptr;
  }
  if (!CheckStrides(*layout)) return nullptr;
  const DLDevice device = {device_type, device_id};
  const DLDataType dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
  return versioned != 0 ? ExportAs<DLManagedTensorVersioned>(memory, *layout, device, dtype)
                        : ExportAs<DLManagedTensor>(memory, *layout, device, dtype);
}

// (handle, pointer, shape, strides in bytes or None, itemsize, device_type, device_id, code, bits)
// -> capsule of a view of the handle's memory, unversioned and so without a read-only flag. None:
// in C order.
PyObject* View(PyObject*, PyObject* args) {
  PyObject *keep, *shape, *strides;
  Layout layout;
  int device_type, device_id, code, bits;
  if (!PyArg_ParseTuple(args, "O!O&OOniiii", handle_type, &keep, ToPointer, &layout.pointer, &shape,
                        &strides, &layout.itemsize, &device_type, &device_id, &code, &bits)) {
    return nullptr;
  }
  if (layout.itemsize <= 0) {
    PyErr_SetString(PyExc_ValueError, "the size of an element must be at least one byte");
    return nullptr;
  }
  if (!ToSizes(shape, &layout.shape)) return nullptr;
  if (strides == Py_None) {
    layout.strides.resize(layout.shape.size());
    Py_ssize_t step = layout.itemsize;
    for (size_t i = layout.shape.size(); i-- > 0;
         step *= std::max<Py_ssize_t>(layout.shape[i], 1)) {
      layout.strides[i] = step;
    }
  } else if (!ToSizes(strides, &layout.strides)) {
    return nullptr;
  }
  if (layout.shape.size() != layout.strides.size()) {
    PyErr_SetString(PyExc_ValueError, "shape and strides differ in length");
    return nullptr;
  }
  if (!CheckStrides(layout)) return nullptr;
  auto* const handle = reinterpret_cast<Handle*>(keep);
  // Checked here, since other threads may have run above, while the numbers were made.
  if (handle->pointer == nullptr) {
    RaiseOwn(GPUMEM_FAILED_PRECONDITION, "the memory to view is closed");
    return nullptr;
  }
  const DLDevice device = {device_type, device_id};
  const DLDataType dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
  PyObject* const capsule = ExportAs<DLManagedTensor>(keep, layout, device, dtype);
  if (capsule != nullptr) AddView(*handle);
  return capsule;
}

template <typename Managed>
int DeleteForeign(Handle& handle) {
  auto* const managed = static_cast<Managed*>(handle.pointer);
  if (managed->deleter != nullptr) managed->deleter(managed);
  return GPUMEM_OK;
}

PyObject* ToTuple(const int64_t* numbers, int count) {
  if (numbers == nullptr) return None();
  PyObject* const tuple = PyTuple_New(count);
  for (int i = 0; tuple != nullptr && i < count; ++i) {
    PyTuple_SetItem(tuple, i, PyLong_FromLongLong(numbers[i]));
  }
  return tuple;
}

template <typename Managed>
PyObject* ImportAs(PyObject* capsule) {
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, kName<Managed>));
  if (managed == nullptr) return nullptr;
  bool readonly = false;
  if constexpr (kIsVersioned<Managed>) {
    if (managed->major != 1) {
      PyErr_Format(PyExc_BufferError, "DLPack version %d is not supported: use version 1",
                   static_cast<int>(managed->major));
      return nullptr;
    }
    readonly = (managed->flags & kReadOnlyFlag) != 0;
  }
  if (PyCapsule_SetName(capsule, kUsedName<Managed>) != 0) return nullptr;
  Handle* const handle = NewHandle(Holds::kForeign, managed, DeleteForeign<Managed>, nullptr);
  if (handle == nullptr) return nullptr;
  const DLTensor& tensor = managed->dl_tensor;
  // May be null if there are no dimensions.
  PyObject* const shape = tensor.ndim == 0 ? PyTuple_New(0) : ToTuple(tensor.shape, tensor.ndim);
  void* const data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  return Py_BuildValue("NNiiiiiNNN", handle, PyLong_FromVoidPtr(data),
                       int{tensor.device.device_type}, int{tensor.device.device_id},
                       int{tensor.dtype.code}, int{tensor.dtype.bits}, int{tensor.dtype.lanes},
                       shape, ToTuple(tensor.strides, tensor.ndim), PyBool_FromLong(readonly));
}

// (capsule) -> (Handle, pointer, device_type, device_id, code, bits, lanes, shape,
//               strides in elements or None, readonly)
PyObject* Import(PyObject*, PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kName<DLManagedTensorVersioned>) != 0) {
    return ImportAs<DLManagedTensorVersioned>(capsule);
  }
  if (PyCapsule_IsValid(capsule, kName<DLManagedTensor>) != 0) {
    return ImportAs<DLManagedTensor>(capsule);
  }
  PyErr_SetString(PyExc_TypeError,
                  "not a DLPack capsule, or a capsule whose tensor was already taken");
  return nullptr;
}

}  // namespace

const std::vector<PyMethodDef> kDlpackMethods = {
    {"dlpack_export", Export, METH_VARARGS, nullptr},
    {"dlpack_view", View, METH_VARARGS, nullptr},
    {"dlpack_import", Import, METH_O, nullptr},
};

}  // namespace gpumem::python
