// SPDX-License-Identifier: Apache-2.0
// Sessions, devices and usage: gpumem_client_…, gpumem_device_list_…, gpumem_usage_….
#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

using U64 = unsigned long long;  // of Py_BuildValue's "K"

int DestroyClient(Handle& handle) {
  return gpumem_client_destroy(static_cast<gpumem_client*>(handle.pointer));
}

int DestroyToken(Handle& handle) {
  return gpumem_cancel_token_destroy(static_cast<gpumem_cancel_token*>(handle.pointer));
}

// (runtime_dir, tenant, name, timeout_ms, reconnect, wait) -> Handle
PyObject* Connect(PyObject*, PyObject* args) {
  gpumem_connect_options options = {};
  options.struct_size = sizeof(options);
  int reconnect, wait;
  if (!PyArg_ParseTuple(args, "zzzO&pp", &options.runtime_dir, &options.tenant, &options.name,
                        ToUint64, &options.timeout_ms, &reconnect, &wait)) {
    return nullptr;
  }
  options.no_reconnect = reconnect == 0;
  options.no_wait = wait == 0 ? 1 : 0;
  gpumem_client* client = nullptr;
  const int status = WithoutGil([&] { return gpumem_client_connect(&options, &client); });
  if (status != GPUMEM_OK) return Raise(status);
  return reinterpret_cast<PyObject*>(NewHandle(Holds::kClient, client, DestroyClient, nullptr));
}

// (pool) -> Handle of its session
PyObject* PoolClient(PyObject*, PyObject* args) {
  Use pool;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kPool>, &pool)) return nullptr;
  gpumem_client* client = nullptr;
  const int status = gpumem_pool_get_client(pool.get<gpumem_pool>(), &client);
  if (status != GPUMEM_OK) return Raise(status);
  return reinterpret_cast<PyObject*>(NewHandle(Holds::kClient, client, DestroyClient, nullptr));
}

// (client) -> (tenant, rule, daemon_version, session_id)
PyObject* ClientInfo(PyObject*, PyObject* args) {
  Use client;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kClient>, &client)) return nullptr;
  gpumem_client_info info = {};
  info.struct_size = sizeof(info);
  const int status = gpumem_client_get_info(client.get<gpumem_client>(), &info);
  if (status != GPUMEM_OK) return Raise(status);
  return Py_BuildValue("NNNK", Text(info.tenant), Text(info.rule), Text(info.daemon_version),
                       static_cast<U64>(info.session_id));
}

PyObject* KindsOf(const gpumem_device& device) {
  PyObject* const kinds = PyTuple_New(static_cast<Py_ssize_t>(device.kind_count));
  if (kinds == nullptr) return nullptr;
  for (size_t i = 0; i < device.kind_count; ++i) {
    PyTuple_SetItem(kinds, static_cast<Py_ssize_t>(i), PyLong_FromLong(device.kinds[i]));
  }
  return kinds;
}

PyObject* PeersOf(const gpumem_device_list* devices, size_t index, size_t count) {
  PyObject* const peers = PyTuple_New(static_cast<Py_ssize_t>(count));
  if (peers == nullptr) return nullptr;
  for (size_t i = 0; i < count; ++i) {
    gpumem_peer peer = {};
    peer.struct_size = sizeof(peer);
    const int status = gpumem_device_list_get_peer(devices, index, i, &peer);
    PyObject* const tuple =
        status != GPUMEM_OK
            ? Raise(status)
            : Py_BuildValue("NNNi", Text(peer.uuid), PyBool_FromLong(peer.access),
                            PyBool_FromLong(peer.native_atomics), int{peer.performance_rank});
    if (tuple == nullptr || PyTuple_SetItem(peers, static_cast<Py_ssize_t>(i), tuple) != 0) {
      Py_DECREF(peers);
      return nullptr;
    }
  }
  return peers;
}

PyObject* DeviceAt(const gpumem_device_list* devices, size_t index) {
  gpumem_device device = {};
  device.struct_size = sizeof(device);
  const int status = gpumem_device_list_get(devices, index, &device);
  if (status != GPUMEM_OK) return Raise(status);
  return Py_BuildValue(
      "NNNiKKKKKNN", Text(device.uuid), Text(device.name), Text(device.pci_bus_id),
      int{device.backend}, static_cast<U64>(device.capacity_bytes),
      static_cast<U64>(device.charged_bytes), static_cast<U64>(device.granularity_bytes),
      static_cast<U64>(device.pool_granularity_bytes), static_cast<U64>(device.driver_free_bytes),
      KindsOf(device), PeersOf(devices, index, device.peer_count));
}

// (client) -> [(uuid, name, pci_bus_id, backend, capacity, charged, granularity, pool_granularity,
//               driver_free, kinds, peers)]
PyObject* Devices(PyObject*, PyObject* args) {
  Use client;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kClient>, &client)) return nullptr;
  gpumem_device_list* devices = nullptr;
  size_t count = 0;
  const int status = WithoutGil(
      [&] { return gpumem_client_list_devices(client.get<gpumem_client>(), &devices, &count); });
  if (status != GPUMEM_OK) return Raise(status);
  PyObject* list = PyList_New(0);
  for (size_t i = 0; list != nullptr && i < count; ++i) {
    PyObject* const device = DeviceAt(devices, i);
    if (device == nullptr || PyList_Append(list, device) != 0) Py_CLEAR(list);
    Py_XDECREF(device);
  }
  gpumem_device_list_destroy(devices);
  return list;
}

PyObject* DeviceUsageAt(const gpumem_usage* usage, size_t index) {
  gpumem_device_usage device = {};
  device.struct_size = sizeof(device);
  const int status = gpumem_usage_get_device(usage, index, &device);
  if (status != GPUMEM_OK) return Raise(status);
  return Py_BuildValue(
      "NKKKKKKKKKKKK", Text(device.device_uuid), static_cast<U64>(device.leased_bytes),
      static_cast<U64>(device.retained_bytes), static_cast<U64>(device.lingering_bytes),
      static_cast<U64>(device.charged_bytes), static_cast<U64>(device.limit_bytes),
      static_cast<U64>(device.peak_bytes), static_cast<U64>(device.guarantee_bytes),
      static_cast<U64>(device.borrowed_bytes), static_cast<U64>(device.waiting_bytes),
      static_cast<U64>(device.waiting), static_cast<U64>(device.revocable_bytes),
      static_cast<U64>(device.byte_seconds));
}

// (client) -> (tenant, charged, segments, sessions, waiting, [device's usage])
PyObject* GetUsage(PyObject*, PyObject* args) {
  Use client;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kClient>, &client)) return nullptr;
  gpumem_usage* usage = nullptr;
  int status =
      WithoutGil([&] { return gpumem_client_get_usage(client.get<gpumem_client>(), &usage); });
  if (status != GPUMEM_OK) return Raise(status);
  gpumem_tenant_usage tenant = {};
  tenant.struct_size = sizeof(tenant);
  status = gpumem_usage_get_tenant(usage, &tenant);
  PyObject* list = status == GPUMEM_OK ? PyList_New(0) : Raise(status);
  for (size_t i = 0; list != nullptr && i < tenant.device_count; ++i) {
    PyObject* const device = DeviceUsageAt(usage, i);
    if (device == nullptr || PyList_Append(list, device) != 0) Py_CLEAR(list);
    Py_XDECREF(device);
  }
  PyObject* result = nullptr;
  if (list != nullptr) {
    result =
        Py_BuildValue("NKIIKN", Text(tenant.tenant), static_cast<U64>(tenant.charged_bytes),
                      tenant.segments, tenant.sessions, static_cast<U64>(tenant.waiting), list);
  }
  gpumem_usage_destroy(usage);
  return result;
}

PyObject* NewToken(PyObject*, PyObject*) {
  gpumem_cancel_token* token = nullptr;
  const int status = gpumem_cancel_token_create(&token);
  if (status != GPUMEM_OK) return Raise(status);
  return reinterpret_cast<PyObject*>(NewHandle(Holds::kCancelToken, token, DestroyToken, nullptr));
}

PyObject* Cancel(PyObject*, PyObject* args) {
  Use token;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kCancelToken>, &token)) return nullptr;
  const int status =
      WithoutGil([&] { return gpumem_cancel_token_cancel(token.get<gpumem_cancel_token>()); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

PyObject* IsCancelled(PyObject*, PyObject* args) {
  Use token;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kCancelToken>, &token)) return nullptr;
  int cancelled = 0;
  const int status = gpumem_cancel_token_is_cancelled(token.get<gpumem_cancel_token>(), &cancelled);
  return status == GPUMEM_OK ? PyBool_FromLong(cancelled) : Raise(status);
}

}  // namespace

const std::vector<PyMethodDef> kClientMethods = {
    {"connect", Connect, METH_VARARGS, nullptr},
    {"pool_client", PoolClient, METH_VARARGS, nullptr},
    {"client_info", ClientInfo, METH_VARARGS, nullptr},
    {"devices", Devices, METH_VARARGS, nullptr},
    {"usage", GetUsage, METH_VARARGS, nullptr},
    {"token_new", NewToken, METH_NOARGS, nullptr},
    {"token_cancel", Cancel, METH_VARARGS, nullptr},
    {"token_is_cancelled", IsCancelled, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
