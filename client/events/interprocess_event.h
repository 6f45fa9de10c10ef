// An event that several processes share, as CUDA has it or as host memory stands in for it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpumem/client.h"

namespace gpumem::internal {

// Thread-safe. See Event in client.h for what the calls do and answer.
class InterprocessEvent {
 public:
  InterprocessEvent(const InterprocessEvent&) = delete;
  InterprocessEvent& operator=(const InterprocessEvent&) = delete;
  virtual ~InterprocessEvent() = default;

  virtual absl::Status Record(void* stream) = 0;
  virtual absl::Status Wait(void* stream) = 0;
  virtual absl::Status Synchronize() = 0;
  virtual absl::StatusOr<bool> Done() = 0;
  // The cudaEvent_t; null on the host backend.
  virtual void* event() const = 0;
  // Whether its maker must keep it while others may use it: CUDA leaves undefined what an
  // event does in other processes that its maker has destroyed.
  virtual bool needs_its_maker() const = 0;

  // By which others open it.
  const Handle& handle() const { return handle_; }

 protected:
  InterprocessEvent() = default;
  Handle handle_ = {};
};

// Statuses of both:
//   UNAVAILABLE         this process has no usable CUDA driver
//   NOT_FOUND           this process does not see the device to make it on
//   PERMISSION_DENIED   its maker is another user's process
//   UNIMPLEMENTED       the device has no interprocess events
//   RESOURCE_EXHAUSTED  the process has as many as CUDA lets it have
//   INTERNAL            any other error of the driver, by its name
//
// They keep the device's primary context; where this process does not see the device of an event
// that it opens, that of the first that it sees.
absl::StatusOr<std::shared_ptr<InterprocessEvent>> MakeCudaEvent(const std::string& device_uuid);
absl::StatusOr<std::shared_ptr<InterprocessEvent>> OpenCudaEvent(const std::string& device_uuid,
                                                                 const Handle& handle);

// The host backend's is the first word of `memory`, which `ticket` opens.
std::shared_ptr<InterprocessEvent> MakeHostEvent(Segment memory, absl::string_view ticket);
// The ticket in such a handle.
//   INVALID_ARGUMENT  the handle is none of the host backend's
absl::StatusOr<std::string> HostEventTicket(const Handle& handle);

}  // namespace gpumem::internal
