// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/publication/claims.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/core/admission/refusals.h"
#include "daemon/core/admission/request_checks.h"
#include "daemon/core/mutant.h"
#include "daemon/core/publication/publications.h"

namespace gpumemd {
namespace {

// Requests given up of each session that are remembered.
constexpr size_t kMaxGivenUp = 64;

}  // namespace

absl::Status ClaimedByAnother(const LedgerState& state, const records::Contents& contents) {
  const auto claim = state.claims.find(contents);
  // Contents that are awaited have a claim (CheckPublications); the check is a precaution.
  const std::string holder =
      claim == state.claims.end()
          ? "another session"
          : absl::StrCat("session ", ToInt(claim->second.session), " (pid ",
                         state.sessions.at(claim->second.session)->details.peer.pid, ")");
  return absl::DeadlineExceededError(
      absl::StrCat(holder, " has the claim on these contents of publication \"", contents.name,
                   "\", and has not published them in time"));
}

absl::Status ContentClaims::Check(const records::Session& session, const AttachSpec& spec) {
  if (spec.content_id.empty() || spec.content_id.size() > kMaxContentId) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a content id has 1 to ", kMaxContentId, " bytes, and this one ", spec.content_id.size()));
  }
  if (spec.version != 0) {
    return absl::InvalidArgumentError("a request for contents waits for no version");
  }
  if (spec.request_id == 0) {
    return absl::InvalidArgumentError("a request for contents has a request_id above 0");
  }
  const auto& given_up = session.claims_given_up;
  if (std::find(given_up.begin(), given_up.end(), spec.request_id) != given_up.end())
    return GivenUp();
  return absl::OkStatus();
}

absl::StatusOr<Admission> ContentClaims::Begin(SessionId id, const AttachSpec& spec,
                                               const LedgerState::PublicationName& name) {
  records::Session& session = *state_.sessions.at(id);
  records::Tenant& tenant = *session.tenant;
  const records::Contents contents{name.first, name.second, spec.content_id};
  const auto own = session.claims.find(spec.request_id);
  if (own != session.claims.end() && own->second == contents) return Admission{.claimed = true};
  if (own != session.claims.end() || session.contents_awaited.contains(spec.request_id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the session has another request with request_id ", spec.request_id));
  }
  if (name.first != tenant.name) return NoSuchPublication(name.first, name.second);
  const bool claimed = state_.claims.contains(contents);
  if (claimed && !spec.waits) return ClaimedByAnother(state_, contents);
  const uint64_t of_session = session.claims.size() + session.contents_awaited.size();
  if (of_session >= state_.bounds.max_claims_per_session) {
    return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, of_session,
                     state_.bounds.max_claims_per_session,
                     "the session is at its limit of claims, with those that it waits for; publish "
                     "the contents, or release claims that are not needed");
  }
  if (claimed) {
    if (absl::Status room = CheckWaiting(state_, tenant); !room.ok()) return room;
    return Admission{.waiter = waiters_.Add({.session = id,
                                             .name = name,
                                             .content_id = spec.content_id,
                                             .request_id = spec.request_id})};
  }
  if (tenant.books->claims >= state_.bounds.max_claims_per_tenant) {
    return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, tenant.books->claims,
                     state_.bounds.max_claims_per_tenant,
                     "the tenant is at its limit of claims; publish the contents, or release "
                     "claims that are not needed");
  }
  Add(id, session, spec.request_id, contents);
  return Admission{.claimed = true};
}

void ContentClaims::Add(SessionId id, records::Session& session, uint64_t request_id,
                        const records::Contents& contents, absl::string_view why) {
  state_.claims.emplace(contents, records::ContentClaim{.session = id, .request_id = request_id});
  session.claims.emplace(request_id, contents);
  ++session.tenant->books->claims;
  if (!Mutant(Fault::kClaimUnjournaled)) changes_.TouchClaim(id, request_id);
  auditor_.ClaimChanged(AuditEvent::kClaimed, id, contents, why);
}

void ContentClaims::Remove(SessionId id, records::Session& session, uint64_t request_id,
                           absl::string_view why) {
  const auto claim = session.claims.find(request_id);
  auditor_.ClaimChanged(AuditEvent::kClaimEnded, id, claim->second, why);
  state_.claims.erase(claim->second);
  session.claims.erase(claim);
  --session.tenant->books->claims;
  changes_.TouchClaim(id, request_id);
}

void ContentClaims::End(SessionId id, records::Session& session, uint64_t request_id,
                        absl::string_view why) {
  const records::Contents contents = session.claims.at(request_id);
  Remove(id, session, request_id, why);
  const std::optional<WaiterId> next = waiters_.FirstFor(contents);
  if (!next) return;
  const records::AttachWaiter waiter = state_.attach_waiters.at(*next);
  waiters_.Wake(*next);
  Add(waiter.session, *state_.sessions.at(waiter.session), waiter.request_id, contents,
      absl::StrCat("passed on from session ", ToInt(id)));
}

void ContentClaims::Release(SessionId id, uint64_t request_id) {
  records::Session& session = *state_.sessions.at(id);
  session.claims_given_up.push_back(request_id);
  if (session.claims_given_up.size() > kMaxGivenUp) session.claims_given_up.pop_front();
  if (session.claims.contains(request_id)) {
    return End(id, session, request_id, "its client released it");
  }
  const auto waiter = session.contents_awaited.find(request_id);
  if (waiter != session.contents_awaited.end()) waiters_.Wake(waiter->second);
}

void ContentClaims::Refused(SessionId id, uint64_t request_id) {
  records::Session& session = *state_.sessions.at(id);  // exists: the call is in flight
  if (!session.claims.contains(request_id)) return;
  End(id, session, request_id, "its request was refused or given up");
}

void ContentClaims::Published(SessionId id, const records::Publication& publication) {
  const auto claim =
      state_.claims.find({publication.tenant->name, publication.name, publication.content_id});
  if (claim == state_.claims.end() || claim->second.session != id) return;
  Remove(id, *state_.sessions.at(id), claim->second.request_id, "the contents were published");
}

void ContentClaims::Restore(SessionId id, uint64_t request_id, records::Contents contents) {
  records::Session& session = *state_.sessions.at(id);
  const auto [claim, added] = state_.claims.try_emplace(
      contents, records::ContentClaim{.session = id, .request_id = request_id});
  if (!added) return;
  session.claims.emplace(request_id, std::move(contents));
  ++session.tenant->books->claims;
}

}  // namespace gpumemd
