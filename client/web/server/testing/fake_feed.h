// SPDX-License-Identifier: Apache-2.0
// A feed without a daemon.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "client/web/feed/feed_source.h"

namespace gpumem::web {

// Thread-safe.
class FakeFeed final : public FeedSource {
 public:
  std::unique_ptr<Subscription> Subscribe(const Viewer& viewer,
                                          std::function<void(Message)> send) override {
    absl::MutexLock lock(&mutex_);
    send(std::make_shared<const std::string>(
        absl::StrCat("event: snapshot\ndata: {\"uid\":", viewer.uid, "}", padding_, "\n\n")));
    readers_[++last_] = std::move(send);
    return std::make_unique<Reader>(this, last_);
  }
  absl::StatusOr<Message> Snapshot(const Viewer& viewer) override {
    absl::MutexLock lock(&mutex_, absl::Condition(this, &FakeFeed::Passes));
    ++asked_;
    if (!error_.ok()) return error_;
    if (large_ != nullptr) return large_;
    return std::make_shared<const std::string>(absl::StrCat(
        "{\"uid\":", viewer.uid, ",\"all\":", viewer.sees_all ? "true" : "false", "}"));
  }
  absl::StatusOr<std::string> History(const Viewer& /*viewer*/, const std::string& device,
                                      const std::vector<std::string>& tenants) override {
    absl::MutexLock lock(&mutex_, absl::Condition(this, &FakeFeed::Passes));
    ++asked_;
    return absl::StrCat("{\"device\":\"", device, "\",\"tenants\":\"", absl::StrJoin(tenants, "|"),
                        "\"}");
  }
  std::string Overview() override { return "{\"daemon\":\"ok\"}"; }

  // Sends a message to all readers, on this thread.
  void Broadcast(const Message& message) {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, send] : readers_) send(message);
  }
  void Broadcast(std::string message) {
    Broadcast(std::make_shared<const std::string>(std::move(message)));
  }
  // Blocks until there are as many readers.
  void WaitForReaders(size_t count) {
    const auto there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return readers_.size() == count;
    };
    absl::MutexLock lock(&mutex_, absl::Condition(&there));
  }
  size_t readers() const {
    absl::MutexLock lock(&mutex_);
    return readers_.size();
  }
  // Returns the number of calls of Snapshot() and History() that did not block.
  int asked() const {
    absl::MutexLock lock(&mutex_);
    return asked_;
  }
  // Makes Snapshot() fail.
  void Fail(absl::Status error) {
    absl::MutexLock lock(&mutex_);
    error_ = std::move(error);
  }
  // Makes Snapshot() return this.
  void SetSnapshot(Message snapshot) {
    absl::MutexLock lock(&mutex_);
    large_ = std::move(snapshot);
  }
  // Makes the snapshots of streams longer.
  void Pad(size_t bytes) {
    absl::MutexLock lock(&mutex_);
    padding_.assign(bytes, ' ');
  }
  // Makes Snapshot() and History() block, or go on.
  void Hold(bool hold) {
    absl::MutexLock lock(&mutex_);
    hold_ = hold;
  }

 private:
  class Reader final : public Subscription {
   public:
    Reader(FakeFeed* feed, int id) : feed_(feed), id_(id) {}
    ~Reader() override {
      absl::MutexLock lock(&feed_->mutex_);
      feed_->readers_.erase(id_);
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

   private:
    FakeFeed* const feed_;
    const int id_;
  };

  bool Passes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !hold_; }

  mutable absl::Mutex mutex_;
  std::map<int, std::function<void(Message)>> readers_ ABSL_GUARDED_BY(mutex_);
  int last_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  Message large_ ABSL_GUARDED_BY(mutex_);
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  std::string padding_ ABSL_GUARDED_BY(mutex_);
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpumem::web
