// SPDX-License-Identifier: Apache-2.0
// gpumem_default_pool, and the entry points with the signatures of PyTorch, CuPy and RMM. Those
// have no status, and their callers do not check for null, so errors are also printed on stderr.
#include <cstdint>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "client/c_api/boundary.h"
#include "client/c_api/default_pools.h"
#include "client/c_api/handles.h"
#include "gpumem/gpumem.h"
#include "gpumem/pool.h"

using gpumem::c_api::AnyNull;
using gpumem::c_api::Call;
using gpumem::c_api::CurrentDevice;
using gpumem::c_api::DefaultPool;
using gpumem::c_api::FindDefaultPool;
using gpumem::c_api::NullError;

namespace {

// Runs one entry point's work.
template <typename Work>
void Run(const char* name, Work work) {
  if (Call(work) != GPUMEM_OK) std::fprintf(stderr, "%s: %s\n", name, gpumem_last_error());
}

// `find_pool` returns absl::StatusOr<gpumem_pool*>.
// `allocate_in` allocates in the pool.
template <typename FindPool, typename AllocateIn>
void* Allocate(const char* name, FindPool find_pool, uint64_t bytes, AllocateIn allocate_in) {
  void* data = nullptr;
  if (bytes == 0) return data;
  Run(name, [&]() -> absl::Status {
    absl::StatusOr<gpumem_pool*> pool = find_pool();
    if (!pool.ok()) return pool.status();
    absl::StatusOr<gpumem::Block> block = allocate_in(*(*pool)->pool);
    if (!block.ok()) return block.status();
    data = block->data;
    return absl::OkStatus();
  });
  return data;
}

// `free_in` frees in the pool.
template <typename FindPool, typename FreeIn>
void Free(const char* name, FindPool find_pool, const void* data, FreeIn free_in) {
  if (data == nullptr) return;
  Run(name, [&]() -> absl::Status {
    absl::StatusOr<gpumem_pool*> pool = find_pool();
    if (!pool.ok()) return pool.status();
    return free_in(*(*pool)->pool);
  });
}

// For CuPy and RMM: returns the pool that the program chose, or the default pool.
absl::StatusOr<gpumem_pool*> Chosen(void* pool, int device) {
  if (pool != nullptr) return static_cast<gpumem_pool*>(pool);
  return DefaultPool(device);
}

absl::StatusOr<gpumem_pool*> ChosenOrCurrent(void* pool) {
  return Chosen(pool, pool == nullptr ? CurrentDevice() : 0);
}

}  // namespace

extern "C" {

int gpumem_default_pool(int device, gpumem_pool** pool) {
  return Call([&]() -> absl::Status {
    if (AnyNull(pool)) return NullError("pool");
    auto found = DefaultPool(device);
    if (!found.ok()) return found.status();
    *pool = *found;
    return absl::OkStatus();
  });
}

int gpumem_find_default_pool(int device, gpumem_pool** pool) {
  return Call([&]() -> absl::Status {
    if (AnyNull(pool)) return NullError("pool");
    auto found = FindDefaultPool(device);
    if (!found.ok()) return found.status();
    *pool = *found;
    return absl::OkStatus();
  });
}

void* gpumem_torch_malloc(ssize_t size, int device, void* stream) {
  const auto find = [&]() -> absl::StatusOr<gpumem_pool*> {
    if (size < 0) return absl::InvalidArgumentError(absl::StrCat("a block of ", size, " bytes"));
    return DefaultPool(device);
  };
  const auto bytes = static_cast<uint64_t>(size);
  return Allocate("gpumem_torch_malloc", find, bytes,
                  [&](gpumem::Pool& pool) { return pool.Allocate(bytes, stream); });
}

void gpumem_torch_free(void* ptr, ssize_t, int device, void* stream) {
  Free(
      "gpumem_torch_free", [&] { return DefaultPool(device); }, ptr,
      [&](gpumem::Pool& pool) { return pool.Free(ptr, stream); });
}

void* gpumem_cupy_malloc(void* param, size_t size, int device) {
  return Allocate(
      "gpumem_cupy_malloc", [&] { return Chosen(param, device); }, size,
      [&](gpumem::Pool& pool) { return pool.AllocateSynchronized(size); });
}

void gpumem_cupy_free(void* param, void* ptr, int device) {
  // CuPy relies on the wait of cudaFree: the work on the memory may be on any stream.
  Free(
      "gpumem_cupy_free", [&] { return Chosen(param, device); }, ptr,
      [&](gpumem::Pool& pool) { return pool.FreeSynchronized(ptr); });
}

void* gpumem_rmm_allocate(size_t bytes, void* stream, void* context) {
  return Allocate(
      "gpumem_rmm_allocate", [&] { return ChosenOrCurrent(context); }, bytes,
      [&](gpumem::Pool& pool) { return pool.Allocate(bytes, stream); });
}

void gpumem_rmm_deallocate(void* ptr, size_t, void* stream, void* context) {
  Free(
      "gpumem_rmm_deallocate", [&] { return ChosenOrCurrent(context); }, ptr,
      [&](gpumem::Pool& pool) { return pool.Free(ptr, stream); });
}

}  // extern "C"
