// SPDX-License-Identifier: Apache-2.0
// Hands messages of the feed's thread to a stream on the server's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/web/server/stream_queue.h"

namespace gpumem::web {

// Thread-safe.
class Mailbox {
 public:
  // `wake` is called, on the sender's thread, when a message comes to an empty box, and
  // when it has become full.
  Mailbox(size_t limit, std::function<void()> wake) : wake_(std::move(wake)), queue_(limit) {}

  void Send(Message message) {
    {
      absl::MutexLock lock(&mutex_);
      if (full_) return;
      const bool idle = queue_.empty();
      full_ = !queue_.Push(std::move(message));
      if (!idle && !full_) return;  // it is being read
    }
    wake_();
  }
  // True if a message was dropped since the reader is too slow. The stream must end.
  bool full() const {
    absl::MutexLock lock(&mutex_);
    return full_;
  }
  // Returns the first message; nullptr if there is none. It stays until Pop().
  Message Front() const {
    absl::MutexLock lock(&mutex_);
    return queue_.Front();
  }
  // Requires that there is a message.
  void Pop() {
    absl::MutexLock lock(&mutex_);
    queue_.Pop();
  }

 private:
  const std::function<void()> wake_;
  mutable absl::Mutex mutex_;
  StreamQueue queue_ ABSL_GUARDED_BY(mutex_);
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gpumem::web
