// SPDX-License-Identifier: Apache-2.0
#include "client/python/extension/call.h"

#include <optional>

#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

PyObject* error_factory = nullptr;

// A copy of the library's answer: making Python objects can run anything, other calls included.
struct Refusal {
  struct Holder {
    std::string tenant;
    uint64_t used;
  };
  int cause;
  std::string tenant, device, help, limited_tenant;
  uint64_t asked, used, limit;
  std::vector<Holder> holders;
};

std::optional<Refusal> LastRefusal() {
  gpumem_denial denial = {};
  denial.struct_size = sizeof(denial);
  if (gpumem_last_denial(&denial) != GPUMEM_OK) return std::nullopt;
  Refusal refusal = {denial.cause, denial.tenant,         denial.device_uuid,
                     denial.help,  denial.limited_tenant, denial.asked,
                     denial.used,  denial.limit,          {}};
  for (size_t i = 0; i < denial.holder_count; ++i) {
    refusal.holders.push_back({denial.holders[i].tenant, denial.holders[i].used});
  }
  return refusal;
}

PyObject* ToTuple(const Refusal& refusal) {
  PyObject* const holders = PyTuple_New(static_cast<Py_ssize_t>(refusal.holders.size()));
  if (holders == nullptr) return nullptr;
  for (size_t i = 0; i < refusal.holders.size(); ++i) {
    PyObject* const holder = Py_BuildValue("NK", Text(refusal.holders[i].tenant.c_str()),
                                           (unsigned long long)refusal.holders[i].used);
    if (holder == nullptr || PyTuple_SetItem(holders, static_cast<Py_ssize_t>(i), holder) != 0) {
      Py_DECREF(holders);
      return nullptr;
    }
  }
  return Py_BuildValue("iNNKKKNNN", refusal.cause, Text(refusal.tenant.c_str()),
                       Text(refusal.device.c_str()), (unsigned long long)refusal.asked,
                       (unsigned long long)refusal.used, (unsigned long long)refusal.limit,
                       Text(refusal.help.c_str()), Text(refusal.limited_tenant.c_str()), holders);
}

PyObject* RaiseWith(int status, const std::string& message, const std::optional<Refusal>& refusal) {
  if (error_factory == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, message.c_str());
    return nullptr;
  }
  PyObject* const denial = refusal.has_value() ? ToTuple(*refusal) : None();
  if (denial == nullptr) return nullptr;
  PyObject* const error = PyObject_CallFunction(
      error_factory, "isNN", status, gpumem_status_name(status), Text(message.c_str()), denial);
  if (error == nullptr) return nullptr;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
  Py_DECREF(error);
  return nullptr;
}

}  // namespace

PyObject* Raise(int status) {
  const std::string message = gpumem_last_error();
  return RaiseWith(status, message, LastRefusal());
}

PyObject* RaiseOwn(int status, const std::string& message) {
  return RaiseWith(status, message, std::nullopt);
}

PyObject* SetErrorFactory(PyObject*, PyObject* factory) {
  Py_INCREF(factory);
  Py_XDECREF(error_factory);
  error_factory = factory;
  return None();
}

int ToUint64(PyObject* object, void* number) {
  PyObject* const index = PyNumber_Index(object);
  if (index == nullptr) return 0;
  const unsigned long long value = PyLong_AsUnsignedLongLong(index);
  Py_DECREF(index);
  if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) return 0;
  *static_cast<uint64_t*>(number) = value;
  return 1;
}

int ToPointer(PyObject* object, void* pointer) {
  uint64_t value = 0;
  if (object != Py_None && ToUint64(object, &value) == 0) return 0;
  *static_cast<void**>(pointer) = reinterpret_cast<void*>(value);
  return 1;
}

TextList::~TextList() {
  for (PyObject* const each : bytes_) Py_DECREF(each);
}

int TextList::Parse(PyObject* object, void* list) {
  auto& to = *static_cast<TextList*>(list);
  if (object == Py_None) return 1;
  const Py_ssize_t count = PySequence_Size(object);
  if (count < 0) return 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const item = PySequence_GetItem(object, i);
    if (item == nullptr) return 0;
    PyObject* const bytes = PyUnicode_AsUTF8String(item);
    Py_DECREF(item);
    if (bytes == nullptr) return 0;
    to.bytes_.push_back(bytes);
    char* text = nullptr;
    if (PyBytes_AsStringAndSize(bytes, &text, nullptr) != 0) return 0;  // contains a null byte
    to.texts_.push_back(text);
  }
  return 1;
}

PyObject* Text(const char* text) {
  const std::string copy = text == nullptr ? "" : text;
  return PyUnicode_DecodeUTF8(copy.data(), static_cast<Py_ssize_t>(copy.size()), "replace");
}

PyObject* Numbers(const uint64_t* numbers, size_t count) {
  PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(count));
  if (tuple == nullptr) return nullptr;
  for (size_t i = 0; i < count; ++i) {
    PyObject* const number = PyLong_FromUnsignedLongLong(numbers[i]);
    if (number == nullptr || PyTuple_SetItem(tuple, static_cast<Py_ssize_t>(i), number) != 0) {
      Py_DECREF(tuple);
      return nullptr;
    }
  }
  return tuple;
}

}  // namespace gpumem::python
