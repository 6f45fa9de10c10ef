// SPDX-License-Identifier: Apache-2.0
// Publications: gpumem_client_publish, _attach, _unpublish, _list_publications,
// gpumem_attachment_….
#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "client/python/extension/segment.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

using U64 = unsigned long long;  // of Py_BuildValue's "K"

int DestroyAttachment(Handle& handle) {
  return gpumem_attachment_release(static_cast<gpumem_attachment*>(handle.pointer));
}

// (client, name, [segment], metadata, access, ephemeral, expire_after_ms, timeout_ms) -> version
PyObject* Publish(PyObject*, PyObject* args) {
  Use client;
  const char *name, *metadata;
  Py_ssize_t metadata_bytes;
  SegmentUses segments;
  int access, ephemeral;
  gpumem_publish_options options = {};
  options.struct_size = sizeof(options);
  if (!PyArg_ParseTuple(args, "O&sO&y#ipO&O&", Use::Parse<Holds::kClient>, &client, &name,
                        SegmentUses::Parse, &segments, &metadata, &metadata_bytes, &access,
                        &ephemeral, ToUint64, &options.expire_after_ms, ToUint64,
                        &options.timeout_ms)) {
    return nullptr;
  }
  options.metadata = metadata;
  options.metadata_bytes = static_cast<size_t>(metadata_bytes);
  options.access = access;
  options.ephemeral = ephemeral;
  uint64_t version = 0;
  const int status = WithoutGil([&] {
    return gpumem_client_publish(client.get<gpumem_client>(), name, segments.data(),
                                 segments.size(), &options, &version);
  });
  return status == GPUMEM_OK ? PyLong_FromUnsignedLongLong(version) : Raise(status);
}

// (client, name) -> version
PyObject* Unpublish(PyObject*, PyObject* args) {
  Use client;
  const char* name;
  if (!PyArg_ParseTuple(args, "O&s", Use::Parse<Holds::kClient>, &client, &name)) return nullptr;
  uint64_t version = 0;
  const int status = WithoutGil(
      [&] { return gpumem_client_unpublish(client.get<gpumem_client>(), name, &version); });
  return status == GPUMEM_OK ? PyLong_FromUnsignedLongLong(version) : Raise(status);
}

// (client, name, wait_for_version, wait_ms, token, map_devices, address, timeout_ms, revocable,
//  writable) -> Handle
PyObject* Attach(PyObject*, PyObject* args) {
  Use client, token;
  TextList map_devices;
  const char* name;
  int revocable, writable;
  gpumem_attach_options options = {};
  options.struct_size = sizeof(options);
  if (!PyArg_ParseTuple(args, "O&sO&O&O&O&O&O&pp", Use::Parse<Holds::kClient>, &client, &name,
                        ToUint64, &options.wait_for_version, ToUint64, &options.wait_ms,
                        Use::ParseOrNone<Holds::kCancelToken>, &token, TextList::Parse,
                        &map_devices, ToPointer, &options.address, ToUint64, &options.timeout_ms,
                        &revocable, &writable)) {
    return nullptr;
  }
  options.cancel = token.get<gpumem_cancel_token>();
  options.map_devices = map_devices.data();
  options.map_device_count = map_devices.size();
  options.revocable = revocable;
  options.writable = writable;
  gpumem_attachment* attachment = nullptr;
  const int status = WithoutGil([&] {
    return gpumem_client_attach(client.get<gpumem_client>(), name, &options, &attachment);
  });
  if (status != GPUMEM_OK) return Raise(status);
  Handle* const handle = NewHandle(Holds::kAttachment, attachment, DestroyAttachment, nullptr);
  if (handle == nullptr) return nullptr;
  gpumem_segment_info first = {};
  first.struct_size = sizeof(first);
  if (gpumem_attachment_get_segment(attachment, 0, &first) == GPUMEM_OK) {
    handle->on_cuda = first.backend == GPUMEM_BACKEND_CUDA;
  }
  return reinterpret_cast<PyObject*>(handle);
}

// (attachment) -> (pointer, bytes, version, tenant, metadata, [segment's info])
PyObject* AttachmentInfo(PyObject*, PyObject* args) {
  Use attachment;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kAttachment>, &attachment)) return nullptr;
  const auto* const of = attachment.get<gpumem_attachment>();
  gpumem_attachment_info info = {};
  info.struct_size = sizeof(info);
  int status = gpumem_attachment_get_info(of, &info);
  if (status != GPUMEM_OK) return Raise(status);
  PyObject* list = PyList_New(0);
  for (size_t i = 0; list != nullptr && i < info.segment_count; ++i) {
    gpumem_segment_info segment = {};
    segment.struct_size = sizeof(segment);
    status = gpumem_attachment_get_segment(of, i, &segment);
    PyObject* const tuple = status == GPUMEM_OK ? ToTuple(segment) : Raise(status);
    if (tuple == nullptr || PyList_Append(list, tuple) != 0) Py_CLEAR(list);
    Py_XDECREF(tuple);
  }
  if (list == nullptr) return nullptr;
  return Py_BuildValue("NKKNNN", PyLong_FromVoidPtr(info.data), static_cast<U64>(info.bytes),
                       static_cast<U64>(info.version), Text(info.tenant),
                       PyBytes_FromStringAndSize(static_cast<const char*>(info.metadata),
                                                 static_cast<Py_ssize_t>(info.metadata_bytes)),
                       list);
}

PyObject* PublicationAt(const gpumem_publication_list* publications, size_t index) {
  gpumem_publication of = {};
  of.struct_size = sizeof(of);
  const int status = gpumem_publication_list_get(publications, index, &of);
  if (status != GPUMEM_OK) return Raise(status);
  return Py_BuildValue("NNKKKIIiNKKKKNiNK", Text(of.tenant), Text(of.name),
                       static_cast<U64>(of.version), static_cast<U64>(of.bytes),
                       static_cast<U64>(of.metadata_bytes), of.segments, of.attached_sessions,
                       int{of.access}, PyBool_FromLong(of.ephemeral), static_cast<U64>(of.age_ms),
                       static_cast<U64>(of.expire_after_ms), static_cast<U64>(of.expires_in_ms),
                       static_cast<U64>(of.publisher_session_id), Text(of.publisher_name),
                       int{of.publisher_pid}, PyBool_FromLong(of.publisher_alive),
                       static_cast<U64>(of.suspended_bytes));
}

// (client, tenant) -> [(tenant, name, version, bytes, metadata_bytes, segments, attached_sessions,
//                       access, ephemeral, age_ms, expire_after_ms, expires_in_ms,
//                       publisher_session_id, publisher_name, publisher_pid, publisher_alive,
//                       suspended_bytes)]
PyObject* Publications(PyObject*, PyObject* args) {
  Use client;
  const char* tenant;
  if (!PyArg_ParseTuple(args, "O&z", Use::Parse<Holds::kClient>, &client, &tenant)) return nullptr;
  gpumem_publication_list* publications = nullptr;
  size_t count = 0;
  const int status = WithoutGil([&] {
    return gpumem_client_list_publications(client.get<gpumem_client>(), tenant, &publications,
                                           &count);
  });
  if (status != GPUMEM_OK) return Raise(status);
  PyObject* list = PyList_New(0);
  for (size_t i = 0; list != nullptr && i < count; ++i) {
    PyObject* const publication = PublicationAt(publications, i);
    if (publication == nullptr || PyList_Append(list, publication) != 0) Py_CLEAR(list);
    Py_XDECREF(publication);
  }
  gpumem_publication_list_destroy(publications);
  return list;
}

}  // namespace

const std::vector<PyMethodDef> kPublicationMethods = {
    {"publish", Publish, METH_VARARGS, nullptr},
    {"unpublish", Unpublish, METH_VARARGS, nullptr},
    {"attach", Attach, METH_VARARGS, nullptr},
    {"attachment_info", AttachmentInfo, METH_VARARGS, nullptr},
    {"publications", Publications, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
