// SPDX-License-Identifier: Apache-2.0
// Interprocess events: gpumem_client_create_event, _open_event…, gpumem_event_….
#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

int DestroyEvent(Handle& handle) {
  return gpumem_event_destroy(static_cast<gpumem_event*>(handle.pointer));
}

PyObject* NewEvent(gpumem_event* event) {
  return reinterpret_cast<PyObject*>(NewHandle(Holds::kEvent, event, DestroyEvent, nullptr));
}

// (client, name or None, segment or None, device or None) -> Handle
PyObject* Create(PyObject*, PyObject* args) {
  Use client, segment;
  gpumem_event_options options = {};
  options.struct_size = sizeof(options);
  if (!PyArg_ParseTuple(args, "O&zO&z", Use::Parse<Holds::kClient>, &client, &options.name,
                        Use::ParseOrNone<Holds::kSegment>, &segment, &options.device)) {
    return nullptr;
  }
  options.segment = segment.get<gpumem_segment>();
  gpumem_event* event = nullptr;
  const int status = WithoutGil(
      [&] { return gpumem_client_create_event(client.get<gpumem_client>(), &options, &event); });
  return status == GPUMEM_OK ? NewEvent(event) : Raise(status);
}

PyObject* Open(PyObject*, PyObject* args) {
  Use client;
  const char* name;
  if (!PyArg_ParseTuple(args, "O&s", Use::Parse<Holds::kClient>, &client, &name)) return nullptr;
  gpumem_event* event = nullptr;
  const int status = WithoutGil(
      [&] { return gpumem_client_open_event(client.get<gpumem_client>(), name, &event); });
  return status == GPUMEM_OK ? NewEvent(event) : Raise(status);
}

// (client, segment) -> [Handle]
PyObject* OpenBeside(PyObject*, PyObject* args) {
  Use client, segment;
  if (!PyArg_ParseTuple(args, "O&O&", Use::Parse<Holds::kClient>, &client,
                        Use::Parse<Holds::kSegment>, &segment)) {
    return nullptr;
  }
  std::vector<gpumem_event*> events(64);
  size_t count = 0;
  const int status = WithoutGil([&] {
    return gpumem_client_open_events(client.get<gpumem_client>(), segment.get<gpumem_segment>(),
                                     events.data(), events.size(), &count);
  });
  if (status != GPUMEM_OK) return Raise(status);
  PyObject* list = PyList_New(0);
  for (size_t i = 0; i < count && i < events.size(); ++i) {
    PyObject* const event = NewEvent(events[i]);
    if (event == nullptr || list == nullptr || PyList_Append(list, event) != 0) Py_CLEAR(list);
    Py_XDECREF(event);
  }
  return list;
}

template <int (*kDo)(gpumem_event*, void*)>
PyObject* OnStream(PyObject*, PyObject* args) {
  Use event;
  void* stream = nullptr;
  if (!PyArg_ParseTuple(args, "O&O&", Use::Parse<Holds::kEvent>, &event, ToPointer, &stream)) {
    return nullptr;
  }
  const int status = WithoutGil([&] { return kDo(event.get<gpumem_event>(), stream); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

PyObject* Synchronize(PyObject*, PyObject* args) {
  Use event;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kEvent>, &event)) return nullptr;
  const int status =
      WithoutGil([&] { return gpumem_event_synchronize(event.get<gpumem_event>()); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

PyObject* IsDone(PyObject*, PyObject* args) {
  Use event;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kEvent>, &event)) return nullptr;
  int done = 0;
  const int status =
      WithoutGil([&] { return gpumem_event_is_done(event.get<gpumem_event>(), &done); });
  return status == GPUMEM_OK ? PyBool_FromLong(done) : Raise(status);
}

PyObject* IpcHandle(PyObject*, PyObject* args) {
  Use event;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kEvent>, &event)) return nullptr;
  gpumem_handle handle;
  const int status = gpumem_event_get_handle(event.get<gpumem_event>(), &handle);
  if (status != GPUMEM_OK) return Raise(status);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(handle.bytes),
                                   sizeof(handle.bytes));
}

PyObject* CudaEvent(PyObject*, PyObject* args) {
  Use event;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kEvent>, &event)) return nullptr;
  void* cuda_event = nullptr;
  const int status = gpumem_event_get_cuda_event(event.get<gpumem_event>(), &cuda_event);
  return status == GPUMEM_OK ? PyLong_FromVoidPtr(cuda_event) : Raise(status);
}

}  // namespace

const std::vector<PyMethodDef> kEventMethods = {
    {"event_create", Create, METH_VARARGS, nullptr},
    {"event_open", Open, METH_VARARGS, nullptr},
    {"events_open", OpenBeside, METH_VARARGS, nullptr},
    {"event_record", OnStream<gpumem_event_record>, METH_VARARGS, nullptr},
    {"event_wait", OnStream<gpumem_event_wait>, METH_VARARGS, nullptr},
    {"event_synchronize", Synchronize, METH_VARARGS, nullptr},
    {"event_is_done", IsDone, METH_VARARGS, nullptr},
    {"event_ipc_handle", IpcHandle, METH_VARARGS, nullptr},
    {"event_cuda_event", CudaEvent, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
