// SPDX-License-Identifier: Apache-2.0
// A connection's Converse stream (broker.proto): calls that are answered soon, without what gRPC
// does to set up a unary call.
//
// One thread at a time exchanges a message on it; meanwhile the others make unary calls. The first
// message opens the stream. If a message gets no answer, the stream is closed, and the next message
// opens another one.
//
// It has no thread: the caller's waits for both sockets of the session.
//
// Thread-safe.
#pragma once

#include <grpcpp/support/status.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "client/session/deliveries.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumem::internal {

class Lane {
 public:
  // `api`: a duplicate of the socket of the stub's channel. All outlive this.
  Lane(v1::Broker::Stub* stub, std::string token, int api, Deliveries* deliveries);
  // Ends the stream.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // The Delivery that a message may be answered with. `arrived` is called at most once, with the
  // Delivery, if that arrives before the answer and describes its leases.
  struct Expected {
    Deliveries::Call* call;
    uint64_t request_id;
    absl::FunctionRef<void(Deliveries::Call::Arrival)> arrived;
  };
  // Sends a message and waits for its answer. Returns nullopt, and the daemon has carried out
  // nothing, if the lane is in use, if the message is too large for it, or if the daemon has none.
  // Otherwise returns the status with which the stream has failed, as that of a unary call; OK:
  // `answer` is there.
  std::optional<grpc::Status> Exchange(v1::SessionRequest message, absl::Time deadline,
                                       const Expected* expected, v1::SessionResponse* answer);

 private:
  class Stream;

  // Returns OK once the stream has the answer.
  grpc::Status Wait(Stream& stream, absl::Time deadline, const Expected* expected,
                    bool* has_arrived);

  v1::Broker::Stub* const stub_;
  const std::string token_;
  const int api_;
  Deliveries* const deliveries_;
  std::atomic<bool> absent_ = false;  // the daemon has no Converse
  std::atomic<bool> busy_ = false;
  // Of the thread that has set busy_.
  std::unique_ptr<Stream> stream_;
  uint64_t last_number_ = 0;
  absl::Time closed_until_ = absl::InfinitePast();
};

}  // namespace gpumem::internal
