// SPDX-License-Identifier: Apache-2.0
// Demoted segments: gpumem_client_demote, gpumem_client_promote.
#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "client/python/extension/segment.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

// The program's two functions, and the first exception that they have raised.
struct Pauses {
  PyObject* pause;
  PyObject* proceed;
  PyObject* type = nullptr;
  PyObject* error = nullptr;
  PyObject* traceback = nullptr;
};

// Called without the GIL. False if the function raises.
bool CallOne(Pauses& pauses, PyObject* function) {
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* const result = PyObject_CallObject(function, nullptr);
  if (result == nullptr && pauses.type == nullptr) {
    PyErr_Fetch(&pauses.type, &pauses.error, &pauses.traceback);
  }
  if (result == nullptr) PyErr_Clear();
  Py_XDECREF(result);
  PyGILState_Release(state);
  return result != nullptr;
}

int CallPause(void* context) {
  auto& pauses = *static_cast<Pauses*>(context);
  return CallOne(pauses, pauses.pause) ? GPUMEM_OK : GPUMEM_ABORTED;
}

void CallProceed(void* context) {
  auto& pauses = *static_cast<Pauses*>(context);
  CallOne(pauses, pauses.proceed);
}

using Move = int (*)(gpumem_client*, gpumem_segment* const*, size_t, const gpumem_demote_options*);

// (client, [segment], pause or None, proceed or None, longest_pause_ms, wait_ms, timeout_ms, token)
PyObject* MoveBy(Move move, PyObject* args) {
  Use client, token;
  SegmentUses segments;
  Pauses pauses;
  gpumem_demote_options options = {};
  options.struct_size = sizeof(options);
  if (!PyArg_ParseTuple(args, "O&O&OOO&O&O&O&", Use::Parse<Holds::kClient>, &client,
                        SegmentUses::Parse, &segments, &pauses.pause, &pauses.proceed, ToUint64,
                        &options.longest_pause_ms, ToUint64, &options.wait_ms, ToUint64,
                        &options.timeout_ms, Use::ParseOrNone<Holds::kCancelToken>, &token)) {
    return nullptr;
  }
  options.context = &pauses;
  if (pauses.pause != Py_None) options.pause = CallPause;
  if (pauses.proceed != Py_None) options.proceed = CallProceed;
  options.cancel = token.get<gpumem_cancel_token>();
  const int status = WithoutGil([&] {
    return move(client.get<gpumem_client>(), segments.data(), segments.size(), &options);
  });
  if (pauses.type != nullptr) {
    PyErr_Restore(pauses.type, pauses.error, pauses.traceback);
    return nullptr;
  }
  return status == GPUMEM_OK ? None() : Raise(status);
}

PyObject* Demote(PyObject*, PyObject* args) { return MoveBy(gpumem_client_demote, args); }

PyObject* Promote(PyObject*, PyObject* args) { return MoveBy(gpumem_client_promote, args); }

// (segment) -> bool
PyObject* IsDemoted(PyObject*, PyObject* args) {
  Use segment;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kSegment>, &segment)) return nullptr;
  int demoted = 0;
  const int status = gpumem_segment_is_demoted(segment.get<gpumem_segment>(), &demoted);
  return status == GPUMEM_OK ? PyBool_FromLong(demoted) : Raise(status);
}

}  // namespace

const std::vector<PyMethodDef> kDemoteMethods = {
    {"demote", Demote, METH_VARARGS, nullptr},
    {"promote", Promote, METH_VARARGS, nullptr},
    {"segment_is_demoted", IsDemoted, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
