// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/regrants.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/claims.h"
#include "daemon/core/ledger/testing/model/leases.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/reclaim.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {

absl::Status Regrant(LedgerModel& model, SessionId session, uint64_t request, uint32_t count,
                     const std::optional<Operation>& answer) {
  std::vector<LeaseId> leases;
  bool lost = false;
  if (auto it = model.regrants.find({session, request});
      it != model.regrants.end() && Live(model, session)) {
    for (LeaseId lease : it->second) {
      if (!model.leases.contains(lease)) continue;  // released meanwhile
      leases.push_back(lease);
      lost |= model.segments.at(model.leases.at(lease).segment).lost;
    }
    model.regrants.erase(it);
  }
  if (leases.empty() || leases.size() != count || lost) {
    for (LeaseId lease : leases) EndLease(model, lease, Trusts(model, model.leases.at(lease)));
    return answer ? Wrong("granted once more what is not there") : absl::OkStatus();
  }
  if (!answer || ToInt(answer->id) <= model.last_operation || answer->session != session ||
      !answer->regrant || answer->request_id != request ||
      HoldsOtherLeaseType(model, session, answer->revocable) || answer->items.size() != count) {
    return Wrong("expected request ", request, " to be granted once more");
  }
  model.last_operation = ToInt(answer->id);
  for (size_t i = 0; i < leases.size(); ++i) {
    const Operation::Item& item = answer->items[i];
    if (item.lease != leases[i] || item.segment != model.leases.at(leases[i]).segment ||
        item.fresh) {
      return Wrong("item ", i, " is not what was granted before");
    }
  }
  model.operations.emplace(answer->id, *answer);
  return absl::OkStatus();
}

absl::Status RegrantAttach(LedgerModel& model, SessionId session, uint64_t request,
                           const std::optional<Operation>& answer) {
  uint32_t count = 0;
  std::optional<PublicationId> through;
  if (auto it = model.regrants.find({session, request}); it != model.regrants.end()) {
    auto first = model.leases.find(it->second.front());
    if (first != model.leases.end()) through = first->second.publication;
  }
  for (const Publication& each : model.publications) {
    if (each.id == through) count = static_cast<uint32_t>(each.segments.size());
  }
  if (answer && answer->publication != through) return Wrong("it is another publication's");
  return Regrant(model, session, request, count, answer);
}

void DropRegrants(LedgerModel& model, SessionId session, const std::vector<uint64_t>& requests) {
  for (uint64_t request : requests) {
    auto it = model.regrants.find({session, request});
    if (it == model.regrants.end()) continue;
    const std::vector<LeaseId> leases = it->second;
    model.regrants.erase(it);
    for (LeaseId lease : leases) {
      if (model.leases.contains(lease)) {
        EndLease(model, lease, Trusts(model, model.leases.at(lease)));
      }
    }
  }
}

absl::Status Resume(LedgerModel& model, SessionId id, const PeerIdentity& peer,
                    const absl::Status& answer) {
  const auto same = [&](const PeerIdentity& its) {
    return its.pid == peer.pid &&
           (its.start_time == peer.start_time || its.start_time == 0 || peer.start_time == 0);
  };
  const bool resumes = Live(model, id) && same(model.sessions.at(id).peer);
  if (resumes) model.sessions.at(id).presence = Presence::kReturning;
  return ExpectCode(answer, resumes ? absl::StatusCode::kOk : absl::StatusCode::kNotFound);
}

absl::Status Reconcile(LedgerModel& model, SessionId id, const std::vector<LeaseId>& leases,
                       const std::set<uint64_t>& requests,
                       const absl::StatusOr<std::vector<LeaseId>>& answer) {
  if (!Live(model, id)) return ExpectCode(answer.status(), absl::StatusCode::kAborted);
  model.sessions.at(id).presence = Presence::kHere;
  const auto trusts = [&](const std::string& tenant) {
    return QuotaOf(model, tenant).release == ReleasePolicy::kTrust;
  };
  const std::string tenant = model.sessions.at(id).tenant;
  std::vector<LeaseId> unknown, ended;
  for (LeaseId lease : leases) {
    auto it = model.leases.find(lease);
    if (it == model.leases.end() || it->second.session != id) unknown.push_back(lease);
  }
  for (const auto& [lease_id, lease] : model.leases) {
    const bool kept = std::find(leases.begin(), leases.end(), lease_id) != leases.end();
    const bool asked = lease.request_id > 0 && requests.contains(lease.request_id);
    if (lease.session == id && !kept && !asked) ended.push_back(lease_id);
  }
  for (LeaseId lease : ended) EndLease(model, lease, Trusts(model, model.leases.at(lease)));
  std::erase_if(model.regrants, [&](const auto& entry) { return entry.first.first == id; });
  for (const auto& [lease_id, lease] : model.leases) {
    if (lease.session != id || lease.request_id == 0 || !requests.contains(lease.request_id)) {
      continue;
    }
    model.regrants[{id, lease.request_id}].push_back(lease_id);
  }
  ReleaseClaimsUnless(model, id, requests);
  // Mappings beyond its leases were being handed over or have been released: the session has none
  // of them.
  const bool busy = std::any_of(model.operations.begin(), model.operations.end(),
                                [&](const auto& entry) { return entry.second.session == id; });
  for (const auto& [segment_id, segment] : model.segments) {
    if (busy || !trusts(tenant) || !trusts(segment.tenant) || !MayMap(model, id, segment_id)) {
      continue;
    }
    const auto has = std::count_if(
        model.leases.begin(), model.leases.end(), [&, segment_id = segment_id](const auto& entry) {
          return entry.second.session == id && entry.second.segment == segment_id;
        });
    while (std::count(model.mappings.begin(), model.mappings.end(), Mapping{id, segment_id}) >
           has) {
      Unmap(model, id, segment_id);
    }
    SettleUnheld(model, segment_id);
  }
  if (answer.ok() && *answer == unknown) return absl::OkStatus();
  return Wrong("expected ", unknown.size(), " unknown leases, got ", answer.status().ToString());
}

}  // namespace gpumemd::model
