// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/driver/overheads.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

constexpr size_t kFewLeases = 8;

}  // namespace

absl::Status CheckDriverBytes(const LedgerState& state, SessionId id,
                              const records::Session& session) {
  const auto wrong = [id] {
    return absl::InternalError(
        absl::StrCat("session ", ToInt(id), " miscounts the memory of its driver"));
  };
  absl::btree_map<size_t, uint64_t> bytes;
  absl::btree_map<size_t, std::set<LeaseId>> overheads;
  for (LeaseId id_of_lease : session.leases) {
    const records::Lease& lease = state.leases.at(id_of_lease);
    const records::Segment& segment = *state.segments.at(lease.segment);
    if (!TraitsOf(segment.kind).charge_only) continue;
    if (lease.tag == records::kOverheadTag) {
      overheads[segment.device].insert(id_of_lease);
    } else {
      bytes[segment.device] += segment.charge.bytes();
    }
  }
  if (bytes != session.driver_bytes || overheads.size() != session.overheads.size()) return wrong();
  for (const auto& [device, held] : session.overheads) {
    if (overheads[device] != std::set<LeaseId>(held.begin(), held.end())) return wrong();
  }
  return absl::OkStatus();
}

void AddDriverBytes(const LedgerState& state, const records::Session& session, SessionView& view) {
  for (const auto& [device, bytes] : session.driver_bytes)
    view.driver_bytes[state.devices[device].uuid] = bytes;
  for (const auto& [device, leases] : session.overheads) {
    for (LeaseId lease : leases) {
      view.overhead_bytes[state.devices[device].uuid] +=
          state.segments.at(state.leases.at(lease).segment)->charge.bytes();
    }
  }
}

std::vector<SegmentId> Overheads::Set(const DriverOverhead& overhead) {
  auto found = state_.sessions.find(overhead.session);
  const absl::StatusOr<size_t> device = state_.FindDevice(overhead.device_uuid);
  if (found == state_.sessions.end() || !found->second->live || !device.ok()) return {};
  records::Session& session = *found->second;
  const std::vector<LeaseId> held =
      session.overheads.contains(*device) ? session.overheads.at(*device) : std::vector<LeaseId>();
  uint64_t charged = 0;
  for (LeaseId lease : held)
    charged += state_.segments.at(state_.leases.at(lease).segment)->charge.bytes();
  const DeviceInfo& info = state_.devices[*device];
  const uint64_t wanted = overhead.bytes - overhead.bytes % info.granularity_bytes;
  if (wanted <= charged) {
    // Whole leases alone: what has ended counts until it is given back, so that nothing could take
    // its place at once on a full device.
    for (LeaseId lease : held) {
      const uint64_t bytes = state_.segments.at(state_.leases.at(lease).segment)->charge.bytes();
      if (bytes > charged - wanted) continue;
      leases_.End(lease, /*unmapped=*/true);
      charged -= bytes;
    }
    return {};
  }
  const uint64_t lacks = wanted - charged;
  // Beyond a few leases it grows in larger steps, so that their number stays small.
  if (held.size() >= kFewLeases && lacks < charged / kFewLeases) return {};
  const uint64_t used = state_.charged(*device);
  uint64_t left = info.capacity_bytes - std::min(info.capacity_bytes, used);
  left -= left % info.granularity_bytes;
  // Retained memory makes room, for the next time.
  if (lacks > left) operations_.MakeRoomOnDevice(overhead.session, *device, lacks - left);
  const uint64_t more = std::min(lacks, left);
  if (more == 0) return {};
  const auto process = state_.processes.find(LedgerState::ProcessOf(session));
  const bool revocable = process != state_.processes.end() && process->second.revocable;
  const Operation operation = operations_.Grant(overhead.session,
                                                {.tenant = session.tenant,
                                                 .device = *device,
                                                 .kind = Kind::kDriver,
                                                 .bytes = more,
                                                 .count = 1,
                                                 .revocable = revocable,
                                                 .tag = std::string(records::kOverheadTag)},
                                                {});
  const Operation::Item& item = operation.items.front();
  operations_.Created(item.segment);
  operations_.Commit(operation).IgnoreError();  // the session is live
  return {item.segment};
}

}  // namespace gpumemd
