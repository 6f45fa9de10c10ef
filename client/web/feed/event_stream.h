// SPDX-License-Identifier: Apache-2.0
// The daemon's events, read on a thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/commands/connection.h"
#include "client/web/feed/event_batch.h"
#include "proto/gpumem/v1/admin.pb.h"

namespace gpumem::web {

// One WatchEvents stream, which begins again with back-off when it ends. Thread-safe.
class EventStream {
 public:
  // Runs until it is destroyed. `wake` is called on the stream's thread when there is news.
  //   RESOURCE_EXHAUSTED  the system starts no further thread
  static absl::StatusOr<std::unique_ptr<EventStream>> Start(std::string runtime_dir,
                                                            std::function<void()> wake);
  // Cancels a call in progress; may block for a connection in progress: 10 s, and longer if the
  // daemon hangs up.
  ~EventStream();

  EventBatch Take();

 private:
  EventStream(std::string runtime_dir, std::function<void()> wake)
      : runtime_dir_(std::move(runtime_dir)), wake_(std::move(wake)) {}
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
  std::thread thread_;
};

}  // namespace gpumem::web
