// SPDX-License-Identifier: Apache-2.0
// Messages that a stream has not sent yet. Has no I/O.
#pragma once

#include <cstddef>
#include <deque>

#include "client/web/feed/feed_source.h"

namespace gpumem::web {

// Bounded: at most one unsent snapshot, and other messages of at most `limit` bytes, or as many as
// the last snapshot had if these are more. Not thread-safe.
class StreamQueue {
 public:
  explicit StreamQueue(size_t limit) : limit_(limit) {}

  // Adds a message. False if there is no room: the reader is too slow.
  bool Push(Message message);
  // Returns the first message; nullptr if there is none.
  Message Front() const { return messages_.empty() ? nullptr : messages_.front(); }
  // Removes the first message. Requires that there is one.
  void Pop();
  bool empty() const { return messages_.empty(); }

 private:
  const size_t limit_;
  std::deque<Message> messages_;
  size_t bytes_ = 0;           // of unsent messages that are no snapshot
  size_t snapshot_bytes_ = 0;  // of the last snapshot
  bool has_snapshot_ = false;  // one is unsent
};

}  // namespace gpumem::web
