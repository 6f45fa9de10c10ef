// SPDX-License-Identifier: Apache-2.0
// Suspended segments: gpumem_client_suspend, _resume, gpumem_segment_is_suspended.
#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "client/python/extension/segment.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

// The program's function, and the exception that it has raised.
struct Quiesce {
  PyObject* function;
  PyObject* type = nullptr;
  PyObject* error = nullptr;
  PyObject* traceback = nullptr;
};

// Called in the thread of Suspend(), without the GIL.
int CallQuiesce(void* context) {
  auto& quiesce = *static_cast<Quiesce*>(context);
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* const result = PyObject_CallObject(quiesce.function, nullptr);
  if (result == nullptr) PyErr_Fetch(&quiesce.type, &quiesce.error, &quiesce.traceback);
  const int status = result == nullptr ? GPUMEM_ABORTED : GPUMEM_OK;
  Py_XDECREF(result);
  PyGILState_Release(state);
  return status;
}

// (client, [segment], quiesce or None, timeout_ms)
PyObject* Suspend(PyObject*, PyObject* args) {
  Use client;
  SegmentUses segments;
  Quiesce quiesce;
  gpumem_suspend_options options = {};
  options.struct_size = sizeof(options);
  if (!PyArg_ParseTuple(args, "O&O&OO&", Use::Parse<Holds::kClient>, &client, SegmentUses::Parse,
                        &segments, &quiesce.function, ToUint64, &options.timeout_ms)) {
    return nullptr;
  }
  if (quiesce.function != Py_None) {
    options.quiesce = CallQuiesce;
    options.context = &quiesce;
  }
  const int status = WithoutGil([&] {
    return gpumem_client_suspend(client.get<gpumem_client>(), segments.data(), segments.size(),
                                 &options);
  });
  if (quiesce.type != nullptr) {
    PyErr_Restore(quiesce.type, quiesce.error, quiesce.traceback);
    return nullptr;
  }
  return status == GPUMEM_OK ? None() : Raise(status);
}

// (client, [segment], wait_ms, timeout_ms, token)
PyObject* Resume(PyObject*, PyObject* args) {
  Use client, token;
  SegmentUses segments;
  gpumem_resume_options options = {};
  options.struct_size = sizeof(options);
  if (!PyArg_ParseTuple(args, "O&O&O&O&O&", Use::Parse<Holds::kClient>, &client, SegmentUses::Parse,
                        &segments, ToUint64, &options.wait_ms, ToUint64, &options.timeout_ms,
                        Use::ParseOrNone<Holds::kCancelToken>, &token)) {
    return nullptr;
  }
  options.cancel = token.get<gpumem_cancel_token>();
  const int status = WithoutGil([&] {
    return gpumem_client_resume(client.get<gpumem_client>(), segments.data(), segments.size(),
                                &options);
  });
  return status == GPUMEM_OK ? None() : Raise(status);
}

// (segment) -> bool
PyObject* IsSuspended(PyObject*, PyObject* args) {
  Use segment;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kSegment>, &segment)) return nullptr;
  int suspended = 0;
  const int status = gpumem_segment_is_suspended(segment.get<gpumem_segment>(), &suspended);
  return status == GPUMEM_OK ? PyBool_FromLong(suspended) : Raise(status);
}

}  // namespace

const std::vector<PyMethodDef> kSuspendMethods = {
    {"suspend", Suspend, METH_VARARGS, nullptr},
    {"resume", Resume, METH_VARARGS, nullptr},
    {"segment_is_suspended", IsSuspended, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
