// SPDX-License-Identifier: Apache-2.0
#include "client/mapping/demotion.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/mapping/kind.h"
#include "common/cuda/synchronize.h"
#include "common/failpoint.h"

namespace gpumem::internal {
namespace {

using State = Remapping::State;
using Memory = DemotionBatch::Memory;

absl::string_view Verb(Demotion::Direction direction) {
  return direction == Demotion::Direction::kDemote ? "demoted" : "promoted";
}

// See Demotion::Of.
absl::Status CheckState(const Segment& segment, bool has_fd, Demotion::Direction direction) {
  const bool demotes = direction == Demotion::Direction::kDemote;
  const auto refused = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat("the segment of lease ", segment.lease_id(),
                                                      " cannot be ", Verb(direction), ": ", why));
  };
  if (segment.kind() != Kind::kVmm && segment.kind() != Kind::kHost) {
    return absl::UnimplementedError(absl::StrCat("a segment of kind ", KindName(segment.kind()),
                                                 " cannot be ", Verb(direction), "; kind ",
                                                 KindName(Kind::kVmm), " can be demoted"));
  }
  if (!demotes && !segment.demoted()) return refused("it is not demoted");
  if (demotes && segment.demoted()) return refused("it is demoted already");
  if (demotes && segment.kind() == Kind::kHost) return refused("it is host memory");
  if (segment.suspended()) return refused("it is suspended; resume it first");
  if (segment.revocable()) return refused("it is revocable");
  if (segment.scratch()) return refused("it is scratch memory; suspend it instead");
  if (demotes && has_fd) {
    return refused(
        "the program has its descriptor (fd()), which keeps the memory; Suspend closes it");
  }
  return absl::OkStatus();
}

// Returns the GPU of this process that copies; empty on the host backend.
std::string CopyingGpu(const State& state) {
  const absl::Span<const std::string> gpus = state.mapped.mapping->device_uuids();
  return gpus.empty() ? "" : gpus.front();
}

// Returns the request for the other memory of such a segment, without size and count.
v1::AcquireRequest RequestFor(const State& state, Demotion::Direction direction) {
  v1::AcquireRequest request;
  if (direction == Demotion::Direction::kDemote) {
    request.set_kind(v1::KIND_HOST);
  } else {
    request.set_kind(v1::KIND_VMM);
    request.set_device_uuid(state.home);
  }
  return request;
}

// Returns how many segments are switched next, after so many took so long.
size_t NextCount(size_t count, absl::Duration took, absl::Duration longest) {
  const double each = std::max(absl::ToDoubleSeconds(took), 1e-9) / static_cast<double>(count);
  const double fit = absl::ToDoubleSeconds(longest) / each;
  // Doubles at most: one that was quick by chance is no measure.
  return static_cast<size_t>(std::clamp(fit, 1.0, 2.0 * static_cast<double>(count)));
}

}  // namespace

absl::StatusOr<Demotion> Demotion::Of(std::shared_ptr<Session> session,
                                      absl::Span<Segment* const> segments, Direction direction) {
  absl::StatusOr<States> states = Remapping::StatesOf(session, segments);
  if (!states.ok()) return states.status();
  for (size_t i = 0; i < segments.size(); ++i) {
    const bool has_fd = (*states)[i]->fd.valid();
    if (absl::Status status = CheckState(*segments[i], has_fd, direction); !status.ok()) {
      return status;
    }
  }
  return Demotion(std::move(session), *std::move(states), direction);
}

absl::Status Demotion::Run(const DemoteOptions& options, const Disturbance& disturbance) {
  devices_ = Remapping::DevicesOf(states_);
  if (absl::Status status = Prepare(options, disturbance); !status.ok()) return status;
  absl::Status status = Take(options);
  if (!status.ok()) {
    Undo(options);
    status = Explain(status);
  }
  Failpoint("client-demote-exchanged");
  for (DemotionBatch& batch : batches_) batch.Finish();
  return status;
}

absl::Status Demotion::Prepare(const DemoteOptions& options, const Disturbance& disturbance) {
  // Of one request: memory of one device, of one size, that the same GPU copies.
  std::map<std::tuple<std::string, std::string, uint64_t>, States> groups;
  for (State* state : states_) {
    groups[{state->home, CopyingGpu(*state), state->mapped.lease.size_bytes()}].push_back(state);
  }
  const absl::Time end = absl::Now() + options.wait;
  for (auto& [key, group] : groups) {
    std::sort(group.begin(), group.end(), [](const State* a, const State* b) {
      return a->mapped.mapping->data() < b->mapped.mapping->data();
    });
    for (size_t done = 0; done < group.size(); done += DemotionBatch::kMost) {
      const size_t count = std::min(group.size() - done, DemotionBatch::kMost);
      const auto first = group.begin() + static_cast<std::ptrdiff_t>(done);
      batches_.emplace_back(session_, States(first, first + static_cast<std::ptrdiff_t>(count)));
      const absl::Duration wait = std::max(absl::ZeroDuration(), end - absl::Now());
      absl::Status status = batches_.back().Acquire(RequestFor(*group.front(), direction_), wait,
                                                    options.timeout, disturbance);
      if (!status.ok()) return status;
    }
  }
  // What was submitted before the call may write.
  if (absl::Status status = SynchronizeDevices(devices_); !status.ok()) return status;
  for (DemotionBatch& batch : batches_) {
    if (absl::Status status = batch.MapElsewhere(); !status.ok()) return status;
    if (absl::Status status = batch.Copy(); !status.ok()) return status;
  }
  Failpoint("client-demote-copied");
  return absl::OkStatus();
}

absl::Status Demotion::Take(const DemoteOptions& options) {
  for (DemotionBatch& batch : batches_) {
    if (absl::Status status = Switch(batch, Memory::kNew, options); !status.ok()) return status;
  }
  for (DemotionBatch& batch : batches_) {
    const absl::Time deadline = session_->Deadline(options.timeout);
    if (absl::Status status = batch.Exchange(deadline); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Demotion::Switch(DemotionBatch& batch, Memory to, const DemoteOptions& options) const {
  absl::Status result;
  size_t done = 0;
  size_t count = 1;
  while (done < batch.size()) {
    count = std::min(count, batch.size() - done);
    if (!batch.Differs(done, count, to)) {
      done += count;
      continue;
    }
    absl::Status status = options.pause ? options.pause() : SynchronizeDevices(devices_);
    if (!status.ok()) return status;
    const absl::Time began = absl::Now();
    status = batch.Switch(done, count, to);
    if (!status.ok() && to == Memory::kNew) {
      batch.Switch(done, count, Memory::kOld).IgnoreError();  // Undo() tries once more
    }
    const absl::Duration took = absl::Now() - began;
    if (options.proceed) options.proceed();
    Failpoint("client-demote-switched");
    result.Update(status);
    if (!result.ok() && to == Memory::kNew) return result;
    done += count;
    count = NextCount(count, took, options.longest_pause);
  }
  return result;
}

void Demotion::Undo(const DemoteOptions& options) {
  for (DemotionBatch& batch : batches_) batch.ExchangeBack(session_->Deadline(options.timeout));
  for (DemotionBatch& batch : batches_) {
    if (Switch(batch, Memory::kOld, options).ok()) continue;
    // What could not be switched back keeps the new memory. So the daemon has to know.
    batch.Exchange(session_->Deadline(options.timeout)).IgnoreError();
  }
}

absl::Status Demotion::Explain(const absl::Status& error) const {
  const bool changed = std::any_of(batches_.begin(), batches_.end(),
                                   [](const DemotionBatch& batch) { return batch.IsChanged(); });
  if (!changed) return error;
  absl::Status both(
      error.code(),
      absl::StrCat(error.message(), "; not all segments could be brought back: some are ",
                   Verb(direction_), ", or suspended"));
  error.ForEachPayload([&both](absl::string_view type, const absl::Cord& payload) {
    both.SetPayload(type, payload);
  });
  return both;
}

}  // namespace gpumem::internal
