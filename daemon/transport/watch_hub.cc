#include "daemon/transport/watch_hub.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "common/node_clock.h"
#include "daemon/transport/convert.h"

namespace gpumemd {
namespace v1 = gpumem::v1;

// One stream. Never calls gRPC under its mutex: gRPC may call back on the same thread.
class Watcher final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                      public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(Broker* broker, WatchHub* hub, grpc::CallbackServerContext* context, Broker::Call call,
          std::string tenant)
      : broker_(broker),
        hub_(hub),
        context_(context),
        call_(std::move(call)),
        tenant_(std::move(tenant)) {}

  SessionId session() const { return call_.session(); }
  const std::string& tenant() const { return tenant_; }

  void Begin() {
    self_ = shared_from_this();
    Tell({.quota = true, .lost = !broker_->LostLeases(call_).empty(), .pressure = {}});
  }

  // What there is to tell. Each is told as it stands when its turn comes.
  struct News {
    bool quota = false;
    bool draining = false;
    bool lost = false;
    std::map<std::string, uint64_t> pressure;  // bytes by device, each the most that was missing
    bool any() const { return quota || draining || lost || !pressure.empty(); }
  };

  void Tell(const News& news) {
    {
      absl::MutexLock lock(&mutex_);
      news_.quota |= news.quota;
      news_.draining |= news.draining;
      news_.lost |= news.lost;
      for (const auto& [device, bytes] : news.pressure) {
        uint64_t& most = news_.pressure[device];
        most = std::max(most, bytes);
      }
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
      event.mutable_draining()->set_draining(broker_->Count().draining);
    } else if (!told.pressure.empty()) {
      const auto& [device, bytes] = *told.pressure.begin();
      if (!CanGive(device)) return OnWriteDone(/*ok=*/true);
      event.mutable_pressure()->set_device_uuid(device);
      event.mutable_pressure()->set_bytes(bytes);
    } else {
      v1::SegmentsLost& lost = *event.mutable_segments_lost();
      // None where they were released meanwhile: then there is nothing to tell.
      for (LeaseId lease : broker_->LostLeases(call_)) lost.add_lease_ids(ToInt(lease));
      if (lost.lease_ids().empty()) return OnWriteDone(/*ok=*/true);
    }
    event.set_sent_ns(gpumem::NodeClockNs());
    const grpc::Slice bytes(event.SerializeAsString());
    event_ = grpc::ByteBuffer(&bytes, 1);
    StartWrite(&event_);
  }

  // What a tenant with release "on-exit" gives back stays charged, and helps nobody; nor can one
  // give what it has not.
  bool CanGive(const std::string& device) const {
    const absl::StatusOr<TenantView> usage = broker_->Usage(call_);
    if (!usage.ok() || usage->quota.release == ReleasePolicy::kOnExit) return false;
    return std::any_of(usage->devices.begin(), usage->devices.end(), [&](const auto& own) {
      return (device.empty() || own.device_uuid == device) && own.charged > 0;
    });
  }

  static News TakeOne(News& news) {
    News one;
    for (bool News::*const flag : {&News::quota, &News::draining, &News::lost}) {
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
                                                            Broker::Call call, std::string tenant) {
  auto watcher =
      std::make_shared<Watcher>(broker_, this, context, std::move(call), std::move(tenant));
  {
    absl::MutexLock lock(&mutex_);
    watchers_.insert(watcher);
  }
  watcher->Begin();
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
  news_.bereaved.insert(session);
}

void WatchHub::Pressed(const Pressure& pressure) {
  absl::MutexLock lock(&mutex_);
  for (Pressure& known : news_.pressures) {
    if (known.tenant != pressure.tenant || known.device_uuid != pressure.device_uuid) continue;
    known.bytes = std::max(known.bytes, pressure.bytes);
    return;
  }
  news_.pressures.push_back(pressure);
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
      Watcher::News its{.quota = news.every_tenant || news.tenants.contains(watcher->tenant()),
                        .draining = news.draining,
                        .lost = news.bereaved.contains(watcher->session()),
                        .pressure = {}};
      for (const Pressure& pressure : news.pressures) {
        if (!pressure.tenant.empty() && pressure.tenant != watcher->tenant()) continue;
        uint64_t& most = its.pressure[pressure.device_uuid];
        most = std::max(most, pressure.bytes);
      }
      if (its.any()) watcher->Tell(its);
    }
  }
}

}  // namespace gpumemd
