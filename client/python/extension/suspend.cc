// SPDX-License-Identifier: Apache-2.0
// Suspended segments and pools: gpumem_client_suspend, gpumem_pool_suspend, and so on.
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

// Calls a function of the library that suspends, and raises its error or that of `quiesce`.
template <typename Call>
PyObject* SuspendBy(Quiesce& quiesce, gpumem_suspend_options& options, Call call) {
  options.struct_size = sizeof(options);
  if (quiesce.function != Py_None) {
    options.quiesce = CallQuiesce;
    options.context = &quiesce;
  }
  const int status = WithoutGil([&] { return call(&options); });
  if (quiesce.type != nullptr) {
    PyErr_Restore(quiesce.type, quiesce.error, quiesce.traceback);
    return nullptr;
  }
  return status == GPUMEM_OK ? None() : Raise(status);
}

// (client, [segment], quiesce or None, timeout_ms)
PyObject* Suspend(PyObject*, PyObject* args) {
  Use client;
  SegmentUses segments;
  Quiesce quiesce;
  gpumem_suspend_options options = {};
  if (!PyArg_ParseTuple(args, "O&O&OO&", Use::Parse<Holds::kClient>, &client, SegmentUses::Parse,
                        &segments, &quiesce.function, ToUint64, &options.timeout_ms)) {
    return nullptr;
  }
  return SuspendBy(quiesce, options, [&](const gpumem_suspend_options* by) {
    return gpumem_client_suspend(client.get<gpumem_client>(), segments.data(), segments.size(), by);
  });
}

// (pool, quiesce or None, timeout_ms)
PyObject* SuspendPool(PyObject*, PyObject* args) {
  Use pool;
  Quiesce quiesce;
  gpumem_suspend_options options = {};
  if (!PyArg_ParseTuple(args, "O&OO&", Use::Parse<Holds::kPool>, &pool, &quiesce.function, ToUint64,
                        &options.timeout_ms)) {
    return nullptr;
  }
  return SuspendBy(quiesce, options, [&](const gpumem_suspend_options* by) {
    return gpumem_pool_suspend(pool.get<gpumem_pool>(), by);
  });
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

// (pool, wait_ms, timeout_ms, token)
PyObject* ResumePool(PyObject*, PyObject* args) {
  Use pool, token;
  gpumem_resume_options options = {};
  options.struct_size = sizeof(options);
  if (!PyArg_ParseTuple(args, "O&O&O&O&", Use::Parse<Holds::kPool>, &pool, ToUint64,
                        &options.wait_ms, ToUint64, &options.timeout_ms,
                        Use::ParseOrNone<Holds::kCancelToken>, &token)) {
    return nullptr;
  }
  options.cancel = token.get<gpumem_cancel_token>();
  const int status =
      WithoutGil([&] { return gpumem_pool_resume(pool.get<gpumem_pool>(), &options); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

// (pool) -> bool
PyObject* IsPoolSuspended(PyObject*, PyObject* args) {
  Use pool;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kPool>, &pool)) return nullptr;
  int suspended = 0;
  const int status =
      WithoutGil([&] { return gpumem_pool_is_suspended(pool.get<gpumem_pool>(), &suspended); });
  return status == GPUMEM_OK ? PyBool_FromLong(suspended) : Raise(status);
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
    {"pool_suspend", SuspendPool, METH_VARARGS, nullptr},
    {"pool_resume", ResumePool, METH_VARARGS, nullptr},
    {"pool_is_suspended", IsPoolSuspended, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
