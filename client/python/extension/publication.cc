// SPDX-License-Identifier: Apache-2.0
// Publications: gpumem_client_publish, _attach, _attach_or_claim, _unpublish, _list_publications,
// gpumem_attachment_…, gpumem_claim_….
#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "client/python/extension/segment.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

using U64 = unsigned long long;  // of Py_BuildValue's "K"

int DestroyAttachment(Handle& handle) {
  auto* const attachment = static_cast<gpumem_attachment*>(handle.pointer);
  return handle.reports ? gpumem_attachment_release(attachment)
                        : gpumem_attachment_release_async(attachment);
}

int DestroyClaim(Handle& handle) {
  return gpumem_claim_release(static_cast<gpumem_claim*>(handle.pointer));
}

Handle* NewAttachment(gpumem_attachment* attachment) {
  Handle* const handle = NewHandle(Holds::kAttachment, attachment, DestroyAttachment, nullptr);
  if (handle == nullptr) return nullptr;
  gpumem_segment_info first = {};
  first.struct_size = sizeof(first);
  if (gpumem_attachment_get_segment(attachment, 0, &first) == GPUMEM_OK) {
    handle->on_cuda = first.backend == GPUMEM_BACKEND_CUDA;
  }
  return handle;
}

PyObject* BytesOf(const void* data, size_t size) {
  return PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(size));
}

// (client, name, [segment], metadata, access, ephemeral, expire_after_ms, timeout_ms, content_id)
//   -> version
PyObject* Publish(PyObject*, PyObject* args) {
  Use client;
  const char *name, *metadata, *content_id;
  Py_ssize_t metadata_bytes, content_id_bytes;
  SegmentUses segments;
  int access, ephemeral;
  gpumem_publish_options options = {};
  options.struct_size = sizeof(options);
  if (!PyArg_ParseTuple(args, "O&sO&y#ipO&O&y#", Use::Parse<Holds::kClient>, &client, &name,
                        SegmentUses::Parse, &segments, &metadata, &metadata_bytes, &access,
                        &ephemeral, ToUint64, &options.expire_after_ms, ToUint64,
                        &options.timeout_ms, &content_id, &content_id_bytes)) {
    return nullptr;
  }
  options.content_id = content_id;
  options.content_id_bytes = static_cast<size_t>(content_id_bytes);
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
  return status == GPUMEM_OK ? reinterpret_cast<PyObject*>(NewAttachment(attachment))
                             : Raise(status);
}

// (client, name, content_id, wait_ms, token, map_devices, address, timeout_ms, writable)
//   -> (claimed, Handle)
PyObject* AttachOrClaim(PyObject*, PyObject* args) {
  Use client, token;
  TextList map_devices;
  const char *name, *content_id;
  Py_ssize_t content_id_bytes;
  int writable;
  gpumem_attach_options options = {};
  options.struct_size = sizeof(options);
  if (!PyArg_ParseTuple(args, "O&sy#O&O&O&O&O&p", Use::Parse<Holds::kClient>, &client, &name,
                        &content_id, &content_id_bytes, ToUint64, &options.wait_ms,
                        Use::ParseOrNone<Holds::kCancelToken>, &token, TextList::Parse,
                        &map_devices, ToPointer, &options.address, ToUint64, &options.timeout_ms,
                        &writable)) {
    return nullptr;
  }
  options.cancel = token.get<gpumem_cancel_token>();
  options.map_devices = map_devices.data();
  options.map_device_count = map_devices.size();
  options.writable = writable;
  gpumem_attachment* attachment = nullptr;
  gpumem_claim* claim = nullptr;
  const int status = WithoutGil([&] {
    return gpumem_client_attach_or_claim(client.get<gpumem_client>(), name, content_id,
                                         static_cast<size_t>(content_id_bytes), &options,
                                         &attachment, &claim);
  });
  if (status != GPUMEM_OK) return Raise(status);
  const bool claimed = claim != nullptr;
  Handle* const handle =
      claimed ? NewHandle(Holds::kClaim, claim, DestroyClaim, nullptr) : NewAttachment(attachment);
  if (handle == nullptr) return nullptr;
  return Py_BuildValue("NN", PyBool_FromLong(claimed), reinterpret_cast<PyObject*>(handle));
}

// (claim) -> (name, content_id)
PyObject* ClaimInfo(PyObject*, PyObject* args) {
  Use claim;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kClaim>, &claim)) return nullptr;
  gpumem_claim_info info = {};
  info.struct_size = sizeof(info);
  const int status = gpumem_claim_get_info(claim.get<gpumem_claim>(), &info);
  if (status != GPUMEM_OK) return Raise(status);
  return Py_BuildValue("NN", Text(info.name), BytesOf(info.content_id, info.content_id_bytes));
}

// (attachment) -> (pointer, bytes, version, tenant, metadata, [segment's info], content_id)
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
  return Py_BuildValue("NKKNNNN", PyLong_FromVoidPtr(info.data), static_cast<U64>(info.bytes),
                       static_cast<U64>(info.version), Text(info.tenant),
                       BytesOf(info.metadata, info.metadata_bytes), list,
                       BytesOf(info.content_id, info.content_id_bytes));
}

PyObject* PublicationAt(const gpumem_publication_list* publications, size_t index) {
  gpumem_publication of = {};
  of.struct_size = sizeof(of);
  const int status = gpumem_publication_list_get(publications, index, &of);
  if (status != GPUMEM_OK) return Raise(status);
  return Py_BuildValue(
      "NNKKKIIiNKKKKNiNKN", Text(of.tenant), Text(of.name), static_cast<U64>(of.version),
      static_cast<U64>(of.bytes), static_cast<U64>(of.metadata_bytes), of.segments,
      of.attached_sessions, int{of.access}, PyBool_FromLong(of.ephemeral),
      static_cast<U64>(of.age_ms), static_cast<U64>(of.expire_after_ms),
      static_cast<U64>(of.expires_in_ms), static_cast<U64>(of.publisher_session_id),
      Text(of.publisher_name), int{of.publisher_pid}, PyBool_FromLong(of.publisher_alive),
      static_cast<U64>(of.suspended_bytes), BytesOf(of.content_id, of.content_id_bytes));
}

// (client, tenant) -> [(tenant, name, version, bytes, metadata_bytes, segments, attached_sessions,
//                       access, ephemeral, age_ms, expire_after_ms, expires_in_ms,
//                       publisher_session_id, publisher_name, publisher_pid, publisher_alive,
//                       suspended_bytes, content_id)]
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
    {"attach_or_claim", AttachOrClaim, METH_VARARGS, nullptr},
    {"claim_info", ClaimInfo, METH_VARARGS, nullptr},
    {"attachment_info", AttachmentInfo, METH_VARARGS, nullptr},
    {"publications", Publications, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
