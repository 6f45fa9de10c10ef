// SPDX-License-Identifier: Apache-2.0
// The sessions that are attached to publications, and those that wait for a version.
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/publication/publications.h"

namespace gpumemd {

void Publications::Attach(PublicationId id, SessionId session, uint32_t leases) {
  Publication& publication = state_.publications.at(id);
  state_.expiries.erase({state_.ExpiryOf(publication), id});
  publication.attached[session] += leases;
  changes_.Touch(id);
  state_.expiries.emplace(state_.ExpiryOf(publication), id);
}

void Publications::Detach(std::optional<PublicationId> id, SessionId session) {
  if (!id) return;
  auto it = state_.publications.find(*id);
  if (it == state_.publications.end()) return;  // it has ended meanwhile
  Publication& publication = it->second;
  if (--publication.attached.at(session) > 0) return;
  state_.expiries.erase({state_.ExpiryOf(publication), *id});
  publication.attached.erase(session);
  if (publication.attached.empty()) publication.idle_since = state_.now();
  changes_.Touch(*id);
  state_.expiries.emplace(state_.ExpiryOf(publication), *id);
}

WaiterId Publications::AddWaiter(SessionId session_id, Name name, uint64_t version) {
  const WaiterId id{state_.next_waiter++};
  awaited_.emplace(name, id);
  state_.attach_waiters.emplace(
      id,
      records::AttachWaiter{.session = session_id, .name = std::move(name), .version = version});
  Session& session = *state_.sessions.at(session_id);
  session.attach_waiters.insert(id);
  Tenants::CountWaiting(*session.tenant, 1);
  --session.in_flight;
  --session.tenant->in_flight;
  return id;
}

void Publications::RemoveWaiter(WaiterId id) {
  auto it = state_.attach_waiters.find(id);
  Session& session = *state_.sessions.at(it->second.session);
  session.attach_waiters.erase(id);
  Tenants::CountWaiting(*session.tenant, -1);
  ++session.in_flight;
  ++session.tenant->in_flight;
  awaited_.erase({it->second.name, id});
  state_.attach_waiters.erase(it);
}

absl::Status Publications::EndWait(WaiterId id, bool expired) {
  const records::AttachWaiter waiter = state_.attach_waiters.at(id);
  const Publication* found =
      state_.FindPublication(waiter.name, state_.sessions.at(waiter.session)->tenant);
  RemoveWaiter(id);
  if (!expired) return GivenUp();
  return absl::DeadlineExceededError(absl::StrCat(
      "version ", waiter.version, " of publication \"", waiter.name.second, "\" of tenant ",
      waiter.name.first, " was not published in time",
      found == nullptr ? absl::StrCat(": there is none of that name that this tenant may attach to")
                       : absl::StrCat("; the newest is ", found->version)));
}

void Publications::EndWaitsOf(Session& session) {
  while (!session.attach_waiters.empty()) {
    effects_.attachable.push_back(*session.attach_waiters.begin());
    RemoveWaiter(effects_.attachable.back());
  }
}

void Publications::EndAllWaits() {
  while (!state_.attach_waiters.empty()) {
    effects_.attachable.push_back(state_.attach_waiters.begin()->first);
    RemoveWaiter(effects_.attachable.back());
  }
}

void Publications::Restore(PublicationId id, Publication publication) {
  Tenant& tenant = *publication.tenant;
  for (uint32_t i = 0; i < publication.segments.size(); ++i) {
    Segment& segment = *state_.segments.at(publication.segments[i]);
    ++segment.publications;
    if (segment.kind != Kind::kTier) continue;
    segment.published = {id, i};
    ++publication.in_tier;
    publication.tier_bytes += segment.charge.bytes();
  }
  Count(tenant, 1);
  tenant.metadata_bytes += publication.metadata_bytes;
  state_.metadata_bytes += publication.metadata_bytes;
  state_.by_name[{tenant.name, publication.name}] = id;
  state_.expiries.emplace(state_.ExpiryOf(publication), id);
  state_.publications.emplace(id, std::move(publication));
}

}  // namespace gpumemd
