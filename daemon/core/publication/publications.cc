// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/publication/publications.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/admission/refusals.h"
#include "daemon/core/identity/rules.h"
#include "daemon/core/mutant.h"

namespace gpumemd {
namespace {

constexpr size_t kMaxName = 64;

bool IsName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxName &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-';
         });
}

absl::Status NoName() {
  return absl::InvalidArgumentError(
      absl::StrCat("the name of a publication is 1 to ", kMaxName,
                   " letters, digits, '.', '_' and '-'; another tenant's is TENANT/NAME"));
}

}  // namespace

absl::Status NoSuchPublication(absl::string_view tenant, absl::string_view name) {
  return absl::NotFoundError(
      absl::StrCat("tenant ", tenant, " has no publication \"", name,
                   "\" that this tenant may attach to (gpumemctl publications lists those)"));
}

absl::StatusOr<Publications::Name> Publications::ParseName(absl::string_view name,
                                                           absl::string_view own_tenant) {
  const size_t slash = name.rfind('/');
  const absl::string_view tenant =
      slash == absl::string_view::npos ? own_tenant : name.substr(0, slash);
  const absl::string_view own = slash == absl::string_view::npos ? name : name.substr(slash + 1);
  if (!IsName(own) || tenant.empty() || tenant.size() > kMaxTenantName) return NoName();
  return Name(tenant, own);
}

// --- Publishing ------------------------------------------------------------------------

absl::StatusOr<std::vector<SegmentId>> Publications::Publishable(const Session& session,
                                                                 const PublishSpec& spec) const {
  if (!IsName(spec.name)) return NoName();
  if (spec.leases.empty() || spec.leases.size() > kMaxPublicationSegments) {
    return absl::InvalidArgumentError(absl::StrCat("a publication has 1 to ",
                                                   kMaxPublicationSegments, " segments; this has ",
                                                   spec.leases.size()));
  }
  if (spec.content_id.size() > kMaxContentId) {
    return absl::InvalidArgumentError(absl::StrCat("a content id has at most ", kMaxContentId,
                                                   " bytes, and this one ",
                                                   spec.content_id.size()));
  }
  if (spec.metadata_bytes > kMaxMetadataBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the metadata of a publication is at most ", kMaxMetadataBytes, " bytes, and this is ",
        spec.metadata_bytes, ": put it into a segment of the publication"));
  }
  std::vector<SegmentId> segments;
  absl::flat_hash_set<SegmentId> distinct;
  for (LeaseId lease : spec.leases) {
    if (!session.leases.contains(lease)) return NoSuchLease(lease);
    const SegmentId id = state_.leases.at(lease).segment;
    const Segment& segment = *state_.segments.at(id);
    if (!distinct.insert(id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment ", ToInt(id), " is in the list twice; name it once"));
    }
    if (state_.leases.at(lease).suspended) {
      return absl::FailedPreconditionError(
          absl::StrCat("lease ", ToInt(lease), " is suspended: resume it before you publish it"));
    }
    if (segment.tenant != session.tenant) {
      return absl::FailedPreconditionError(
          absl::StrCat("segment ", ToInt(id), " belongs to tenant ", segment.tenant->name,
                       ": a tenant publishes only segments that it owns; copy the memory into a "
                       "segment that this tenant acquires"));
    }
    if (segment.scratch) {
      return absl::FailedPreconditionError(
          absl::StrCat("segment ", ToInt(id),
                       " is scratch: its bytes are dropped when it is suspended; publish memory "
                       "that was not acquired so"));
    }
    if (!TraitsOf(segment.kind).publishable) {
      return absl::FailedPreconditionError(absl::StrCat(
          "segment ", ToInt(id), " is of kind ", KindName(segment.kind),
          IsContextBound(segment.kind) ? ", whose memory ends with a CUDA context" : "",
          segment.demoted() ? ": promote it first"
                            : ": acquire segments to publish with kind vmm, or pinned "
                              "for host memory"));
    }
    if (segment.lost) return LostSegment(id);
    if (segment.charge.revocable()) {
      return absl::FailedPreconditionError(
          absl::StrCat("segment ", ToInt(id),
                       " is revocable, and a publication cannot hold it: acquire segments to "
                       "publish with leases that are not revocable"));
    }
    segments.push_back(id);
  }
  return segments;
}

absl::Status Publications::CheckRoom(Tenant& tenant, const Publication* replaced,
                                     uint64_t metadata_bytes) const {
  if (replaced == nullptr) {
    for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
      const uint64_t limit = each->quota.max_publications.value_or(UINT32_MAX);
      if (each->tree_publications < limit) continue;
      return DenyCount(tenant, Denial::Cause::kMaxPublications, 1, each->tree_publications, limit,
                       "unpublish those that are not needed (gpumemctl publications lists them), "
                       "or ask an operator for more (gpumemctl quota set --max-publications N)",
                       each);
    }
    if (state_.publications.size() >= state_.bounds.max_publications) {
      return DenyCount(
          tenant, Denial::Cause::kDaemonLimit, 1, state_.publications.size(),
          state_.bounds.max_publications,
          "the daemon is at its limit of publications; unpublish those that are not needed");
    }
  }
  const uint64_t freed = replaced == nullptr ? 0 : replaced->metadata_bytes;
  for (const auto& [used, limit] :
       {std::pair(tenant.books->metadata_bytes - freed,
                  state_.bounds.max_metadata_bytes_per_tenant),
        std::pair(state_.metadata_bytes - freed, state_.bounds.max_metadata_bytes)}) {
    if (used + metadata_bytes <= limit) continue;
    return DenyCount(
        tenant, Denial::Cause::kDaemonLimit, metadata_bytes, used, limit,
        "the tenant or the daemon is at its limit for the bytes of metadata: unpublish "
        "publications that are not needed, or put the metadata into a segment of the publication");
  }
  return absl::OkStatus();
}

absl::StatusOr<Publications::Published> Publications::Publish(SessionId session_id,
                                                              const PublishSpec& spec) {
  absl::StatusOr<Session*> live = state_.LiveSession(session_id);
  if (!live.ok()) return live.status();
  Session& session = **live;
  if (const std::optional<uint64_t> version = state_.AnswerTo(session, spec.request)) {
    return Published{.version = *version, .again = true};
  }
  if (state_.draining) return Draining();
  Tenant& tenant = *session.tenant;
  if (absl::Status goes_on = state_.CheckGoesOn(tenant); !goes_on.ok()) return goes_on;
  absl::StatusOr<std::vector<SegmentId>> segments = Publishable(session, spec);
  if (!segments.ok()) return segments.status();
  const Name name(tenant.name, spec.name);
  const Publication* replaced = state_.FindPublication(name, &tenant);
  if (absl::Status room = CheckRoom(tenant, replaced, spec.metadata_bytes); !room.ok()) {
    return room;
  }

  const PublicationId id = spec.id == PublicationId{} ? NewId() : spec.id;
  Publication publication{.tenant = &tenant,
                          .name = spec.name,
                          .content_id = spec.content_id,
                          .version = replaced != nullptr
                                         ? replaced->version + 1
                                         : state_.versions.TakeNext(tenant, spec.name),
                          .segments = *std::move(segments),
                          .metadata_bytes = spec.metadata_bytes,
                          .to_any = spec.to_any,
                          .ephemeral = spec.ephemeral,
                          .expire_after = spec.expire_after,
                          .published = state_.now(),
                          .idle_since = state_.now(),
                          .publisher = session_id,
                          .publisher_pid = session.details.peer.pid,
                          .publisher_name = session.details.client_name};
  for (SegmentId segment : publication.segments) {
    if (!Mutant(Fault::kPublishHoldsNothing)) ++state_.segments.at(segment)->publications;
    publication.bytes += state_.segments.at(segment)->charge.bytes();
  }
  // The old one ends only now, since both may hold the same segments.
  if (replaced != nullptr && !Mutant(Fault::kPublishKeepsReplaced)) {
    End(state_.by_name.at(name), /*replaced=*/true);
  }
  Count(tenant, 1);
  tenant.books->metadata_bytes += spec.metadata_bytes;
  state_.metadata_bytes += spec.metadata_bytes;
  session.publications.insert(id);
  if (spec.ephemeral) session.ephemeral.insert(id);
  const uint64_t version = publication.version;
  sessions_.RememberAnswer(session_id, session, spec.request, version);
  changes_.Touch(id, publication.segments.size());
  if (!spec.content_id.empty() && !Mutant(Fault::kContentUnjournaled)) changes_.TouchContent(id);
  state_.by_name[name] = id;
  state_.expiries.emplace(state_.ExpiryOf(publication), id);
  const Publication& made = state_.publications.emplace(id, std::move(publication)).first->second;
  auditor_.Published(session_id, made);
  claims_.Published(session_id, made);
  waiters_.WakeFor(made);
  return Published{.id = id, .version = version};
}

void Publications::Count(Tenant& tenant, int change) {
  for (Tenant* each = &tenant; each != nullptr; each = each->parent) {
    each->tree_publications += static_cast<uint32_t>(change);
  }
}

void Publications::End(PublicationId id, bool replaced, absl::Span<const AuditOperator> by) {
  const Publication publication = std::move(state_.publications.at(id));
  auditor_.PublicationEnded(publication, replaced, by);
  state_.publications.erase(id);
  changes_.Touch(id, publication.segments.size());
  if (!publication.content_id.empty()) changes_.TouchContent(id);
  state_.expiries.erase({state_.ExpiryOf(publication), id});
  Tenant& tenant = *publication.tenant;
  state_.by_name.erase({tenant.name, publication.name});
  if (!replaced) state_.versions.Ended(tenant, publication.name, publication.version);
  Count(tenant, -1);
  tenant.books->metadata_bytes -= publication.metadata_bytes;
  state_.metadata_bytes -= publication.metadata_bytes;
  if (auto publisher = state_.sessions.find(publication.publisher);
      publisher != state_.sessions.end()) {
    publisher->second->publications.erase(id);
    publisher->second->ephemeral.erase(id);
  }
  effects_.ended_publications.push_back(id);
  if (publication.in_tier > 0 && !state_.waiters.empty()) state_.moved_publications.insert(id);
  for (SegmentId segment_id : publication.segments) {
    Segment& segment = *state_.segments.at(segment_id);
    if (!Mutant(Fault::kUnpublishKeeps)) --segment.publications;
    segment.published.reset();
    segments_.Settle(segment_id, segment);
  }
}

absl::StatusOr<uint64_t> Publications::Unpublish(SessionId session_id, absl::string_view text,
                                                 uint64_t request_id) {
  absl::StatusOr<Session*> session = state_.LiveSession(session_id);
  if (!session.ok()) return session.status();
  if (const std::optional<uint64_t> ended = state_.AnswerTo(**session, request_id)) return *ended;
  const Tenant& tenant = *(*session)->tenant;
  absl::StatusOr<Name> name = ParseName(text, tenant.name);
  if (!name.ok()) return name.status();
  const Publication* found = state_.FindPublication(*name, &tenant);
  if (found == nullptr) return NoSuchPublication(name->first, name->second);
  if (found->tenant != &tenant) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the publication belongs to tenant ", name->first,
        ": only sessions of that tenant and operators can end it (gpumemctl unpublish)"));
  }
  const uint64_t version = found->version;
  End(state_.by_name.at(*name));
  sessions_.RememberAnswer(session_id, **session, request_id, version);
  return version;
}

absl::StatusOr<uint64_t> Publications::Unpublish(absl::string_view full_name,
                                                 absl::Span<const AuditOperator> by) {
  absl::StatusOr<Name> name = ParseName(full_name, "");
  if (!name.ok()) return name.status();
  const Publication* found = state_.FindPublication(*name, nullptr);
  if (found == nullptr) return NoSuchPublication(name->first, name->second);
  const uint64_t version = found->version;
  End(state_.by_name.at(*name), /*replaced=*/false, by);
  return version;
}

// --- Expiry ----------------------------------------------------------------------------

absl::Time Publications::NextExpiry() const {
  return state_.expiries.empty() ? absl::InfiniteFuture() : state_.expiries.begin()->first;
}

void Publications::Expire(size_t steps) {
  const absl::Time now = state_.now();
  while (steps > 0 && NextExpiry() <= now) {
    const PublicationId id = state_.expiries.begin()->second;
    steps -= std::min(steps, state_.publications.at(id).segments.size());
    End(id);
  }
}

}  // namespace gpumemd
