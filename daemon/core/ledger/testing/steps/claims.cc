// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/claims.h"

#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/claims.h"
#include "daemon/core/ledger/testing/steps/publications.h"
#include "daemon/core/ledger/testing/steps/requests.h"
#include "daemon/core/ledger/testing/steps/sessions.h"

namespace gpumemd::steps {

std::string AnyContentId(Course& course) {
  if (course.chance.In100(2)) return std::string(course.chance.In100(50) ? 0 : 65, 'x');
  return std::string(1, static_cast<char>(course.chance.Below(3)));
}

absl::Status AttachOrClaim(Course& course) {
  const SessionId session = course.AnySession();
  AttachSpec spec = {.request_id = NewRequest(course),
                     .waits = course.chance.In100(70),
                     .claims = true,
                     .content_id = AnyContentId(course)};
  spec.name = std::string(1, static_cast<char>('a' + course.chance.Below(2)));
  if (course.chance.In100(10)) spec.name = absl::StrCat(course.chance.Tenant(), "/", spec.name);
  if (course.chance.In100(2)) spec.version = 1;
  if (!course.model.claims.empty() && course.chance.In100(60)) {
    const auto& [contents, holder] = course.chance.Of(course.model.claims);
    const auto& [tenant, name, content_id] = contents;
    spec.name = course.chance.In100(50) ? name : absl::StrCat(tenant, "/", name);
    spec.content_id = content_id;
    if (course.chance.In100(10)) spec.request_id = holder.second;  // as if the answer were lost
  }
  const auto it = course.model.sessions.find(session);
  if (it != course.model.sessions.end()) spec.revocable = it->second.peer.pid % 2 == 0;
  if (it != course.model.sessions.end() && it->second.live && it->second.calls == 0) {
    if (absl::Status called = BeginCall(course, session); !called.ok()) return called;
    if (CallsOf(course, session) == 0) return absl::OkStatus();  // it has too many
  }
  if (absl::Status asked = Attach(course, session, spec); !asked.ok()) return asked;
  if (CallsOf(course, session) == 0 || course.chance.In100(10)) return absl::OkStatus();
  return EndCall(course, session);
}

absl::Status ReleaseClaim(Course& course) {
  if (course.model.sessions.empty()) return absl::OkStatus();
  SessionId session = course.chance.Of(course.model.sessions).first;
  uint64_t request = course.chance.Below(20);
  if (!course.model.claims.empty() && course.chance.In100(60)) {
    std::tie(session, request) = course.chance.Of(course.model.claims).second;
  } else if (!course.model.attach_waiters.empty() && course.chance.In100(50)) {
    const model::AttachWaiter& waiter = course.chance.Of(course.model.attach_waiters).second;
    session = waiter.session;
    request = waiter.request;
  }
  const size_t called = course.model.attachable.size();
  const bool refused = course.chance.In100(30);
  if (refused) {
    course.ledger.publications().claims().Refused(session, request);
    model::RefuseClaim(course.model, session, request);
  } else {
    course.ledger.publications().claims().Release(session, request);
    model::ReleaseClaim(course.model, session, request);
  }
  if (course.model.attachable.size() > called) course.Cover("a claim is passed on");
  return course.After(absl::OkStatus(), refused ? "Refused " : "ReleaseClaim ", ToInt(session), " ",
                      request);
}

}  // namespace gpumemd::steps
