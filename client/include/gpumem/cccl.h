// SPDX-License-Identifier: Apache-2.0
// Memory resources of CCCL (<cuda/memory_resource>) over a Pool. RMM, cuda::buffer and all other
// code that takes such a resource then allocates from memory that this process leases.
//
//   auto pool = gpumem::Pool::Create(client, {});
//   gpumem::PoolResource resource(*std::move(pool));
//   rmm::mr::set_current_device_resource(resource);
//
// The header uses the CCCL that the compiler finds: that of the CUDA toolkit, of RMM, or another.
// Without one it declares nothing but GPUMEM_HAS_CCCL, which is 0. CCCL 2.8, 3.0 and newer work.
// Before 3.1 they need -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE.
//
// Names. CCCL 3.1 renamed the functions of a resource. The resources here have both sets of names
// with every CCCL:
//
//   since 3.1                                    before
//   allocate(stream, bytes, alignment)           allocate_async(bytes, alignment, stream)
//   deallocate(stream, data, bytes, alignment)   deallocate_async(data, bytes, alignment, stream)
//   allocate_sync(bytes, alignment)              allocate(bytes, alignment)
//   deallocate_sync(data, bytes, alignment)      deallocate(data, bytes, alignment)
//
// They model cuda::mr::resource and synchronous_resource; before 3.1 async_resource and resource.
//
// Ownership. A resource shares ownership of its pool. Copies are cheap, and equal: what one
// allocated, each other may free. So a resource may be given by value (cuda::mr::any_resource) or
// by reference (cuda::mr::resource_ref), which must not outlive it. The pool ends with its last
// resource. All memory must have been freed by then.
//
// Errors. Allocating throws PoolBadAlloc, which is a std::bad_alloc and has the pool's status.
// Deallocating throws nothing: it reports an error on stderr and leaves the block allocated. Such
// errors are memory of another resource, memory that was freed before, and a captured stream.
//
// Streams and graphs: the rules of pool.h hold. In particular call pool().ForgetStream() before a
// stream is destroyed, and neither allocate nor deallocate on a stream that is being captured.
// While the pool is suspended, allocating throws.
//
// Threads: every function may be called from any thread. Sizes are bytes.
#pragma once

#if __has_include(<cuda/memory_resource>) && __has_include(<cuda_runtime_api.h>)
#define GPUMEM_HAS_CCCL 1
#else
#define GPUMEM_HAS_CCCL 0
#endif

#if GPUMEM_HAS_CCCL

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#if CCCL_VERSION < 3001000 && !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#error "This CCCL needs -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE for <gpumem/cccl.h>."
#endif

#include <cstddef>
#include <cstdio>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpumem/pool.h"

namespace gpumem {

// A failed allocation. The status is that of Pool::Allocate or Pool::AllocateSynchronized, with its
// Denial (GetDenial). INVALID_ARGUMENT: also an alignment that is not a power of two up to 512.
class PoolBadAlloc : public std::bad_alloc {
 public:
  explicit PoolBadAlloc(absl::Status status)
      : status_(std::move(status)),
        text_(std::make_shared<const std::string>("gpumem: " + status_.ToString())) {}

  // Returns the status of the pool, never OK.
  const absl::Status& status() const noexcept { return status_; }
  const char* what() const noexcept override { return text_->c_str(); }

 private:
  absl::Status status_;
  std::shared_ptr<const std::string> text_;  // copying an exception must not throw
};

// A resource whose memory has these properties of CCCL. Use the aliases below. After a move it may
// only be assigned to or destroyed.
template <class... Properties>
class BasicPoolResource {
 public:
  // Takes ownership of a share of the pool. Throws std::invalid_argument if it is null, or if it
  // does not have the property host_accessible: CPUs can use memory of kind pinned, and of the host
  // backend. Memory of the host backend passes as device_accessible, for tests without a GPU.
  explicit BasicPoolResource(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {
    if (pool_ == nullptr) throw std::invalid_argument("gpumem: a resource needs a pool");
    if constexpr (kHas<cuda::mr::host_accessible>) {
      if (pool_->kind() != Kind::kPinned && pool_->backend() != Backend::kHost) {
        throw std::invalid_argument("gpumem: the CPU cannot use the memory of this pool; " +
                                    std::string("use a pool of kind pinned"));
      }
    }
  }

  // Written out: nvcc would compile defaulted ones for devices, too, and warn of std::shared_ptr.
  BasicPoolResource(const BasicPoolResource& other) noexcept : pool_(other.pool_) {}
  BasicPoolResource(BasicPoolResource&& other) noexcept : pool_(std::move(other.pool_)) {}
  BasicPoolResource& operator=(const BasicPoolResource& other) noexcept {
    pool_ = other.pool_;
    return *this;
  }
  BasicPoolResource& operator=(BasicPoolResource&& other) noexcept {
    pool_ = std::move(other.pool_);
    return *this;
  }
  ~BasicPoolResource() {}

  // Returns memory for work on the stream (Pool::Allocate); null for zero bytes. `alignment`: a
  // power of two up to 512, which all blocks have. Throws PoolBadAlloc.
  [[nodiscard]] void* allocate(cuda::stream_ref stream, size_t bytes,
                               size_t alignment = kAlignment) {
    return Allocated(bytes, alignment, [&] { return pool_->Allocate(bytes, stream.get()); });
  }

  // Releases memory after the work submitted to the stream so far (Pool::Free). Does nothing for
  // null.
  void deallocate(cuda::stream_ref stream, void* data, size_t /*bytes*/,
                  size_t /*alignment*/ = kAlignment) noexcept {
    Freed(data, [&] { return pool_->Free(data, stream.get()); });
  }

  // Returns memory that is usable at once and on every stream, as cudaMalloc
  // (Pool::AllocateSynchronized). May block until work of other streams is done. Zero bytes,
  // alignment and errors as allocate().
  [[nodiscard]] void* allocate_sync(size_t bytes, size_t alignment = kAlignment) {
    return Allocated(bytes, alignment, [&] { return pool_->AllocateSynchronized(bytes); });
  }

  // Blocks until all work of the device is done, and releases the memory, as cudaFree
  // (Pool::FreeSynchronized). Not during the capture of a graph. Does nothing for null.
  void deallocate_sync(void* data, size_t /*bytes*/, size_t /*alignment*/ = kAlignment) noexcept {
    Freed(data, [&] { return pool_->FreeSynchronized(data); });
  }

  // Returns allocate(): the name before CCCL 3.1.
  [[nodiscard]] void* allocate_async(size_t bytes, size_t alignment, cuda::stream_ref stream) {
    return allocate(stream, bytes, alignment);
  }
  // Releases as deallocate(): the name before CCCL 3.1.
  void deallocate_async(void* data, size_t bytes, size_t alignment,
                        cuda::stream_ref stream) noexcept {
    deallocate(stream, data, bytes, alignment);
  }
  // Returns allocate_sync(): the name before CCCL 3.1.
  [[nodiscard]] void* allocate(size_t bytes, size_t alignment = kAlignment) {
    return allocate_sync(bytes, alignment);
  }
  // Releases as deallocate_sync(): the name before CCCL 3.1.
  void deallocate(void* data, size_t bytes, size_t alignment = kAlignment) noexcept {
    deallocate_sync(data, bytes, alignment);
  }

  // Returns the pool, for its statistics and ForgetStream().
  Pool& pool() const noexcept { return *pool_; }

  // True if both have the same pool.
  friend bool operator==(const BasicPoolResource& a, const BasicPoolResource& b) noexcept {
    return a.pool_ == b.pool_;
  }
  friend bool operator!=(const BasicPoolResource& a, const BasicPoolResource& b) noexcept {
    return !(a == b);
  }

  template <class Property,
            std::enable_if_t<std::disjunction_v<std::is_same<Property, Properties>...>, int> = 0>
  friend constexpr void get_property(const BasicPoolResource&, Property) noexcept {}

#if CCCL_VERSION >= 3002000
  // The properties that cuda::make_buffer and other functions take from a resource.
  using default_queries = cuda::mr::properties_list<Properties...>;
#endif

 private:
  static constexpr size_t kAlignment = 512;

  template <class Property>
  static constexpr bool kHas = std::disjunction_v<std::is_same<Property, Properties>...>;

  template <class Allocate>
  static void* Allocated(size_t bytes, size_t alignment, Allocate allocate) {
    if (alignment == 0 || alignment > kAlignment || (alignment & (alignment - 1)) != 0) {
      throw PoolBadAlloc(absl::InvalidArgumentError("the alignment " + std::to_string(alignment) +
                                                    " is not a power of two up to 512"));
    }
    if (bytes == 0) return nullptr;
    absl::StatusOr<Block> block = allocate();
    if (!block.ok()) throw PoolBadAlloc(std::move(block).status());
    return block->data;
  }

  template <class Free>
  static void Freed(void* data, Free free) noexcept {
    if (data == nullptr) return;
    const absl::Status status = free();
    if (status.ok()) return;
    std::fprintf(stderr, "gpumem: memory at %p was not freed: %s\n", data,
                 status.ToString().c_str());
  }

  std::shared_ptr<Pool> pool_;
};

// Memory of a GPU: for pools of every kind.
using PoolResource = BasicPoolResource<cuda::mr::device_accessible>;
// Memory of GPUs and CPUs: for pools of kind pinned.
using PinnedPoolResource =
    BasicPoolResource<cuda::mr::device_accessible, cuda::mr::host_accessible>;

}  // namespace gpumem

#endif  // GPUMEM_HAS_CCCL
