// The model of publications.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/ledger/testing/model.h"

namespace gpumemd {

using absl::StatusCode;

namespace {

bool IsPublicationName(const std::string& name) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= 64 && name.find_first_not_of(kAllowed) == name.npos;
}

// Returns the tenant and the name within it; nullopt if `text` is no name.
std::optional<std::pair<std::string, std::string>> Parse(const std::string& text,
                                                         const std::string& tenant) {
  const size_t slash = text.rfind('/');
  const std::string own = slash == text.npos ? text : text.substr(slash + 1);
  const std::string whose = slash == text.npos ? tenant : text.substr(0, slash);
  if (!IsPublicationName(own) || whose.empty()) return std::nullopt;
  return std::pair(whose, own);
}

}  // namespace

const LedgerModel::Publication* LedgerModel::FindPublication(const std::string& tenant,
                                                             const std::string& name) const {
  for (const Publication& publication : publications_) {
    if (publication.tenant == tenant && publication.name == name) return &publication;
  }
  return nullptr;
}

std::set<SessionId> LedgerModel::AttachedTo(PublicationId id) const {
  std::set<SessionId> attached;
  for (const auto& [lease_id, lease] : leases_) {
    if (lease.publication == id) attached.insert(lease.session);
  }
  for (const auto& [operation_id, operation] : operations_) {
    if (operation.publication == id && !operation.regrant) attached.insert(operation.session);
  }
  return attached;
}

bool LedgerModel::IsPublished(SegmentId segment) const {
  return std::any_of(publications_.begin(), publications_.end(), [&](const Publication& each) {
    return std::count(each.segments.begin(), each.segments.end(), segment) > 0;
  });
}

void LedgerModel::NoteAttached(absl::Time now) {
  for (Publication& publication : publications_) {
    const bool attached = !AttachedTo(publication.id).empty();
    if (publication.attached && !attached) publication.idle_since = now;
    publication.attached = attached;
  }
}

absl::Time LedgerModel::ExpiryOf(const Publication& publication) const {
  if (!AttachedTo(publication.id).empty()) return absl::InfiniteFuture();
  return publication.idle_since + publication.expire_after;
}

absl::Time LedgerModel::NextExpiry() const {
  absl::Time next = absl::InfiniteFuture();
  for (const Publication& publication : publications_) {
    next = std::min(next, ExpiryOf(publication));
  }
  return next;
}

void LedgerModel::EndPublication(PublicationId id, bool replaced) {
  const auto it = std::find_if(publications_.begin(), publications_.end(),
                               [&](const Publication& each) { return each.id == id; });
  const std::vector<SegmentId> segments = it->segments;
  if (!replaced) {
    last_versions_[{it->tenant, it->name}] = it->version;
    ended_version_ = std::max(ended_version_, it->version);
  }
  publications_.erase(it);
  ended_publications_.insert(id);
  for (SegmentId segment : segments) Rest(segment);
}

absl::Status LedgerModel::Publish(SessionId id, const PublishSpec& spec, absl::Time now,
                                  const absl::StatusOr<Ledger::Published>& answer) {
  const auto refused = [&](StatusCode code) { return ExpectCode(answer.status(), code); };
  if (!Live(id)) return refused(StatusCode::kAborted);
  const std::string tenant = sessions_.at(id).tenant;
  if (const std::optional<uint64_t> version = AnswerTo(id, spec.request)) {
    if (answer.ok() && answer->again && answer->version == *version) return absl::OkStatus();
    return Wrong("expected the answer that was given before, got ", answer.status().ToString());
  }
  if (draining_) return refused(StatusCode::kUnavailable);
  if (!IsPublicationName(spec.name) || spec.leases.empty() ||
      spec.metadata_bytes > kMaxMetadataBytes) {
    return refused(StatusCode::kInvalidArgument);
  }
  std::vector<SegmentId> segments;
  for (LeaseId lease : spec.leases) {
    auto it = leases_.find(lease);
    if (it == leases_.end() || it->second.session != id) return refused(StatusCode::kNotFound);
    const Segment& segment = segments_.at(it->second.segment);
    if (std::count(segments.begin(), segments.end(), it->second.segment) > 0) {
      return refused(StatusCode::kInvalidArgument);
    }
    if (segment.tenant != tenant || segment.lost || segment.revocable ||
        IsContextBound(segment.kind)) {
      return refused(StatusCode::kFailedPrecondition);
    }
    segments.push_back(it->second.segment);
  }
  const Publication* replaced = FindPublication(tenant, spec.name);
  const auto count_of = [&](const std::string& of) {
    return static_cast<uint64_t>(
        std::count_if(publications_.begin(), publications_.end(),
                      [&](const Publication& each) { return IsUnder(each.tenant, of); }));
  };
  for (const std::string& each : PathOf(tenant)) {
    const uint64_t limit = QuotaOf(each).max_publications.value_or(UINT32_MAX);
    if (replaced != nullptr || count_of(each) < limit) continue;
    return ExpectDenial(
        answer.status(), tenant,
        {{Denial::Cause::kMaxPublications, each, kEverywhere}, 1, count_of(each), limit});
  }
  const LimitName daemon = {Denial::Cause::kDaemonLimit, tenant, kEverywhere};
  if (replaced == nullptr && publications_.size() >= bounds_.max_publications) {
    return ExpectDenial(answer.status(), tenant,
                        {daemon, 1, publications_.size(), bounds_.max_publications});
  }
  uint64_t own_metadata = 0, all_metadata = 0;
  for (const Publication& each : publications_) {
    if (&each == replaced) continue;
    all_metadata += each.metadata_bytes;
    own_metadata += each.tenant == tenant ? each.metadata_bytes : 0;
  }
  for (const auto& [used, limit] : {std::pair(own_metadata, bounds_.max_metadata_bytes_per_tenant),
                                    std::pair(all_metadata, bounds_.max_metadata_bytes)}) {
    if (used + spec.metadata_bytes <= limit) continue;
    return ExpectDenial(answer.status(), tenant, {daemon, spec.metadata_bytes, used, limit});
  }
  const auto last = last_versions_.find({tenant, spec.name});
  const auto gone = gone_versions_.find(tenant);
  const uint64_t before_it =
      std::max(forgotten_version_, gone == gone_versions_.end() ? 0 : gone->second);
  const uint64_t version = 1 + (replaced != nullptr            ? replaced->version
                                : last != last_versions_.end() ? last->second
                                                               : before_it);
  if (!answer.ok() || answer->again || answer->version != version ||
      ToInt(answer->id) <= last_publication_) {
    return Wrong("expected version ", version, ", got ", answer.status().ToString());
  }
  last_publication_ = ToInt(answer->id);
  const bool replaces = replaced != nullptr;
  const PublicationId before = replaces ? replaced->id : PublicationId{};
  publications_.push_back({.id = answer->id,
                           .tenant = tenant,
                           .name = spec.name,
                           .version = version,
                           .segments = segments,
                           .metadata_bytes = spec.metadata_bytes,
                           .to_any = spec.to_any,
                           .ephemeral = spec.ephemeral,
                           .expire_after = spec.expire_after,
                           .published = now,
                           .idle_since = now,
                           .publisher = id});
  if (replaces) EndPublication(before, /*replaced=*/true);
  Answered(id, spec.request, version);
  for (const auto& [waiter_id, waiter] : std::map(attach_waiters_)) {
    if (waiter.tenant == tenant && waiter.name == spec.name && waiter.version <= version &&
        (spec.to_any || sessions_.at(waiter.session).tenant == tenant)) {
      LeaveAttachQueue(waiter_id);
      attachable_.insert(waiter_id);
    }
  }
  return absl::OkStatus();
}

absl::Status LedgerModel::BeginAttach(SessionId id, const AttachSpec& spec,
                                      const absl::StatusOr<Admission>& answer) {
  const auto refused = [&](StatusCode code) { return ExpectCode(answer.status(), code); };
  if (draining_) return refused(StatusCode::kUnavailable);
  if (!Live(id)) return refused(StatusCode::kAborted);
  Session& session = sessions_.at(id);
  const auto name = Parse(spec.name, session.tenant);
  if (!name) return refused(StatusCode::kInvalidArgument);
  const Publication* found = FindPublication(name->first, name->second);
  if (found != nullptr && !found->to_any && found->tenant != session.tenant) found = nullptr;
  if (spec.version == 0 && found == nullptr) return refused(StatusCode::kNotFound);
  if (found == nullptr || found->version < spec.version) {
    if (auto denied = NoRoomToWait(session.tenant, answer.status())) return *denied;
    if (!answer.ok() || !answer->waiter || ToInt(*answer->waiter) <= last_waiter_) {
      return Wrong("expected a wait for the version, got ", answer.status().ToString());
    }
    last_waiter_ = ToInt(*answer->waiter);
    attach_waiters_[*answer->waiter] = {id, name->first, name->second, spec.version};
    --session.calls;
    return absl::OkStatus();
  }
  if (auto denied = NoRoomForLeases(id, found->segments.size(), answer.status())) return *denied;
  const bool revocable = spec.revocable || QuotaOf(session.tenant).revocable;
  if (OtherSort(id, revocable)) return refused(StatusCode::kFailedPrecondition);
  if (!answer.ok() || !answer->operation) {
    return Wrong("expected an attachment, got ", answer.status().ToString());
  }
  const Operation& operation = *answer->operation;
  if (ToInt(operation.id) <= last_operation_ || operation.session != id ||
      operation.publication != found->id || operation.revocable != revocable ||
      operation.request_id != spec.request_id || operation.regrant ||
      operation.items.size() != found->segments.size()) {
    return Wrong("the operation is not what was asked for");
  }
  last_operation_ = ToInt(operation.id);
  for (size_t i = 0; i < operation.items.size(); ++i) {
    const Operation::Item& item = operation.items[i];
    if (item.segment != found->segments[i] || item.fresh || item.reused ||
        ToInt(item.lease) <= last_lease_) {
      return Wrong("segment ", i, " of the publication is another one");
    }
    last_lease_ = ToInt(item.lease);
    mappings_.push_back({id, item.segment, revocable});
    if (found->tenant != session.tenant) segments_.at(item.segment).shared_out = true;
  }
  operations_.emplace(operation.id, operation);
  stirred_ = true;
  return absl::OkStatus();
}

void LedgerModel::LeaveAttachQueue(WaiterId id) {
  ++sessions_.at(attach_waiters_.at(id).session).calls;
  attach_waiters_.erase(id);
}

void LedgerModel::EndAttachWaitsOf(std::optional<SessionId> session) {
  for (const auto& [id, waiter] : std::map(attach_waiters_)) {
    if (session && waiter.session != *session) continue;
    LeaveAttachQueue(id);
    attachable_.insert(id);
  }
}

absl::Status LedgerModel::TakeAttachable(const std::vector<WaiterId>& answer) {
  const std::set<WaiterId> expected = std::exchange(attachable_, {});
  if (answer.size() == expected.size() &&
      std::set<WaiterId>(answer.begin(), answer.end()) == expected) {
    return absl::OkStatus();
  }
  return Wrong("expected ", expected.size(), " who wait to attach to be called, got ",
               answer.size());
}

absl::Status LedgerModel::EndAttachWait(WaiterId id, bool expired, const absl::Status& answer) {
  LeaveAttachQueue(id);
  return ExpectCode(answer, expired ? StatusCode::kDeadlineExceeded : StatusCode::kCancelled);
}

std::optional<uint64_t> LedgerModel::AnswerTo(SessionId session, uint64_t request) const {
  auto answers = answered_.find(session);
  if (request == 0 || answers == answered_.end()) return std::nullopt;
  for (const auto& [answered, number] : answers->second) {
    if (answered == request) return number;
  }
  return std::nullopt;
}

void LedgerModel::Answered(SessionId session, uint64_t request, uint64_t number) {
  if (request == 0) return;
  std::vector<std::pair<uint64_t, uint64_t>>& answers = answered_[session];
  answers.emplace_back(request, number);
  if (answers.size() > 64) answers.erase(answers.begin());
}

absl::Status LedgerModel::Unpublish(std::optional<SessionId> id, const std::string& text,
                                    uint64_t request, const absl::StatusOr<uint64_t>& answer) {
  if (id && !Live(*id)) return ExpectCode(answer.status(), StatusCode::kAborted);
  if (const auto version = id ? AnswerTo(*id, request) : std::nullopt) {
    if (answer.ok() && *answer == *version) return absl::OkStatus();
    return Wrong("expected the answer that was given before, got ", answer.status().ToString());
  }
  const std::string tenant = id ? sessions_.at(*id).tenant : "";
  const auto name = Parse(text, tenant);
  if (!name) return ExpectCode(answer.status(), StatusCode::kInvalidArgument);
  const Publication* found = FindPublication(name->first, name->second);
  if (found == nullptr || (id && !found->to_any && found->tenant != tenant)) {
    return ExpectCode(answer.status(), StatusCode::kNotFound);
  }
  if (id && found->tenant != tenant) {
    return ExpectCode(answer.status(), StatusCode::kPermissionDenied);
  }
  if (!answer.ok() || *answer != found->version) {
    return Wrong("expected the end of version ", found->version);
  }
  if (id) Answered(*id, request, found->version);
  EndPublication(found->id);
  return absl::OkStatus();
}

void LedgerModel::ExpirePublications(absl::Time now) {
  std::map<std::pair<absl::Time, PublicationId>, PublicationId> due;
  for (const Publication& each : publications_) {
    if (ExpiryOf(each) <= now) due[{ExpiryOf(each), each.id}] = each.id;
  }
  for (const auto& [when, id] : due) EndPublication(id);
}

absl::Status LedgerModel::TakeEndedPublications(const std::vector<PublicationId>& answer) {
  const std::set<PublicationId> expected = std::exchange(ended_publications_, {});
  if (answer.size() == expected.size() &&
      std::set<PublicationId>(answer.begin(), answer.end()) == expected) {
    return absl::OkStatus();
  }
  return Wrong("expected ", expected.size(), " publications to have ended, got ", answer.size());
}

absl::Status LedgerModel::ComparePublications(const Ledger& ledger, const std::string& tenant,
                                              absl::Time now) const {
  const auto views = ledger.look().ListPublications(tenant);
  if (!views.ok()) return Wrong("publications are not listed: ", views.status().ToString());
  std::map<std::pair<std::string, std::string>, const Publication*> expected;
  for (const Publication& each : publications_) {
    if (tenant.empty() || each.tenant == tenant) expected[{each.tenant, each.name}] = &each;
  }
  if (views->size() != expected.size()) {
    return Wrong("the ledger lists ", views->size(), " publications, expected ", expected.size());
  }
  auto view = views->begin();
  for (const auto& [name, publication] : expected) {
    uint64_t bytes = 0;
    for (SegmentId segment : publication->segments) bytes += segments_.at(segment).bytes;
    const auto tell = [](const auto&... what) {
      return absl::StrJoin(std::make_tuple(absl::StrCat(what)...), " ");
    };
    const std::string told =
        tell(ToInt(view->id), view->tenant, view->name, view->version, view->segments, view->bytes,
             view->metadata_bytes, view->to_any, view->ephemeral, view->attached,
             absl::FormatDuration(view->age), absl::FormatDuration(view->expires_in),
             ToInt(view->publisher), view->publisher_alive);
    const std::string right =
        tell(ToInt(publication->id), publication->tenant, publication->name, publication->version,
             publication->segments.size(), bytes, publication->metadata_bytes, publication->to_any,
             publication->ephemeral, AttachedTo(publication->id).size(),
             absl::FormatDuration(now - publication->published),
             absl::FormatDuration(ExpiryOf(*publication) - now), ToInt(publication->publisher),
             Live(publication->publisher));
    if (told != right) return Wrong("a publication is listed as ", told, ", expected ", right);
    ++view;
  }
  if (ledger.NextExpiry() != NextExpiry()) return Wrong("the next expiry is at the wrong time");
  if (!tenant.empty()) return absl::OkStatus();
  for (const auto& [id, session] : sessions_) {
    size_t visible = 0;
    for (const Publication& each : publications_) {
      visible += each.to_any || each.tenant == session.tenant ? 1 : 0;
    }
    const auto attachable = ledger.look().ListAttachable(id, "");
    if (!attachable.ok() || attachable->size() != visible) {
      return Wrong("session ", ToInt(id), " sees too many publications, or too few");
    }
  }
  return absl::OkStatus();
}

std::optional<absl::Status> LedgerModel::NoRoomToWait(const std::string& tenant,
                                                      const absl::Status& answer) {
  for (const std::string& each : PathOf(tenant)) {
    const uint64_t waiting = WaitingOf(each);
    const uint64_t limit = tenants_.at(each).quota.max_waiting.value_or(UINT32_MAX);
    if (waiting < limit) continue;
    return ExpectDenial(answer, tenant,
                        {{Denial::Cause::kMaxWaiting, each, kEverywhere}, 1, waiting, limit});
  }
  const uint64_t of_all = waiters_.size() + attach_waiters_.size();
  if (of_all < bounds_.max_waiting) return std::nullopt;
  return ExpectDenial(
      answer, tenant,
      {{Denial::Cause::kDaemonLimit, tenant, kEverywhere}, 1, of_all, bounds_.max_waiting});
}

uint64_t LedgerModel::WaitingOf(const std::string& tenant) const {
  const auto waiting = std::count_if(waiters_.begin(), waiters_.end(), [&](const auto& entry) {
    return entry.second.asked_to && IsUnder(entry.second.request.tenant, tenant);
  });
  const auto attaching =
      std::count_if(attach_waiters_.begin(), attach_waiters_.end(), [&](const auto& entry) {
        return IsUnder(sessions_.at(entry.second.session).tenant, tenant);
      });
  return static_cast<uint64_t>(waiting + attaching);
}

}  // namespace gpumemd
