// SPDX-License-Identifier: Apache-2.0
#include "gpumem/publication.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/mapping/mapper.h"
#include "client/mapping/placement.h"
#include "client/mapping/segment_state.h"
#include "client/session/convert.h"
#include "client/session/interrupt.h"
#include "client/session/session.h"
#include "common/failpoint.h"
#include "common/trace/span.h"

namespace gpumem {

struct Attachment::State {
  State(std::shared_ptr<internal::Session> the_session, std::vector<Segment> the_segments)
      : session(std::move(the_session)), segments(std::move(the_segments)) {}
  ~State() {
    std::vector<uint64_t> leases = Unmap();
    if (!leases.empty()) session->ForgetSoon(std::move(leases), size);
  }

  // Unmaps all; returns the leases of the mappings, which the caller must end.
  std::vector<uint64_t> Unmap() {
    std::vector<uint64_t> leases;
    for (Segment& segment : segments) {
      if (!segment.valid()) continue;
      leases.push_back(segment.lease_id());
      segment.state_->Unmap();
      segment.state_->leased = false;
    }
    segments.clear();
    return leases;
  }

  const std::shared_ptr<internal::Session> session;
  std::vector<Segment> segments;
  uint64_t version = 0;
  std::string tenant;
  std::string metadata;
  std::string content_id;
  void* data = nullptr;
  uint64_t size = 0;
};

struct Claim::State {
  State(std::shared_ptr<internal::Session> the_session, uint64_t the_request, std::string the_name,
        std::string the_content_id)
      : session(std::move(the_session)),
        request(the_request),
        name(std::move(the_name)),
        content_id(std::move(the_content_id)) {}
  ~State() {
    if (!released) session->ForgetClaim(request);
  }

  const std::shared_ptr<internal::Session> session;
  const uint64_t request;
  const std::string name;
  const std::string content_id;
  bool released = false;
};

namespace {

// Returns the first address of contiguous segments; null if they are not contiguous.
void* Contiguous(absl::Span<const Segment> segments) {
  uintptr_t next = 0;
  for (const Segment& segment : segments) {
    const auto here = reinterpret_cast<uintptr_t>(segment.data());
    if (next != 0 && here != next) return nullptr;
    next = here + segment.size();
  }
  return segments.empty() ? nullptr : segments.front().data();
}

PublicationInfo FromProto(const v1::PublicationInfo& proto) {
  PublicationInfo info;
  info.tenant = proto.tenant();
  info.name = proto.name();
  info.content_id = proto.content_id();
  info.version = proto.version();
  info.segments = proto.segments();
  info.bytes = proto.bytes();
  info.suspended_bytes = proto.suspended_bytes();
  info.metadata_bytes = proto.metadata_bytes();
  info.access = proto.access() == v1::PUBLICATION_ACCESS_ANY ? PublicationAccess::kAny
                                                             : PublicationAccess::kTenant;
  info.ephemeral = proto.ephemeral();
  info.attached_sessions = proto.attached_sessions();
  const auto duration_of = [](uint64_t ms) { return absl::Milliseconds(static_cast<int64_t>(ms)); };
  info.age = duration_of(proto.age_ms());
  if (proto.expire_after_ms() > 0) info.expire_after = duration_of(proto.expire_after_ms());
  if (proto.expires_in_ms() > 0) info.expires_in = duration_of(proto.expires_in_ms());
  info.publisher_session_id = proto.publisher_session_id();
  info.publisher_pid = proto.publisher_pid();
  info.publisher_name = proto.publisher_client_name();
  info.publisher_alive = proto.publisher_alive();
  return info;
}

}  // namespace

// --- Attachment ------------------------------------------------------------------------

Attachment::Attachment() = default;
Attachment::Attachment(std::unique_ptr<State> state) : state_(std::move(state)) {}
Attachment::Attachment(Attachment&&) noexcept = default;
Attachment& Attachment::operator=(Attachment&&) noexcept = default;
Attachment::~Attachment() = default;

uint64_t Attachment::version() const { return valid() ? state_->version : 0; }

const std::string& Attachment::tenant() const {
  static const std::string* const none = new std::string;
  return valid() ? state_->tenant : *none;
}

const std::string& Attachment::metadata() const {
  static const std::string* const none = new std::string;
  return valid() ? state_->metadata : *none;
}

const std::string& Attachment::content_id() const {
  static const std::string* const none = new std::string;
  return valid() ? state_->content_id : *none;
}

absl::Span<Segment> Attachment::segments() {
  return valid() ? absl::MakeSpan(state_->segments) : absl::Span<Segment>();
}

absl::Span<const Segment> Attachment::segments() const {
  return valid() ? absl::MakeConstSpan(state_->segments) : absl::Span<const Segment>();
}

void* Attachment::data() const { return valid() ? state_->data : nullptr; }

uint64_t Attachment::size() const { return valid() ? state_->size : 0; }

absl::Status Attachment::Release() {
  if (!valid()) {
    return absl::FailedPreconditionError(
        "this Attachment is empty: it was released, moved from, or never attached");
  }
  const std::unique_ptr<State> state = std::move(state_);
  std::vector<uint64_t> leases = state->Unmap();
  if (leases.empty()) return absl::OkStatus();
  return state->session->Release(std::move(leases), state->session->Deadline(std::nullopt));
}

// --- Claim -----------------------------------------------------------------------------

Claim::Claim() = default;
Claim::Claim(std::unique_ptr<State> state) : state_(std::move(state)) {}
Claim::Claim(Claim&&) noexcept = default;
Claim& Claim::operator=(Claim&&) noexcept = default;
Claim::~Claim() = default;

const std::string& Claim::name() const {
  static const std::string* const none = new std::string;
  return valid() ? state_->name : *none;
}

const std::string& Claim::content_id() const {
  static const std::string* const none = new std::string;
  return valid() ? state_->content_id : *none;
}

absl::Status Claim::Release() {
  if (!valid()) {
    return absl::FailedPreconditionError(
        "this Claim is empty: it was released, moved from, or never got");
  }
  const std::unique_ptr<State> state = std::move(state_);
  state->released = true;
  return state->session->ReleaseClaim(state->request, state->session->Deadline(std::nullopt));
}

// --- Client ----------------------------------------------------------------------------

absl::StatusOr<uint64_t> Client::Publish(absl::string_view name, absl::Span<const Segment> segments,
                                         const PublishOptions& options) {
  std::vector<const Segment*> pointers;
  for (const Segment& segment : segments) pointers.push_back(&segment);
  return Publish(name, pointers, options);
}

absl::StatusOr<uint64_t> Client::Publish(absl::string_view name,
                                         absl::Span<const Segment* const> segments,
                                         const PublishOptions& options) {
  if (options.expire_after < absl::Milliseconds(1)) {
    return absl::InvalidArgumentError(
        "PublishOptions::expire_after must be at least a millisecond, or InfiniteDuration for no "
        "expiry");
  }
  v1::PublishRequest request;
  request.set_name(std::string(name));
  request.set_content_id(options.content_id);
  for (const Segment* segment : segments) {
    if (segment == nullptr || !segment->valid() || segment->state_->session != session_) {
      return absl::InvalidArgumentError(
          "a Segment to be published is not this Client's, or was released or moved from");
    }
    if (segment->suspended()) {
      return absl::FailedPreconditionError(
          "a Segment to be published is suspended: resume it first");
    }
    request.add_lease_ids(segment->lease_id());
  }
  request.set_metadata(options.metadata);
  request.set_access(options.access == PublicationAccess::kAny ? v1::PUBLICATION_ACCESS_ANY
                                                               : v1::PUBLICATION_ACCESS_TENANT);
  request.set_ephemeral(options.ephemeral);
  if (options.expire_after != absl::InfiniteDuration()) {
    request.set_expire_after_ms(internal::ToWaitMs(options.expire_after));
  }
  request.set_request_id(session_->NewRequestId());
  absl::StatusOr<v1::PublishResponse> response =
      session_->Publish(request, session_->Deadline(options.timeout));
  if (!response.ok()) return response.status();
  return response->version();
}

absl::StatusOr<Attachment> Client::Attach(absl::string_view name) {
  return Attach(name, AttachOptions());
}

absl::StatusOr<Attachment> Client::Attach(absl::string_view name, const AttachOptions& options) {
  const trace::CallSpan call("attach");
  if (options.wait < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("AttachOptions::wait is below zero");
  }
  absl::StatusOr<MapOptions> placement = internal::Placement(
      session_->welcome(), options.map_devices, options.address, options.read_only);
  if (!placement.ok()) return placement.status();
  v1::AttachRequest request;
  request.set_name(std::string(name));
  request.set_wait_for_version(options.wait_for_version);
  // 0 would mean as long as the call may take.
  const bool waits = options.wait_for_version > 0 || (options.wait > absl::ZeroDuration() &&
                                                      options.wait < absl::InfiniteDuration());
  if (waits) request.set_wait_ms(std::max<uint64_t>(1, internal::ToWaitMs(options.wait)));
  request.set_revocable(options.revocable);
  internal::Disturbance disturbance;
  if (options.cancel.has_value()) disturbance.interrupt = options.cancel->interrupt_;
  const absl::Time deadline =
      session_->Deadline(options.timeout) + (waits ? options.wait : absl::ZeroDuration());
  internal::ArrivalMapper mapper(*session_, *placement);
  absl::StatusOr<internal::Session::Attached> attached =
      session_->Attach(request, deadline, disturbance, &mapper);
  if (!attached.ok()) return attached.status();
  std::string content_id = attached->response.content_id();
  absl::StatusOr<Attachment> mapped = MapAttached(*std::move(attached), mapper);
  if (mapped.ok()) mapped->state_->content_id = std::move(content_id);
  return mapped;
}

template <typename Answered>
absl::StatusOr<Attachment> Client::MapAttached(Answered attached, internal::ArrivalMapper& mapper) {
  absl::StatusOr<std::vector<Segment>> segments = Mapped(std::move(attached.grant), mapper);
  if (!segments.ok()) return segments.status();
  auto state = std::make_unique<Attachment::State>(session_, *std::move(segments));
  state->version = attached.response.version();
  state->tenant = attached.response.tenant();
  state->metadata = std::move(*attached.response.mutable_metadata());
  state->data = Contiguous(state->segments);
  for (const Segment& segment : state->segments) state->size += segment.size();
  Failpoint("client-attached");
  return Attachment(std::move(state));
}

absl::StatusOr<AttachedOrClaimed> Client::AttachOrClaim(absl::string_view name,
                                                        absl::string_view content_id) {
  return AttachOrClaim(name, content_id, AttachOptions());
}

absl::StatusOr<AttachedOrClaimed> Client::AttachOrClaim(absl::string_view name,
                                                        absl::string_view content_id,
                                                        const AttachOptions& options) {
  if (options.wait < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("AttachOptions::wait is below zero");
  }
  if (options.wait_for_version > 0) {
    return absl::InvalidArgumentError(
        "AttachOptions::wait_for_version is for Attach: AttachOrClaim waits for contents");
  }
  absl::StatusOr<MapOptions> placement = internal::Placement(
      session_->welcome(), options.map_devices, options.address, options.read_only);
  if (!placement.ok()) return placement.status();
  v1::AttachOrClaimRequest request;
  request.set_name(std::string(name));
  request.set_content_id(std::string(content_id));
  request.set_wait_ms(internal::ToWaitMs(options.wait));
  request.set_revocable(options.revocable);
  internal::Disturbance disturbance;
  if (options.cancel.has_value()) disturbance.interrupt = options.cancel->interrupt_;
  // Publish takes names without a tenant.
  const std::string own_name(name.substr(name.rfind('/') + 1));
  absl::StatusOr<internal::Session::AttachedOrClaimed> answer =
      session_->AttachOrClaim(request, {own_name, std::string(content_id)},
                              session_->Deadline(options.timeout) + options.wait, disturbance);
  if (!answer.ok()) return answer.status();
  AttachedOrClaimed result;
  if (answer->answered.response.claimed()) {
    result.claim = Claim(std::make_unique<Claim::State>(session_, answer->request_id, own_name,
                                                        std::string(content_id)));
    return result;
  }
  internal::ArrivalMapper mapper(*session_, *placement);
  absl::StatusOr<Attachment> mapped = MapAttached(std::move(answer->answered), mapper);
  if (!mapped.ok()) return mapped.status();
  mapped->state_->content_id = std::string(content_id);
  result.attachment = *std::move(mapped);
  return result;
}

absl::StatusOr<uint64_t> Client::Unpublish(absl::string_view name) {
  v1::UnpublishRequest request;
  request.set_name(std::string(name));
  request.set_request_id(session_->NewRequestId());
  absl::StatusOr<v1::UnpublishResponse> response =
      session_->Unpublish(request, session_->Deadline(std::nullopt));
  if (!response.ok()) return response.status();
  return response->version();
}

absl::StatusOr<std::vector<PublicationInfo>> Client::ListPublications(absl::string_view tenant) {
  v1::ListPublicationsRequest request;
  request.set_tenant(std::string(tenant));
  absl::StatusOr<v1::ListPublicationsResponse> response =
      session_->ListPublications(request, session_->Deadline(std::nullopt));
  if (!response.ok()) return response.status();
  std::vector<PublicationInfo> publications;
  for (const v1::PublicationInfo& info : response->publications()) {
    publications.push_back(FromProto(info));
  }
  return publications;
}

}  // namespace gpumem
