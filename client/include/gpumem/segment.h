// SPDX-License-Identifier: Apache-2.0
// Memory of a session, mapped into this process: the result of Client::Acquire and Client::Open
// (gpumem/client.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gpumem/types.h"

namespace gpumem {

namespace internal {
class Remapping;
}  // namespace internal

class AddressRange;

// A lease on one segment, mapped into this process. Move-only. The destructor, and an assignment
// over it, unmap the memory and release the lease; the caller ensures that no GPU work uses the
// memory by then. They do not wait for the daemon. It is told with the next call of any Client of
// this process, before the call's answer, and else within a millisecond or so. Until then the
// memory stays charged.
class Segment {
 public:
  Segment();
  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  ~Segment();

  // False after Release(), after a move, and if default-constructed.
  bool valid() const { return state_ != nullptr; }

  // On the CUDA backend a device pointer, usable on the segment's device; on the host backend an
  // ordinary pointer. Null if not valid. Stays valid when the daemon dies. Of a suspended segment
  // it is the reserved address, which must not be used.
  void* data() const;
  uint64_t size() const;  // after rounding
  const std::string& device_uuid() const;
  Kind kind() const;
  Backend backend() const;
  uint64_t lease_id() const;
  uint64_t segment_id() const;
  // True if the memory holds old bytes of the same tenant; else it is zeroed.
  bool reused() const;
  // True if the memory may be revoked (Revocation): the request or the tenant's quota said so.
  bool revocable() const;
  // True if it is suspended (gpumem/suspend.h): no memory is mapped at data().
  bool suspended() const;
  // True from Client::Demote to Client::Promote (gpumem/demote.h): its memory is host memory, of
  // kind kHost, at the same addresses.
  bool demoted() const;
  // Returns AcquireOptions::tag. Empty for memory that was opened or attached.
  const std::string& tag() const;
  // True if its bytes are dropped when it is suspended (AcquireOptions::scratch). False with a
  // daemon that is too old for that: it keeps them.
  bool scratch() const;
  // Kind pinned: true if GPUs can use data(), too. False if this process has no usable CUDA driver:
  // the memory is then an ordinary shared buffer. With a driver, mapping the first such segment
  // creates a CUDA context if none exists. The context is that of the device that the process sees
  // first (or of the first in map_devices).
  bool registered() const;

  // For programs that do not use gpumem. A process that is given any of these can use the memory
  // without the daemon's knowledge. This lease must outlive that use.
  //
  // Kind ipc: returns the handle for cudaIpcOpenMemHandle. It opens all size() bytes.
  //   UNIMPLEMENTED  another kind; the message says what that kind has instead
  absl::StatusOr<Handle> ipc_handle() const;
  // Kind mempool: returns the data for cudaMemPoolImportPointer on the pool that pool_fd() imports.
  // For other processes only: in this process the driver returns the pointer that is already open,
  // and the first free would end both uses.
  //   UNIMPLEMENTED  another kind
  absl::StatusOr<Handle> export_data() const;
  // Kind mempool: returns the descriptor for cudaMemPoolImportFromShareableHandle. It opens all
  // memory that the tenant has in the pool. The session owns it, and all its segments of the pool
  // share it: it is valid while any of them is.
  //   UNIMPLEMENTED  another kind
  absl::StatusOr<int> pool_fd() const;
  // Kinds vmm and pinned: returns the descriptor for cuMemImportFromShareableHandle or mmap. The
  // first call asks the daemon for it. The Segment owns it; it is valid as long as the Segment, and
  // until Client::Suspend. From then on the daemon does not reuse the memory after its release.
  //   UNIMPLEMENTED        another kind
  //   FAILED_PRECONDITION  the segment is suspended
  absl::StatusOr<int> fd();

  // Returns the ticket of this lease; always the same one for a scope.
  //   FAILED_PRECONDITION  not valid, or the segment is lost (SegmentsLost); or scope kAny for kind
  //                        mempool, since its pool opens all memory that the tenant has in it
  absl::StatusOr<Ticket> Share(TicketScope scope = TicketScope::kTenant) const;

  // Unmaps the memory and ends the lease, like the destructor, but waits for the daemon and returns
  // the status. The memory is unmapped in any case. If no daemon runs, the lease ends when one is
  // back. Release() waits for that at most `timeout` (UNAVAILABLE).
  //   FAILED_PRECONDITION  not valid
  absl::Status Release(std::optional<absl::Duration> timeout = std::nullopt);

 private:
  friend class Attachment;
  friend class Client;
  friend class Pool;
  friend class internal::Remapping;
  struct State;
  explicit Segment(std::unique_ptr<State> state);
  // Moves segments of kind vmm with MoveHost or MoveCuda; changes data().
  static absl::Status Move(absl::Span<Segment* const> segments,
                           const std::shared_ptr<const AddressRange>& range, void* address);
  std::unique_ptr<State> state_;
};

}  // namespace gpumem
