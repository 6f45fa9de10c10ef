// What the pool needs of the driver: streams and events. One implementation speaks to CUDA, one is
// the host backend's, where nothing runs behind the caller's back; tests have one of their own.
//
// Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpumem/pool.h"

namespace gpumem::internal {

// What CUDA calls the default streams (driver_types.h).
inline Stream LegacyStream() { return reinterpret_cast<Stream>(1); }
inline Stream PerThreadStream() { return reinterpret_cast<Stream>(2); }

// None that CUDA or a program has: memory for it is any stream's, so nobody may be working on it.
inline Stream AnyStream() {
  static char any;
  return &any;
}

class StreamApi {
 public:
  // The driver's, or nothing at all; ended by Drop().
  using EventHandle = void*;

  StreamApi(const StreamApi&) = delete;
  StreamApi& operator=(const StreamApi&) = delete;
  virtual ~StreamApi() = default;

  // Whether the stream waits for the legacy default stream, and that for it.
  //   INVALID_ARGUMENT  it is no stream of the pool's device
  virtual absl::StatusOr<bool> IsBlocking(Stream stream) = 0;
  // Whether it is known not to be captured into a graph: this is on the way of every allocation.
  virtual bool IsFree(Stream stream) = 0;
  // The same in words.
  //   FAILED_PRECONDITION  it is being captured, or is the legacy stream while another is that
  //                        waits for it
  //   INVALID_ARGUMENT     it is no stream of the pool's device
  virtual absl::Status CheckFree(Stream stream) = 0;

  // An event that happens when all work that was submitted to the stream by now is done.
  //   FAILED_PRECONDITION  as CheckFree: then nothing was recorded
  virtual absl::StatusOr<EventHandle> Record(Stream stream) = 0;
  virtual absl::StatusOr<bool> Done(EventHandle event) = 0;
  virtual absl::Status Synchronize(EventHandle event) = 0;
  virtual absl::Status SynchronizeDevice() = 0;
  // What is submitted to the stream from here on comes after the event.
  //   FAILED_PRECONDITION  as CheckFree
  virtual absl::Status Wait(Stream stream, EventHandle event) = 0;
  virtual void Drop(EventHandle event) = 0;

 protected:
  StreamApi() = default;
};

std::unique_ptr<StreamApi> MakeHostStreamApi();

//   UNAVAILABLE  this process has no usable CUDA driver
//   and what keeps the device's primary context from being made
absl::StatusOr<std::unique_ptr<StreamApi>> MakeCudaStreamApi(const std::string& device_uuid);

}  // namespace gpumem::internal
