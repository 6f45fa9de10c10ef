// SPDX-License-Identifier: Apache-2.0
// An event that several processes share: a CUDA event, or a word of host memory in its place.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpumem/client.h"

namespace gpumem::internal {

// Thread-safe. Event in client.h documents the calls and their statuses.
class InterprocessEvent {
 public:
  InterprocessEvent(const InterprocessEvent&) = delete;
  InterprocessEvent& operator=(const InterprocessEvent&) = delete;
  virtual ~InterprocessEvent() = default;

  virtual absl::Status Record(void* stream) = 0;
  virtual absl::Status Wait(void* stream) = 0;
  virtual absl::Status Synchronize() = 0;
  virtual absl::StatusOr<bool> Done() = 0;
  // Returns the cudaEvent_t; null on the host backend.
  virtual void* event() const = 0;
  // True if the creator must keep the event while other processes may use it: CUDA leaves the event
  // undefined in other processes once its creator has destroyed it.
  virtual bool needs_its_maker() const = 0;

  // The handle with which other processes open it.
  const Handle& handle() const { return handle_; }

 protected:
  InterprocessEvent() = default;
  Handle handle_ = {};
};

// Statuses of both:
//   UNAVAILABLE         this process has no usable CUDA driver
//   NOT_FOUND           this process does not see the device to create it on
//   PERMISSION_DENIED   another user's process created it
//   UNIMPLEMENTED       the device has no interprocess events
//   RESOURCE_EXHAUSTED  the process has as many events as CUDA allows
//   INTERNAL            any other error of the driver, by its name
//
// They retain the device's primary context. If this process does not see the device of an event
// that it opens, they retain that of the first device that it sees.
absl::StatusOr<std::shared_ptr<InterprocessEvent>> MakeCudaEvent(const std::string& device_uuid);
absl::StatusOr<std::shared_ptr<InterprocessEvent>> OpenCudaEvent(const std::string& device_uuid,
                                                                 const Handle& handle);

// Makes a host event: the first word of `memory`, which `ticket` opens.
std::shared_ptr<InterprocessEvent> MakeHostEvent(Segment memory, absl::string_view ticket);
// Returns the ticket in such a handle.
//   INVALID_ARGUMENT  the handle is not one of the host backend
absl::StatusOr<std::string> HostEventTicket(const Handle& handle);

}  // namespace gpumem::internal
