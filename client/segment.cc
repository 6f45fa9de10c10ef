#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/convert.h"
#include "client/segment_state.h"
#include "client/ticket.h"

namespace gpumem {
namespace {

absl::Status NotValid() {
  return absl::FailedPreconditionError(
      "this Segment holds nothing: it was released, moved from, or never filled");
}

}  // namespace

Segment::State::~State() {
  Unmap();
  if (leased) session->Forget({mapped.lease.lease_id()});
}

void Segment::State::Unmap() {
  if (mapped.backend == Backend::kCuda && session->forked()) (void)mapped.mapping.release();
  mapped.mapping.reset();
}

Segment::Segment() = default;
Segment::Segment(std::unique_ptr<State> state) : state_(std::move(state)) {}
Segment::Segment(Segment&&) noexcept = default;
Segment& Segment::operator=(Segment&&) noexcept = default;
Segment::~Segment() = default;

void* Segment::data() const { return valid() ? state_->mapped.mapping->data() : nullptr; }

uint64_t Segment::size() const { return valid() ? state_->mapped.lease.size_bytes() : 0; }

const std::string& Segment::device_uuid() const {
  static const std::string* const none = new std::string;
  return valid() ? state_->mapped.lease.device_uuid() : *none;
}

Kind Segment::kind() const { return valid() ? state_->mapped.kind : Kind::kDefault; }

Backend Segment::backend() const { return valid() ? state_->mapped.backend : Backend::kHost; }

uint64_t Segment::lease_id() const { return valid() ? state_->mapped.lease.lease_id() : 0; }

uint64_t Segment::segment_id() const { return valid() ? state_->mapped.lease.segment_id() : 0; }

bool Segment::reused() const { return valid() && state_->mapped.lease.reused(); }

absl::StatusOr<Ticket> Segment::Share(TicketScope scope) const {
  if (!valid()) return NotValid();
  internal::Session& session = *state_->session;
  v1::ShareRequest request;
  request.set_lease_id(lease_id());
  request.set_scope(internal::ToProto(scope));
  absl::StatusOr<v1::ShareResponse> response =
      session.Share(request, session.Deadline(std::nullopt));
  if (!response.ok()) return response.status();
  return Ticket{internal::FormatTicket(response->ticket())};
}

absl::Status Segment::Release() {
  if (!valid()) return NotValid();
  const std::unique_ptr<State> state = std::move(state_);
  internal::Session& session = *state->session;
  state->Unmap();
  state->leased = false;
  return session.Release({state->mapped.lease.lease_id()}, session.Deadline(std::nullopt));
}

}  // namespace gpumem
