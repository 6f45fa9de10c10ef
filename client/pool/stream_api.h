// SPDX-License-Identifier: Apache-2.0
// The pool's interface to the driver's streams and events. One implementation calls CUDA; one is
// the host backend's, where work is synchronous; tests have another.
//
// Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpumem/pool.h"

namespace gpumem::internal {

// CUDA's default streams (driver_types.h).
inline Stream LegacyStream() { return reinterpret_cast<Stream>(1); }
inline Stream PerThreadStream() { return reinterpret_cast<Stream>(2); }

// Sentinel, never a real stream. Memory allocated for it is usable on every stream.
inline Stream AnyStream() {
  static char any;
  return &any;
}

class StreamApi {
 public:
  // The driver's event, or null; destroyed by Drop().
  using EventHandle = void*;

  StreamApi(const StreamApi&) = delete;
  StreamApi& operator=(const StreamApi&) = delete;
  virtual ~StreamApi() = default;

  // True if the stream and the legacy default stream wait for each other.
  //   INVALID_ARGUMENT  it is no stream of the pool's device
  virtual absl::StatusOr<bool> IsBlocking(Stream stream) = 0;
  // True if it is known not to be captured into a graph. Every allocation calls this.
  virtual bool IsFree(Stream stream) = 0;
  // As IsFree, with the reason.
  //   FAILED_PRECONDITION  it is being captured, or is the legacy stream while a stream is captured
  //                        that waits for it
  //   INVALID_ARGUMENT     it is no stream of the pool's device
  virtual absl::Status CheckFree(Stream stream) = 0;

  // Records an event that completes when all work submitted to the stream so far is done.
  //   FAILED_PRECONDITION  as CheckFree: nothing was recorded
  virtual absl::StatusOr<EventHandle> Record(Stream stream) = 0;
  virtual absl::StatusOr<bool> Done(EventHandle event) = 0;
  virtual absl::Status Synchronize(EventHandle event) = 0;
  virtual absl::Status SynchronizeDevice() = 0;
  // Makes all future work of the stream wait for the event.
  //   FAILED_PRECONDITION  as CheckFree
  virtual absl::Status Wait(Stream stream, EventHandle event) = 0;
  virtual void Drop(EventHandle event) = 0;

 protected:
  StreamApi() = default;
};

std::unique_ptr<StreamApi> MakeHostStreamApi();

//   UNAVAILABLE  this process has no usable CUDA driver
//   and the errors of creating the device's primary context
absl::StatusOr<std::unique_ptr<StreamApi>> MakeCudaStreamApi(const std::string& device_uuid);

}  // namespace gpumem::internal
