// Publications: named, versioned lists of segments that outlive their publishers.
//
// A publication holds its segments as a lease does, without a session. While it exists, these are
// neither reused nor given back, and stay charged to their tenant, once. A session that attaches
// gets separate leases, by an operation like any other, and keeps them whatever becomes of the
// publication. So a new version replaces the one before in one step: it is another publication, and
// the old one releases its segments.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/ledger/ledger.h"

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

// Returns the same status whether the publication does not exist or this tenant may not know of it.
absl::Status NoSuchPublication(absl::string_view tenant, absl::string_view name) {
  return absl::NotFoundError(
      absl::StrCat("tenant ", tenant, " has no publication \"", name,
                   "\" that this one may attach to (gpumemctl publications lists those it may)"));
}

}  // namespace

absl::StatusOr<Ledger::PublicationName> Ledger::ParseName(absl::string_view name,
                                                          absl::string_view own_tenant) {
  const size_t slash = name.rfind('/');
  const absl::string_view tenant =
      slash == absl::string_view::npos ? own_tenant : name.substr(0, slash);
  const absl::string_view own = slash == absl::string_view::npos ? name : name.substr(slash + 1);
  if (!IsName(own) || tenant.empty()) return NoName();
  return PublicationName(tenant, own);
}

// --- Publishing ------------------------------------------------------------------------

absl::StatusOr<std::vector<SegmentId>> Ledger::Publishable(const Session& session,
                                                           const PublishSpec& spec) const {
  if (!IsName(spec.name)) return NoName();
  if (spec.leases.empty() || spec.leases.size() > kMaxPublicationSegments) {
    return absl::InvalidArgumentError(absl::StrCat("a publication has 1 to ",
                                                   kMaxPublicationSegments, " segments; this has ",
                                                   spec.leases.size()));
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
    if (segment.tenant != session.tenant) {
      return absl::FailedPreconditionError(absl::StrCat(
          "segment ", ToInt(id), " is tenant ", segment.tenant->name,
          "'s: a tenant publishes memory of its own; copy it into a segment that it acquires"));
    }
    if (!TraitsOf(segment.kind).publishable) {
      return absl::FailedPreconditionError(absl::StrCat(
          "segment ", ToInt(id), " is of kind ", KindName(segment.kind),
          ", whose memory dies with a CUDA context: acquire what is to be published with kind "
          "vmm, or pinned for host memory"));
    }
    if (segment.lost) return Lost(id);
    if (segment.charge.revocable()) {
      return absl::FailedPreconditionError(
          absl::StrCat("segment ", ToInt(id),
                       " may be taken back, and a publication could not keep it: acquire what is "
                       "to be published as memory that is not revocable"));
    }
    segments.push_back(id);
  }
  return segments;
}

absl::Status Ledger::CheckPublicationRoom(Tenant& tenant, const Publication* replaced,
                                          uint64_t metadata_bytes) const {
  if (replaced == nullptr) {
    for (const Tenant* each = &tenant; each != nullptr; each = each->parent) {
      const uint64_t limit = each->quota.max_publications.value_or(UINT32_MAX);
      if (each->tree_publications < limit) continue;
      return DenyCount(tenant, Denial::Cause::kMaxPublications, 1, each->tree_publications, limit,
                       "unpublish what is not needed (gpumemctl publications lists them), or ask "
                       "an operator for more (gpumemctl quota set --max-publications N)",
                       each);
    }
    if (state_.publications.size() >= state_.bounds.max_publications) {
      return DenyCount(tenant, Denial::Cause::kDaemonLimit, 1, state_.publications.size(),
                       state_.bounds.max_publications,
                       "the daemon keeps only so many publications; unpublish what is not needed");
    }
  }
  const uint64_t freed = replaced == nullptr ? 0 : replaced->metadata_bytes;
  for (const auto& [used, limit] :
       {std::pair(tenant.metadata_bytes - freed, state_.bounds.max_metadata_bytes_per_tenant),
        std::pair(state_.metadata_bytes - freed, state_.bounds.max_metadata_bytes)}) {
    if (used + metadata_bytes <= limit) continue;
    return DenyCount(tenant, Denial::Cause::kDaemonLimit, metadata_bytes, used, limit,
                     "these are bytes of the metadata of publications, of which a tenant and the "
                     "daemon keep only so much: unpublish what is not needed, or put it into a "
                     "segment of the publication");
  }
  return absl::OkStatus();
}

absl::StatusOr<Ledger::Published> Ledger::Publish(SessionId session_id, const PublishSpec& spec) {
  absl::StatusOr<Session*> live = LiveSession(session_id);
  if (!live.ok()) return live.status();
  Session& session = **live;
  if (const std::optional<uint64_t> version = state_.AnswerTo(session, spec.request)) {
    return Published{.version = *version, .again = true};
  }
  if (state_.draining) return Draining();
  Tenant& tenant = *session.tenant;
  absl::StatusOr<std::vector<SegmentId>> segments = Publishable(session, spec);
  if (!segments.ok()) return segments.status();
  const PublicationName name(tenant.name, spec.name);
  const Publication* replaced = state_.FindPublication(name, &tenant);
  if (absl::Status room = CheckPublicationRoom(tenant, replaced, spec.metadata_bytes); !room.ok()) {
    return room;
  }

  const PublicationId id = spec.id == PublicationId{} ? NewPublicationId() : spec.id;
  Publication publication{.tenant = &tenant,
                          .name = spec.name,
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
    ++state_.segments.at(segment)->publications;
    publication.bytes += state_.segments.at(segment)->charge.bytes();
  }
  // The old one ends only now, since both may hold the same segments.
  if (replaced != nullptr) {
    EndPublication(state_.by_name.at(name), /*replaced=*/true);
  }
  CountPublication(tenant, 1);
  tenant.metadata_bytes += spec.metadata_bytes;
  state_.metadata_bytes += spec.metadata_bytes;
  session.publications.insert(id);
  if (spec.ephemeral) session.ephemeral.insert(id);
  const uint64_t version = publication.version;
  Answer(session_id, session, spec.request, version);
  changes_.Touch(id, publication.segments.size());
  state_.by_name[name] = id;
  expiries_.emplace(state_.ExpiryOf(publication), id);
  state_.publications.emplace(id, std::move(publication));
  auditor_.Published(session_id, state_.publications.at(id));
  for (auto it = attach_waiters_.begin(); it != attach_waiters_.end();) {
    const auto [waiter, wanted] = *it++;
    if (wanted.name == name && wanted.version <= version &&
        state_.MayAttach(state_.publications.at(id), *state_.sessions.at(wanted.session)->tenant)) {
      RemoveAttachWaiter(waiter);
      attachable_.push_back(waiter);
    }
  }
  return Published{.id = id, .version = version};
}

void Ledger::CountPublication(Tenant& tenant, int change) {
  for (Tenant* each = &tenant; each != nullptr; each = each->parent) {
    each->tree_publications += static_cast<uint32_t>(change);
  }
}

void Ledger::EndPublication(PublicationId id, bool replaced, absl::Span<const AuditOperator> by) {
  const Publication publication = std::move(state_.publications.at(id));
  auditor_.PublicationEnded(publication, replaced, by);
  state_.publications.erase(id);
  changes_.Touch(id, publication.segments.size());
  expiries_.erase({state_.ExpiryOf(publication), id});
  Tenant& tenant = *publication.tenant;
  state_.by_name.erase({tenant.name, publication.name});
  if (!replaced) state_.versions.Ended(tenant, publication.name, publication.version);
  CountPublication(tenant, -1);
  tenant.metadata_bytes -= publication.metadata_bytes;
  state_.metadata_bytes -= publication.metadata_bytes;
  if (auto publisher = state_.sessions.find(publication.publisher);
      publisher != state_.sessions.end()) {
    publisher->second->publications.erase(id);
    publisher->second->ephemeral.erase(id);
  }
  ended_publications_.push_back(id);
  for (SegmentId segment_id : publication.segments) {
    Segment& segment = *state_.segments.at(segment_id);
    --segment.publications;
    Settle(segment_id, segment);
  }
}

std::vector<PublicationId> Ledger::TakeEndedPublications() {
  return std::exchange(ended_publications_, {});
}

absl::StatusOr<uint64_t> Ledger::Unpublish(SessionId session_id, absl::string_view text,
                                           uint64_t request_id) {
  absl::StatusOr<Session*> session = LiveSession(session_id);
  if (!session.ok()) return session.status();
  if (const std::optional<uint64_t> ended = state_.AnswerTo(**session, request_id)) return *ended;
  const Tenant& tenant = *(*session)->tenant;
  absl::StatusOr<PublicationName> name = ParseName(text, tenant.name);
  if (!name.ok()) return name.status();
  const Publication* found = state_.FindPublication(*name, &tenant);
  if (found == nullptr) return NoSuchPublication(name->first, name->second);
  if (found->tenant != &tenant) {
    return absl::PermissionDeniedError(
        absl::StrCat("the publication is tenant ", name->first,
                     "'s: only its own sessions end it, and operators (gpumemctl unpublish)"));
  }
  const uint64_t version = found->version;
  EndPublication(state_.by_name.at(*name));
  Answer(session_id, **session, request_id, version);
  return version;
}

absl::StatusOr<uint64_t> Ledger::Unpublish(absl::string_view full_name,
                                           absl::Span<const AuditOperator> by) {
  absl::StatusOr<PublicationName> name = ParseName(full_name, "");
  if (!name.ok()) return name.status();
  const Publication* found = state_.FindPublication(*name, nullptr);
  if (found == nullptr) return NoSuchPublication(name->first, name->second);
  const uint64_t version = found->version;
  EndPublication(state_.by_name.at(*name), /*replaced=*/false, by);
  return version;
}

// --- Expiry ----------------------------------------------------------------------------

absl::Time Ledger::NextExpiry() const {
  return expiries_.empty() ? absl::InfiniteFuture() : expiries_.begin()->first;
}

void Ledger::ExpirePublications() {
  const absl::Time now = state_.now();
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    EndPublication(expiries_.begin()->second);
  }
}

// --- Attaching -------------------------------------------------------------------------

absl::StatusOr<Admission> Ledger::BeginAttach(SessionId session_id, const AttachSpec& spec,
                                              size_t steps) {
  if (state_.draining) return Draining();
  absl::StatusOr<Session*> live = LiveSession(session_id);
  if (!live.ok()) return live.status();
  Session& session = **live;
  Tenant& tenant = *session.tenant;
  absl::StatusOr<PublicationName> name = ParseName(spec.name, tenant.name);
  if (!name.ok()) return name.status();
  const Publication* found = state_.FindPublication(*name, &tenant);
  if (found == nullptr && spec.version == 0) return NoSuchPublication(name->first, name->second);
  if (found == nullptr || found->version < spec.version) {
    if (absl::Status room = CheckWaiting(tenant); !room.ok()) return room;
    const WaiterId id{next_waiter_++};
    attach_waiters_.emplace(
        id, records::AttachWaiter{
                .session = session_id, .name = *std::move(name), .version = spec.version});
    session.attach_waiters.insert(id);
    CountWaiting(tenant, 1);
    --session.in_flight;
    --tenant.in_flight;
    return Admission{.waiter = id};
  }

  Publication& publication = state_.publications.at(state_.by_name.at(*name));
  if (absl::Status room = CheckLeaseCount(session, publication.segments.size()); !room.ok()) {
    return room;
  }
  Operation operation;
  operation.session = session_id;
  operation.revocable = spec.revocable || tenant.quota.revocable;
  operation.request_id = spec.request_id;
  operation.publication = state_.by_name.at(*name);
  if (absl::Status sort = CheckSort(session, operation.revocable); !sort.ok()) return sort;
  for (SegmentId id : publication.segments) {
    if (state_.segments.at(id)->lost) return Lost(id);
    operation.items.push_back({.segment = id});
  }
  operation.id = OperationId{state_.next_operation++};
  for (Operation::Item& item : operation.items) item.lease = LeaseId{state_.next_lease++};
  expiries_.erase({state_.ExpiryOf(publication), *operation.publication});
  publication.attached[session_id] += static_cast<uint32_t>(operation.items.size());
  changes_.Touch(*operation.publication);
  expiries_.emplace(state_.ExpiryOf(publication), *operation.publication);
  Pin(operation, session, steps);
  return Admission{.operation = std::move(operation)};
}

void Ledger::Detach(std::optional<PublicationId> id, SessionId session) {
  if (!id) return;
  auto it = state_.publications.find(*id);
  if (it == state_.publications.end()) return;  // it has ended meanwhile
  Publication& publication = it->second;
  if (--publication.attached.at(session) > 0) return;
  expiries_.erase({state_.ExpiryOf(publication), *id});
  publication.attached.erase(session);
  if (publication.attached.empty()) publication.idle_since = state_.now();
  changes_.Touch(*id);
  expiries_.emplace(state_.ExpiryOf(publication), *id);
}

void Ledger::RemoveAttachWaiter(WaiterId id) {
  auto it = attach_waiters_.find(id);
  Session& session = *state_.sessions.at(it->second.session);
  session.attach_waiters.erase(id);
  CountWaiting(*session.tenant, -1);
  ++session.in_flight;
  ++session.tenant->in_flight;
  attach_waiters_.erase(it);
}

std::vector<WaiterId> Ledger::TakeAttachable() { return std::exchange(attachable_, {}); }

absl::Status Ledger::EndAttachWait(WaiterId id, bool expired) {
  const records::AttachWaiter waiter = attach_waiters_.at(id);
  const Publication* found =
      state_.FindPublication(waiter.name, state_.sessions.at(waiter.session)->tenant);
  RemoveAttachWaiter(id);
  if (!expired) return absl::CancelledError("the client has given up the request");
  return absl::DeadlineExceededError(absl::StrCat(
      "version ", waiter.version, " of publication \"", waiter.name.second, "\" of tenant ",
      waiter.name.first, " was not published in time",
      found == nullptr ? absl::StrCat(": there is none of that name that this tenant may attach to")
                       : absl::StrCat("; the newest is ", found->version)));
}

// --- Looking ---------------------------------------------------------------------------

absl::Status Ledger::CheckPublications() const {
  const auto wrong = [](auto... what) { return absl::InternalError(absl::StrCat(what...)); };
  if (state_.by_name.size() != state_.publications.size() ||
      expiries_.size() != state_.publications.size()) {
    return wrong("a publication has no name, or two, or is not watched");
  }
  absl::flat_hash_map<SegmentId, uint32_t> publications_of;
  absl::flat_hash_map<std::pair<PublicationId, SessionId>, uint32_t> leases_through;
  std::map<const Tenant*, uint32_t> counts;
  std::map<const Tenant*, uint64_t> metadata;
  uint64_t all_metadata = 0;
  state_.leases.ForEach([&](LeaseId, const Lease& lease) {
    if (lease.publication) ++leases_through[{*lease.publication, lease.session}];
  });
  size_t ephemeral = 0, ephemeral_by_session = 0;
  for (const auto& [id, publication] : state_.publications) {
    auto tenant = state_.tenants.find(publication.tenant->name);
    if (tenant == state_.tenants.end() || tenant->second.get() != publication.tenant) {
      return wrong("publication ", ToInt(id), " outlived its tenant");
    }
    auto named = state_.by_name.find({publication.tenant->name, publication.name});
    if (named == state_.by_name.end() || named->second != id) {
      return wrong("publication ", ToInt(id), " is not found by its name");
    }
    if (!expiries_.contains({state_.ExpiryOf(publication), id})) {
      return wrong("publication ", ToInt(id), " would expire at the wrong time");
    }
    uint64_t bytes = 0;
    for (SegmentId segment : publication.segments) {
      auto it = state_.segments.find(segment);
      if (it == state_.segments.end() || it->second->tenant != publication.tenant) {
        return wrong("publication ", ToInt(id), " has no segment ", ToInt(segment));
      }
      if (it->second->charge.revocable()) {
        return wrong("segment ", ToInt(segment), " is published, and may be taken back");
      }
      ++publications_of[segment];
      bytes += it->second->charge.bytes();
    }
    if (bytes != publication.bytes) return wrong("publication ", ToInt(id), " miscounts its bytes");
    for (const auto& [session, count] : publication.attached) {
      auto it = state_.sessions.find(session);
      // Leases that operations in flight are about to give count, too.
      if (it == state_.sessions.end() || count < leases_through[{id, session}] || count == 0 ||
          (it->second->operations == 0 && count != leases_through[{id, session}])) {
        return wrong("publication ", ToInt(id), " miscounts who is attached");
      }
    }
    for (const Tenant* each = publication.tenant; each != nullptr; each = each->parent) {
      ++counts[each];
    }
    metadata[publication.tenant] += publication.metadata_bytes;
    all_metadata += publication.metadata_bytes;
    if (!publication.ephemeral) continue;
    ++ephemeral;
    auto publisher = state_.sessions.find(publication.publisher);
    if (publisher == state_.sessions.end() ||
        !(publisher->second->live || publisher->second->ending) ||
        !publisher->second->ephemeral.contains(id)) {
      return wrong("publication ", ToInt(id), " should have ended with its session");
    }
  }
  for (const auto& [through, count] : leases_through) {
    auto it = state_.publications.find(through.first);
    if (it != state_.publications.end() && !it->second.attached.contains(through.second)) {
      return wrong("publication ", ToInt(through.first), " does not know who is attached");
    }
  }
  for (const auto& [id, segment] : state_.segments) {
    if (segment->publications != publications_of[id]) {
      return wrong("segment ", ToInt(id), " miscounts the publications that it is in");
    }
  }
  size_t waiters = 0;
  for (const auto& [id, session] : state_.sessions) {
    ephemeral_by_session += session->ephemeral.size();
    waiters += session->attach_waiters.size();
    for (WaiterId waiter : session->attach_waiters) {
      auto it = attach_waiters_.find(waiter);
      if (it == attach_waiters_.end() || it->second.session != id || !session->live) {
        return wrong("session ", ToInt(id), " waits to attach, and nobody knows of it");
      }
    }
  }
  if (waiters != attach_waiters_.size()) return wrong("a wait to attach outlived its session");
  if (ephemeral != ephemeral_by_session) return wrong("ephemeral publications are miscounted");
  if (all_metadata != state_.metadata_bytes) return wrong("the bytes of metadata do not add up");
  for (const auto& [name, tenant] : state_.tenants) {
    if (tenant->tree_publications != counts[tenant.get()] ||
        tenant->metadata_bytes != metadata[tenant.get()]) {
      return wrong("tenant ", name, " miscounts its publications");
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumemd
