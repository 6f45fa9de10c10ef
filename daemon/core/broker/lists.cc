// Lists for operators, in parts: the mutex is free between them.
#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/core/broker/broker.h"

namespace gpumemd {
namespace {

// Entries of a long list that are read per hold of the mutex. An entry that changes meanwhile is
// listed either as it was or as it is.
constexpr size_t kListedAtOnce = 256;

// Runs without the mutex: a list that grows copies all its entries.
template <typename View>
void Append(std::vector<View> some, std::vector<View>& views) {
  views.insert(views.end(), std::make_move_iterator(some.begin()),
               std::make_move_iterator(some.end()));
}

}  // namespace

std::vector<LeaseId> Broker::LostLeases(const Call& call) const {
  std::vector<LeaseId> lost;
  for (std::optional<LeaseId> next = LeaseId{}; next.has_value();) {
    TimedLock lock(&mutex_);
    next = ledger_.look().LostLeases(call.session(), *next, kListedAtOnce, lost);
  }
  return lost;
}

Inspector::Revoked Broker::RevokedLeases(const Call& call) const {
  Inspector::Revoked revoked;
  for (std::optional<LeaseId> next = LeaseId{}; next.has_value();) {
    TimedLock lock(&mutex_);
    next = ledger_.look().RevokedLeases(call.session(), *next, kListedAtOnce, revoked);
  }
  return revoked;
}

absl::StatusOr<std::vector<SessionView>> Broker::ListSessions(absl::string_view tenant) const {
  std::vector<SessionId> ids;
  {
    TimedLock lock(&mutex_);
    if (absl::Status known = ledger_.look().CheckListed(tenant, ""); !known.ok()) return known;
    ids = ledger_.look().SessionIds();
  }
  std::sort(ids.begin(), ids.end());
  std::vector<SessionView> views;
  for (absl::Span<const SessionId> left(ids); !left.empty();) {
    std::vector<SessionView> some;
    {
      TimedLock lock(&mutex_);
      ledger_.look().View(left.subspan(0, kListedAtOnce), tenant, some);
    }
    Append(std::move(some), views);
    left.remove_prefix(std::min(left.size(), kListedAtOnce));
  }
  return views;
}

absl::StatusOr<std::vector<SegmentView>> Broker::ListSegments(absl::string_view tenant,
                                                              absl::string_view device) const {
  std::vector<SegmentId> ids;
  {
    TimedLock lock(&mutex_);
    if (absl::Status known = ledger_.look().CheckListed(tenant, device); !known.ok()) return known;
    ids = ledger_.look().SegmentIds();
  }
  std::sort(ids.begin(), ids.end());
  std::vector<SegmentView> views;
  for (absl::Span<const SegmentId> left(ids); !left.empty();) {
    std::vector<SegmentView> some;
    {
      TimedLock lock(&mutex_);
      ledger_.look().View(left.subspan(0, kListedAtOnce), tenant, device, some);
    }
    Append(std::move(some), views);
    left.remove_prefix(std::min(left.size(), kListedAtOnce));
  }
  return views;
}

HoldersView Broker::ListHolders(std::optional<SegmentId> only) const {
  HoldersView holders;
  std::vector<SessionId> sessions;
  {
    TimedLock lock(&mutex_);
    holders.publications = ledger_.look().PublicationHolders(only);
    sessions = ledger_.look().SessionIds();
  }
  for (SessionId session : sessions) {
    for (std::optional<LeaseId> next = LeaseId{}; next.has_value();) {
      std::vector<LeaseHolderView> some;
      {
        TimedLock lock(&mutex_);
        next = ledger_.look().View(session, only, *next, kListedAtOnce, some);
      }
      Append(std::move(some), holders.leases);
    }
  }
  std::sort(holders.leases.begin(), holders.leases.end(),
            [](const LeaseHolderView& a, const LeaseHolderView& b) { return a.id < b.id; });
  return holders;
}

absl::StatusOr<std::vector<WaiterView>> Broker::ListWaiting(absl::string_view tenant,
                                                            absl::string_view device) const {
  TimedLock lock(&mutex_);
  return ledger_.admission().ListWaiting(tenant, device);
}

}  // namespace gpumemd
