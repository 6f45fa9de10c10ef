// SPDX-License-Identifier: Apache-2.0
// The sessions that are attached to publications, and publications of an earlier daemon.
#include <utility>

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
  tenant.books->metadata_bytes += publication.metadata_bytes;
  state_.metadata_bytes += publication.metadata_bytes;
  state_.by_name[{tenant.name, publication.name}] = id;
  state_.expiries.emplace(state_.ExpiryOf(publication), id);
  state_.publications.emplace(id, std::move(publication));
}

}  // namespace gpumemd
