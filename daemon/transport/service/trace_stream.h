// SPDX-License-Identifier: Apache-2.0
// Admin.Trace: streams a trace of the daemon to an operator.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumemd {

// Thread-safe. A trace occupies the thread that serves it, and one more.
class TraceStreams {
 public:
  static constexpr absl::Duration kLongest = absl::Seconds(60);
  // How much of a trace is sent. What comes after it counts as dropped.
  static constexpr size_t kMostBytes = size_t{256} << 20;

  // The stream that a trace is written to.
  struct Stream {
    // True if its client has gone. Called some times a second.
    std::function<bool()> cancelled;
    // May block. False if the client has gone.
    std::function<bool(const gpumem::v1::TraceChunk&)> write;
    // Has `write` return soon, while it blocks and later. Called by another thread.
    std::function<void()> cancel;
  };

  // `grace`: how long a client may take for the rest, once the time of its trace is over.
  explicit TraceStreams(absl::Duration grace = absl::Seconds(5)) : grace_(grace) {}

  // Serves one trace. Recording ends in time also if the client does not read. Statuses of Trace,
  // and:
  //   UNAVAILABLE  EndAll() was called
  //   CANCELLED    the client has gone, or does not read
  grpc::Status Serve(const gpumem::v1::TraceRequest& request, const Stream& stream);

  // Ends the present trace soon, and admits none.
  void EndAll() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const absl::Duration grace_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gpumemd
