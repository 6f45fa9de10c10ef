// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/broker/views.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

namespace gpumemd {
namespace {

// Any session may list the devices, and the driver may be slow to answer.
constexpr absl::Duration kDriverAnswerHolds = absl::Milliseconds(100);

// Runs without the mutex: a list that grows copies all its entries.
template <typename View>
void Append(std::vector<View> some, std::vector<View>& views) {
  views.insert(views.end(), std::make_move_iterator(some.begin()),
               std::make_move_iterator(some.end()));
}

}  // namespace

absl::StatusOr<std::vector<SessionView>> BrokerViews::ListSessions(absl::string_view tenant) const {
  std::vector<SessionId> ids;
  {
    TimedLock lock(&broker_.mutex_);
    if (absl::Status known = broker_.ledger_.look().CheckListed(tenant, ""); !known.ok())
      return known;
    ids = broker_.ledger_.look().SessionIds();
  }
  std::sort(ids.begin(), ids.end());
  std::vector<SessionView> views;
  for (absl::Span<const SessionId> left(ids); !left.empty();) {
    std::vector<SessionView> some;
    {
      TimedLock lock(&broker_.mutex_);
      broker_.ledger_.look().View(left.subspan(0, Broker::kListedAtOnce), tenant, some);
    }
    Append(std::move(some), views);
    left.remove_prefix(std::min(left.size(), Broker::kListedAtOnce));
  }
  return views;
}

absl::StatusOr<std::vector<SegmentView>> BrokerViews::ListSegments(absl::string_view tenant,
                                                                   absl::string_view device) const {
  std::vector<SegmentId> ids;
  {
    TimedLock lock(&broker_.mutex_);
    if (absl::Status known = broker_.ledger_.look().CheckListed(tenant, device); !known.ok())
      return known;
    ids = broker_.ledger_.look().SegmentIds();
  }
  std::sort(ids.begin(), ids.end());
  std::vector<SegmentView> views;
  for (absl::Span<const SegmentId> left(ids); !left.empty();) {
    std::vector<SegmentView> some;
    {
      TimedLock lock(&broker_.mutex_);
      broker_.ledger_.look().View(left.subspan(0, Broker::kListedAtOnce), tenant, device, some);
    }
    Append(std::move(some), views);
    left.remove_prefix(std::min(left.size(), Broker::kListedAtOnce));
  }
  return views;
}

HoldersView BrokerViews::ListHolders(std::optional<SegmentId> only) const {
  HoldersView holders;
  std::vector<SessionId> sessions;
  {
    TimedLock lock(&broker_.mutex_);
    holders.publications = broker_.ledger_.look().PublicationHolders(only);
    sessions = broker_.ledger_.look().SessionIds();
  }
  for (SessionId session : sessions) {
    for (std::optional<LeaseId> next = LeaseId{}; next.has_value();) {
      std::vector<LeaseHolderView> some;
      {
        TimedLock lock(&broker_.mutex_);
        next = broker_.ledger_.look().View(session, only, *next, Broker::kListedAtOnce, some);
      }
      Append(std::move(some), holders.leases);
    }
  }
  std::sort(holders.leases.begin(), holders.leases.end(),
            [](const LeaseHolderView& a, const LeaseHolderView& b) { return a.id < b.id; });
  return holders;
}

absl::StatusOr<std::vector<WaiterView>> BrokerViews::ListWaiting(absl::string_view tenant,
                                                                 absl::string_view device) const {
  TimedLock lock(&broker_.mutex_);
  return broker_.ledger_.admission().ListWaiting(tenant, device);
}

std::vector<BrokerViews::DeviceView> BrokerViews::Devices(bool ask_driver) const {
  std::vector<DeviceView> views;
  for (const auto& device : broker_.devices_) {
    views.push_back({.index = static_cast<uint32_t>(views.size()),
                     .info = device->info(),
                     .context_pid = device->context_pid(),
                     .copier_pid = device->copier_pid()});
  }
  if (ask_driver) {
    const std::vector<uint64_t> free = broker_.DriverFree();
    for (size_t i = 0; i < views.size(); ++i) views[i].driver_free = free[i];
  }
  TimedLock lock(&broker_.mutex_);
  for (size_t i = 0; i < views.size(); ++i) views[i].charged = broker_.ledger_.state().charged(i);
  return views;
}

BrokerViews::Counts BrokerViews::Count() const {
  TimedLock lock(&broker_.mutex_);
  return {.sessions = broker_.ledger_.state().sessions.size(),
          .tenants = broker_.ledger_.state().tenants.size(),
          .segments = broker_.ledger_.state().segments.size(),
          .draining = broker_.ledger_.state().draining,
          .holders_shown = broker_.holders_shown_};
}

absl::StatusOr<TenantView> BrokerViews::GetTenant(absl::string_view tenant) const {
  TimedLock lock(&broker_.mutex_);
  return broker_.ledger_.look().GetTenant(tenant);
}

std::vector<TenantView> BrokerViews::ListTenants() const {
  TimedLock lock(&broker_.mutex_);
  return broker_.ledger_.look().ListTenants();
}

absl::Status BrokerViews::CheckInvariants() const {
  TimedLock lock(&broker_.mutex_);
  return broker_.ledger_.CheckInvariants();
}

absl::StatusOr<std::vector<PublicationView>> BrokerViews::ListPublications(
    absl::string_view tenant) const {
  TimedLock lock(&broker_.mutex_);
  return broker_.ledger_.look().ListPublications(tenant);
}

absl::StatusOr<BrokerViews::PublicationContents> BrokerViews::GetPublication(
    absl::string_view full_name) const {
  absl::StatusOr<Publications::Name> name = Publications::ParseName(full_name, "");
  if (!name.ok()) return name.status();
  PublicationContents contents;
  std::shared_ptr<const Metadata> metadata;
  {
    TimedLock lock(&broker_.mutex_);
    const LedgerState& state = broker_.ledger_.state();
    const auto id = state.by_name.find(*name);
    if (id == state.by_name.end()) return NoSuchPublication(name->first, name->second);
    contents.view = *broker_.ledger_.look().GetPublication(id->second);
    for (const SegmentId segment : state.publications.at(id->second).segments) {
      contents.segment_bytes.push_back(state.segments.at(segment)->size());
    }
    metadata = broker_.metadata_.at(id->second);
  }
  absl::StatusOr<std::string> bytes = metadata->Read();
  if (!bytes.ok()) return bytes.status();
  contents.metadata = *std::move(bytes);
  return contents;
}

Measures BrokerViews::Measure() const {
  Measures measures;
  for (const auto& device : broker_.devices_) measures.device_infos.push_back(device->info());
  {
    TimedLock lock(&broker_.mutex_);
    static_cast<LedgerMeasures&>(measures) = broker_.ledger_.look().Measure();
    measures.swaps = broker_.ledger_.swaps().counts();
  }
  HoldTimes times = broker_.mutex_.Read();
  measures.lock_holds = times.holds;
  measures.longest_lock_hold = times.longest;
  measures.suspends = broker_.suspends_.Read();
  for (const size_t waited : {0, 1}) measures.resumes[waited] = broker_.resumes_[waited].Read();
  for (size_t i = 0; i < kKinds; ++i) {
    if (!IsAcquirable(gpumem::kKindTable[i])) continue;
    const Kind kind = gpumem::kKindTable[i].kind;
    const bool made = std::any_of(
        measures.device_infos.begin(), measures.device_infos.end(), [&](const DeviceInfo& info) {
          return std::find(info.kinds.begin(), info.kinds.end(), kind) != info.kinds.end();
        });
    if (!made) continue;
    for (const bool waited : {false, true}) {
      measures.acquires.push_back(
          {.kind = kind, .waited = waited, .latency = broker_.acquires_[i][waited ? 1 : 0].Read()});
    }
  }
  return measures;
}

std::vector<uint64_t> Broker::DriverFree() const {
  {
    absl::MutexLock lock(&driver_mutex_);
    if (driver_asking_ || now_() - driver_asked_ < kDriverAnswerHolds) return driver_free_;
    driver_asking_ = true;
  }
  std::vector<uint64_t> free;
  for (const auto& device : devices_) free.push_back(device->DriverFreeBytes().value_or(0));
  absl::MutexLock lock(&driver_mutex_);
  driver_asking_ = false;
  driver_asked_ = now_();
  driver_free_ = free;
  return free;
}

}  // namespace gpumemd
