// SPDX-License-Identifier: Apache-2.0
// Tenants under the client's: gpumem_client_…_tenant, gpumem_tenant_list_….
#include <cstdint>
#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

using U64 = unsigned long long;  // of Py_BuildValue's "K"

// The limits as the C library takes them.
class Limits {
 public:
  // A tuple (limit, device_uuids, device_limits, total, pinned, tier, max_segments, max_sessions,
  // max_waiting, priority or None, preload_mode or None).
  static int Parse(PyObject* object, void* limits) {
    return static_cast<Limits*>(limits)->Take(object) ? 1 : 0;
  }
  const gpumem_tenant_limits* get() const { return &limits_; }

 private:
  bool Take(PyObject* object) {
    PyObject *numbers, *priority, *preload;
    if (!PyArg_ParseTuple(object, "O&O&O!O&O&O&IIIOO", ToUint64, &limits_.limit_bytes,
                          TextList::Parse, &uuids_, &PyTuple_Type, &numbers, ToUint64,
                          &limits_.total_limit_bytes, ToUint64, &limits_.pinned_limit_bytes,
                          ToUint64, &limits_.tier_limit_bytes, &limits_.max_segments,
                          &limits_.max_sessions, &limits_.max_waiting, &priority, &preload)) {
      return false;
    }
    limits_.struct_size = sizeof(limits_);
    return TakeNumber(priority, &limits_.has_priority, &limits_.priority) &&
           TakeNumber(preload, &limits_.has_preload_mode, &limits_.preload_mode) &&
           TakeDevices(numbers);
  }
  static bool TakeNumber(PyObject* object, int32_t* has, int32_t* number) {
    if (object == Py_None) return true;
    const long value = PyLong_AsLong(object);  // NOLINT(google-runtime-int)
    if (value == -1 && PyErr_Occurred() != nullptr) return false;
    *has = 1;
    *number = static_cast<int32_t>(value);
    if (*number == value) return true;
    PyErr_SetString(PyExc_OverflowError, "a priority has 32 bits");
    return false;
  }
  bool TakeDevices(PyObject* numbers) {
    for (size_t i = 0; i < uuids_.size(); ++i) {
      PyObject* const number = PyTuple_GetItem(numbers, static_cast<Py_ssize_t>(i));
      uint64_t bytes = 0;
      if (number == nullptr || ToUint64(number, &bytes) == 0) return false;
      devices_.push_back({uuids_.data()[i], bytes});
    }
    limits_.device_limits = devices_.data();
    limits_.device_limit_count = devices_.size();
    return true;
  }

  gpumem_tenant_limits limits_ = {};
  TextList uuids_;
  std::vector<gpumem_device_limit> devices_;
};

// (client, name, lasting, limits) -> str
PyObject* CreateTenant(PyObject*, PyObject* args) {
  Use client;
  gpumem_tenant_options options = {};
  options.struct_size = sizeof(options);
  Limits limits;
  int lasting;
  if (!PyArg_ParseTuple(args, "O&zpO&", Use::Parse<Holds::kClient>, &client, &options.name,
                        &lasting, Limits::Parse, &limits)) {
    return nullptr;
  }
  options.lasting = lasting;
  gpumem_tenant_name name = {};
  name.struct_size = sizeof(name);
  const int status = WithoutGil([&] {
    return gpumem_client_create_tenant(client.get<gpumem_client>(), &options, limits.get(), &name);
  });
  return status == GPUMEM_OK ? Text(name.text) : Raise(status);
}

// (client, tenant, limits)
PyObject* UpdateTenant(PyObject*, PyObject* args) {
  Use client;
  const char* tenant;
  Limits limits;
  if (!PyArg_ParseTuple(args, "O&sO&", Use::Parse<Holds::kClient>, &client, &tenant, Limits::Parse,
                        &limits)) {
    return nullptr;
  }
  const int status = WithoutGil([&] {
    return gpumem_client_update_tenant(client.get<gpumem_client>(), tenant, limits.get());
  });
  return status == GPUMEM_OK ? None() : Raise(status);
}

// (client, tenant) -> (gone, charged, sessions)
PyObject* EndTenant(PyObject*, PyObject* args) {
  Use client;
  const char* tenant;
  if (!PyArg_ParseTuple(args, "O&s", Use::Parse<Holds::kClient>, &client, &tenant)) return nullptr;
  gpumem_tenant_remains remains = {};
  remains.struct_size = sizeof(remains);
  const int status = WithoutGil(
      [&] { return gpumem_client_end_tenant(client.get<gpumem_client>(), tenant, &remains); });
  if (status != GPUMEM_OK) return Raise(status);
  return Py_BuildValue("NKI", PyBool_FromLong(remains.gone),
                       static_cast<U64>(remains.charged_bytes), remains.sessions);
}

PyObject* TenantAt(const gpumem_tenant_list* tenants, size_t index) {
  gpumem_made_tenant tenant = {};
  tenant.struct_size = sizeof(tenant);
  const int status = gpumem_tenant_list_get(tenants, index, &tenant);
  if (status != GPUMEM_OK) return Raise(status);
  return Py_BuildValue("NNNKKI", Text(tenant.name), PyBool_FromLong(tenant.lasting),
                       PyBool_FromLong(tenant.ending), static_cast<U64>(tenant.created_ms),
                       static_cast<U64>(tenant.charged_bytes), tenant.sessions);
}

// (client) -> [(name, lasting, ending, created_ms, charged, sessions)]
PyObject* ListTenants(PyObject*, PyObject* args) {
  Use client;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kClient>, &client)) return nullptr;
  gpumem_tenant_list* tenants = nullptr;
  size_t count = 0;
  const int status = WithoutGil(
      [&] { return gpumem_client_list_tenants(client.get<gpumem_client>(), &tenants, &count); });
  if (status != GPUMEM_OK) return Raise(status);
  PyObject* list = PyList_New(0);
  for (size_t i = 0; list != nullptr && i < count; ++i) {
    PyObject* const tenant = TenantAt(tenants, i);
    if (tenant == nullptr || PyList_Append(list, tenant) != 0) Py_CLEAR(list);
    Py_XDECREF(tenant);
  }
  gpumem_tenant_list_destroy(tenants);
  return list;
}

}  // namespace

const std::vector<PyMethodDef> kTenantMethods = {
    {"tenant_create", CreateTenant, METH_VARARGS, nullptr},
    {"tenant_update", UpdateTenant, METH_VARARGS, nullptr},
    {"tenant_end", EndTenant, METH_VARARGS, nullptr},
    {"tenants", ListTenants, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
