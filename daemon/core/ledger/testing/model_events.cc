// The model of lost segments and of interprocess events.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/testing/model.h"

namespace gpumemd {

using absl::StatusCode;

std::vector<SegmentId> LedgerModel::ContextBound(size_t device) const {
  std::vector<SegmentId> bound;
  for (const auto& [id, segment] : segments_) {
    if (segment.device == device && IsContextBound(segment.kind)) bound.push_back(id);
  }
  return bound;
}

void LedgerModel::MarkLost(absl::Span<const SegmentId> segments) {
  for (SegmentId id : segments) {
    auto it = segments_.find(id);
    if (it == segments_.end() || it->second.lost) continue;
    it->second.lost = true;
    if (it->second.kept_since > 0) GiveUp(it->second);
    for (const auto& [lease_id, lease] : leases_) {
      if (lease.segment == id) bereaved_.insert(lease.session);
    }
  }
}

absl::Status LedgerModel::TakeBereaved(const std::vector<SessionId>& answer) {
  const std::set<SessionId> expected = std::exchange(bereaved_, {});
  if (std::equal(answer.begin(), answer.end(), expected.begin(), expected.end())) {
    return absl::OkStatus();
  }
  return Wrong("expected ", expected.size(), " sessions to be told of a loss, got ", answer.size());
}

absl::Status LedgerModel::RegisterEvent(SessionId session, const Ledger::EventPlace& place,
                                        const std::string& device, const ExportData& handle,
                                        uint64_t request,
                                        const absl::StatusOr<IpcEventId>& answer) {
  if (!Live(session)) return ExpectCode(answer.status(), StatusCode::kAborted);
  if (const std::optional<uint64_t> number = AnswerTo(session, request)) {
    if (answer.ok() && ToInt(*answer) == *number) return absl::OkStatus();
    return Wrong("expected the answer that was given before, got ", answer.status().ToString());
  }
  if (draining_) return ExpectCode(answer.status(), StatusCode::kUnavailable);
  if (DeviceIndex(device) >= devices_.size()) {
    return ExpectCode(answer.status(), StatusCode::kNotFound);
  }
  if (place.lease) {
    auto lease = leases_.find(*place.lease);
    if (lease == leases_.end() || lease->second.session != session) {
      return ExpectCode(answer.status(), StatusCode::kNotFound);
    }
  } else if (place.name.empty() || place.name.size() > 64 ||
             place.name.find('\n') != std::string::npos) {
    return ExpectCode(answer.status(), StatusCode::kInvalidArgument);
  }
  const std::string& tenant = sessions_.at(session).tenant;
  const SegmentId segment = place.lease ? leases_.at(*place.lease).segment : SegmentId{};
  const auto count = [&](auto which) {
    return static_cast<uint64_t>(std::count_if(events_.begin(), events_.end(), which));
  };
  const std::pair<uint64_t, uint64_t> limits[] = {
      {count([&](const Event& event) {
         return place.lease && event.place.lease && event.listed && event.segment == segment;
       }),
       bounds_.max_events_per_segment},
      {count([&](const Event& event) { return event.session == session; }),
       bounds_.max_events_per_session},
      {count([&](const Event& event) { return sessions_.at(event.session).tenant == tenant; }),
       bounds_.max_events_per_tenant},
      {events_.size(), bounds_.max_events}};
  for (const auto& [used, limit] : limits) {
    if (used < limit) continue;
    return ExpectDenial(answer.status(), tenant,
                        {{Denial::Cause::kDaemonLimit, tenant, kEverywhere}, 1, used, limit});
  }
  const auto has_its_name = [&](const Event& event) {
    return !place.lease && !event.place.lease && event.place.name == place.name &&
           sessions_.at(event.session).tenant == tenant;
  };
  // A session that is ending gives up its names.
  std::erase_if(events_,
                [&](const Event& event) { return has_its_name(event) && !Live(event.session); });
  if (std::any_of(events_.begin(), events_.end(), has_its_name)) {
    return ExpectCode(answer.status(), StatusCode::kAlreadyExists);
  }
  if (!answer.ok() || ToInt(*answer) <= last_event_) {
    return Wrong("expected a new event, got ", answer.status().ToString());
  }
  last_event_ = ToInt(*answer);
  Answered(session, request, last_event_);
  events_.push_back({.id = *answer,
                     .session = session,
                     .device = device,
                     .handle = handle,
                     .place = place,
                     .segment = segment});
  return absl::OkStatus();
}

absl::Status LedgerModel::GetEvents(SessionId session, const Ledger::EventPlace& place,
                                    const absl::StatusOr<std::vector<IpcEventView>>& answer) {
  if (!Live(session)) return ExpectCode(answer.status(), StatusCode::kAborted);
  if (place.lease) {
    auto lease = leases_.find(*place.lease);
    if (lease == leases_.end() || lease->second.session != session) {
      return ExpectCode(answer.status(), StatusCode::kNotFound);
    }
  }
  std::vector<Event*> expected;
  for (Event& event : events_) {
    const bool found = place.lease
                           ? event.place.lease && event.listed && event.session != session &&
                                 event.segment == leases_.at(*place.lease).segment
                           : !event.place.lease && event.place.name == place.name &&
                                 sessions_.at(event.session).tenant == sessions_.at(session).tenant;
    if (found && Live(event.session)) expected.push_back(&event);
  }
  if (expected.empty()) return ExpectCode(answer.status(), StatusCode::kNotFound);
  if (!answer.ok() || answer->size() != expected.size()) {
    return Wrong("expected ", expected.size(), " events, got ", answer.status().ToString());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const IpcEventView& view = (*answer)[i];
    if (view.id != expected[i]->id || view.session != expected[i]->session ||
        view.device_uuid != expected[i]->device || view.handle != expected[i]->handle) {
      return Wrong("event ", ToInt(expected[i]->id), " is shown wrongly");
    }
    if (view.session != session) expected[i]->handed_out = true;
  }
  return absl::OkStatus();
}

absl::Status LedgerModel::UnregisterEvent(SessionId session, IpcEventId id,
                                          const absl::StatusOr<bool>& answer) {
  if (!Live(session)) return ExpectCode(answer.status(), StatusCode::kAborted);
  auto it = std::find_if(events_.begin(), events_.end(), [&](const Event& event) {
    return event.id == id && event.session == session;
  });
  if (it == events_.end()) return ExpectCode(answer.status(), StatusCode::kNotFound);
  const bool handed_out = it->handed_out;
  events_.erase(it);
  if (answer.ok() && *answer == handed_out) return absl::OkStatus();
  return Wrong("expected an end of event ", ToInt(id), ", got ", answer.status().ToString());
}

}  // namespace gpumemd
