// Moves large amounts of bytes between mapped memory and the host in pieces that overlap: while
// one piece is copied, the next is read from wherever it comes from, or the one before is used.
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

// Thread-compatible: one thread makes the calls, but any thread may use the buffers. Leaves the
// calling thread's current CUDA context as it was. INTERNAL from any call: the driver's error.
class Staging {
 public:
  static constexpr uint64_t kPieceBytes = uint64_t{4} << 20;  // one piece has no more
  static constexpr int kSlots = 16;

  // For memory that the host reads and writes itself. Nothing is copied: a buffer is the memory.
  static std::unique_ptr<Staging> ForHost();

  // For memory mapped by MapCuda for the same device. Keeps that device's primary CUDA context
  // (as DeviceCopier does) and kSlots pieces of pinned host memory, which is what lets the copy
  // engine work behind the caller's back.
  //   UNAVAILABLE         this process has no usable CUDA driver
  //   NOT_FOUND           this process does not see the device
  //   RESOURCE_EXHAUSTED  no memory for a context
  static absl::StatusOr<std::unique_ptr<Staging>> ForCuda(const std::string& device_uuid);

  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  // Waits for what has been started.
  virtual ~Staging() = default;

  // Where the host has the bytes of the piece at `mapped`. Of kPieceBytes where it is not the
  // memory itself; begins at a page where `mapped` does.
  virtual void* Buffer(int slot, void* mapped) = 0;
  // From the buffer to the memory, and back. The buffer is not touched until Finish(slot).
  virtual absl::Status StartIn(int slot, void* mapped, uint64_t bytes) = 0;
  virtual absl::Status StartOut(int slot, const void* mapped, uint64_t bytes) = 0;
  // Waits until what was started last in this slot is done; at once where nothing was.
  virtual absl::Status Finish(int slot) = 0;

 protected:
  Staging() = default;
};

}  // namespace gpumem
