// SPDX-License-Identifier: Apache-2.0
// Ends a stream of the daemon's when the user presses Ctrl-C.
#pragma once

#include <grpcpp/client_context.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/text/stop_signals.h"

namespace gpumem::cli {

// Cancels the call at the first signal, in a thread that ends with the object. Both arguments
// outlive it.
class CancelOnStop {
 public:
  CancelOnStop(StopSignals* signals, grpc::ClientContext* call)
      : thread_([this, signals, call] {
          while (!done_) {
            const absl::Time soon = absl::Now() + absl::Milliseconds(100);
            if (signals->Wait(soon) != StopSignals::Event::kStop) continue;
            stopped_ = true;
            return call->TryCancel();
          }
        }) {}
  ~CancelOnStop() {
    done_ = true;
    thread_.join();
  }
  CancelOnStop(const CancelOnStop&) = delete;
  CancelOnStop& operator=(const CancelOnStop&) = delete;

  bool stopped() const { return stopped_; }

 private:
  std::atomic<bool> done_ = false, stopped_ = false;
  std::thread thread_;
};

}  // namespace gpumem::cli
