// SPDX-License-Identifier: Apache-2.0
// Hands messages of the feed's thread to a stream on the server's thread.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/web/server/stream_queue.h"
#include "client/web/server/unsent.h"

namespace gpumem::web {

// Thread-safe.
class Mailbox {
 public:
  // `wake` is called, on the sender's thread, when a message comes to an empty box, when it has
  // become full, and when the server has too many unsent bytes.
  Mailbox(size_t limit, std::shared_ptr<Unsent> unsent, std::function<void()> wake)
      : unsent_(std::move(unsent)), wake_(std::move(wake)), queue_(limit) {}

  void Send(const Message& message) {
    {
      absl::MutexLock lock(&mutex_);
      if (full_) return;
      const bool idle = queue_.empty();
      full_ = !queue_.Push(message);
      if (!full_) {
        texts_.push_back(unsent_->Count(message));
        bytes_ += message->size();
      }
      if (!idle && !full_ && !unsent_->exceeded()) return;  // it is being read
    }
    wake_();
  }
  // True if a message was dropped since the reader is too slow. The stream must end.
  bool full() const {
    absl::MutexLock lock(&mutex_);
    return full_;
  }
  // Returns the bytes of all messages.
  size_t bytes() const {
    absl::MutexLock lock(&mutex_);
    return bytes_;
  }
  // Returns the first message; nullptr if there is none. It stays until Pop().
  Message Front() const {
    absl::MutexLock lock(&mutex_);
    return queue_.Front();
  }
  // Requires that there is a message.
  void Pop() {
    absl::MutexLock lock(&mutex_);
    bytes_ -= queue_.Front()->size();
    queue_.Pop();
    texts_.pop_front();
  }
  // Drops all messages, and those that come later.
  void End() {
    absl::MutexLock lock(&mutex_);
    full_ = true;
    while (!queue_.empty()) queue_.Pop();
    texts_.clear();
    bytes_ = 0;
  }

 private:
  const std::shared_ptr<Unsent> unsent_;
  const std::function<void()> wake_;
  mutable absl::Mutex mutex_;
  StreamQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::deque<Unsent::Text> texts_ ABSL_GUARDED_BY(mutex_);  // of the queue
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gpumem::web
