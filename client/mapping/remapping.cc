// SPDX-License-Identifier: Apache-2.0
#include "client/mapping/remapping.h"

#include <set>
#include <utility>

namespace gpumem::internal {
namespace {

// The slowest copy that an unset timeout allows.
constexpr uint64_t kBytesPerSecond = uint64_t{1} << 30;

// True if `next` can be mapped in one call with `state`, right behind it.
bool Continues(const Remapping::State& state, const Remapping::State& next) {
  const Reserved& a = *state.reserved;
  const Reserved& b = *next.reserved;
  return static_cast<char*>(a.options.address) + a.bytes == b.options.address &&
         a.options.range == b.options.range && a.options.read_only == b.options.read_only &&
         a.options.device_uuids == b.options.device_uuids;
}

}  // namespace

absl::StatusOr<Remapping::States> Remapping::StatesOf(const std::shared_ptr<Session>& session,
                                                      absl::Span<Segment* const> segments) {
  if (segments.empty()) return absl::InvalidArgumentError("the list of segments is empty");
  States states;
  for (const Segment* segment : segments) {
    if (segment == nullptr || !segment->valid() || segment->state_->session != session) {
      return absl::InvalidArgumentError(
          "a Segment is not this Client's, or was released or moved from");
    }
    states.push_back(segment->state_.get());
  }
  if (std::set<State*>(states.begin(), states.end()).size() != states.size()) {
    return absl::InvalidArgumentError("a Segment is in the list twice");
  }
  return states;
}

absl::Time Remapping::Deadline(const Session& session, const States& states,
                               std::optional<absl::Duration> timeout) {
  const absl::Time deadline = session.Deadline(timeout);
  if (timeout.has_value()) return deadline;
  uint64_t bytes = 0;
  for (const State* state : states) bytes += state->mapped.lease.size_bytes();
  return deadline + absl::Seconds(bytes / kBytesPerSecond);
}

std::vector<std::string> Remapping::DevicesOf(absl::Span<State* const> states) {
  std::set<std::string> devices;
  for (const State* state : states) {
    const absl::Span<const std::string> uuids = state->mapped.mapping->device_uuids();
    devices.insert(uuids.begin(), uuids.end());
  }
  return {devices.begin(), devices.end()};
}

std::string Remapping::GpuOf(const Segment& segment) {
  const State& state = *segment.state_;
  const absl::Span<const std::string> gpus = state.reserved.has_value()
                                                 ? state.reserved->options.device_uuids
                                                 : state.mapped.mapping->device_uuids();
  return gpus.empty() ? state.mapped.lease.device_uuid() : gpus.front();
}

absl::Status Remapping::Unmap(State* state) {
  state->fd.reset();
  absl::StatusOr<Reserved> reserved = Detach(state->mapped.mapping);
  if (!reserved.ok()) return reserved.status();
  state->reserved = *std::move(reserved);
  return absl::OkStatus();
}

absl::Status Remapping::MapReserved(absl::Span<State* const> states, Map map) {
  for (size_t begin = 0, end = 0; begin < states.size(); begin = end) {
    for (end = begin + 1; end < states.size() && Continues(*states[end - 1], *states[end]); ++end) {
    }
    absl::StatusOr<Mappings> mappings = map(begin, end - begin, states[begin]->reserved->options);
    if (!mappings.ok()) return mappings.status();
    for (size_t i = begin; i < end; ++i) {
      states[i]->mapped.mapping = std::move((*mappings)[i - begin]);
      states[i]->reserved.reset();
    }
  }
  return absl::OkStatus();
}

}  // namespace gpumem::internal
