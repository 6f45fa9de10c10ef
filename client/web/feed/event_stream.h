// SPDX-License-Identifier: Apache-2.0
// The daemon's events, read on a thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/commands/connection.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::web {

// One WatchEvents stream, which begins again with back-off when it ends. Thread-safe.
class EventStream {
 public:
  // Past records of a daemon at most, and later ones that wait for Take().
  static constexpr size_t kMost = 2000;

  struct Batch {
    std::vector<v1::EventRecord> past;   // of a daemon, in order; not told before
    std::vector<v1::EventRecord> later;  // as they came
    bool ended = false;                  // the stream has ended since the last Take()

    bool empty() const { return past.empty() && later.empty() && !ended; }
  };

  // Runs until it is destroyed. `wake` is called on the stream's thread when there is news.
  EventStream(std::string runtime_dir, std::function<void()> wake);
  // Cancels a call in progress; may block for a connection in progress (kConnectTime).
  ~EventStream();

  Batch Take();

 private:
  void Run();
  // Reads until the stream ends, or this does.
  absl::Status ReadAll();
  // Reads the records of one call, and gives each to `take`.
  absl::Status Read(cli::AdminConnection& admin, const v1::WatchEventsRequest& request,
                    const std::function<void(v1::EventRecord)>& take);

  const std::string runtime_dir_;
  const std::function<void()> wake_;
  // Of the last record that was told: another daemon has another record of this number, or none.
  uint64_t last_number_ = 0, last_time_ = 0;

  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // in progress
  Batch batch_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last
};

}  // namespace gpumem::web
