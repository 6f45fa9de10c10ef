// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/segments.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/devices.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/publications.h"
#include "daemon/core/ledger/testing/model/reclaim.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {

bool MayMap(const LedgerModel& model, SessionId session, SegmentId segment) {
  return std::find(model.mappings.begin(), model.mappings.end(), Mapping{session, segment}) !=
         model.mappings.end();
}

bool MayMap(const LedgerModel& model, SegmentId segment) {
  return std::any_of(model.mappings.begin(), model.mappings.end(),
                     [&](const Mapping& mapping) { return mapping.segment == segment; });
}

SegmentState StateOf(const LedgerModel& model, SegmentId id) {
  const Segment& segment = model.segments.at(id);
  if (segment.given_up) return SegmentState::kReleasing;
  for (const auto& [lease_id, lease] : model.leases) {
    if (lease.segment == id) return SegmentState::kLeased;
  }
  if (IsPublished(model, id)) return SegmentState::kLeased;
  for (const auto& [operation_id, operation] : model.operations) {
    for (const Operation::Item& item : operation.items) {
      if (item.segment == id) return SegmentState::kPending;
    }
  }
  if (MayMap(model, id) || !Importers(model, id).empty()) return SegmentState::kLingering;
  return SegmentState::kRetained;
}

std::set<SessionId> Importers(const LedgerModel& model, SegmentId id) {
  const Segment& segment = model.segments.at(id);
  std::set<SessionId> importers;
  for (const Import& import : model.imports) {
    if (segment.kind == Kind::kMempool && import.device == segment.device &&
        model.sessions.at(import.session).tenant == segment.tenant) {
      importers.insert(import.session);
    }
  }
  return importers;
}

bool IsIdleInPool(const LedgerModel& model, SegmentId id) {
  const Segment& segment = model.segments.at(id);
  return segment.kind == Kind::kMempool && !segment.lost && !MayMap(model, id) &&
         StateOf(model, id) == SegmentState::kLingering;
}

bool Held(const LedgerModel& model, SegmentId id) {
  const SegmentState state = StateOf(model, id);
  return state == SegmentState::kLeased || state == SegmentState::kPending ||
         state == SegmentState::kLingering;
}

std::map<SegmentId, Charge> Charges(const LedgerModel& model) {
  std::map<SegmentId, Charge> charges;
  for (const auto& [id, segment] : model.segments) {
    charges[id] = {StateOf(model, id), segment.revocable, segment.revoking, segment.stuck};
  }
  return charges;
}

bool AnyReleasing(const LedgerModel& model) {
  return std::any_of(model.segments.begin(), model.segments.end(),
                     [](const auto& entry) { return entry.second.given_up; });
}

std::vector<SegmentId> ContextBound(const LedgerModel& model, size_t device) {
  std::vector<SegmentId> bound;
  for (const auto& [id, segment] : model.segments) {
    if (segment.device == device && IsContextBound(segment.kind)) bound.push_back(id);
  }
  return bound;
}

std::set<SegmentId> Lasting(const LedgerModel& model) {
  std::set<SegmentId> lasting;
  for (const auto& [id, segment] : model.segments) {
    if (segment.made && !IsContextBound(segment.kind)) lasting.insert(id);
  }
  return lasting;
}

Sum SumOf(const LedgerModel& model, absl::string_view tenant, size_t device, Which which,
          const std::set<SegmentId>& without) {
  Sum sum;
  for (const auto& [id, segment] : model.segments) {
    if (!IsUnder(model, segment.tenant, tenant)) continue;
    if (device == kUnpinned ? Pinned(model, segment.device)
                            : device != kEverywhere && segment.device != device) {
      continue;
    }
    const bool held = !segment.given_up && segment.kept_since == 0;
    const bool counts = which == Which::kAll || (which == Which::kStaying && !segment.given_up) ||
                        (which == Which::kHeld && held) ||
                        (which == Which::kNotTaken && held && !segment.revoking) ||
                        (which == Which::kFirm && held && !segment.revocable) ||
                        (which == Which::kGivenUp && segment.given_up);
    if (!counts || without.contains(id)) continue;
    sum.bytes += segment.bytes;
    ++sum.segments;
  }
  return sum;
}

uint64_t Retained(const LedgerModel& model, const std::string& tenant, size_t device) {
  uint64_t bytes = 0;
  for (const auto& [id, segment] : model.segments) {
    if (segment.tenant == tenant && segment.device == device && segment.kept_since > 0) {
      bytes += segment.bytes;
    }
  }
  return bytes;
}

void MarkLost(LedgerModel& model, absl::Span<const SegmentId> segments) {
  for (SegmentId id : segments) {
    auto it = model.segments.find(id);
    if (it == model.segments.end() || it->second.lost) continue;
    // Waiters may have counted on it.
    if (IsIdleInPool(model, id)) model.queue_changed = true;
    it->second.lost = true;
    if (it->second.kept_since > 0) GiveUp(it->second);
    for (const auto& [lease_id, lease] : model.leases) {
      if (lease.segment == id) model.orphaned.insert(lease.session);
    }
  }
}

absl::Status TakeBereaved(LedgerModel& model, const std::vector<SessionId>& answer) {
  const std::set<SessionId> expected = std::exchange(model.orphaned, {});
  if (std::equal(answer.begin(), answer.end(), expected.begin(), expected.end())) {
    return absl::OkStatus();
  }
  return Wrong("expected ", expected.size(), " sessions to be told of a loss, got ", answer.size());
}

}  // namespace gpumemd::model
