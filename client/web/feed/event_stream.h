// SPDX-License-Identifier: Apache-2.0
// The daemon's events, read on a thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/commands/connection.h"
#include "client/web/feed/event_batch.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::web {

// One WatchEvents stream, which begins again with back-off when it ends. Thread-safe.
class EventStream {
 public:
  // Runs until it is destroyed. `wake` is called on the stream's thread when there is news.
  EventStream(std::string runtime_dir, std::function<void()> wake);
  // Cancels a call in progress; may block for a connection in progress (kConnectTime).
  ~EventStream();

  EventBatch Take();

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
  EventBatch batch_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // last
};

}  // namespace gpumem::web
