// SPDX-License-Identifier: Apache-2.0
// Pools and blocks: gpumem_pool_…, gpumem_default_pool, gpumem_shared_block_….
#include <vector>

#include "client/python/extension/call.h"
#include "client/python/extension/handle.h"
#include "gpumem/gpumem.h"

namespace gpumem::python {
namespace {

using U64 = unsigned long long;  // of Py_BuildValue's "K"

gpumem_pool* PoolOf(const Handle& handle) { return static_cast<gpumem_pool*>(handle.pointer); }

int DestroyPool(Handle& handle) { return gpumem_pool_destroy(PoolOf(handle)); }
int KeepPool(Handle&) { return GPUMEM_OK; }

int FreeBlock(Handle& handle) {
  return gpumem_pool_free_pointer(PoolOf(*handle.parent), handle.pointer, handle.stream);
}

int DestroyShared(Handle& handle) {
  return gpumem_shared_block_destroy(static_cast<gpumem_shared_block*>(handle.pointer));
}

// (client, device, kind, reuse, per_thread_default_stream, without_thread_caches, limit,
//  release_threshold, grow, wait_ms, keeps_under_pressure, revocable, map_devices) -> Handle
PyObject* Create(PyObject*, PyObject* args) {
  Use client;
  gpumem_pool_options options = {};
  options.struct_size = sizeof(options);
  TextList map_devices;
  int kind, per_thread, without_caches, keeps, revocable;
  if (!PyArg_ParseTuple(args, "O&ziIppO&O&O&O&ppO&", Use::Parse<Holds::kClient>, &client,
                        &options.device, &kind, &options.reuse, &per_thread, &without_caches,
                        ToUint64, &options.limit_bytes, ToUint64, &options.release_threshold_bytes,
                        ToUint64, &options.grow_bytes, ToUint64, &options.wait_ms, &keeps,
                        &revocable, TextList::Parse, &map_devices)) {
    return nullptr;
  }
  options.kind = kind;
  options.per_thread_default_stream = per_thread;
  options.without_thread_caches = without_caches;
  options.keeps_under_pressure = keeps;
  options.revocable = revocable;
  options.map_devices = map_devices.data();
  options.map_device_count = map_devices.size();
  gpumem_pool* pool = nullptr;
  const int status =
      WithoutGil([&] { return gpumem_pool_create(client.get<gpumem_client>(), &options, &pool); });
  if (status != GPUMEM_OK) return Raise(status);
  return reinterpret_cast<PyObject*>(NewHandle(Holds::kPool, pool, DestroyPool, nullptr));
}

// Wraps functions that return a default pool: (device's ordinal) -> Handle
template <int (*kFind)(int, gpumem_pool**)>
PyObject* Default(PyObject*, PyObject* args) {
  int device;
  if (!PyArg_ParseTuple(args, "i", &device)) return nullptr;
  gpumem_pool* pool = nullptr;
  const int status = WithoutGil([&] { return kFind(device, &pool); });
  if (status != GPUMEM_OK) return Raise(status);
  return reinterpret_cast<PyObject*>(NewHandle(Holds::kPool, pool, KeepPool, nullptr));
}

// (pool, bytes, stream) -> (Handle, pointer, bytes)
PyObject* AllocateBy(PyObject* args, bool kept) {
  Use pool;
  uint64_t bytes = 0;
  void* stream = nullptr;
  if (!PyArg_ParseTuple(args, "O&O&O&", Use::Parse<Holds::kPool>, &pool, ToUint64, &bytes,
                        ToPointer, &stream)) {
    return nullptr;
  }
  gpumem_block block = {};
  const int status =
      kept ? gpumem_pool_try_allocate(pool.get<gpumem_pool>(), bytes, stream, &block)
           : WithoutGil([&] {
               return gpumem_pool_allocate(pool.get<gpumem_pool>(), bytes, stream, &block);
             });
  if (status != GPUMEM_OK) return Raise(status);
  if (block.data == nullptr) return None();
  Handle* const handle = NewHandle(Holds::kBlock, block.data, FreeBlock, pool.handle());
  if (handle == nullptr) return nullptr;
  handle->stream = stream;
  return Py_BuildValue("NNK", handle, PyLong_FromVoidPtr(block.data),
                       static_cast<U64>(block.bytes));
}

PyObject* Allocate(PyObject*, PyObject* args) { return AllocateBy(args, /*kept=*/false); }
// Allocates from this thread's cache only; None: call Allocate.
PyObject* TryAllocate(PyObject*, PyObject* args) { return AllocateBy(args, /*kept=*/true); }

// (pool, address) -> (address, bytes)
PyObject* Find(PyObject*, PyObject* args) {
  Use pool;
  void* data = nullptr;
  if (!PyArg_ParseTuple(args, "O&O&", Use::Parse<Holds::kPool>, &pool, ToPointer, &data)) {
    return nullptr;
  }
  gpumem_block block = {};
  const int status =
      WithoutGil([&] { return gpumem_pool_find(pool.get<gpumem_pool>(), data, &block); });
  if (status != GPUMEM_OK) return Raise(status);
  return Py_BuildValue("NK", PyLong_FromVoidPtr(block.data), static_cast<U64>(block.bytes));
}

// (pool, address, bytes) -> str
PyObject* Share(PyObject*, PyObject* args) {
  Use pool;
  gpumem_block block = {};
  if (!PyArg_ParseTuple(args, "O&O&O&", Use::Parse<Holds::kPool>, &pool, ToPointer, &block.data,
                        ToUint64, &block.bytes)) {
    return nullptr;
  }
  std::vector<char> ticket(256);
  size_t length = 0;
  int status = GPUMEM_OUT_OF_RANGE;
  for (int attempt = 0; attempt < 2 && status == GPUMEM_OUT_OF_RANGE; ++attempt) {
    if (length > ticket.size()) ticket.resize(length);
    status = WithoutGil([&] {
      return gpumem_pool_share(pool.get<gpumem_pool>(), &block, ticket.data(), ticket.size(),
                               &length);
    });
  }
  return status == GPUMEM_OK ? Text(ticket.data()) : Raise(status);
}

// (client, ticket, read_only, map_devices, timeout_ms, revocable)
//     -> (Handle, pointer, bytes, device, kind, backend)
PyObject* OpenBlock(PyObject*, PyObject* args) {
  Use client;
  TextList map_devices;
  const char* ticket;
  int read_only, revocable;
  gpumem_open_options options = {};
  options.struct_size = sizeof(options);
  if (!PyArg_ParseTuple(args, "O&spO&O&p", Use::Parse<Holds::kClient>, &client, &ticket, &read_only,
                        TextList::Parse, &map_devices, ToUint64, &options.timeout_ms, &revocable)) {
    return nullptr;
  }
  options.read_only = read_only;
  options.map_devices = map_devices.data();
  options.map_device_count = map_devices.size();
  options.revocable = revocable;
  gpumem_shared_block* shared = nullptr;
  const int status = WithoutGil([&] {
    return gpumem_client_open_block(client.get<gpumem_client>(), ticket, &options, &shared);
  });
  if (status != GPUMEM_OK) return Raise(status);
  Handle* const handle = NewHandle(Holds::kSharedBlock, shared, DestroyShared, nullptr);
  if (handle == nullptr) return nullptr;
  gpumem_shared_block_info info = {};
  info.struct_size = sizeof(info);
  gpumem_shared_block_get_info(shared, &info);
  handle->on_cuda = info.backend == GPUMEM_BACKEND_CUDA;
  return Py_BuildValue("NNKNii", handle, PyLong_FromVoidPtr(info.data),
                       static_cast<U64>(info.bytes), Text(info.device_uuid), int{info.kind},
                       int{info.backend});
}

PyObject* StreamWaits(PyObject*, PyObject* args) {
  Use pool;
  void *waiting = nullptr, *awaited = nullptr;
  if (!PyArg_ParseTuple(args, "O&O&O&", Use::Parse<Holds::kPool>, &pool, ToPointer, &waiting,
                        ToPointer, &awaited)) {
    return nullptr;
  }
  const int status = WithoutGil(
      [&] { return gpumem_pool_stream_waits(pool.get<gpumem_pool>(), waiting, awaited); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

PyObject* ForgetStream(PyObject*, PyObject* args) {
  Use pool;
  void* stream = nullptr;
  if (!PyArg_ParseTuple(args, "O&O&", Use::Parse<Holds::kPool>, &pool, ToPointer, &stream)) {
    return nullptr;
  }
  const int status =
      WithoutGil([&] { return gpumem_pool_forget_stream(pool.get<gpumem_pool>(), stream); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

// (pool, keep) -> released
PyObject* Trim(PyObject*, PyObject* args) {
  Use pool;
  uint64_t keep = 0, released = 0;
  if (!PyArg_ParseTuple(args, "O&O&", Use::Parse<Holds::kPool>, &pool, ToUint64, &keep)) {
    return nullptr;
  }
  const int status =
      WithoutGil([&] { return gpumem_pool_trim(pool.get<gpumem_pool>(), keep, &released); });
  return status == GPUMEM_OK ? PyLong_FromUnsignedLongLong(released) : Raise(status);
}

// (pool, stream or None for all) -> released
PyObject* FreeAllBlocks(PyObject*, PyObject* args) {
  Use pool;
  PyObject* of;
  void* stream = nullptr;
  uint64_t released = 0;
  if (!PyArg_ParseTuple(args, "O&O", Use::Parse<Holds::kPool>, &pool, &of) ||
      ToPointer(of, &stream) == 0) {
    return nullptr;
  }
  const int status = WithoutGil([&] {
    auto* const handle = pool.get<gpumem_pool>();
    return of == Py_None ? gpumem_pool_free_all_blocks(handle, &released)
                         : gpumem_pool_free_all_blocks_of_stream(handle, stream, &released);
  });
  return status == GPUMEM_OK ? PyLong_FromUnsignedLongLong(released) : Raise(status);
}

// Wraps functions that set one number.
template <int (*kSet)(gpumem_pool*, uint64_t)>
PyObject* SetBytes(PyObject*, PyObject* args) {
  Use pool;
  uint64_t bytes = 0;
  if (!PyArg_ParseTuple(args, "O&O&", Use::Parse<Holds::kPool>, &pool, ToUint64, &bytes)) {
    return nullptr;
  }
  const int status = WithoutGil([&] { return kSet(pool.get<gpumem_pool>(), bytes); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

PyObject* SetFraction(PyObject*, PyObject* args) {
  Use pool;
  double fraction;
  if (!PyArg_ParseTuple(args, "O&d", Use::Parse<Holds::kPool>, &pool, &fraction)) return nullptr;
  const int status =
      WithoutGil([&] { return gpumem_pool_set_limit_fraction(pool.get<gpumem_pool>(), fraction); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

PyObject* SetReuse(PyObject*, PyObject* args) {
  Use pool;
  unsigned reuse;
  if (!PyArg_ParseTuple(args, "O&I", Use::Parse<Holds::kPool>, &pool, &reuse)) return nullptr;
  const int status =
      WithoutGil([&] { return gpumem_pool_set_reuse(pool.get<gpumem_pool>(), reuse); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

PyObject* SetGives(PyObject*, PyObject* args) {
  Use pool;
  int gives;
  if (!PyArg_ParseTuple(args, "O&p", Use::Parse<Holds::kPool>, &pool, &gives)) return nullptr;
  const int status = WithoutGil(
      [&] { return gpumem_pool_set_gives_under_pressure(pool.get<gpumem_pool>(), gives); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

// (pool) -> (device, kind, backend, limit, the C handle's address)
PyObject* Info(PyObject*, PyObject* args) {
  Use pool;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kPool>, &pool)) return nullptr;
  gpumem_pool_info info = {};
  info.struct_size = sizeof(info);
  const int status =
      WithoutGil([&] { return gpumem_pool_get_info(pool.get<gpumem_pool>(), &info); });
  if (status != GPUMEM_OK) return Raise(status);
  return Py_BuildValue("NiiKN", Text(info.device_uuid), int{info.kind}, int{info.backend},
                       static_cast<U64>(info.limit_bytes),
                       PyLong_FromVoidPtr(pool.get<gpumem_pool>()));
}

// (pool) -> the numbers of gpumem_pool_stats, in its order
PyObject* Stats(PyObject*, PyObject* args) {
  Use pool;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kPool>, &pool)) return nullptr;
  gpumem_pool_stats stats = {};
  stats.struct_size = sizeof(stats);
  const int status =
      WithoutGil([&] { return gpumem_pool_get_stats(pool.get<gpumem_pool>(), &stats); });
  if (status != GPUMEM_OK) return Raise(status);
  const std::vector<uint64_t> numbers = {stats.reserved_bytes,
                                         stats.used_bytes,
                                         stats.free_bytes,
                                         stats.used_blocks,
                                         stats.free_blocks,
                                         stats.segments,
                                         stats.reserved_peak_bytes,
                                         stats.used_peak_bytes,
                                         stats.allocations,
                                         stats.frees,
                                         stats.growths,
                                         stats.reused_after_event,
                                         stats.dependencies,
                                         stats.out_of_memory,
                                         stats.given_under_pressure_bytes,
                                         stats.moves};
  return Numbers(numbers.data(), numbers.size());
}

PyObject* ResetPeaks(PyObject*, PyObject* args) {
  Use pool;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kPool>, &pool)) return nullptr;
  const int status = WithoutGil([&] { return gpumem_pool_reset_peaks(pool.get<gpumem_pool>()); });
  return status == GPUMEM_OK ? None() : Raise(status);
}

// (pool) -> (free, total)
PyObject* MemInfo(PyObject*, PyObject* args) {
  Use pool;
  if (!PyArg_ParseTuple(args, "O&", Use::Parse<Holds::kPool>, &pool)) return nullptr;
  uint64_t free_bytes = 0, total_bytes = 0;
  const int status = WithoutGil(
      [&] { return gpumem_pool_get_mem_info(pool.get<gpumem_pool>(), &free_bytes, &total_bytes); });
  if (status != GPUMEM_OK) return Raise(status);
  return Py_BuildValue("KK", static_cast<U64>(free_bytes), static_cast<U64>(total_bytes));
}

}  // namespace

const std::vector<PyMethodDef> kPoolMethods = {
    {"pool_create", Create, METH_VARARGS, nullptr},
    {"pool_default", Default<gpumem_default_pool>, METH_VARARGS, nullptr},
    {"pool_find_default", Default<gpumem_find_default_pool>, METH_VARARGS, nullptr},
    {"pool_allocate", Allocate, METH_VARARGS, nullptr},
    {"pool_try_allocate", TryAllocate, METH_VARARGS, nullptr},
    {"pool_find", Find, METH_VARARGS, nullptr},
    {"pool_share", Share, METH_VARARGS, nullptr},
    {"open_block", OpenBlock, METH_VARARGS, nullptr},
    {"pool_stream_waits", StreamWaits, METH_VARARGS, nullptr},
    {"pool_forget_stream", ForgetStream, METH_VARARGS, nullptr},
    {"pool_trim", Trim, METH_VARARGS, nullptr},
    {"pool_free_all_blocks", FreeAllBlocks, METH_VARARGS, nullptr},
    {"pool_set_limit", SetBytes<gpumem_pool_set_limit>, METH_VARARGS, nullptr},
    {"pool_set_limit_fraction", SetFraction, METH_VARARGS, nullptr},
    {"pool_set_release_threshold", SetBytes<gpumem_pool_set_release_threshold>, METH_VARARGS,
     nullptr},
    {"pool_set_reuse", SetReuse, METH_VARARGS, nullptr},
    {"pool_set_gives_under_pressure", SetGives, METH_VARARGS, nullptr},
    {"pool_info", Info, METH_VARARGS, nullptr},
    {"pool_stats", Stats, METH_VARARGS, nullptr},
    {"pool_reset_peaks", ResetPeaks, METH_VARARGS, nullptr},
    {"pool_mem_info", MemInfo, METH_VARARGS, nullptr},
};

}  // namespace gpumem::python
