// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/event/events.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/admission/refusals.h"

namespace gpumemd {
namespace {

constexpr size_t kMaxEventName = 64;

absl::Status CheckName(absl::string_view name) {
  const bool printable = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c));
  });
  if (!name.empty() && name.size() <= kMaxEventName && printable) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the name of an event is 1 to ", kMaxEventName, " printable characters"));
}

}  // namespace

absl::StatusOr<IpcEventId> Events::Register(SessionId session_id, const Place& place,
                                            absl::string_view device_uuid, const ExportData& handle,
                                            uint64_t request_id) {
  absl::StatusOr<Session*> session = state_.LiveSession(session_id);
  if (!session.ok()) return session.status();
  if (const std::optional<uint64_t> event = state_.AnswerTo(**session, request_id)) {
    return IpcEventId{*event};
  }
  if (state_.draining) return Draining();
  IpcEvents::Event event{.session = session_id,
                         .device_uuid = std::string(device_uuid),
                         .handle = handle,
                         .tenant = (*session)->tenant->name,
                         .books = (*session)->tenant->books->name};
  if (auto device = state_.FindDevice(device_uuid); !device.ok()) return device.status();
  if (place.lease) {
    if (!(*session)->leases.contains(*place.lease)) return NoSuchLease(*place.lease);
    event.lease = place.lease;
    event.segment = state_.leases.at(*place.lease).segment;
  } else {
    if (absl::Status named = CheckName(place.name); !named.ok()) return named;
    event.name = place.name;
  }
  struct Limit {
    absl::string_view of;
    size_t used;
    uint32_t limit;
  };
  const Limit limits[] = {
      {"a segment", place.lease ? state_.events.CountBeside(event.segment) : 0,
       state_.bounds.max_events_per_segment},
      {"the session", state_.events.CountOf(session_id), state_.bounds.max_events_per_session},
      {"the tenant", state_.events.CountOf(event.books), state_.bounds.max_events_per_tenant},
      {"the node", state_.events.size(), state_.bounds.max_events},
  };
  for (const Limit& limit : limits) {
    if (limit.used < limit.limit) continue;
    return DenyCount(
        *(*session)->tenant, Denial::Cause::kDaemonLimit, 1, limit.used, limit.limit,
        absl::StrCat(limit.of, " is at its limit of events; end those that are not needed"));
  }
  // The name of a session that is ending is free.
  IpcEventId old{};
  const IpcEvents::Event* named =
      place.lease ? nullptr : state_.events.FindByName(event.tenant, event.name, &old);
  if (named != nullptr && !state_.sessions.at(named->session)->live) {
    state_.events.Remove(old);
    changes_.Touch(old);
  }
  std::optional<IpcEventId> id = state_.events.Add(std::move(event));
  if (id) {
    changes_.Touch(*id);
    sessions_.RememberAnswer(session_id, **session, request_id, ToInt(*id));
    return *id;
  }
  return absl::AlreadyExistsError(absl::StrCat("tenant ", (*session)->tenant->name,
                                               " has an event named \"", place.name,
                                               "\" already; choose another name"));
}

absl::StatusOr<std::vector<IpcEventView>> Events::Find(SessionId session_id, const Place& place) {
  absl::StatusOr<Session*> session = state_.LiveSession(session_id);
  if (!session.ok()) return session.status();
  std::vector<std::pair<IpcEventId, IpcEvents::Event*>> found;
  if (place.lease) {
    if (!(*session)->leases.contains(*place.lease)) return NoSuchLease(*place.lease);
    found = state_.events.FindBySegment(state_.leases.at(*place.lease).segment);
    // Leaves out the caller's events, which its process cannot open, and those of sessions that are
    // ending.
    std::erase_if(found, [&](const auto& entry) {
      const SessionId owner = entry.second->session;
      return owner == session_id || !state_.sessions.at(owner)->live;
    });
    if (found.empty()) {
      return absl::NotFoundError(absl::StrCat(
          "no other session has an event for the segment of lease ", ToInt(*place.lease)));
    }
  } else {
    IpcEventId id{};
    IpcEvents::Event* event = state_.events.FindByName((*session)->tenant->name, place.name, &id);
    if (event == nullptr || !state_.sessions.at(event->session)->live) {
      return absl::NotFoundError(absl::StrCat(
          "tenant ", (*session)->tenant->name,
          " has no event of that name; an event ends with the session that created it"));
    }
    found.emplace_back(id, event);
  }
  std::vector<IpcEventView> views;
  for (auto& [id, event] : found) {
    if (!event->handed_out && event->session != session_id) {
      event->handed_out = true;
      changes_.Touch(id);
    }
    views.push_back({.id = id,
                     .session = event->session,
                     .device_uuid = event->device_uuid,
                     .handle = event->handle});
  }
  return views;
}

absl::StatusOr<bool> Events::Unregister(SessionId session_id, IpcEventId id) {
  absl::StatusOr<Session*> session = state_.LiveSession(session_id);
  if (!session.ok()) return session.status();
  const IpcEvents::Event* event = state_.events.Find(id);
  if (event == nullptr || event->session != session_id) {
    return absl::NotFoundError(absl::StrCat("this session has registered no event ", ToInt(id)));
  }
  const bool handed_out = event->handed_out;
  state_.events.Remove(id);
  changes_.Touch(id);
  return handed_out;
}

}  // namespace gpumemd
