// SPDX-License-Identifier: Apache-2.0
// The thread of a feed: reads the state, and sends what has changed.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cli/commands/connection.h"
#include "client/web/feed/event_stream.h"
#include "client/web/feed/feed_source.h"
#include "client/web/feed/poll_plan.h"
#include "client/web/feed/viewer.h"
#include "client/web/feed/views.h"

namespace gpumem::web {

// One who gets messages. Send() and End() exclude each other.
class Subscriber {
 public:
  Subscriber(const Viewer& viewer, std::function<void(Message)> send)
      : viewer_(viewer), send_(std::move(send)) {}

  const Viewer& viewer() const { return viewer_; }
  void Send(const Message& message);
  // No call of `send` is in progress or follows once it returns.
  void End();
  bool ended() const;

  // What it was sent last. Of the engine's thread alone.
  struct Sent {
    std::optional<ViewKey> key;  // absent: nothing, or that there is no state
    uint64_t number = 0;
    bool lost = false;    // it was told that there is no state
    bool events = false;  // it has got past events
    bool failed = false;  // it was told that events are not read
  } sent;

 private:
  const Viewer viewer_;
  mutable absl::Mutex mutex_;
  std::function<void(Message)> send_ ABSL_GUARDED_BY(mutex_);  // null: ended
};

// Thread-safe.
class Engine {
 public:
  struct Options {
    std::string runtime_dir;
    absl::Duration interval;
    Views::HasAccount has_account;  // called on the engine's thread
  };

  explicit Engine(Options options);
  ~Engine();

  void Add(std::shared_ptr<Subscriber> subscriber);

  // Calls `use` on the engine's thread with a state that is not older than `age`, as far as the
  // share of queries allows (PollPlan), and waits for that. Returns why there is no state, or what
  // `use` returns.
  absl::Status WithState(absl::Duration age, const std::function<absl::Status(Views&)>& use);

 private:
  struct Request {
    absl::Duration age;
    std::function<void()> answer;
  };

  absl::Status WhyNoState() const;
  void Run();
  // Blocks until there is something to do. False: the engine ends.
  bool Wait(std::vector<Request>* requests);
  absl::Time NextDeed() const;
  bool IsPollDue(const std::vector<Request>& requests) const;

  void Poll();
  absl::Status ReadState();
  void TakeEvents();
  void SendStates();
  void SendState(Subscriber& subscriber);
  void SendLoss(Subscriber& subscriber, absl::string_view why);
  void SendEvents();
  void SendEventsFailed();
  void SendTick();
  void CloseIfIdle(bool asked);

  const Options options_;

  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Subscriber>> added_ ABSL_GUARDED_BY(mutex_);
  std::vector<Request> requests_ ABSL_GUARDED_BY(mutex_);

  // Of the thread alone.
  std::vector<std::shared_ptr<Subscriber>> subscribers_;
  std::unique_ptr<cli::AdminConnection> admin_;
  std::unique_ptr<EventStream> events_;
  EventBatch new_events_;       // not sent yet
  bool events_due_ = false;     // the state was read after them
  absl::Status events_failed_;  // why events are not read, although there is a state
  std::deque<v1::EventRecord> past_events_;
  Views views_;
  absl::Status loss_;  // why there is no state, after a query
  absl::Time lost_since_;
  PollPlan plan_;
  absl::Time next_tick_ = absl::InfinitePast();
  absl::Time used_ = absl::InfinitePast();

  std::thread thread_;  // last
};

}  // namespace gpumem::web
