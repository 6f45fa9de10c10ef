// SPDX-License-Identifier: Apache-2.0
// How many frames the HTTP/2 connections of one uid and tenant may send.
#pragma once

#include <atomic>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/transport/meter/http2_meter.h"

namespace gpumemd {

// Token buckets. They do not limit calls; HTTP/2 (calls of a connection at a
// time), call_window.h and the broker do.
struct FrameBudgetOptions {
  // Calls that are reset: burst, and rate per second. All waiting calls of a tenant may end at
  // once.
  double max_resets = 512;
  double resets_per_second = 500;
  // Other frames that carry next to nothing (FrameCounts::control). gRPC spends some 50 us on a
  // call and 5 us on one of these. Each call brings some, so their number grows with the calls.
  double max_control = 4000;
  double control_per_second = 4000;
  double control_per_call = 5;
  // Bytes of unfinished requests. The connection that exceeds them is closed before gRPC's memory
  // quota makes gRPC close another one.
  double max_begun_bytes = 48 << 20;
  // For bytes of connections whose end was not seen.
  double begun_bytes_per_second = 4 << 20;
  // Connections closed for exceeding it, or for FrameCounts::violations. Without this limit a peer
  // that reconnects at once would keep gRPC busy for ever.
  double max_closed = 64;
  double closed_per_second = 4;
  // How full each bucket is at the start, from 0 to 1.
  double full_at_start = 1;

  // Returns these options with an eighth of each bucket at the start, for a peer that has just
  // flooded.
  FrameBudgetOptions AfterFlood() const;
};

// Thread-safe.
class FrameBudget {
 public:
  explicit FrameBudget(const FrameBudgetOptions& options);

  enum class Decision {
    kServe,
    kClose,  // close this connection; Return() its bytes
    kFlood,  // close all connections, and make none with this budget again
  };
  // Charges the frames received on one connection. Once kFlood, always kFlood.
  Decision Charge(const FrameCounts& received, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives back the bytes of the unfinished requests of a connection that has ended.
  void Return(uint64_t begun_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  bool exhausted() const { return exhausted_; }

 private:
  // Of tokens.
  struct Bucket {
    Bucket(double size, double rate, double full)
        : most(size), per_second(rate), left(size * full) {}
    // Adds income, then takes `spent`. False if less is left; the level is then below 0.
    bool Take(double seconds, double income, double spent);

    const double most, per_second;
    double left;
  };

  const double control_per_call_;
  std::atomic<bool> exhausted_ = false;
  absl::Mutex mutex_;
  Bucket resets_ ABSL_GUARDED_BY(mutex_);
  Bucket control_ ABSL_GUARDED_BY(mutex_);
  Bucket begun_bytes_ ABSL_GUARDED_BY(mutex_);
  Bucket closed_ ABSL_GUARDED_BY(mutex_);
  absl::Time charged_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace gpumemd
