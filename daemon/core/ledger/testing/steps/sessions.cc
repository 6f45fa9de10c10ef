// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/sessions.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/steps/course.h"
#include "daemon/core/ledger/testing/steps/leases.h"

namespace gpumemd::steps {
namespace {

// Call when the end of a session has begun. It completes at once, or over other calls.
absl::Status ContinueAtOnce(Course& course) {
  absl::Status result = model::ContinueEnding(course.model, course.ledger);
  const bool at_once = course.ends_at_once || course.chance.In100(60);
  while (result.ok() && at_once && course.ledger.endings().HasAny()) {
    course.Cover("a session ends in parts");
    if (absl::Status sound = course.ledger.CheckInvariants(); !sound.ok()) return sound;
    course.ledger.endings().Continue(1 + course.chance.Below(3));
    result = model::ContinueEnding(course.model, course.ledger);
  }
  return result;
}

}  // namespace

absl::Status OpenSession(Course& course, const std::string& tenant, const PeerIdentity& peer) {
  const std::string client = absl::StrCat("c", course.calls);
  const Secret token = course.chance.NewSecret();
  const size_t before = course.model.sessions.size();
  const auto answer =
      course.ledger.OpenSession(tenant, {.peer = peer, .client_name = client}, token);
  const absl::Status result =
      model::OpenSession(course.model, tenant, client, peer, course.now, token, answer);
  if (answer.ok() && course.model.sessions.size() == before) {
    course.Cover("a session replaces another");
  }
  return course.After(
      result, "OpenSession ", tenant, " -> ",
      answer.ok() ? absl::StrCat(ToInt(*answer)) : course.Describe(answer.status()));
}

absl::Status Reconnect(Course& course) {
  const SessionId id = course.AnyHolder();
  const auto session = course.model.sessions.find(id);
  if (session == course.model.sessions.end()) return absl::OkStatus();
  const std::string tenant = session->second.tenant;
  const PeerIdentity peer = session->second.peer;
  std::vector<LeaseId> leases;
  for (const auto& [lease_id, lease] : course.model.leases) {
    if (lease.session == id) leases.push_back(lease_id);
  }
  if (absl::Status released = Release(course, id, leases); !released.ok()) return released;
  if (absl::Status closed = SocketClosed(course, id); !closed.ok()) return closed;
  return OpenSession(course, tenant, peer);
}

const char* HasEnding(const Course& course) {
  return course.ledger.endings().HasAny() ? ", which goes on" : "";
}

absl::Status SocketClosed(Course& course, SessionId session) {
  course.ledger.endings().SocketClosed(session, 1 + course.chance.Below(4));
  model::SocketClosed(course.model, session);
  const absl::Status result = ContinueAtOnce(course);
  if (course.model.sessions.contains(session)) course.Cover("a session outlives its socket");
  return course.After(result, "SocketClosed ", ToInt(session), HasEnding(course));
}

absl::Status ProcessGone(Course& course, SessionId session) {
  course.ledger.endings().ProcessGone(session, 1 + course.chance.Below(4));
  model::ProcessGone(course.model, session);
  const absl::Status result = ContinueAtOnce(course);
  if (course.model.sessions.contains(session)) course.Cover("a session outlives its process");
  return course.After(result, "ProcessGone ", ToInt(session), HasEnding(course));
}

absl::Status ContinueEnding(Course& course) {
  course.Cover("a session ends over other calls");
  course.ledger.endings().Continue(1 + course.chance.Below(3));
  return course.After(model::ContinueEnding(course.model, course.ledger), "ContinueEnding",
                      HasEnding(course));
}

absl::Status WithoutEnding(Course& course, absl::Status (*probe)(Course&)) {
  while (course.ledger.endings().HasAny()) {
    if (absl::Status ended = ContinueEnding(course); !ended.ok()) return ended;
  }
  course.ends_at_once = true;
  absl::Status result = probe(course);
  course.ends_at_once = false;
  return result;
}

absl::Status BeginCall(Course& course) { return BeginCall(course, course.AnySession()); }

absl::Status BeginCall(Course& course, SessionId session) {
  const absl::Status answer = course.ledger.sessions().BeginCall(session);
  return course.After(model::BeginCall(course.model, session, answer), "BeginCall ", ToInt(session),
                      " -> ", course.Describe(answer));
}

absl::Status EndCall(Course& course) {
  for (const auto& [id, session] : course.model.sessions) {
    if (session.calls > 0 && !session.live) return EndCall(course, id);
  }
  for (const auto& [id, session] : course.model.sessions) {
    if (session.calls == 0 || course.chance.In100(30)) continue;
    return EndCall(course, id);
  }
  return absl::OkStatus();
}

absl::Status EndCall(Course& course, SessionId session) {
  course.ledger.sessions().EndCall(session);
  model::EndCall(course.model, session);
  return course.After(absl::OkStatus(), "EndCall ", ToInt(session));
}

uint32_t CallsOf(const Course& course, SessionId session) {
  auto it = course.model.sessions.find(session);
  return it == course.model.sessions.end() ? 0 : it->second.calls;
}

std::set<SessionId> Sessions(const Course& course) {
  std::set<SessionId> ids;
  for (const auto& [id, session] : course.model.sessions) ids.insert(id);
  return ids;
}

absl::Status NewProcess(Course& course, const std::string& tenant,
                        std::optional<SessionId>* session) {
  const std::set<SessionId> before = Sessions(course);
  const PeerIdentity peer = {.pid = static_cast<pid_t>(2 * (1000 + course.calls)), .start_time = 1};
  absl::Status opened = OpenSession(course, tenant, peer);
  for (const auto& [id, entry] : course.model.sessions) {
    if (!before.contains(id)) *session = id;
  }
  return opened;
}

}  // namespace gpumemd::steps
