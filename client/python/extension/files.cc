// SPDX-License-Identifier: Apache-2.0
// Publications of files: gpumem_client_publish_files, gpumem_content_id_of.
#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

using U64 = unsigned long long;  // of Py_BuildValue's "K"

// The program's function, and the exception that it or a signal's handler (Ctrl-C) has raised.
struct Progress {
  PyObject* function;
  PyObject* type = nullptr;
  PyObject* error = nullptr;
  PyObject* traceback = nullptr;
};

// Called in the thread of the call, without the GIL.
int CallProgress(void* context, uint64_t done, uint64_t total) {
  auto& progress = *static_cast<Progress*>(context);
  const PyGILState_STATE state = PyGILState_Ensure();
  bool raised = PyErr_CheckSignals() != 0;
  if (!raised && progress.function != Py_None) {
    PyObject* const result = PyObject_CallFunction(progress.function, "KK", static_cast<U64>(done),
                                                   static_cast<U64>(total));
    raised = result == nullptr;
    Py_XDECREF(result);
  }
  if (raised) PyErr_Fetch(&progress.type, &progress.error, &progress.traceback);
  PyGILState_Release(state);
  return raised ? GPUMEM_ABORTED : GPUMEM_OK;
}

int Poll(void* context) { return CallProgress(context, 0, 0); }

// Raises the error of a call, or that of its progress.
PyObject* RaiseEither(int status, Progress& progress) {
  if (progress.type == nullptr) return Raise(status);
  PyErr_Restore(progress.type, progress.error, progress.traceback);
  return nullptr;
}

// (client, name, [path], format, kind, device, without_checksums, access, ephemeral,
//  expire_after_ms, progress or None, timeout_ms, content_id) -> (version, files, arrays, bytes)
PyObject* PublishFiles(PyObject*, PyObject* args) {
  Use client;
  TextList paths;
  const char* name;
  int format, kind, without_checksums, access, ephemeral;
  const char* content_id;
  Py_ssize_t content_id_bytes;
  Progress progress;
  gpumem_publish_files_options options = {};
  options.struct_size = sizeof(options);
  if (!PyArg_ParseTuple(args, "O&sO&iizpipO&OO&y#", Use::Parse<Holds::kClient>, &client, &name,
                        TextList::Parse, &paths, &format, &kind, &options.device,
                        &without_checksums, &access, &ephemeral, ToUint64, &options.expire_after_ms,
                        &progress.function, ToUint64, &options.timeout_ms, &content_id,
                        &content_id_bytes)) {
    return nullptr;
  }
  options.content_id = content_id;
  options.content_id_bytes = static_cast<size_t>(content_id_bytes);
  options.format = format;
  options.kind = kind;
  options.without_checksums = without_checksums;
  options.access = access;
  options.ephemeral = ephemeral;
  options.progress = CallProgress;
  options.context = &progress;
  gpumem_published_files published = {};
  published.struct_size = sizeof(published);
  const int status = WithoutGil([&] {
    return gpumem_client_publish_files(client.get<gpumem_client>(), name, paths.data(),
                                       paths.size(), &options, &published);
  });
  if (status != GPUMEM_OK) return RaiseEither(status, progress);
  return Py_BuildValue("KKKK", static_cast<U64>(published.version),
                       static_cast<U64>(published.files), static_cast<U64>(published.arrays),
                       static_cast<U64>(published.bytes));
}

// ([path], format) -> bytes
PyObject* ContentId(PyObject*, PyObject* args) {
  TextList paths;
  int format;
  Progress progress{.function = Py_None};
  if (!PyArg_ParseTuple(args, "O&i", TextList::Parse, &paths, &format)) return nullptr;
  char id[GPUMEM_CONTENT_ID_BYTES];
  const int status = WithoutGil([&] {
    return gpumem_content_id_of(paths.data(), paths.size(), format, Poll, &progress, id);
  });
  if (status != GPUMEM_OK) return RaiseEither(status, progress);
  return PyBytes_FromStringAndSize(id, sizeof(id));
}

}  // namespace

const std::vector<PyMethodDef> kFilesMethods = {
    {"publish_files", PublishFiles, METH_VARARGS, nullptr},
    {"content_id", ContentId, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
