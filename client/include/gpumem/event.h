// SPDX-License-Identifier: Apache-2.0
// Interprocess events: Client::CreateEvent, Client::OpenEvent and Client::OpenEvents
// (gpumem/client.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpumem/types.h"

namespace gpumem {

class Segment;  // gpumem/segment.h

// An interprocess event. A stream of the producer records it; a stream of a consumer, in another
// process, waits for that on the GPU, without a round trip through a host. Move-only.
//
//   auto done = client->CreateEvent({.name = "batch"});          // in the producer
//   fill<<<..., stream>>>(...); done->Record(stream);
//   auto done = client->OpenEvent("batch");                      // in the consumer
//   done->Wait(stream); use<<<..., stream>>>(...);
//
// As with every CUDA event, Wait() waits for the last Record() before it, and for nothing if there
// was none. The producer must tell the consumer by other means that it has recorded. A stream that
// waits for a record waits for ever if the producer is killed before the GPU reached the record. A
// process can have some 4000 interprocess events, created and opened together (RESOURCE_EXHAUSTED).
// An event whose handle other processes have received counts until its session ends. CUDA opens an
// event only in processes other than its creator, and of the same user.
//
// On the host backend all work is synchronous: recorded work has already completed. An event is
// charged there as one segment of the smallest size.
class Event {
 public:
  Event();
  Event(Event&&) noexcept;
  Event& operator=(Event&&) noexcept;
  ~Event();

  bool valid() const { return state_ != nullptr; }

  // `stream` is a cudaStream_t or CUstream; null: the default stream of the event's device. All of
  // these return:
  //   FAILED_PRECONDITION  not valid, or in a child after fork()
  //   INTERNAL             the driver's error, by its name
  // Record() requires a stream of the event's device:
  //   INVALID_ARGUMENT     the stream is of another device
  absl::Status Record(void* stream);
  absl::Status Wait(void* stream);    // blocks the stream, not the caller
  absl::Status Synchronize();         // blocks the caller
  absl::StatusOr<bool> Done() const;  // true if the last recorded work has completed

  // Returns the handle for cudaIpcOpenEventHandle. The Event owns it.
  const Handle& handle() const;
  // Returns the cudaEvent_t; null on the host backend.
  void* event() const;

 private:
  friend class Client;
  friend class Segment;
  struct State;
  explicit Event(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct EventOptions {
  // Set one of the two. A name makes the event visible to all sessions of this tenant: 1 to 64
  // printable characters. A segment makes it visible to all that lease the segment, of any tenant.
  std::string name;
  const Segment* segment = nullptr;
  // Empty: the segment's device. Without a segment, beside host memory (kind pinned), or if this
  // process does not see the segment's device: the first GPU that it sees.
  DeviceName device;
};

}  // namespace gpumem
