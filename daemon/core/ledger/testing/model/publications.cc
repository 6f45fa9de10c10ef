// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/publications.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/made/made_tenants.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/attachments.h"
#include "daemon/core/ledger/testing/model/claims.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/reclaim.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {

using absl::StatusCode;

namespace {

bool IsPublicationName(const std::string& name) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= 64 && name.find_first_not_of(kAllowed) == name.npos;
}

std::set<SessionId> AttachedTo(const LedgerModel& model, PublicationId id) {
  std::set<SessionId> attached;
  for (const auto& [lease_id, lease] : model.leases) {
    if (lease.publication == id) attached.insert(lease.session);
  }
  for (const auto& [operation_id, operation] : model.operations) {
    if (operation.publication == id && !operation.regrant) attached.insert(operation.session);
  }
  return attached;
}

absl::Time ExpiryOf(const LedgerModel& model, const Publication& publication) {
  if (!AttachedTo(model, publication.id).empty()) return absl::InfiniteFuture();
  return publication.idle_since + publication.expire_after;
}

absl::Time NextExpiry(const LedgerModel& model) {
  absl::Time next = absl::InfiniteFuture();
  for (const Publication& publication : model.publications) {
    next = std::min(next, ExpiryOf(model, publication));
  }
  return next;
}

}  // namespace

std::optional<std::pair<std::string, std::string>> ParsePublication(const std::string& text,
                                                                    const std::string& tenant) {
  const size_t slash = text.rfind('/');
  const std::string own = slash == text.npos ? text : text.substr(slash + 1);
  const std::string whose = slash == text.npos ? tenant : text.substr(0, slash);
  if (!IsPublicationName(own) || whose.empty()) return std::nullopt;
  return std::pair(whose, own);
}

const Publication* FindPublication(const LedgerModel& model, const std::string& tenant,
                                   const std::string& name) {
  for (const Publication& publication : model.publications) {
    if (publication.tenant == tenant && publication.name == name) return &publication;
  }
  return nullptr;
}

bool IsPublished(const LedgerModel& model, SegmentId segment) {
  return std::any_of(model.publications.begin(), model.publications.end(),
                     [&](const Publication& each) {
                       return std::count(each.segments.begin(), each.segments.end(), segment) > 0;
                     });
}

void NoteAttached(LedgerModel& model, absl::Time now) {
  for (Publication& publication : model.publications) {
    const bool attached = !AttachedTo(model, publication.id).empty();
    if (publication.attached && !attached) publication.idle_since = now;
    publication.attached = attached;
  }
}

void EndPublication(LedgerModel& model, PublicationId id, bool replaced) {
  const auto it = std::find_if(model.publications.begin(), model.publications.end(),
                               [&](const Publication& each) { return each.id == id; });
  const std::vector<SegmentId> segments = it->segments;
  if (!replaced) {
    model.last_versions[{it->tenant, it->name}] = it->version;
    model.ended_version = std::max(model.ended_version, it->version);
  }
  model.publications.erase(it);
  model.ended_publications.insert(id);
  for (SegmentId segment : segments) SettleUnheld(model, segment);
}

absl::Status Publish(LedgerModel& model, SessionId id, const PublishSpec& spec, absl::Time now,
                     const absl::StatusOr<Publications::Published>& answer) {
  const auto refused = [&](StatusCode code) { return ExpectCode(answer.status(), code); };
  if (!Live(model, id)) return refused(StatusCode::kAborted);
  const std::string tenant = model.sessions.at(id).tenant;
  if (const std::optional<uint64_t> version = AnswerTo(model, id, spec.request)) {
    if (answer.ok() && answer->again && answer->version == *version) return absl::OkStatus();
    return Wrong("expected the answer that was given before, got ", answer.status().ToString());
  }
  if (model.draining) return refused(StatusCode::kUnavailable);
  if (HasEnded(model, tenant)) return refused(StatusCode::kFailedPrecondition);
  if (!IsPublicationName(spec.name) || spec.leases.empty() || spec.content_id.size() > 64 ||
      spec.metadata_bytes > kMaxMetadataBytes) {
    return refused(StatusCode::kInvalidArgument);
  }
  std::vector<SegmentId> segments;
  for (LeaseId lease : spec.leases) {
    auto it = model.leases.find(lease);
    if (it == model.leases.end() || it->second.session != id) return refused(StatusCode::kNotFound);
    const Segment& segment = model.segments.at(it->second.segment);
    if (std::count(segments.begin(), segments.end(), it->second.segment) > 0) {
      return refused(StatusCode::kInvalidArgument);
    }
    if (segment.tenant != tenant || segment.lost || segment.revocable ||
        !TraitsOf(segment.kind).publishable) {
      return refused(StatusCode::kFailedPrecondition);
    }
    segments.push_back(it->second.segment);
  }
  const Publication* replaced = FindPublication(model, tenant, spec.name);
  const auto count_of = [&](const std::string& of) {
    return static_cast<uint64_t>(
        std::count_if(model.publications.begin(), model.publications.end(),
                      [&](const Publication& each) { return IsUnder(model, each.tenant, of); }));
  };
  for (const std::string& each : PathOf(model, tenant)) {
    const uint64_t limit = QuotaOf(model, each).max_publications.value_or(UINT32_MAX);
    if (replaced != nullptr || count_of(each) < limit) continue;
    return ExpectDenial(
        model, answer.status(), tenant,
        {{Denial::Cause::kMaxPublications, each, kEverywhere}, 1, count_of(each), limit});
  }
  const LimitName daemon = {Denial::Cause::kDaemonLimit, tenant, kEverywhere};
  if (replaced == nullptr && model.publications.size() >= model.bounds.max_publications) {
    return ExpectDenial(model, answer.status(), tenant,
                        {daemon, 1, model.publications.size(), model.bounds.max_publications});
  }
  uint64_t own_metadata = 0, all_metadata = 0;
  for (const Publication& each : model.publications) {
    if (&each == replaced) continue;
    all_metadata += each.metadata_bytes;
    own_metadata += BooksOf(model, each.tenant) == BooksOf(model, tenant) ? each.metadata_bytes : 0;
  }
  for (const auto& [used, limit] :
       {std::pair(own_metadata, model.bounds.max_metadata_bytes_per_tenant),
        std::pair(all_metadata, model.bounds.max_metadata_bytes)}) {
    if (used + spec.metadata_bytes <= limit) continue;
    return ExpectDenial(model, answer.status(), tenant, {daemon, spec.metadata_bytes, used, limit});
  }
  const auto last = model.last_versions.find({tenant, spec.name});
  const auto gone = model.gone_versions.find(tenant);
  const uint64_t before_it =
      std::max(model.forgotten_version, gone == model.gone_versions.end() ? 0 : gone->second);
  const uint64_t version = 1 + (replaced != nullptr                 ? replaced->version
                                : last != model.last_versions.end() ? last->second
                                                                    : before_it);
  if (!answer.ok() || answer->again || answer->version != version ||
      ToInt(answer->id) <= model.last_publication) {
    return Wrong("expected version ", version, ", got ", answer.status().ToString());
  }
  model.last_publication = ToInt(answer->id);
  const bool replaces = replaced != nullptr;
  const PublicationId before = replaces ? replaced->id : PublicationId{};
  model.publications.push_back({.id = answer->id,
                                .tenant = tenant,
                                .name = spec.name,
                                .content_id = spec.content_id,
                                .version = version,
                                .segments = segments,
                                .metadata_bytes = spec.metadata_bytes,
                                .to_any = spec.to_any,
                                .ephemeral = spec.ephemeral,
                                .expire_after = spec.expire_after,
                                .published = now,
                                .idle_since = now,
                                .publisher = id});
  if (replaces) EndPublication(model, before, /*replaced=*/true);
  Answered(model, id, spec.request, version);
  PublishContents(model, id, model.publications.back());
  for (const auto& [waiter_id, waiter] : std::map(model.attach_waiters)) {
    if (waiter.content_id.empty() && waiter.tenant == tenant && waiter.name == spec.name &&
        waiter.version <= version &&
        (spec.to_any || model.sessions.at(waiter.session).tenant == tenant)) {
      LeaveAttachQueue(model, waiter_id);
      model.attachable.insert(waiter_id);
    }
  }
  return absl::OkStatus();
}

absl::Status Unpublish(LedgerModel& model, std::optional<SessionId> id, const std::string& text,
                       uint64_t request, const absl::StatusOr<uint64_t>& answer) {
  if (id && !Live(model, *id)) return ExpectCode(answer.status(), StatusCode::kAborted);
  if (const auto version = id ? AnswerTo(model, *id, request) : std::nullopt) {
    if (answer.ok() && *answer == *version) return absl::OkStatus();
    return Wrong("expected the answer that was given before, got ", answer.status().ToString());
  }
  const std::string tenant = id ? model.sessions.at(*id).tenant : "";
  const auto name = ParsePublication(text, tenant);
  if (!name) return ExpectCode(answer.status(), StatusCode::kInvalidArgument);
  const Publication* found = FindPublication(model, name->first, name->second);
  if (found == nullptr || (id && !found->to_any && found->tenant != tenant)) {
    return ExpectCode(answer.status(), StatusCode::kNotFound);
  }
  if (id && found->tenant != tenant) {
    return ExpectCode(answer.status(), StatusCode::kPermissionDenied);
  }
  if (!answer.ok() || *answer != found->version) {
    return Wrong("expected the end of version ", found->version);
  }
  if (id) Answered(model, *id, request, found->version);
  EndPublication(model, found->id);
  return absl::OkStatus();
}

void ExpirePublications(LedgerModel& model, absl::Time now) {
  std::map<std::pair<absl::Time, PublicationId>, PublicationId> due;
  for (const Publication& each : model.publications) {
    if (ExpiryOf(model, each) <= now) due[{ExpiryOf(model, each), each.id}] = each.id;
  }
  for (const auto& [when, id] : due) EndPublication(model, id);
}

absl::Status TakeEndedPublications(LedgerModel& model, const std::vector<PublicationId>& answer) {
  const std::set<PublicationId> expected = std::exchange(model.ended_publications, {});
  if (answer.size() == expected.size() &&
      std::set<PublicationId>(answer.begin(), answer.end()) == expected) {
    return absl::OkStatus();
  }
  return Wrong("expected ", expected.size(), " publications to have ended, got ", answer.size());
}

absl::Status ComparePublications(const LedgerModel& model, const Ledger& ledger,
                                 const std::string& tenant, absl::Time now) {
  const auto views = ledger.look().ListPublications(tenant);
  if (!views.ok()) return Wrong("publications are not listed: ", views.status().ToString());
  std::map<std::pair<std::string, std::string>, const Publication*> expected;
  for (const Publication& each : model.publications) {
    if (tenant.empty() || each.tenant == tenant) expected[{each.tenant, each.name}] = &each;
  }
  if (views->size() != expected.size()) {
    return Wrong("the ledger lists ", views->size(), " publications, expected ", expected.size());
  }
  auto view = views->begin();
  for (const auto& [name, publication] : expected) {
    uint64_t bytes = 0;
    for (SegmentId segment : publication->segments) bytes += model.segments.at(segment).bytes;
    const auto tell = [](const auto&... what) {
      return absl::StrJoin(std::make_tuple(absl::StrCat(what)...), " ");
    };
    const std::string told =
        tell(ToInt(view->id), view->tenant, view->name, view->content_id, view->version,
             view->segments, view->bytes, view->metadata_bytes, view->to_any, view->ephemeral,
             view->attached, absl::FormatDuration(view->age),
             absl::FormatDuration(view->expires_in), ToInt(view->publisher), view->publisher_alive);
    const std::string right = tell(
        ToInt(publication->id), publication->tenant, publication->name, publication->content_id,
        publication->version, publication->segments.size(), bytes, publication->metadata_bytes,
        publication->to_any, publication->ephemeral, AttachedTo(model, publication->id).size(),
        absl::FormatDuration(now - publication->published),
        absl::FormatDuration(ExpiryOf(model, *publication) - now), ToInt(publication->publisher),
        Live(model, publication->publisher));
    if (told != right) return Wrong("a publication is listed as ", told, ", expected ", right);
    ++view;
  }
  if (ledger.publications().NextExpiry() != NextExpiry(model)) {
    return Wrong("the next expiry is at the wrong time");
  }
  if (!tenant.empty()) return absl::OkStatus();
  for (const auto& [id, session] : model.sessions) {
    size_t visible = 0;
    for (const Publication& each : model.publications) {
      visible += each.to_any || each.tenant == session.tenant ? 1 : 0;
    }
    const auto attachable = ledger.look().ListAttachable(id, "");
    if (!attachable.ok() || attachable->size() != visible) {
      return Wrong("session ", ToInt(id), " sees too many publications, or too few");
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumemd::model
