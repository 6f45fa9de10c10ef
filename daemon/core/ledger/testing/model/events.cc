// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/events.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/made/made_tenants.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/devices.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/sessions.h"

namespace gpumemd::model {

using absl::StatusCode;

absl::Status RegisterEvent(LedgerModel& model, SessionId session, const Events::Place& place,
                           const std::string& device, const ExportData& handle, uint64_t request,
                           const absl::StatusOr<IpcEventId>& answer) {
  if (!Live(model, session)) return ExpectCode(answer.status(), StatusCode::kAborted);
  if (const std::optional<uint64_t> number = AnswerTo(model, session, request)) {
    if (answer.ok() && ToInt(*answer) == *number) return absl::OkStatus();
    return Wrong("expected the answer that was given before, got ", answer.status().ToString());
  }
  if (model.draining) return ExpectCode(answer.status(), StatusCode::kUnavailable);
  if (DeviceIndex(model, device) >= model.devices.size()) {
    return ExpectCode(answer.status(), StatusCode::kNotFound);
  }
  if (place.lease) {
    auto lease = model.leases.find(*place.lease);
    if (lease == model.leases.end() || lease->second.session != session) {
      return ExpectCode(answer.status(), StatusCode::kNotFound);
    }
  } else if (place.name.empty() || place.name.size() > 64 ||
             place.name.find('\n') != std::string::npos) {
    return ExpectCode(answer.status(), StatusCode::kInvalidArgument);
  }
  const std::string& tenant = model.sessions.at(session).tenant;
  const SegmentId segment = place.lease ? model.leases.at(*place.lease).segment : SegmentId{};
  const auto count = [&](auto which) {
    return static_cast<uint64_t>(std::count_if(model.events.begin(), model.events.end(), which));
  };
  const std::pair<uint64_t, uint64_t> limits[] = {
      {count([&](const Event& event) {
         return place.lease && event.place.lease && event.listed && event.segment == segment;
       }),
       model.bounds.max_events_per_segment},
      {count([&](const Event& event) { return event.session == session; }),
       model.bounds.max_events_per_session},
      {count([&](const Event& event) {
         return BooksOf(model, model.sessions.at(event.session).tenant) == BooksOf(model, tenant);
       }),
       model.bounds.max_events_per_tenant},
      {model.events.size(), model.bounds.max_events}};
  for (const auto& [used, limit] : limits) {
    if (used < limit) continue;
    return ExpectDenial(model, answer.status(), tenant,
                        {{Denial::Cause::kDaemonLimit, tenant, kEverywhere}, 1, used, limit});
  }
  const auto has_its_name = [&](const Event& event) {
    return !place.lease && !event.place.lease && event.place.name == place.name &&
           model.sessions.at(event.session).tenant == tenant;
  };
  // A session that is ending gives up its names.
  std::erase_if(model.events, [&](const Event& event) {
    return has_its_name(event) && !Live(model, event.session);
  });
  if (std::any_of(model.events.begin(), model.events.end(), has_its_name)) {
    return ExpectCode(answer.status(), StatusCode::kAlreadyExists);
  }
  if (!answer.ok() || ToInt(*answer) <= model.last_event) {
    return Wrong("expected a new event, got ", answer.status().ToString());
  }
  model.last_event = ToInt(*answer);
  Answered(model, session, request, model.last_event);
  model.events.push_back({.id = *answer,
                          .session = session,
                          .device = device,
                          .handle = handle,
                          .place = place,
                          .segment = segment});
  return absl::OkStatus();
}

absl::Status GetEvents(LedgerModel& model, SessionId session, const Events::Place& place,
                       const absl::StatusOr<std::vector<IpcEventView>>& answer) {
  if (!Live(model, session)) return ExpectCode(answer.status(), StatusCode::kAborted);
  if (place.lease) {
    auto lease = model.leases.find(*place.lease);
    if (lease == model.leases.end() || lease->second.session != session) {
      return ExpectCode(answer.status(), StatusCode::kNotFound);
    }
  }
  std::vector<Event*> expected;
  for (Event& event : model.events) {
    const bool found =
        place.lease
            ? event.place.lease && event.listed && event.session != session &&
                  event.segment == model.leases.at(*place.lease).segment
            : !event.place.lease && event.place.name == place.name &&
                  model.sessions.at(event.session).tenant == model.sessions.at(session).tenant;
    if (found && Live(model, event.session)) expected.push_back(&event);
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

absl::Status UnregisterEvent(LedgerModel& model, SessionId session, IpcEventId id,
                             const absl::StatusOr<bool>& answer) {
  if (!Live(model, session)) return ExpectCode(answer.status(), StatusCode::kAborted);
  auto it = std::find_if(model.events.begin(), model.events.end(), [&](const Event& event) {
    return event.id == id && event.session == session;
  });
  if (it == model.events.end()) return ExpectCode(answer.status(), StatusCode::kNotFound);
  const bool handed_out = it->handed_out;
  model.events.erase(it);
  if (answer.ok() && *answer == handed_out) return absl::OkStatus();
  return Wrong("expected an end of event ", ToInt(id), ", got ", answer.status().ToString());
}

}  // namespace gpumemd::model
