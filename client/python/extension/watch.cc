// SPDX-License-Identifier: Apache-2.0
// Notices of the daemon: gpumem_client_start_watch. One callable gets all of them, by name, in a
// thread of the watch.
#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

using U64 = unsigned long long;  // of Py_BuildValue's "K"

int DestroyWatch(Handle& handle) {
  return gpumem_watch_destroy(static_cast<gpumem_watch*>(handle.pointer));
}

// Calls `callback(*make())`, in any thread.
template <typename Make>
void Tell(void* context, Make make) {
  const PyGILState_STATE state = PyGILState_Ensure();
  auto* const callback = static_cast<PyObject*>(context);
  Py_INCREF(callback);  // the callback may drop its watch, and so itself
  PyObject* const arguments = make();
  PyObject* const result =
      arguments == nullptr ? nullptr : PyObject_CallObject(callback, arguments);
  if (result == nullptr) PyErr_WriteUnraisable(callback);
  Py_XDECREF(arguments);
  Py_XDECREF(result);
  Py_DECREF(callback);
  PyGILState_Release(state);
}

void OnSegmentsLost(void* context, const uint64_t* lease_ids, size_t count) {
  Tell(context, [&] { return Py_BuildValue("sN", "segments_lost", Numbers(lease_ids, count)); });
}

void OnDraining(void* context, int draining) {
  Tell(context, [&] { return Py_BuildValue("sN", "draining", PyBool_FromLong(draining)); });
}

void OnEnded(void* context, int status, const char* message) {
  Tell(context, [&] { return Py_BuildValue("siN", "ended", status, Text(message)); });
}

void OnPressure(void* context, const char* device_uuid, uint64_t bytes, uint64_t deadline_ms) {
  Tell(context, [&] {
    return Py_BuildValue("sNKK", "pressure", Text(device_uuid), static_cast<U64>(bytes),
                         static_cast<U64>(deadline_ms));
  });
}

void OnRevocation(void* context, const uint64_t* lease_ids, size_t count, uint64_t until_end_ms) {
  Tell(context, [&] {
    return Py_BuildValue("sNK", "revocation", Numbers(lease_ids, count),
                         static_cast<U64>(until_end_ms));
  });
}

void OnQuotaChanged(void* context, const gpumem_quota* quota) {
  Tell(context, [&] {
    return Py_BuildValue(
        "sKKKKLLLLiNN", "quota_changed", static_cast<U64>(quota->limit_bytes),
        static_cast<U64>(quota->total_limit_bytes), static_cast<U64>(quota->pinned_limit_bytes),
        static_cast<U64>(quota->guarantee_bytes), static_cast<long long>(quota->max_segments),
        static_cast<long long>(quota->max_sessions), static_cast<long long>(quota->max_in_flight),
        static_cast<long long>(quota->max_waiting), int{quota->priority},
        PyBool_FromLong(quota->revocable), Text(quota->parent));
  });
}

// (client, callback) -> Handle
PyObject* Start(PyObject*, PyObject* args) {
  Use client;
  PyObject* callback;
  if (!PyArg_ParseTuple(args, "O&O", Use::Parse<Holds::kClient>, &client, &callback)) {
    return nullptr;
  }
  gpumem_watch_handlers handlers = {};
  handlers.struct_size = sizeof(handlers);
  handlers.context = callback;
  handlers.segments_lost = OnSegmentsLost;
  handlers.draining = OnDraining;
  handlers.ended = OnEnded;
  handlers.pressure_until = OnPressure;
  handlers.revocation = OnRevocation;
  handlers.quota_changed = OnQuotaChanged;
  gpumem_watch* watch = nullptr;
  // The arguments' tuple keeps the callback until the handle does.
  const int status = WithoutGil(
      [&] { return gpumem_client_start_watch(client.get<gpumem_client>(), &handlers, &watch); });
  if (status != GPUMEM_OK) return Raise(status);
  Handle* const handle = NewHandle(Holds::kWatch, watch, DestroyWatch, nullptr);
  if (handle == nullptr) return nullptr;
  KeepCallback(*handle, callback);
  return reinterpret_cast<PyObject*>(handle);
}

}  // namespace

const std::vector<PyMethodDef> kWatchMethods = {
    {"watch_start", Start, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
