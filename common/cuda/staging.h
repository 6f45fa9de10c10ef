// SPDX-License-Identifier: Apache-2.0
// Moves large amounts of bytes between mapped memory and the host in pieces that overlap. While one
// piece is copied, the next is read from its source, or the previous one is used.
//
//   for each piece i:  slot = i % kSlots
//     in:   fill staging->Buffer(slot, mapped); StartIn(slot, mapped, n); … Finish(slot)
//     out:  StartOut(slot, mapped, n); … Finish(slot); use staging->Buffer(slot, mapped)
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gpumem {

// Thread-compatible: one thread makes the calls, but any thread may use the buffers. Restores the
// calling thread's current CUDA context. INTERNAL from any call: the driver's error.
class Staging {
 public:
  static constexpr uint64_t kPieceBytes = uint64_t{4} << 20;  // one piece has no more
  static constexpr int kSlots = 4;
  static constexpr uint64_t kBytes = kSlots * kPieceBytes;  // of pinned memory, for a device

  // Returns a staging for memory that the host accesses directly. Nothing is copied: a buffer is
  // the memory.
  static std::unique_ptr<Staging> ForHost();

  // Returns a staging for memory mapped by MapCuda for the same device. Keeps that device's primary
  // CUDA context (as DeviceCopier does) and kBytes of pinned host memory, which lets the copy engine
  // work asynchronously.
  //   UNAVAILABLE         this process has no usable CUDA driver
  //   NOT_FOUND           this process does not see the device
  //   RESOURCE_EXHAUSTED  no memory for a context
  static absl::StatusOr<std::unique_ptr<Staging>> ForCuda(const std::string& device_uuid);

  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  // Blocks until all started copies are done.
  virtual ~Staging() = default;

  // Returns the host address for the bytes of the piece at `mapped`: the memory itself, or a buffer
  // of kPieceBytes. Page-aligned if `mapped` is.
  virtual void* Buffer(int slot, void* mapped) = 0;
  // Copy from the buffer to the memory, and back. The buffer must not be touched until
  // Finish(slot).
  virtual absl::Status StartIn(int slot, void* mapped, uint64_t bytes) = 0;
  virtual absl::Status StartOut(int slot, const void* mapped, uint64_t bytes) = 0;
  // Blocks until the last copy started in this slot is done. Returns at once if there is none.
  virtual absl::Status Finish(int slot) = 0;

 protected:
  Staging() = default;
};

}  // namespace gpumem
