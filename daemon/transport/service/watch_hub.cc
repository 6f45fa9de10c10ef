// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/watch_hub.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "common/node_clock.h"
#include "daemon/core/broker/suspension/suspensions.h"
#include "daemon/core/broker/views.h"
#include "daemon/transport/service/convert.h"

namespace gpumemd {
namespace v1 = gpumem::v1;

namespace {

using Action = SuspensionRequests::Action;

v1::SuspensionRequested::Action ToProto(Action action) {
  return action == Action::kDemote    ? v1::SuspensionRequested::DEMOTE
         : action == Action::kPromote ? v1::SuspensionRequested::PROMOTE
                                      : v1::SuspensionRequested::SUSPEND_OR_RESUME;
}

v1::SuspensionRequested::Cause ToProto(SuspensionRequests::Cause cause) {
  using Cause = SuspensionRequests::Cause;
  return cause == Cause::kWaiter ? v1::SuspensionRequested::MEMORY_NEEDED
         : cause == Cause::kIdle ? v1::SuspensionRequested::IDLE
                                 : v1::SuspensionRequested::OPERATOR;
}

}  // namespace

// One stream. Never calls gRPC under its mutex: gRPC may call back on the same thread.
class Watcher final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                      public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(Broker* broker, WatchHub* hub, grpc::CallbackServerContext* context, Broker::Call call,
          std::string tenant, WatchHub::Serves serves)
      : broker_(broker),
        hub_(hub),
        context_(context),
        call_(std::move(call)),
        tenant_(std::move(tenant)),
        serves_(serves) {}

  SessionId session() const { return call_.session(); }
  const std::string& tenant() const { return tenant_; }
  bool accepts_suspension() const { return serves_.suspension; }

  void Begin() {
    self_ = shared_from_this();
    Tell({.quota = true,
          .draining = true,  // or not: a client may have heard otherwise from the daemon before
          .lost = !broker_->LostLeases(call_).empty(),
          .revoked = !broker_->RevokedLeases(call_).leases.empty(),
          .asked = serves_.suspension,
          .pressure = {}});
  }

  // Pending events. Each is sent with the state at its turn.
  struct News {
    bool quota = false;
    bool draining = false;
    bool lost = false;
    bool revoked = false;
    bool asked = false;  // to suspend or resume
    // By tenant and device; each the largest shortage.
    std::map<std::pair<std::string, std::string>, Pressure> pressure;
    bool any() const { return quota || draining || lost || revoked || asked || !pressure.empty(); }
    void Add(const Pressure& more) {
      const auto [known, first] = pressure.try_emplace({more.tenant, more.device_uuid}, more);
      if (first) return;
      known->second.bytes = std::max(known->second.bytes, more.bytes);
      known->second.until = std::max(known->second.until, more.until);
    }
  };

  void Tell(const News& news) {
    {
      absl::MutexLock lock(&mutex_);
      news_.quota |= news.quota;
      news_.draining |= news.draining;
      news_.lost |= news.lost;
      news_.revoked |= news.revoked;
      news_.asked |= news.asked;
      for (const auto& [about, pressure] : news.pressure) news_.Add(pressure);
      if (writing_) {
        if (!ending_ && absl::Now() - write_began_ > WatchHub::kStuckAfter) {
          ending_ = true;
          context_->TryCancel();  // the write fails, and the stream ends there
        }
        return;
      }
    }
    Continue();
  }

  void End() {
    absl::MutexLock lock(&mutex_);
    if (finished_ || ending_) return;
    ending_ = true;
    context_->TryCancel();
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok) ending_ = true;
    }
    Continue();
  }

  void OnCancel() override {
    {
      absl::MutexLock lock(&mutex_);
      ending_ = true;
      if (writing_) return;  // OnWriteDone ends it
    }
    Continue();
  }

  void OnDone() override {
    hub_->Remove(this);
    self_.reset();
  }

 private:
  // Sends the next event, or finishes: at most one of them is ever under way.
  void Continue() {
    bool finish = false;
    News told;
    {
      absl::MutexLock lock(&mutex_);
      if (finished_ || writing_) return;
      if (ending_) {
        finished_ = finish = true;
      } else if (news_.any()) {
        told = TakeOne(news_);
        writing_ = true;
      } else {
        return;
      }
      write_began_ = absl::Now();
    }
    if (finish) return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the watch has ended"));
    v1::Event event;
    if (told.quota) {
      absl::StatusOr<TenantView> usage = broker_->Usage(call_);
      if (usage.ok()) *event.mutable_quota_changed()->mutable_quota() = ToProto(usage->quota);
    } else if (told.draining) {
      event.mutable_draining()->set_draining(broker_->views().Count().draining);
    } else if (!told.pressure.empty()) {
      const Pressure& pressure = told.pressure.begin()->second;
      const absl::Duration left = pressure.until - absl::Now();
      if (left <= absl::ZeroDuration() || !CanGive(pressure)) return OnWriteDone(/*ok=*/true);
      event.mutable_pressure()->set_device_uuid(pressure.device_uuid);
      event.mutable_pressure()->set_bytes(pressure.bytes);
      if (left != absl::InfiniteDuration()) {
        event.mutable_pressure()->set_deadline_ms(MillisecondsUp(left));
      }
    } else if (told.revoked) {
      const Inspector::Revoked revoked = broker_->RevokedLeases(call_);
      if (revoked.leases.empty()) return OnWriteDone(/*ok=*/true);
      for (LeaseId lease : revoked.leases) event.mutable_revocation()->add_lease_ids(ToInt(lease));
      event.mutable_revocation()->set_deadline_ms(MillisecondsUp(revoked.until - absl::Now()));
    } else if (told.asked) {
      const auto request = broker_->suspensions().Requested(call_);
      if (!request.has_value() || request->until <= absl::Now()) return OnWriteDone(/*ok=*/true);
      if (ToProto(request->action) != v1::SuspensionRequested::SUSPEND_OR_RESUME &&
          !serves_.demotion)
        return OnWriteDone(/*ok=*/true);
      event.mutable_suspension_requested()->set_resume(request->action == Action::kResume);
      event.mutable_suspension_requested()->set_action(ToProto(request->action));
      event.mutable_suspension_requested()->set_tag(request->tag);
      event.mutable_suspension_requested()->set_cause(ToProto(request->cause));
      event.mutable_suspension_requested()->set_deadline_ms(
          MillisecondsUp(request->until - absl::Now()));
    } else {
      v1::SegmentsLost& lost = *event.mutable_segments_lost();
      // None if they were released meanwhile: then there is no event.
      for (LeaseId lease : broker_->LostLeases(call_)) lost.add_lease_ids(ToInt(lease));
      if (lost.lease_ids().empty()) return OnWriteDone(/*ok=*/true);
    }
    event.set_sent_ns(gpumem::NodeClockNs());
    const grpc::Slice bytes(event.SerializeAsString());
    event_ = grpc::ByteBuffer(&bytes, 1);
    StartWrite(&event_);
  }

  // True if the tenant could relieve the pressure. Memory released by a tenant with release
  // "on-exit" stays charged and helps no other tenant. A tenant cannot give memory that it does not
  // hold, and need not give memory that is guaranteed to it.
  bool CanGive(const Pressure& pressure) const {
    const absl::StatusOr<TenantView> usage = broker_->Usage(call_);
    if (!usage.ok() || usage->quota.release == ReleasePolicy::kOnExit) return false;
    const bool all = pressure.tenant.empty();
    if (!all && pressure.tenant != usage->name &&
        std::find(usage->above.begin(), usage->above.end(), pressure.tenant) ==
            usage->above.end()) {
      return false;
    }
    return std::any_of(usage->devices.begin(), usage->devices.end(), [&](const auto& own) {
      return (pressure.device_uuid.empty() || own.device_uuid == pressure.device_uuid) &&
             (all ? own.charged > own.guarantee : own.charged > 0);
    });
  }

  // At least 1: 0 would say that there is no deadline.
  static uint64_t MillisecondsUp(absl::Duration left) {
    return static_cast<uint64_t>(std::max(int64_t{1}, absl::ToInt64Milliseconds(left)));
  }

  static News TakeOne(News& news) {
    News one;
    for (bool News::*const flag :
         {&News::quota, &News::draining, &News::revoked, &News::asked, &News::lost}) {
      one.*flag = std::exchange(news.*flag, false);
      if (one.*flag) return one;
    }
    one.pressure.insert(news.pressure.extract(news.pressure.begin()));
    return one;
  }

  Broker* const broker_;
  WatchHub* const hub_;
  grpc::CallbackServerContext* const context_;
  const Broker::Call call_;
  const std::string tenant_;
  const WatchHub::Serves serves_;
  std::shared_ptr<Watcher> self_;
  grpc::ByteBuffer event_;  // while writing_, gRPC's

  absl::Mutex mutex_;
  News news_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time write_began_ ABSL_GUARDED_BY(mutex_);
};

WatchHub::WatchHub(Broker* broker) : broker_(broker), thread_([this] { Tell(); }) {}

WatchHub::~WatchHub() { Stop(); }

void WatchHub::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchHub::Start(grpc::CallbackServerContext* context,
                                                            Broker::Call call, std::string tenant,
                                                            Serves serves) {
  auto watcher =
      std::make_shared<Watcher>(broker_, this, context, std::move(call), std::move(tenant), serves);
  bool ended = false;
  {
    absl::MutexLock lock(&mutex_);
    ended = all_ended_;
    watchers_.insert(watcher);
  }
  watcher->Begin();
  if (ended) watcher->End();
  return watcher.get();
}

void WatchHub::Remove(Watcher* watcher) {
  absl::MutexLock lock(&mutex_);
  watchers_.erase(watcher->shared_from_this());
}

void WatchHub::QuotaChanged(absl::string_view tenant) {
  absl::MutexLock lock(&mutex_);
  if (tenant.empty()) {
    news_.every_tenant = true;
  } else {
    news_.tenants.emplace(tenant);
  }
}

void WatchHub::DrainingChanged() {
  absl::MutexLock lock(&mutex_);
  news_.draining = true;
}

void WatchHub::SegmentsLost(SessionId session) {
  absl::MutexLock lock(&mutex_);
  news_.orphaned.insert(session);
}

void WatchHub::Pressed(const Pressure& pressure) {
  absl::MutexLock lock(&mutex_);
  for (Pressure& known : news_.pressures) {
    if (known.tenant != pressure.tenant || known.device_uuid != pressure.device_uuid) continue;
    known.bytes = std::max(known.bytes, pressure.bytes);
    known.until = std::max(known.until, pressure.until);
    return;
  }
  news_.pressures.push_back(pressure);
}

void WatchHub::Revoked(SessionId session) {
  absl::MutexLock lock(&mutex_);
  news_.revoked.insert(session);
}

void WatchHub::SuspensionRequested(SessionId session) {
  absl::MutexLock lock(&mutex_);
  news_.asked.insert(session);
}

void WatchHub::SessionEnded(SessionId session) {
  std::vector<std::shared_ptr<Watcher>> ended;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& watcher : watchers_) {
      if (watcher->session() == session) ended.push_back(watcher);
    }
  }
  for (const auto& watcher : ended) watcher->End();
}

void WatchHub::EndAll() {
  std::vector<std::shared_ptr<Watcher>> all;
  {
    absl::MutexLock lock(&mutex_);
    all_ended_ = true;
    all.assign(watchers_.begin(), watchers_.end());
  }
  for (const auto& watcher : all) watcher->End();
}

void WatchHub::Tell() {
  while (true) {
    News news;
    std::vector<std::shared_ptr<Watcher>> watchers;
    {
      absl::MutexLock lock(&mutex_);
      auto wake = [this]()
                      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || news_.any(); };
      mutex_.Await(absl::Condition(&wake));
      if (stopping_) return;
      news = std::exchange(news_, {});
      watchers.assign(watchers_.begin(), watchers_.end());
    }
    for (const auto& watcher : watchers) {
      Watcher::News its{
          .quota = news.every_tenant || news.tenants.contains(watcher->tenant()),
          .draining = news.draining,
          .lost = news.orphaned.contains(watcher->session()),
          .revoked = news.revoked.contains(watcher->session()),
          .asked = watcher->accepts_suspension() && news.asked.contains(watcher->session()),
          .pressure = {}};
      for (const Pressure& pressure : news.pressures) its.Add(pressure);
      if (its.any()) watcher->Tell(its);
    }
  }
}

}  // namespace gpumemd
