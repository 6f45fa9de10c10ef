// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/mapping/kind.h"
#include "client/mapping/segment_state.h"
#include "client/session/abandon.h"
#include "client/session/convert.h"
#include "client/session/ticket.h"
#include "common/trace/span.h"

namespace gpumem {
namespace {

absl::Status NotValid() {
  return absl::FailedPreconditionError(
      "this Segment is empty: it was released, moved from, or never acquired");
}

Sharing SharingOf(Kind kind) { return internal::TraitsOf(kind).sharing; }

// Returns the error that names the alternative of `kind` for programs that do not use gpumem.
absl::Status HasInstead(absl::string_view asked, Kind kind) {
  absl::string_view has;
  switch (SharingOf(kind)) {
    case Sharing::kNone:
    case Sharing::kUnshared:
      return absl::UnimplementedError(
          absl::StrCat("this library has no ", asked, " of segments of kind ", KindName(kind)));
    case Sharing::kDescriptor:
      has = "fd()";
      break;
    case Sharing::kPool:
      has = "export_data() and pool_fd()";
      break;
    case Sharing::kIpcHandle:
      has = "ipc_handle()";
      break;
  }
  return absl::UnimplementedError(
      absl::StrCat("a segment of kind ", KindName(kind), " has no ", asked, "; it has ", has));
}

// The mapper has checked the number of bytes.
Handle HandleOf(const v1::Lease& lease) {
  Handle handle = {};
  std::copy_n(lease.export_data().begin(), std::min(handle.size(), lease.export_data().size()),
              handle.begin());
  return handle;
}

}  // namespace

Segment::State::~State() {
  if (!leased) {
    Unmap();
    return;
  }
  const trace::CallSpan call("release");
  Unmap();
  session->ForgetSoon({mapped.lease.lease_id()}, mapped.lease.size_bytes());
}

void Segment::State::Unmap() {
  const bool cuda = mapped.backend == Backend::kCuda ||
                    (mapped.mapping != nullptr && mapped.mapping->registered());
  // Shared by the process's Segments, behind a lock that another thread may hold at fork().
  const bool shared = SharingOf(mapped.kind) != Sharing::kDescriptor;
  if ((cuda || shared) && session->forked()) {
    internal::Abandon(std::move(mapped.mapping));
    internal::Abandon(std::move(mapped.pool));
    internal::Abandon(std::move(reserved));
  }
  mapped.mapping.reset();
  reserved.reset();
  fd.reset();
  if (mapped.pool == nullptr) return;
  mapped.pool.reset();
  session->DropDeadPools();
}

absl::StatusOr<UniqueFd> Segment::State::FetchFd() {
  const absl::Time deadline = session->Deadline(std::nullopt);
  v1::ShareRequest share;
  share.set_lease_id(mapped.lease.lease_id());
  // A ticket for the owning tenant's sessions is invalid for other tenants. It never leaves this
  // process.
  share.set_scope(mapped.lease.tenant() == session->welcome().tenant() ? v1::TICKET_SCOPE_TENANT
                                                                       : v1::TICKET_SCOPE_ANY);
  share.set_given_away(true);
  absl::StatusOr<v1::ShareResponse> ticket = session->Share(share, deadline);
  if (!ticket.ok()) return ticket.status();
  v1::OpenRequest open;
  open.add_tickets(ticket->ticket());
  open.set_revocable(mapped.lease.revocable());
  // Its destructor releases the second lease; the first lease covers the descriptor.
  absl::StatusOr<internal::Grant> grant = session->Open(open, deadline);
  if (!grant.ok()) return grant.status();
  std::vector<UniqueFd> fds = grant->TakeFds();
  if (!fds.front().valid()) {
    return absl::InternalError(
        "the daemon sent no file descriptor for the segment; this is a defect of gpumem");
  }
  return std::move(fds.front());
}

Segment::Segment() = default;
Segment::Segment(std::unique_ptr<State> state) : state_(std::move(state)) {}
Segment::Segment(Segment&&) noexcept = default;
Segment& Segment::operator=(Segment&&) noexcept = default;
Segment::~Segment() = default;

void* Segment::data() const {
  if (!valid()) return nullptr;
  return suspended() ? state_->reserved->options.address : state_->mapped.mapping->data();
}

bool Segment::suspended() const { return valid() && state_->reserved.has_value(); }

bool Segment::demoted() const { return valid() && !state_->home.empty(); }

const std::string& Segment::tag() const {
  static const std::string* const none = new std::string;
  return valid() ? state_->tag : *none;
}

bool Segment::scratch() const { return valid() && state_->mapped.lease.scratch(); }

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

bool Segment::revocable() const { return valid() && state_->mapped.lease.revocable(); }

bool Segment::registered() const {
  return valid() && !suspended() && state_->mapped.mapping->registered();
}

absl::StatusOr<Handle> Segment::ipc_handle() const {
  if (!valid()) return NotValid();
  if (SharingOf(kind()) != Sharing::kIpcHandle) return HasInstead("cudaIpcMemHandle_t", kind());
  return HandleOf(state_->mapped.lease);
}

absl::StatusOr<Handle> Segment::export_data() const {
  if (!valid()) return NotValid();
  if (SharingOf(kind()) != Sharing::kPool) return HasInstead("cudaMemPoolPtrExportData", kind());
  return HandleOf(state_->mapped.lease);
}

absl::StatusOr<int> Segment::pool_fd() const {
  if (!valid()) return NotValid();
  if (SharingOf(kind()) != Sharing::kPool) return HasInstead("memory pool", kind());
  return state_->mapped.pool->fd.get();
}

absl::StatusOr<int> Segment::fd() {
  if (!valid()) return NotValid();
  if (SharingOf(kind()) != Sharing::kDescriptor) {
    return HasInstead("separate file descriptor", kind());
  }
  if (suspended()) {
    return absl::FailedPreconditionError("the segment is suspended: it has no memory; resume it");
  }
  if (!state_->fd.valid()) {
    absl::StatusOr<UniqueFd> fd = state_->FetchFd();
    if (!fd.ok()) return fd.status();
    state_->fd = *std::move(fd);
  }
  return state_->fd.get();
}

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

absl::Status Segment::Move(absl::Span<Segment* const> segments,
                           const std::shared_ptr<const AddressRange>& range, void* address) {
  std::vector<Mapping*> mappings;
  for (const Segment* segment : segments) {
    mappings.push_back(segment->state_->mapped.mapping.get());
  }
  return segments.front()->backend() == Backend::kCuda ? MoveCuda(mappings, range, address)
                                                       : MoveHost(mappings, range, address);
}

absl::Status Segment::Release(std::optional<absl::Duration> timeout) {
  if (!valid()) return NotValid();
  const trace::CallSpan call("release");
  const std::unique_ptr<State> state = std::move(state_);
  internal::Session& session = *state->session;
  state->Unmap();
  state->leased = false;
  return session.Release({state->mapped.lease.lease_id()}, session.Deadline(timeout));
}

}  // namespace gpumem
