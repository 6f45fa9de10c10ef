// SPDX-License-Identifier: Apache-2.0
// Requests of others to suspend: gpumem_client_serve_suspensions. One callable gets all of them, by
// name, in a thread of the watch.
#include <memory>
#include <utility>

#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "client/python/extension/segment.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

using U64 = unsigned long long;  // of Py_BuildValue's "K"

// The context of the handlers. A handler may destroy the watch that calls it, so a request under
// way keeps it, and the callback.
struct Serving : public std::enable_shared_from_this<Serving> {
  PyObject* callback = nullptr;           // referenced by the handle
  std::shared_ptr<Serving> request;       // this, from `segments` to `done`
  std::unique_ptr<SegmentUses> segments;  // those that the library uses
};

// What the handle owns.
struct ServingWatch {
  std::shared_ptr<Serving> serving;
  gpumem_watch* watch = nullptr;
};

int DestroyServing(Handle& handle) {
  const std::unique_ptr<ServingWatch> owned(static_cast<ServingWatch*>(handle.pointer));
  return gpumem_watch_destroy(owned->watch);
}

// Runs `work` with the interpreter's lock (GIL), in any thread.
template <typename Work>
auto WithGil(Work work) {
  const PyGILState_STATE state = PyGILState_Ensure();
  const auto result = work();
  PyGILState_Release(state);
  return result;
}

// Calls the callback with the arguments, which it takes. Returns its result; null, with an
// exception, if it raises.
PyObject* Ask(const Serving& serving, PyObject* arguments) {
  PyObject* const callback = serving.callback;
  Py_INCREF(callback);  // it may drop its watch, and so itself
  PyObject* const result =
      arguments == nullptr ? nullptr : PyObject_CallObject(callback, arguments);
  Py_XDECREF(arguments);
  Py_DECREF(callback);
  return result;
}

// Calls `callback(*make())` in any thread, once the library no longer uses the segments. Reports
// what it raises.
template <typename Make>
void Tell(void* context, Make make) {
  WithGil([&] {
    auto& serving = *static_cast<Serving*>(context);
    serving.segments.reset();
    PyObject* const result = Ask(serving, make());
    if (result == nullptr) PyErr_WriteUnraisable(serving.callback);
    Py_XDECREF(result);
    return 0;
  });
}

// Asks the callback for the segments to use, by the name of a handler.
size_t AskSegments(void* context, const char* what, gpumem_segment* const** segments) {
  return WithGil([&]() -> size_t {
    auto& serving = *static_cast<Serving*>(context);
    serving.request = serving.shared_from_this();
    Py_INCREF(serving.callback);
    PyObject* const list = Ask(serving, Py_BuildValue("(s)", what));
    serving.segments = std::make_unique<SegmentUses>();
    const bool valid = list != nullptr && SegmentUses::Parse(list, serving.segments.get()) != 0;
    if (!valid) PyErr_WriteUnraisable(serving.callback);
    Py_XDECREF(list);
    *segments = serving.segments->data();
    return valid ? serving.segments->size() : 0;
  });
}

size_t OnSegments(void* context, gpumem_segment* const** segments) {
  return AskSegments(context, "segments", segments);
}

size_t OnDemotable(void* context, gpumem_segment* const** segments) {
  return AskSegments(context, "demotable", segments);
}

// The callback returns if the program has stopped.
int AskToStop(void* context, const char* what) {
  return WithGil([&]() -> int {
    const auto& serving = *static_cast<Serving*>(context);
    PyObject* const stopped = Ask(serving, Py_BuildValue("(s)", what));
    if (stopped == nullptr) PyErr_WriteUnraisable(serving.callback);
    const bool yes = stopped != nullptr && PyObject_IsTrue(stopped) == 1;
    Py_XDECREF(stopped);
    return yes ? GPUMEM_OK : GPUMEM_ABORTED;
  });
}

int OnQuiesce(void* context) { return AskToStop(context, "quiesce"); }
int OnPause(void* context) { return AskToStop(context, "pause"); }

// The library goes on to use the segments.
void OnProceed(void* context) {
  WithGil([&] {
    const auto& serving = *static_cast<Serving*>(context);
    PyObject* const result = Ask(serving, Py_BuildValue("(s)", "proceed"));
    if (result == nullptr) PyErr_WriteUnraisable(serving.callback);
    Py_XDECREF(result);
    return 0;
  });
}

void OnSuspended(void* context, int cause) {
  Tell(context, [&] { return Py_BuildValue("si", "suspended", cause); });
}

void OnResumed(void* context) {
  Tell(context, [] { return Py_BuildValue("(s)", "resumed"); });
}

void OnFailed(void* context, int status, const char* message) {
  Tell(context, [&] { return Py_BuildValue("siN", "failed", status, Text(message)); });
}

void OnDone(void* context) {
  Tell(context, [] { return Py_BuildValue("(s)", "done"); });
  WithGil([&] {
    auto& serving = *static_cast<Serving*>(context);
    Py_DECREF(serving.callback);
    const std::shared_ptr<Serving> last = std::move(serving.request);
    return last != nullptr;
  });
}

void OnEnded(void* context, int status, const char* message) {
  Tell(context, [&] { return Py_BuildValue("siN", "ended", status, Text(message)); });
}

// Starts a watch with these handlers, and the context of the callback. Returns its Handle.
PyObject* Start(const Use& client, gpumem_suspension_handlers& handlers, PyObject* callback) {
  auto owned = std::make_unique<ServingWatch>();
  owned->serving = std::make_shared<Serving>();
  owned->serving->callback = callback;
  handlers.context = owned->serving.get();
  handlers.ended = OnEnded;
  // The arguments' tuple keeps the callback until the handle does.
  const int status = WithoutGil([&] {
    return gpumem_client_serve_suspensions(client.get<gpumem_client>(), &handlers, &owned->watch);
  });
  if (status != GPUMEM_OK) return Raise(status);
  Handle* const handle = NewHandle(Holds::kWatch, owned.release(), DestroyServing, nullptr);
  if (handle == nullptr) return nullptr;
  KeepCallback(*handle, callback);
  return reinterpret_cast<PyObject*>(handle);
}

// (client, callback, with_quiesce, with_pauses, with_demotable, swappable) -> Handle
PyObject* Serve(PyObject*, PyObject* args) {
  Use client;
  PyObject* callback;
  int with_quiesce, with_pauses, with_demotable;
  gpumem_suspension_handlers handlers = {};
  handlers.struct_size = sizeof(handlers);
  if (!PyArg_ParseTuple(args, "O&Opppi", Use::Parse<Holds::kClient>, &client, &callback,
                        &with_quiesce, &with_pauses, &with_demotable, &handlers.swappable)) {
    return nullptr;
  }
  handlers.segments = OnSegments;
  if (with_quiesce != 0) handlers.quiesce = OnQuiesce;
  if (with_pauses != 0) {
    handlers.pause = OnPause;
    handlers.proceed = OnProceed;
  }
  if (with_demotable != 0) handlers.demotable = OnDemotable;
  handlers.suspended = OnSuspended;
  handlers.resumed = OnResumed;
  handlers.failed = OnFailed;
  handlers.done = OnDone;
  return Start(client, handlers, callback);
}

// The library does nothing by itself: the callback suspends, or resumes.
void OnRequest(void* context, const gpumem_suspension_request* request) {
  WithGil([&] {
    const std::shared_ptr<Serving> serving = static_cast<Serving*>(context)->shared_from_this();
    PyObject* const callback = serving->callback;
    Py_INCREF(callback);
    PyObject* const result =
        Ask(*serving,
            Py_BuildValue("sNNKi", "asked", PyBool_FromLong(request->resume), Text(request->tag),
                          static_cast<U64>(request->left_ms), int{request->cause}));
    if (result == nullptr) PyErr_WriteUnraisable(callback);
    Py_XDECREF(result);
    Py_DECREF(callback);
    return 0;
  });
}

// (client, callback, swappable) -> Handle
PyObject* ServeRequests(PyObject*, PyObject* args) {
  Use client;
  PyObject* callback;
  gpumem_suspension_handlers handlers = {};
  handlers.struct_size = sizeof(handlers);
  if (!PyArg_ParseTuple(args, "O&Oi", Use::Parse<Holds::kClient>, &client, &callback,
                        &handlers.swappable)) {
    return nullptr;
  }
  handlers.serve = OnRequest;
  return Start(client, handlers, callback);
}

// (client)
PyObject* ReportActivity(PyObject*, PyObject* args) {
  Use client;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kClient>, &client)) return nullptr;
  const int status =
      WithoutGil([&] { return gpumem_client_report_activity(client.get<gpumem_client>()); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

}  // namespace

const std::vector<PyMethodDef> kServingMethods = {
    {"serve_suspensions", Serve, METH_VARARGS, nullptr},
    {"serve_requests", ServeRequests, METH_VARARGS, nullptr},
    {"report_activity", ReportActivity, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
