// SPDX-License-Identifier: Apache-2.0
// Segments: gpumem_client_acquire…, _open…, gpumem_segment_….
#include "client/python/extension/segment.h"

#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

using U64 = unsigned long long;  // of Py_BuildValue's "K"

int DestroySegment(Handle& handle) {
  auto* const segment = static_cast<gpumem_segment*>(handle.pointer);
  return handle.reports ? gpumem_segment_release(segment) : gpumem_segment_release_async(segment);
}

}  // namespace

PyObject* NewSegment(gpumem_segment* segment) {
  Handle* const handle = NewHandle(Holds::kSegment, segment, DestroySegment, nullptr);
  if (handle == nullptr) return nullptr;
  gpumem_segment_info info = {};
  info.struct_size = sizeof(info);
  gpumem_segment_get_info(segment, &info);
  handle->on_cuda = info.backend == GPUMEM_BACKEND_CUDA;
  return reinterpret_cast<PyObject*>(handle);
}

namespace {

// Takes ownership of all segments.
PyObject* NewSegments(const std::vector<gpumem_segment*>& segments) {
  PyObject* list = PyList_New(0);
  for (gpumem_segment* const segment : segments) {
    PyObject* const handle = NewSegment(segment);
    if (handle == nullptr || list == nullptr || PyList_Append(list, handle) != 0) Py_CLEAR(list);
    Py_XDECREF(handle);
  }
  return list;
}

// (client, bytes, device, kind, map_devices, address, timeout_ms, wait_ms, token, revocable,
//  without_pressure, tag, scratch, count) -> [Handle]
PyObject* Acquire(PyObject*, PyObject* args) {
  Use client, token;
  TextList map_devices;
  gpumem_acquire_options options = {};
  options.struct_size = sizeof(options);
  int revocable, without_pressure, scratch, kind;
  unsigned count;
  if (!PyArg_ParseTuple(args, "O&O&ziO&O&O&O&O&ppspI", Use::Parse<Holds::kClient>, &client,
                        ToUint64, &options.bytes, &options.device, &kind, TextList::Parse,
                        &map_devices, ToPointer, &options.address, ToUint64, &options.timeout_ms,
                        ToUint64, &options.wait_ms, Use::ParseOrNone<Holds::kCancelToken>, &token,
                        &revocable, &without_pressure, &options.tag, &scratch, &count)) {
    return nullptr;
  }
  options.kind = kind;
  options.map_devices = map_devices.data();
  options.map_device_count = map_devices.size();
  options.cancel = token.get<gpumem_cancel_token>();
  options.revocable = revocable;
  options.without_pressure = without_pressure;
  options.scratch = scratch;
  std::vector<gpumem_segment*> segments(count < 4096 ? count : 0);
  const int status = WithoutGil([&] {
    return gpumem_client_acquire_many(client.get<gpumem_client>(), &options, count,
                                      segments.data());
  });
  return status == GPUMEM_OK ? NewSegments(segments) : Raise(status);
}

// (client, tickets, read_only, map_devices, address, timeout_ms, revocable) -> [Handle]
PyObject* Open(PyObject*, PyObject* args) {
  Use client;
  TextList tickets, map_devices;
  gpumem_open_options options = {};
  options.struct_size = sizeof(options);
  int read_only, revocable;
  if (!PyArg_ParseTuple(args, "O&O&pO&O&O&p", Use::Parse<Holds::kClient>, &client, TextList::Parse,
                        &tickets, &read_only, TextList::Parse, &map_devices, ToPointer,
                        &options.address, ToUint64, &options.timeout_ms, &revocable)) {
    return nullptr;
  }
  options.read_only = read_only;
  options.map_devices = map_devices.data();
  options.map_device_count = map_devices.size();
  options.revocable = revocable;
  std::vector<gpumem_segment*> segments(tickets.size());
  const int status = WithoutGil([&] {
    return gpumem_client_open_many(client.get<gpumem_client>(), tickets.data(), tickets.size(),
                                   &options, segments.data());
  });
  return status == GPUMEM_OK ? NewSegments(segments) : Raise(status);
}

}  // namespace

SegmentUses::~SegmentUses() {
  for (Use* const use : uses_) delete use;
}

int SegmentUses::Parse(PyObject* object, void* uses) {
  auto& to = *static_cast<SegmentUses*>(uses);
  if (PyList_Check(object) == 0) {
    PyErr_SetString(PyExc_TypeError, "expected a list of handles of segments");
    return 0;
  }
  for (Py_ssize_t i = 0; i < PyList_Size(object); ++i) {
    to.uses_.push_back(new Use);
    Use& use = *to.uses_.back();
    if (Use::Parse<Holds::kSegment>(PyList_GetItem(object, i), &use) == 0) return 0;
    to.segments_.push_back(use.get<gpumem_segment>());
  }
  return 1;
}

PyObject* ToTuple(const gpumem_segment_info& info) {
  return Py_BuildValue("NKNiiKKNNNNN", PyLong_FromVoidPtr(info.data), static_cast<U64>(info.bytes),
                       Text(info.device_uuid), int{info.kind}, int{info.backend},
                       static_cast<U64>(info.lease_id), static_cast<U64>(info.segment_id),
                       PyBool_FromLong(info.reused), PyBool_FromLong(info.registered),
                       PyBool_FromLong(info.revocable), Text(info.tag),
                       PyBool_FromLong(info.scratch));
}

namespace {

// (segment) -> (pointer, bytes, device, kind, backend, lease, segment, reused, registered,
//               revocable)
PyObject* SegmentInfo(PyObject*, PyObject* args) {
  Use segment;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kSegment>, &segment)) return nullptr;
  gpumem_segment_info info = {};
  info.struct_size = sizeof(info);
  const int status = gpumem_segment_get_info(segment.get<gpumem_segment>(), &info);
  return status == GPUMEM_OK ? ToTuple(info) : Raise(status);
}

// (segment, scope) -> str
PyObject* Share(PyObject*, PyObject* args) {
  Use segment;
  int scope;
  if (!PyArg_ParseTuple(args, "O&i", Use::Parse<Holds::kSegment>, &segment, &scope)) {
    return nullptr;
  }
  const char* ticket = nullptr;
  const int status = WithoutGil(
      [&] { return gpumem_segment_share(segment.get<gpumem_segment>(), scope, &ticket); });
  return status == GPUMEM_OK ? Text(ticket) : Raise(status);
}

PyObject* ToBytes(const gpumem_handle& handle) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(handle.bytes),
                                   sizeof(handle.bytes));
}

PyObject* IpcHandle(PyObject*, PyObject* args) {
  Use segment;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kSegment>, &segment)) return nullptr;
  gpumem_handle handle;
  const int status = gpumem_segment_get_ipc_handle(segment.get<gpumem_segment>(), &handle);
  return status == GPUMEM_OK ? ToBytes(handle) : Raise(status);
}

PyObject* ExportData(PyObject*, PyObject* args) {
  Use segment;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kSegment>, &segment)) return nullptr;
  gpumem_handle data;
  const int status = gpumem_segment_get_export_data(segment.get<gpumem_segment>(), &data);
  return status == GPUMEM_OK ? ToBytes(data) : Raise(status);
}

PyObject* PoolFd(PyObject*, PyObject* args) {
  Use segment;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kSegment>, &segment)) return nullptr;
  int fd = -1;
  const int status = gpumem_segment_get_pool_fd(segment.get<gpumem_segment>(), &fd);
  return status == GPUMEM_OK ? PyLong_FromLong(fd) : Raise(status);
}

PyObject* Fd(PyObject*, PyObject* args) {
  Use segment;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kSegment>, &segment)) return nullptr;
  int fd = -1;
  const int status =
      WithoutGil([&] { return gpumem_segment_get_fd(segment.get<gpumem_segment>(), &fd); });
  return status == GPUMEM_OK ? PyLong_FromLong(fd) : Raise(status);
}

}  // namespace

const std::vector<PyMethodDef> kSegmentMethods = {
    {"acquire", Acquire, METH_VARARGS, nullptr},
    {"open", Open, METH_VARARGS, nullptr},
    {"segment_info", SegmentInfo, METH_VARARGS, nullptr},
    {"segment_share", Share, METH_VARARGS, nullptr},
    {"segment_ipc_handle", IpcHandle, METH_VARARGS, nullptr},
    {"segment_export_data", ExportData, METH_VARARGS, nullptr},
    {"segment_pool_fd", PoolFd, METH_VARARGS, nullptr},
    {"segment_fd", Fd, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
