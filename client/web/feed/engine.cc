// SPDX-License-Identifier: Apache-2.0
#include "client/web/feed/engine.h"

#include <algorithm>
#include <map>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/cli/commands/read_snapshot.h"
#include "client/web/feed/compact.h"
#include "client/web/feed/connect.h"
#include "client/web/feed/document.h"
#include "client/web/feed/events.h"

namespace gpumem::web {
namespace {

// Of a connection, and of each call.
constexpr absl::Duration kCallTime = absl::Seconds(5);
constexpr absl::Duration kTick = absl::Seconds(5);
// After this time without subscribers and calls, connections are closed and the state is forgotten.
constexpr absl::Duration kIdle = absl::Seconds(10);
constexpr size_t kPastEvents = 200;  // to a new subscriber

Message MakeMessage(absl::string_view name, absl::string_view json) {
  return std::make_shared<const std::string>(ServerSentEvent(name, json));
}

// Returns the events that the view shows as one message, the last `most` of them; null: none.
template <typename Records>
Message EventsMessage(const Records& records, const View& view, size_t most) {
  std::vector<std::string> texts;
  for (auto it = records.rbegin(); it != records.rend() && texts.size() < most; ++it) {
    if (view.key().sees == Sees::kOperator) {
      texts.push_back(EventText(*it));
    } else if (const auto shown = FilteredEvent(*it, view.visible())) {
      texts.push_back(EventText(*shown));
    }
  }
  if (texts.empty()) return nullptr;
  std::string message;
  for (auto it = texts.rbegin(); it != texts.rend(); ++it) {
    message += ServerSentEvent("event", *it);
  }
  return std::make_shared<const std::string>(std::move(message));
}

}  // namespace

void Subscriber::Send(const Message& message) {
  absl::MutexLock lock(&mutex_);
  if (send_ != nullptr) send_(message);
}

void Subscriber::End() {
  absl::MutexLock lock(&mutex_);
  send_ = nullptr;
}

bool Subscriber::ended() const {
  absl::MutexLock lock(&mutex_);
  return send_ == nullptr;
}

Engine::Engine(Options options)
    : options_(std::move(options)),
      views_(options_.has_account),
      plan_(options_.interval),
      thread_([this] { Run(); }) {}

Engine::~Engine() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

void Engine::Add(std::shared_ptr<Subscriber> subscriber) {
  absl::MutexLock lock(&mutex_);
  added_.push_back(std::move(subscriber));
  woken_ = true;
}

absl::Status Engine::WithState(absl::Duration age, const std::function<absl::Status(Views&)>& use) {
  absl::Status result;
  absl::Notification done;
  {
    absl::MutexLock lock(&mutex_);
    requests_.push_back({.age = age, .answer = [&] {
                           result = views_.empty() ? WhyNoState() : use(views_);
                           done.Notify();
                         }});
    woken_ = true;
  }
  done.WaitForNotification();
  return result;
}

absl::Status Engine::WhyNoState() const {
  return loss_.ok() ? absl::UnavailableError("the daemon's state is not known yet") : loss_;
}

void Engine::Run() {
  std::vector<Request> requests;
  while (Wait(&requests)) {
    std::erase_if(subscribers_, [](const auto& each) { return each->ended(); });
    TakeEvents();
    if (IsPollDue(requests)) Poll();
    for (const Request& each : requests) each.answer();
    SendStates();
    SendEvents();
    SendEventsFailed();
    SendTick();
    CloseIfIdle(!requests.empty());
    requests.clear();
  }
}

bool Engine::Wait(std::vector<Request>* requests) {
  absl::Duration wait = NextDeed() - absl::Now();
  // Bounded, as the clock may be set back meanwhile.
  if (wait != absl::InfiniteDuration()) wait = std::min(wait, kIdle);
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(
                              +[](Engine* engine) ABSL_EXCLUSIVE_LOCKS_REQUIRED(engine->mutex_) {
                                return engine->stop_ || engine->woken_;
                              },
                              this),
                          wait);
  if (stop_) return false;
  woken_ = false;
  requests->swap(requests_);
  subscribers_.insert(subscribers_.end(), std::make_move_iterator(added_.begin()),
                      std::make_move_iterator(added_.end()));
  added_.clear();
  return true;
}

absl::Time Engine::NextDeed() const {
  absl::Time next = absl::InfiniteFuture();
  if (!subscribers_.empty()) {
    next = plan_.next();
    if (!views_.empty()) next = std::min(next, next_tick_);
  } else if (!views_.empty() || admin_ != nullptr || events_ != nullptr) {
    next = used_ + kIdle;
  }
  return next;
}

bool Engine::IsPollDue(const std::vector<Request>& requests) const {
  const absl::Time now = absl::Now();
  for (const Request& each : requests) {
    if (plan_.IsDueForRequest(each.age, now)) return true;
  }
  return !subscribers_.empty() && plan_.IsDue(now);
}

void Engine::Poll() {
  const absl::Time begin = absl::Now();
  const absl::Status status = ReadState();
  const absl::Time end = absl::Now();
  plan_.Done(begin, end, status.ok());
  events_due_ = status.ok();
  if (!status.ok()) {
    if (loss_.ok()) lost_since_ = end;
    admin_.reset();
    views_.Clear();
  }
  loss_ = status;
}

absl::Status Engine::ReadState() {
  if (admin_ == nullptr) {
    auto admin = ConnectDaemon(options_.runtime_dir, kCallTime);
    if (!admin.ok()) return admin.status();
    admin_ = *std::move(admin);
  }
  absl::StatusOr<cli::Snapshot> state = cli::ReadSnapshot(*admin_);
  if (!state.ok()) return state.status();
  views_.Set(*std::move(state), absl::Now());
  return absl::OkStatus();
}

void Engine::TakeEvents() {
  if (events_ == nullptr) {
    if (subscribers_.empty()) return;
    auto started = EventStream::Start(options_.runtime_dir, [this] {
      absl::MutexLock lock(&mutex_);
      woken_ = true;
    });
    // Tried again at the next turn.
    if (!started.ok()) return;
    events_ = *std::move(started);
  }
  EventBatch batch = events_->Take();
  if (batch.empty()) return;
  // Something has happened, or the daemon has ended or begun.
  plan_.Hasten();
  new_events_.Append(std::move(batch));
  events_due_ = false;
}

void Engine::SendStates() {
  if (views_.empty() && loss_.ok()) return;  // no query yet
  for (const auto& each : subscribers_) SendState(*each);
}

void Engine::SendState(Subscriber& subscriber) {
  if (!loss_.ok()) return SendLoss(subscriber, loss_.message());
  const absl::StatusOr<View*> view = views_.Of(subscriber.viewer());
  if (!view.ok()) return SendLoss(subscriber, view.status().message());
  Subscriber::Sent& sent = subscriber.sent;
  if (sent.lost) {
    sent.lost = false;
    subscriber.Send(MakeMessage("daemon", R"({"state":"ok"})"));
  }
  const bool same_view = sent.key == (*view)->key();
  if (same_view && sent.number == (*view)->number()) return;
  const bool follows = same_view && sent.number + 1 == (*view)->number();
  subscriber.Send(follows ? (*view)->change_event() : (*view)->SnapshotEvent());
  sent.key = (*view)->key();
  sent.number = (*view)->number();
}

void Engine::SendLoss(Subscriber& subscriber, absl::string_view why) {
  if (subscriber.sent.lost) return;
  subscriber.sent.lost = true;
  subscriber.sent.key.reset();
  std::string json =
      absl::StrCat(R"({"state":"lost","since_ms":)",
                   absl::ToUnixMillis(loss_.ok() ? absl::Now() : lost_since_), R"(,"message":)");
  AppendQuoted(why, &json);
  subscriber.Send(MakeMessage("daemon", json + "}"));
}

void Engine::SendEvents() {
  if (views_.empty()) return;  // the state says who may see them
  EventBatch news;
  // An event may be of a tenant that the state does not have yet.
  if (events_due_) news = std::exchange(new_events_, {});
  const std::vector<v1::EventRecord>&past = news.past, &later = news.later;
  for (const auto* records : {&past, &later}) {
    past_events_.insert(past_events_.end(), records->begin(), records->end());
  }
  while (past_events_.size() > EventBatch::kMost) past_events_.pop_front();
  if (news.state) {
    // Without a connection the stream begins again soon, or the state is lost, too.
    const bool is_told = !absl::IsUnavailable(*news.state) && !absl::IsCancelled(*news.state);
    events_failed_ = is_told ? *news.state : absl::OkStatus();
  }

  std::map<ViewKey, std::vector<Message>> messages;  // null: not for this view
  for (const auto& each : subscribers_) {
    if (!each->sent.key) continue;
    const absl::StatusOr<View*> view = views_.Of(each->viewer());
    if (!view.ok()) continue;
    if (!each->sent.events) {
      each->sent.events = true;
      const Message message = EventsMessage(past_events_, **view, kPastEvents);
      if (message != nullptr) each->Send(message);
      continue;
    }
    if (past.empty() && later.empty()) continue;
    auto [found, is_new] = messages.try_emplace((*view)->key());
    if (is_new) {
      found->second = {EventsMessage(past, **view, kPastEvents),
                       EventsMessage(later, **view, later.size())};
    }
    for (const Message& message : found->second) {
      if (message != nullptr) each->Send(message);
    }
  }
}

// Tells each subscriber once that events are missing. They follow when they can be read again.
void Engine::SendEventsFailed() {
  Message message;
  for (const auto& each : subscribers_) {
    if (events_failed_.ok()) each->sent.failed = false;
    if (events_failed_.ok() || each->sent.failed || !each->sent.key) continue;
    if (message == nullptr) {
      message = MakeMessage("event", EventsFailedText(events_failed_, absl::Now()));
    }
    each->sent.failed = true;
    each->Send(message);
  }
}

void Engine::SendTick() {
  const absl::Time now = absl::Now();
  const bool set_back = now + kTick < next_tick_;  // the clock
  if (views_.empty() || (now < next_tick_ && !set_back)) return;
  next_tick_ = now + kTick;
  const Message tick =
      MakeMessage("tick", absl::StrCat("{\"time_ms\":", absl::ToUnixMillis(views_.time()), "}"));
  for (const auto& each : subscribers_) {
    if (each->sent.key) each->Send(tick);
  }
}

void Engine::CloseIfIdle(bool asked) {
  const absl::Time now = absl::Now();
  if (asked || !subscribers_.empty()) used_ = now;
  if (now < used_ + kIdle) return;
  events_.reset();
  new_events_ = {};
  events_failed_ = absl::OkStatus();
  past_events_.clear();
  admin_.reset();
  views_.Clear();
  plan_.Forget();
  loss_ = absl::OkStatus();
}

}  // namespace gpumem::web
