// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/inspect/invariants.h"

namespace gpumemd {
namespace {

using Lease = records::Lease;
using Tenant = records::Tenant;

}  // namespace

absl::Status CheckPublications(const LedgerState& state) {
  const auto wrong = [](auto... what) { return absl::InternalError(absl::StrCat(what...)); };
  if (state.by_name.size() != state.publications.size() ||
      state.expiries.size() != state.publications.size()) {
    return wrong("a publication has no name, or two, or is not watched");
  }
  absl::flat_hash_map<SegmentId, uint32_t> publications_of;
  absl::flat_hash_map<std::pair<PublicationId, SessionId>, uint32_t> leases_through;
  std::map<const Tenant*, uint32_t> counts;
  std::map<const Tenant*, uint64_t> metadata;
  uint64_t all_metadata = 0;
  state.leases.ForEach([&](LeaseId, const Lease& lease) {
    if (lease.publication) ++leases_through[{*lease.publication, lease.session}];
  });
  size_t ephemeral = 0, ephemeral_by_session = 0;
  for (const auto& [id, publication] : state.publications) {
    auto tenant = state.tenants.find(publication.tenant->name);
    if (tenant == state.tenants.end() || tenant->second.get() != publication.tenant) {
      return wrong("publication ", ToInt(id), " outlived its tenant");
    }
    auto named = state.by_name.find({publication.tenant->name, publication.name});
    if (named == state.by_name.end() || named->second != id) {
      return wrong("publication ", ToInt(id), " is not found by its name");
    }
    if (!state.expiries.contains({state.ExpiryOf(publication), id})) {
      return wrong("publication ", ToInt(id), " would expire at the wrong time");
    }
    uint64_t bytes = 0, tier_bytes = 0;
    uint32_t in_tier = 0, place = 0;
    for (SegmentId segment : publication.segments) {
      auto it = state.segments.find(segment);
      if (it == state.segments.end() || it->second->tenant != publication.tenant) {
        return wrong("publication ", ToInt(id), " has no segment ", ToInt(segment));
      }
      if (it->second->charge.revocable()) {
        return wrong("segment ", ToInt(segment), " is published, and may be taken back");
      }
      if (it->second->kind == Kind::kTier) {
        ++in_tier;
        tier_bytes += it->second->charge.bytes();
        if (it->second->published != std::pair(id, place)) {
          return wrong("segment ", ToInt(segment), " in the tier names another publication");
        }
      }
      ++place;
      ++publications_of[segment];
      bytes += it->second->charge.bytes();
    }
    if (in_tier != publication.in_tier || (in_tier > 0 && !publication.attached.empty())) {
      return wrong("publication ", ToInt(id), " is wrongly suspended, or not");
    }
    if (bytes != publication.bytes || tier_bytes != publication.tier_bytes)
      return wrong("publication ", ToInt(id), " miscounts its bytes");
    for (const auto& [session, count] : publication.attached) {
      auto it = state.sessions.find(session);
      // Leases that operations in flight are about to give count, too.
      if (it == state.sessions.end() || count < leases_through[{id, session}] || count == 0 ||
          (it->second->operations == 0 && count != leases_through[{id, session}])) {
        return wrong("publication ", ToInt(id), " miscounts the attached sessions");
      }
    }
    for (const Tenant* each = publication.tenant; each != nullptr; each = each->parent) {
      ++counts[each];
    }
    metadata[publication.tenant->books] += publication.metadata_bytes;
    all_metadata += publication.metadata_bytes;
    if (!publication.ephemeral) continue;
    ++ephemeral;
    auto publisher = state.sessions.find(publication.publisher);
    if (publisher == state.sessions.end() ||
        !(publisher->second->live || publisher->second->ending) ||
        !publisher->second->ephemeral.contains(id)) {
      return wrong("publication ", ToInt(id), " should have ended with its session");
    }
  }
  for (const auto& [through, count] : leases_through) {
    auto it = state.publications.find(through.first);
    if (it != state.publications.end() && !it->second.attached.contains(through.second)) {
      return wrong("publication ", ToInt(through.first), " does not list the attached sessions");
    }
  }
  for (const auto& [id, segment] : state.segments) {
    if (segment->publications != publications_of[id]) {
      return wrong("segment ", ToInt(id), " miscounts the publications that it is in");
    }
  }
  size_t waiters = 0;
  for (const auto& [id, session] : state.sessions) {
    ephemeral_by_session += session->ephemeral.size();
    waiters += session->attach_waiters.size();
    for (WaiterId waiter : session->attach_waiters) {
      auto it = state.attach_waiters.find(waiter);
      if (it == state.attach_waiters.end() || it->second.session != id || !session->live) {
        return wrong("session ", ToInt(id), " waits to attach, and is not in the list of waiters");
      }
    }
  }
  std::map<const Tenant*, uint32_t> claims;
  size_t claims_of_sessions = 0;
  for (const auto& [id, session] : state.sessions) {
    claims_of_sessions += session->claims.size();
    for (const auto& [request, contents] : session->claims) {
      auto it = state.claims.find(contents);
      if (it == state.claims.end() || it->second.session != id ||
          it->second.request_id != request || !session->live ||
          contents.tenant != session->tenant->name) {
        return wrong("session ", ToInt(id), " has a claim that is not in the list of claims");
      }
      ++claims[session->tenant->books];
    }
    size_t contents_awaited = 0;
    for (WaiterId waiter : session->attach_waiters) {
      const records::AttachWaiter& waits = state.attach_waiters.at(waiter);
      if (waits.content_id.empty()) continue;
      ++contents_awaited;
      if (session->contents_awaited.at(waits.request_id) != waiter) {
        return wrong("session ", ToInt(id), " has two waiting requests of one number");
      }
      if (!state.claims.contains(waits.contents())) {
        return wrong("session ", ToInt(id), " waits for contents that have no claim");
      }
    }
    if (contents_awaited != session->contents_awaited.size() ||
        session->claims.size() + contents_awaited > state.bounds.max_claims_per_session) {
      return wrong("session ", ToInt(id), " miscounts the claims that it may come to");
    }
  }
  if (claims_of_sessions != state.claims.size()) return wrong("a claim outlived its session");
  if (waiters != state.attach_waiters.size()) return wrong("a wait to attach outlived its session");
  if (ephemeral != ephemeral_by_session) return wrong("ephemeral publications are miscounted");
  if (all_metadata != state.metadata_bytes) return wrong("the bytes of metadata do not add up");
  for (const auto& [name, tenant] : state.tenants) {
    if (tenant->tree_publications != counts[tenant.get()] ||
        tenant->metadata_bytes != metadata[tenant.get()] ||
        tenant->claims != claims[tenant.get()]) {
      return wrong("tenant ", name, " miscounts its publications or claims");
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
