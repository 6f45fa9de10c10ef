// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/claims.h"

#include <algorithm>
#include <map>
#include <vector>

#include "daemon/core/ledger/testing/made/made_tenants.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/attachments.h"

namespace gpumemd::model {
namespace {

using absl::StatusCode;

bool Waits(const LedgerModel& model, SessionId session, uint64_t request) {
  return std::any_of(model.attach_waiters.begin(), model.attach_waiters.end(),
                     [&](const auto& entry) {
                       return entry.second.session == session && !entry.second.content_id.empty() &&
                              entry.second.request == request;
                     });
}

// The first that waits has the claim next.
void EndClaim(LedgerModel& model, const ContentsKey& contents) {
  model.claims.erase(contents);
  for (const auto& [id, waiter] : model.attach_waiters) {  // by arrival
    if (waiter.content_id.empty() ||
        ContentsKey(waiter.tenant, waiter.name, waiter.content_id) != contents) {
      continue;
    }
    model.claims[contents] = {waiter.session, waiter.request};
    model.attachable.insert(id);
    LeaveAttachQueue(model, id);
    return;
  }
}

}  // namespace

bool HasClaim(const LedgerModel& model, SessionId session, uint64_t request) {
  return std::any_of(model.claims.begin(), model.claims.end(), [&](const auto& entry) {
    return entry.second == std::pair(session, request);
  });
}

StatusCode ContentsCode(const LedgerModel& model, SessionId session, const AttachSpec& spec) {
  if (spec.content_id.empty() || spec.content_id.size() > 64 || spec.version != 0 ||
      spec.request_id == 0) {
    return StatusCode::kInvalidArgument;
  }
  auto given_up = model.claims_given_up.find(session);
  const bool gone = given_up != model.claims_given_up.end() &&
                    std::count(given_up->second.begin(), given_up->second.end(), spec.request_id);
  return gone ? StatusCode::kCancelled : StatusCode::kOk;
}

absl::Status BeginClaim(LedgerModel& model, SessionId id, const AttachSpec& spec,
                        const std::string& tenant, const std::string& name,
                        const absl::StatusOr<Admission>& answer) {
  const auto refused = [&](StatusCode code) { return ExpectCode(answer.status(), code); };
  const auto claimed = [&] {
    if (answer.ok() && answer->claimed && !answer->waiter && !answer->operation)
      return absl::OkStatus();
    return Wrong("expected the claim, got ", answer.status().ToString());
  };
  Session& session = model.sessions.at(id);
  const ContentsKey contents(tenant, name, spec.content_id);
  auto claim = model.claims.find(contents);
  if (claim != model.claims.end() && claim->second == std::pair(id, spec.request_id))
    return claimed();
  if (HasClaim(model, id, spec.request_id) || Waits(model, id, spec.request_id)) {
    return refused(StatusCode::kInvalidArgument);
  }
  if (tenant != session.tenant) return refused(StatusCode::kNotFound);
  if (claim != model.claims.end() && !spec.waits) return refused(StatusCode::kDeadlineExceeded);
  uint64_t of_session = 0, of_tenant = 0;
  const std::string books = BooksOf(model, tenant);
  for (const auto& [key, holder] : model.claims) {
    of_session += holder.first == id ? 1 : 0;
    of_tenant += BooksOf(model, std::get<0>(key)) == books ? 1 : 0;
  }
  for (const auto& [waiter_id, waiter] : model.attach_waiters) {
    of_session += waiter.session == id && !waiter.content_id.empty() ? 1 : 0;
  }
  const LimitName daemon = {Denial::Cause::kDaemonLimit, tenant, kEverywhere};
  if (of_session >= model.bounds.max_claims_per_session) {
    return ExpectDenial(model, answer.status(), tenant,
                        {daemon, 1, of_session, model.bounds.max_claims_per_session});
  }
  if (claim != model.claims.end()) {
    if (auto denied = NoRoomToWait(model, tenant, answer.status())) return *denied;
    if (!answer.ok() || !answer->waiter || ToInt(*answer->waiter) <= model.last_waiter) {
      return Wrong("expected a wait for the contents, got ", answer.status().ToString());
    }
    model.last_waiter = ToInt(*answer->waiter);
    model.attach_waiters[*answer->waiter] = {id, tenant, name, 0, spec.content_id, spec.request_id};
    --session.calls;
    return absl::OkStatus();
  }
  if (of_tenant >= model.bounds.max_claims_per_tenant) {
    return ExpectDenial(model, answer.status(), tenant,
                        {daemon, 1, of_tenant, model.bounds.max_claims_per_tenant});
  }
  model.claims[contents] = {id, spec.request_id};
  return claimed();
}

void RefuseClaim(LedgerModel& model, SessionId session, uint64_t request) {
  for (const auto& [contents, holder] : std::map(model.claims)) {
    if (holder == std::pair(session, request)) EndClaim(model, contents);
  }
}

void ReleaseClaim(LedgerModel& model, SessionId session, uint64_t request) {
  std::vector<uint64_t>& given_up = model.claims_given_up[session];
  given_up.push_back(request);
  if (given_up.size() > 64) given_up.erase(given_up.begin());
  RefuseClaim(model, session, request);
  for (const auto& [id, waiter] : std::map(model.attach_waiters)) {
    if (waiter.session != session || waiter.content_id.empty() || waiter.request != request)
      continue;
    LeaveAttachQueue(model, id);
    model.attachable.insert(id);
  }
}

void ReleaseClaimsUnless(LedgerModel& model, SessionId session,
                         const std::set<uint64_t>& requests) {
  for (const auto& [contents, holder] : std::map(model.claims)) {
    if (holder.first == session && !requests.contains(holder.second)) EndClaim(model, contents);
  }
}

void PublishContents(LedgerModel& model, SessionId session, const Publication& publication) {
  if (publication.content_id.empty()) return;
  const ContentsKey contents(publication.tenant, publication.name, publication.content_id);
  auto claim = model.claims.find(contents);
  if (claim != model.claims.end() && claim->second.first == session) model.claims.erase(claim);
  for (const auto& [id, waiter] : std::map(model.attach_waiters)) {
    if (ContentsKey(waiter.tenant, waiter.name, waiter.content_id) != contents) continue;
    LeaveAttachQueue(model, id);
    model.attachable.insert(id);
  }
}

absl::Status CompareClaims(const LedgerModel& model, const Ledger& ledger) {
  std::map<ContentsKey, std::pair<SessionId, uint64_t>> claims;
  for (const auto& [contents, claim] : ledger.state().claims) {
    claims[{contents.tenant, contents.name, contents.content_id}] = {claim.session,
                                                                     claim.request_id};
  }
  if (claims == model.claims) return absl::OkStatus();
  return Wrong("the ledger has ", claims.size(), " claims, or others than the ",
               model.claims.size(), " that are right");
}

}  // namespace gpumemd::model
