// SPDX-License-Identifier: Apache-2.0
// The driver's own calls for kinds ipc and mempool and for copies between GPUs and with host
// memory, without any code of ours: the floors use them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "gpumem/client.h"

namespace gpumem::bench {

// One GPU with its primary context. For one thread at a time, in which it makes that context
// current. Errors are INTERNAL, with the call and the driver's name of the error; UNAVAILABLE
// without CUDA.
class BareCuda {
 public:
  static absl::StatusOr<std::unique_ptr<BareCuda>> On(const std::string& device_uuid);
  virtual ~BareCuda() = default;
  BareCuda(const BareCuda&) = delete;
  BareCuda& operator=(const BareCuda&) = delete;

  using Address = uint64_t;  // CUdeviceptr
  struct Exported {
    Address address = 0;
    Handle data = {};
  };

  // cuMemAlloc (MakeIpc also shares it), cuMemFree.
  virtual absl::StatusOr<Address> Alloc(uint64_t bytes) = 0;
  virtual absl::StatusOr<Exported> MakeIpc(uint64_t bytes) = 0;
  virtual absl::Status Free(Address address) = 0;
  virtual absl::StatusOr<Address> OpenIpc(const Handle& handle) = 0;
  virtual absl::Status CloseIpc(Address address) = 0;

  // Returns the descriptor of one pool, made by the first call. Freed memory goes back to the
  // driver with the next synchronization, as with a release threshold of 0.
  virtual absl::StatusOr<UniqueFd> PoolFd() = 0;
  virtual absl::StatusOr<Exported> MakeInPool(uint64_t bytes) = 0;
  virtual absl::Status FreeInPool(Address address) = 0;
  virtual absl::Status ImportPool(int fd) = 0;  // once, before:
  virtual absl::StatusOr<Address> OpenInPool(const Handle& data) = 0;
  virtual absl::Status CloseInPool(Address address) = 0;

  // Lets this GPU use the other's memory.
  virtual absl::Status EnablePeer(BareCuda& other) = 0;
  // `times` copies one after another on one stream; waits for the last.
  virtual absl::Status Copy(Address to, Address from, uint64_t bytes, int times) = 0;
  virtual absl::Status CopyFromPeer(Address to, Address from, BareCuda& owner, uint64_t bytes,
                                    int times) = 0;

  // cuMemHostRegister, cuMemHostUnregister.
  virtual absl::Status Register(void* host, uint64_t bytes) = 0;
  virtual absl::Status Unregister(void* host) = 0;
  struct HostCopy {
    Address memory = 0;
    void* host = nullptr;
    uint64_t bytes = 0;
  };
  // All of them on one stream; waits for the last.
  virtual absl::Status CopyOut(absl::Span<const HostCopy> copies) = 0;
  virtual absl::Status CopyIn(absl::Span<const HostCopy> copies) = 0;

 protected:
  BareCuda() = default;
};

}  // namespace gpumem::bench
