// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/publications.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/attachments.h"
#include "daemon/core/ledger/testing/model/publications.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/steps/claims.h"
#include "daemon/core/ledger/testing/steps/course.h"
#include "daemon/core/ledger/testing/steps/requests.h"
#include "daemon/core/ledger/testing/steps/sessions.h"

namespace gpumemd::steps {
namespace {

// One of few names, or an unused one.
std::string AnyPublicationName(Course& course) {
  if (course.chance.In100(2)) {
    return course.chance.In100(30)   ? ""
           : course.chance.In100(50) ? "two words"
           : course.chance.In100(50) ? std::string(65, 'x')
                                     : "/a";
  }
  return std::string(1, static_cast<char>('a' + course.chance.Below(3)));
}

}  // namespace

absl::Status Publish(Course& course) {
  const SessionId session = course.AnyHolder();
  PublishSpec spec = {.name = AnyPublicationName(course),
                      .metadata_bytes = course.chance.In100(1)
                                            ? kMaxMetadataBytes + course.chance.Below(2)
                                            : course.chance.Below(40),
                      .to_any = course.chance.In100(50),
                      .ephemeral = course.chance.In100(40)};
  if (course.chance.In100(50)) spec.expire_after = absl::Milliseconds(1 + course.chance.Below(60));
  if (course.chance.In100(50)) spec.content_id = AnyContentId(course);
  if (!course.model.claims.empty() && course.chance.In100(20)) {
    spec.name = std::get<1>(course.chance.Of(course.model.claims).first);
  }
  if (course.chance.In100(60)) spec.request = 1 + course.chance.Below(1000);
  if (course.chance.In100(5) && course.last_publish)
    spec = *course.last_publish;  // as if the answer were lost
  const size_t count = course.chance.In100(2) ? 0 : 1 + course.chance.Below(3);
  for (const auto& [id, lease] : course.model.leases) {
    if (lease.session != session || spec.leases.size() >= count) continue;
    const auto kind = course.ledger.look().Describe({.segment = lease.segment}).kind;
    if (IsContextBound(kind) && course.chance.In100(95)) continue;
    spec.leases.push_back(id);
  }
  if (course.chance.In100(2)) spec.leases.push_back(course.AnyLeaseOf(session));
  return Publish(course, session, spec);
}

absl::Status Publish(Course& course, SessionId session, const PublishSpec& spec) {
  const auto answer = course.ledger.publications().Publish(session, spec);
  if (answer.ok()) {
    course.Cover(answer->again         ? "published, and told so again"
                 : answer->version > 1 ? "published again"
                                       : "published");
    if (spec.request != 0) course.last_publish = spec;
  }
  return course.After(
      model::Publish(course.model, session, spec, course.now, answer), "Publish ", ToInt(session),
      " \"", spec.name, "\" ", spec.leases.size(), " leases", spec.ephemeral ? ", ephemeral" : "",
      " -> ",
      answer.ok() ? absl::StrCat("version ", answer->version) : course.Describe(answer.status()));
}

absl::Status Attach(Course& course) {
  AttachSpec spec = {.request_id = NewRequest(course)};
  const SessionId session = course.AnySession();
  const auto it = course.model.sessions.find(session);
  spec.name = AnyPublicationName(course);
  if (course.chance.In100(40)) spec.name = absl::StrCat(course.chance.Tenant(), "/", spec.name);
  if (!course.model.publications.empty() && course.chance.In100(70)) {
    const auto& aim = course.chance.Of(course.model.publications);
    spec.name = absl::StrCat(aim.tenant, "/", aim.name);
    if (course.chance.In100(30)) spec.version = aim.version + course.chance.Below(2);
  } else if (course.chance.In100(50)) {
    spec.version = 1 + course.chance.Below(3);
  }
  spec.revocable = it != course.model.sessions.end() && course.chance.In100(90)
                       ? it->second.peer.pid % 2 == 0
                       : course.chance.In100(50);
  if (it != course.model.sessions.end() && it->second.live && it->second.calls == 0) {
    if (absl::Status called = BeginCall(course, session); !called.ok()) return called;
    if (CallsOf(course, session) == 0) return absl::OkStatus();  // it has too many
  }
  if (absl::Status asked = Attach(course, session, spec); !asked.ok()) return asked;
  if (CallsOf(course, session) == 0 || course.chance.In100(10)) return absl::OkStatus();
  return EndCall(course, session);
}

absl::Status Attach(Course& course, SessionId session, const AttachSpec& spec) {
  auto answer = course.ledger.operations().BeginAttach(session, spec, 1 + course.chance.Below(3));
  while (answer.ok() && answer->operation &&
         answer->operation->exposed < answer->operation->items.size()) {
    course.Cover("an attachment in parts");
    if (absl::Status sound = course.ledger.CheckInvariants(); !sound.ok()) return sound;
    absl::Status exposed =
        course.ledger.operations().Expose(*answer->operation, 1 + course.chance.Below(3));
    if (!exposed.ok()) return absl::InternalError(exposed.message());
  }
  std::string told = !answer.ok()        ? course.Describe(answer.status())
                     : answer->operation ? (spec.claims ? "attached to contents" : "attached")
                     : answer->claimed   ? "claimed"
                     : spec.claims       ? "waits for contents"
                                         : "waits for a version";
  if (answer.ok()) course.Cover(told);
  if (answer.ok() && answer->operation &&
      model::OwnerOf(course.model, answer->operation->items[0].segment) !=
          course.model.sessions.at(session).tenant) {
    course.Cover("attached across tenants");
  }
  return course.After(model::BeginAttach(course.model, session, spec, answer), "BeginAttach ",
                      ToInt(session), " \"", spec.name, "\" version ", spec.version, " -> ", told);
}

absl::Status EndAttachWait(Course& course) {
  if (course.model.attach_waiters.empty()) return absl::OkStatus();
  const WaiterId waiter = course.chance.Of(course.model.attach_waiters).first;
  const bool expired = course.chance.In100(50);
  const absl::Status answer = course.ledger.publications().waiters().EndWait(waiter, expired);
  return course.After(model::EndAttachWait(course.model, waiter, expired, answer), "EndAttachWait ",
                      ToInt(waiter), " -> ", course.Describe(answer));
}

absl::Status Unpublish(Course& course) {
  std::string name = AnyPublicationName(course);
  if (!course.model.publications.empty() && course.chance.In100(80)) {
    const auto& aim = course.chance.Of(course.model.publications);
    name = absl::StrCat(aim.tenant, "/", aim.name);
  }
  std::optional<SessionId> session;
  if (course.chance.In100(80)) session = course.AnySession();
  uint64_t request = course.chance.In100(60) ? 1 + course.chance.Below(1000) : 0;
  if (course.chance.In100(30) && course.last_unpublish) {  // as if the answer were lost
    std::tie(session, request) = *course.last_unpublish;
  }
  if (absl::Status ended = Unpublish(course, session, name, request); !ended.ok()) return ended;
  const bool asks_again =
      course.last_unpublish == std::pair(session, request) && course.chance.In100(50);
  return asks_again ? Unpublish(course, session, name, request) : absl::OkStatus();
}

absl::Status Unpublish(Course& course, std::optional<SessionId> session, const std::string& name,
                       uint64_t request) {
  const bool again = session && course.last_unpublish == std::pair(session, request);
  const auto answer = session ? course.ledger.publications().Unpublish(*session, name, request)
                              : course.ledger.publications().Unpublish(name);
  if (answer.ok()) course.Cover(again ? "unpublished, and told so again" : "unpublished");
  if (answer.ok() && session && request != 0) course.last_unpublish = std::pair(session, request);
  return course.After(model::Unpublish(course.model, session, name, request, answer),
                      "Unpublish \"", name, "\" -> ", course.Describe(answer.status()));
}

absl::Status UnpublishAll(Course& course) {
  while (!course.model.publications.empty()) {
    const auto& aim = course.model.publications.front();
    const std::string name = absl::StrCat(aim.tenant, "/", aim.name);
    const auto answer = course.ledger.publications().Unpublish(name);
    absl::Status ended = course.After(model::Unpublish(course.model, std::nullopt, name, 0, answer),
                                      "Unpublish \"", name, "\"");
    if (!ended.ok()) return ended;
  }
  return absl::OkStatus();
}

absl::Status ExpirePublications(Course& course) {
  const size_t before = course.model.publications.size();
  course.ledger.publications().Expire();
  model::ExpirePublications(course.model, course.now);
  if (course.model.publications.size() < before) course.Cover("expired");
  return course.After(absl::OkStatus(), "ExpirePublications");
}

}  // namespace gpumemd::steps
