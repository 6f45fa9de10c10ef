// SPDX-License-Identifier: Apache-2.0
#include "client/mapping/demotion_batch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/convert.h"
#include "common/cuda/mapped_copy.h"
#include "common/failpoint.h"
#include "common/unique_fd.h"

namespace gpumem::internal {
namespace {

// Returns the error of a mapping. The arguments are the daemon's and this library's, not the
// caller's.
absl::Status MappingError(const absl::Status& error) {
  return absl::Status(absl::IsResourceExhausted(error) ? error.code() : absl::StatusCode::kInternal,
                      absl::StrCat("cannot map the other memory: ", error.message()));
}

// True if a call that failed with this status may have taken effect.
bool MayHaveTakenEffect(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
}

}  // namespace

DemotionBatch::DemotionBatch(std::shared_ptr<Session> session, const Remapping::States& states)
    : session_(std::move(session)) {
  for (State* state : states) {
    parts_.emplace_back();
    parts_.back().state = state;
  }
}

bool DemotionBatch::on_cuda() const {
  return parts_.front().state->mapped.backend == Backend::kCuda;
}

absl::Status DemotionBatch::Acquire(v1::AcquireRequest request, absl::Duration wait,
                                    std::optional<absl::Duration> timeout,
                                    const Disturbance& disturbance) {
  const uint64_t bytes = parts_.front().state->mapped.lease.size_bytes();
  request.set_bytes(bytes);
  request.set_count(static_cast<uint32_t>(parts_.size()));
  request.set_wait_ms(ToWaitMs(wait));
  Remapping::States states;
  for (const Part& part : parts_) states.push_back(part.state);
  const absl::Time deadline = Remapping::Deadline(*session_, states, timeout) + wait;
  const bool waits = request.wait_ms() > 0 || disturbance.interrupt != nullptr;
  absl::StatusOr<Grant> grant = waits ? session_->AcquireWaiting(request, deadline, disturbance)
                                      : session_->Acquire(request, deadline);
  if (!grant.ok()) return grant.status();
  grant_ = std::make_unique<Grant>(*std::move(grant));
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].other = grant_->leases()[i];
    if (parts_[i].other.size_bytes() == bytes) continue;
    return absl::UnimplementedError(absl::StrCat(
        "a segment of ", bytes, " bytes cannot be exchanged for one of ",
        parts_[i].other.size_bytes(), " bytes, to which the daemon has rounded the size"));
  }
  Failpoint("client-demote-acquired");
  return Check(session_->Deadline(timeout));
}

absl::Status DemotionBatch::Check(absl::Time deadline) {
  v1::ExchangeLeasesRequest request;
  request.set_check_only(true);
  for (const Part& part : parts_) Add(part, Memory::kNew, &request);
  return session_->ExchangeLeases(request, deadline);
}

absl::Status DemotionBatch::MapElsewhere() {
  std::vector<MapRequest> requests;
  std::vector<const Mapping*> old;
  for (size_t i = 0; i < parts_.size(); ++i) {
    requests.push_back({.fd = grant_->fds()[i].get(), .bytes = parts_[i].other.size_bytes()});
    old.push_back(parts_[i].state->mapped.mapping.get());
  }
  // The GPU that copies. It alone uses the memory there.
  MapOptions copies;
  if (on_cuda()) copies.device_uuids = {old.front()->device_uuids().front()};
  absl::StatusOr<Mappings> spare =
      on_cuda() ? MapCuda(requests, copies) : MapHost(requests, copies);
  grant_->TakeFds();
  if (!spare.ok()) return MappingError(spare.status());
  absl::StatusOr<Mappings> kept = on_cuda() ? MapCudaAgain(old, {}) : MapHostAgain(old, {});
  if (!kept.ok()) return MappingError(kept.status());
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].spare = std::move((*spare)[i]);
    parts_[i].kept = std::move((*kept)[i]);
  }
  return absl::OkStatus();
}

absl::Status DemotionBatch::Copy() const {
  std::vector<MappedCopy> copies;
  for (const Part& part : parts_) {
    const Mapping& old = *part.state->mapped.mapping;
    copies.push_back({.to = part.spare->data(), .from = old.data(), .bytes = old.size()});
  }
  if (on_cuda()) return CopyOnDevice(parts_.front().spare->device_uuids().front(), copies);
  CopyOnHost(copies);
  return absl::OkStatus();
}

bool DemotionBatch::Differs(size_t first, size_t count, Memory to) const {
  return std::any_of(parts_.begin() + static_cast<std::ptrdiff_t>(first),
                     parts_.begin() + static_cast<std::ptrdiff_t>(first + count),
                     [to](const Part& part) {
                       // What the daemon has exchanged stays with its new memory.
                       if (to == Memory::kOld && part.exchanged == Exchanged::kYes) return false;
                       return part.mapped != to || part.state->reserved.has_value();
                     });
}

absl::Status DemotionBatch::Switch(size_t first, size_t count, Memory to) {
  absl::Status status;
  std::vector<Part*> parts;
  Remapping::States states;
  for (size_t i = first; i < first + count; ++i) {
    if (!Differs(i, 1, to)) continue;
    State* const state = parts_[i].state;
    if (!state->reserved.has_value()) status.Update(Remapping::Unmap(state));
    if (!state->reserved.has_value()) continue;
    // If it stays without memory, Resume maps what its lease has had before.
    parts_[i].mapped = Memory::kOld;
    parts.push_back(&parts_[i]);
    states.push_back(state);
  }
  Failpoint("client-demote-unmapped");
  // Also after an error: as few addresses as possible stay without memory.
  const absl::Status mapped = Remapping::MapReserved(
      states,
      [&](size_t begin, size_t number, const MapOptions& options) -> absl::StatusOr<Mappings> {
        std::vector<const Mapping*> memory;
        for (size_t i = begin; i < begin + number; ++i) {
          memory.push_back((to == Memory::kNew ? parts[i]->spare : parts[i]->kept).get());
        }
        absl::StatusOr<Mappings> mappings =
            on_cuda() ? MapCudaAgain(memory, options) : MapHostAgain(memory, options);
        if (!mappings.ok()) return MappingError(mappings.status());
        for (size_t i = begin; i < begin + number; ++i) parts[i]->mapped = to;
        return mappings;
      });
  status.Update(mapped);
  return status;
}

void DemotionBatch::Add(const Part& part, Memory to, v1::ExchangeLeasesRequest* request) const {
  v1::ExchangeLeasesRequest::Pair* const pair = request->add_pairs();
  pair->set_lease_id(part.state->mapped.lease.lease_id());
  pair->set_other_lease_id(part.other.lease_id());
  const uint64_t old_segment = part.state->mapped.lease.segment_id();
  const uint64_t new_segment = part.other.segment_id();
  pair->set_segment_id(to == Memory::kNew ? old_segment : new_segment);
  pair->set_other_segment_id(to == Memory::kNew ? new_segment : old_segment);
}

absl::Status DemotionBatch::Ask(const std::vector<Part*>& parts, Memory to, absl::Time deadline) {
  if (parts.empty()) return absl::OkStatus();
  v1::ExchangeLeasesRequest request;
  for (const Part* part : parts) Add(*part, to, &request);
  absl::Status status = session_->ExchangeLeases(request, deadline);
  for (Part* part : parts) {
    if (status.ok()) part->exchanged = to == Memory::kNew ? Exchanged::kYes : Exchanged::kNo;
    if (MayHaveTakenEffect(status)) part->exchanged = Exchanged::kUnknown;
  }
  return status;
}

absl::Status DemotionBatch::Exchange(absl::Time deadline) {
  std::vector<Part*> parts;
  for (Part& part : parts_) {
    if (part.mapped == Memory::kNew && part.exchanged == Exchanged::kNo) parts.push_back(&part);
  }
  return Ask(parts, Memory::kNew, deadline);
}

void DemotionBatch::ExchangeBack(absl::Time deadline) {
  std::vector<Part*> parts;
  for (Part& part : parts_) {
    if (part.exchanged != Exchanged::kNo) parts.push_back(&part);
  }
  // A pair that was not exchanged is no error. After one, the segments keep the memory that the
  // daemon has given them.
  Ask(parts, Memory::kOld, deadline).IgnoreError();
}

bool DemotionBatch::IsChanged() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) {
    return part.mapped != Memory::kOld || part.state->reserved.has_value();
  });
}

void DemotionBatch::Finish() {
  std::vector<uint64_t> released;
  for (Part& part : parts_) {
    part.spare.reset();
    part.kept.reset();
    const Memory leased = part.exchanged == Exchanged::kYes ? Memory::kNew : Memory::kOld;
    // Else the daemon's books are not known, or not followed: the session keeps both leases, so
    // that no memory counts as free that is mapped here.
    if (part.exchanged != Exchanged::kUnknown && leased == part.mapped) {
      released.push_back(part.other.lease_id());
    }
    if (part.exchanged != Exchanged::kYes) continue;
    MappedLease& mapped = part.state->mapped;
    const bool demoted = part.other.kind() == v1::KIND_HOST;
    part.state->home = demoted ? mapped.lease.device_uuid() : "";
    mapped.kind = demoted ? Kind::kHost : Kind::kVmm;
    part.other.set_lease_id(mapped.lease.lease_id());
    mapped.lease = part.other;
  }
  grant_->Keep();
  session_->Forget(std::move(released));
}

}  // namespace gpumem::internal
