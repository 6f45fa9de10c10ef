// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/events.h"

#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/events.h"
#include "daemon/core/ledger/testing/model/records.h"
#include "daemon/core/ledger/testing/steps/course.h"

namespace gpumemd::steps {
namespace {

Events::Place AnyPlace(Course& course, SessionId session) {
  if (course.chance.In100(50)) return {.name = course.chance.EventName()};
  return {.lease = course.AnyLeaseOf(session)};
}

}  // namespace

absl::Status RegisterEvent(Course& course) {
  SessionId session = course.AnyHolder();
  const Events::Place place = AnyPlace(course, session);
  const std::string device = course.chance.In100(2) ? "elsewhere" : course.chance.Device();
  ExportData handle{};
  handle[0] = static_cast<uint8_t>(course.chance.Below(256));
  uint64_t request = course.chance.In100(60) ? 1 + course.chance.Below(1000) : 0;
  if (course.chance.In100(10) && course.last_register) {  // as if the answer were lost
    std::tie(session, request) = *course.last_register;
  }
  const bool again = course.last_register == std::pair(session, request);
  const auto answer = course.ledger.events().Register(session, place, device, handle, request);
  if (answer.ok() && again) course.Cover("an event, and told so again");
  if (answer.ok() && request != 0) course.last_register = std::pair(session, request);
  return course.After(
      model::RegisterEvent(course.model, session, place, device, handle, request, answer),
      "RegisterEvent ", ToInt(session), " \"", place.name, "\" -> ",
      course.Describe(answer.status()));
}

absl::Status GetEvents(Course& course) {
  SessionId session = course.AnyHolder();
  Events::Place place = AnyPlace(course, session);
  if (!course.model.events.empty() && course.chance.In100(70)) {  // aim at an existing one
    const model::Event& event = course.chance.Of(course.model.events);
    if (!event.place.lease) place = event.place;
    for (const auto& [id, lease] : course.model.leases) {
      if (!event.place.lease || lease.session == event.session || lease.segment != event.segment) {
        continue;
      }
      session = lease.session;
      place = {.lease = id};
    }
  }
  const auto answer = course.ledger.events().Find(session, place);
  if (answer.ok()) course.Cover(place.lease ? "events beside a lease" : "event by name");
  return course.After(model::GetEvents(course.model, session, place, answer), "GetEvents ",
                      ToInt(session), " \"", place.name, "\" -> ",
                      course.Describe(answer.status()));
}

absl::Status UnregisterEvent(Course& course) {
  SessionId session = course.AnySession();
  IpcEventId event{course.chance.Below(1000)};
  if (!course.model.events.empty() && course.chance.In100(95)) {
    const model::Event& chosen = course.chance.Of(course.model.events);
    event = chosen.id;
    if (course.chance.In100(90)) session = chosen.session;
  }
  const auto answer = course.ledger.events().Unregister(session, event);
  if (answer.ok() && *answer) course.Cover("an event that was handed out ends");
  return course.After(model::UnregisterEvent(course.model, session, event, answer),
                      "UnregisterEvent ", ToInt(session), " ", ToInt(event), " -> ",
                      course.Describe(answer.status()));
}

}  // namespace gpumemd::steps
