// How many frames the HTTP/2 connections of one uid and tenant may send.
#pragma once

#include <atomic>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/transport/meter/http2_meter.h"

namespace gpumemd {

// Token buckets, full at the start. Calls themselves are not limited here, but by HTTP/2 (those of
// a connection at a time), by call_window.h, and by the broker.
struct FrameBudgetOptions {
  // Calls that are reset: at once, and a second. All waiting calls of a tenant may end in one
  // moment.
  double max_resets = 512;
  double resets_per_second = 500;
  // Other frames that carry next to nothing (FrameCounts::control). gRPC works some 50 us
  // for a call and 5 us for one of these. Each call brings some with it: the more calls, the more.
  double max_control = 4000;
  double control_per_second = 4000;
  double control_per_call = 5;
  // Bytes of requests that have not ended. The connection that exceeds them is closed before gRPC's
  // memory quota makes gRPC close another one.
  double max_begun_bytes = 48 << 20;
  // For bytes of connections whose end was not seen.
  double begun_bytes_per_second = 4 << 20;
  // Connections that are closed for it: gRPC's work for them would never end where their peer makes
  // new ones at once.
  double max_closed = 64;
  double closed_per_second = 4;

  // As these, with an eighth to begin with: for a peer that has just flooded.
  FrameBudgetOptions AfterFlood() const;
};

// Thread-safe.
class FrameBudget {
 public:
  explicit FrameBudget(const FrameBudgetOptions& options);

  enum class Decision {
    kServe,
    kClose,  // close this connection; Return() its bytes
    kFlood,  // close all connections, and make no new one with this budget
  };
  // Takes what was received on one connection out of the budget. Once kFlood, always kFlood.
  Decision Charge(const FrameCounts& received, absl::Time now) ABSL_LOCKS_EXCLUDED(mutex_);
  // A connection has ended with requests of so many bytes that had not ended.
  void Return(uint64_t begun_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  bool exhausted() const { return exhausted_; }

 private:
  // Of tokens.
  struct Bucket {
    // False where fewer than `spent` are left, which are then below 0.
    bool Take(double seconds, double income, double spent);

    double most, per_second;
    double left = most;
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
