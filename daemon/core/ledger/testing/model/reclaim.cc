// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/reclaim.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/testing/model/answers.h"
#include "daemon/core/ledger/testing/model/devices.h"
#include "daemon/core/ledger/testing/model/limits.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/sessions.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {
namespace {

// Takes the first device on which the tenant retains any. Returns false if it retains none.
bool GiveUpAnywhere(LedgerModel& model, const std::string& tenant, bool pinned_too = true) {
  for (size_t device = 0; device < model.devices.size(); ++device) {
    if (!pinned_too && Pinned(model, device)) continue;
    if (GiveUpOldest(model, tenant, device)) return true;
  }
  return false;
}

// Gives up the oldest segment of the tenant that retains most on the device; by name if several do.
// Returns false if none retains any.
bool GiveUpOfLargestRetainer(LedgerModel& model, size_t device, absl::string_view above = "") {
  std::string largest;
  uint64_t most = 0;
  for (const auto& [name, tenant] : model.tenants) {
    const uint64_t bytes = Retained(model, name, device);
    if (bytes <= most || !IsUnder(model, name, above)) continue;
    most = bytes;
    largest = name;
  }
  return most > 0 && GiveUpOldest(model, largest, device);
}

}  // namespace

void GiveUp(Segment& segment) {
  segment.kept_since = 0;
  segment.given_up = true;
  segment.revoking = false;
  if (segment.kind != Kind::kTier) segment.home.clear();
}

bool GiveUpOldest(LedgerModel& model, const std::string& tenant, size_t device) {
  Segment* oldest = nullptr;
  for (auto& [id, segment] : model.segments) {
    if (segment.tenant != tenant || segment.device != device || segment.kept_since == 0) continue;
    if (oldest == nullptr || segment.kept_since < oldest->kept_since) oldest = &segment;
  }
  if (oldest == nullptr) return false;
  GiveUp(*oldest);
  return true;
}

void GiveUpAllOf(LedgerModel& model, const std::string& tenant) {
  while (GiveUpAnywhere(model, tenant)) {
  }
}

void GiveUpFor(LedgerModel& model, const Request& request, uint32_t fresh, const Claims& claims) {
  const std::string& name = request.tenant;
  const size_t device = request.device;
  const auto over = [&](const LimitName& limit, uint64_t staying, uint64_t more, uint64_t most) {
    return SumOfThree(staying, more, On(claims, limit).asked) > most;
  };
  const auto from_anywhere = [&](const std::string& above, bool pinned_too) {
    if (GiveUpAnywhere(model, name, pinned_too)) return true;
    for (size_t d = 0; d < model.devices.size(); ++d) {
      if ((pinned_too || !Pinned(model, d)) && GiveUpOfLargestRetainer(model, d, above)) {
        return true;
      }
    }
    return false;
  };
  std::vector<std::string> limited = PathOf(model, name);
  limited.emplace_back("");
  for (const std::string& each : limited) {
    const LimitName here = {each.empty() ? Denial::Cause::kCapacity : Denial::Cause::kDeviceLimit,
                            each, device};
    const uint64_t most =
        each.empty() ? model.devices[device].capacity_bytes : LimitOn(model, each, device);
    while (over(here, SumOf(model, each, device, Which::kStaying).bytes, request.bytes * fresh,
                most) &&
           (GiveUpOldest(model, name, device) || GiveUpOfLargestRetainer(model, device, each))) {
    }
    if (!each.empty() && model.tenants.at(each).quota.total_limit_bytes && !Pinned(model, device)) {
      while (over({Denial::Cause::kTotalLimit, each, kUnpinned},
                  SumOf(model, each, kUnpinned, Which::kStaying).bytes, request.bytes * fresh,
                  *model.tenants.at(each).quota.total_limit_bytes) &&
             from_anywhere(each, /*pinned_too=*/false)) {
      }
    }
    const uint64_t segments = each.empty()
                                  ? model.bounds.max_segments
                                  : model.tenants.at(each).quota.max_segments.value_or(UINT32_MAX);
    const LimitName number = {
        each.empty() ? Denial::Cause::kDaemonLimit : Denial::Cause::kMaxSegments, each,
        kEverywhere};
    while (
        over(number, SumOf(model, each, kEverywhere, Which::kStaying).segments, fresh, segments) &&
        from_anywhere(each, /*pinned_too=*/true)) {
    }
  }
}

void Unmap(LedgerModel& model, SessionId session, SegmentId segment) {
  model.mappings.erase(
      std::find(model.mappings.begin(), model.mappings.end(), Mapping{session, segment}));
}

void Unimport(LedgerModel& model, SessionId session, size_t device, bool all) {
  do {
    const auto found =
        std::find(model.imports.begin(), model.imports.end(), Import{session, device});
    if (found == model.imports.end()) break;
    model.imports.erase(found);
  } while (all);
  for (const auto& [id, segment] : model.segments) {
    if (segment.kind == Kind::kMempool && !Held(model, id)) SettleUnheld(model, id);
  }
}

void SettleUnheld(LedgerModel& model, SegmentId id) {
  Segment& segment = model.segments.at(id);
  if (IsIdleInPool(model, id)) model.queue_changed = true;  // available to its tenant
  if (segment.given_up || Held(model, id)) return;
  segment.revoking = false;
  const Tenant& tenant = model.tenants.at(segment.tenant);
  const bool tenant_lives =
      std::any_of(model.sessions.begin(), model.sessions.end(), [&](const auto& entry) {
        return entry.second.live && entry.second.tenant == segment.tenant;
      });
  if (!segment.lost && !segment.shared_out && segment.kind != Kind::kMempool &&
      segment.kind != Kind::kDriver && !tenant.quota.scrub && !model.draining &&
      !(tenant.made && tenant.made->ending) && tenant_lives &&
      !OverALimit(model, segment.tenant, segment.device) &&
      Retained(model, segment.tenant, segment.device) + segment.bytes <=
          MaxRetainedOn(model, tenant, segment.device)) {
    segment.kept_since = ++model.clock;
    segment.home.clear();
  } else {
    GiveUp(segment);
  }
}

absl::Status TakeDoomed(LedgerModel& model, const std::vector<SegmentId>& answer) {
  for (SegmentId id : answer) {
    auto it = model.segments.find(id);
    if (it == model.segments.end() || !it->second.given_up) {
      return Wrong("segment ", ToInt(id), " is doomed though it should live");
    }
    for (const Mapping& mapping : model.mappings) {
      if (mapping.segment == id) return Wrong("segment ", ToInt(id), " is doomed while mapped");
    }
    if (!model.in_destruction.insert(id).second) {
      return Wrong("segment ", ToInt(id), " doomed twice");
    }
  }
  for (const auto& [id, segment] : model.segments) {
    if (segment.given_up && !model.in_destruction.contains(id)) {
      return Wrong("segment ", ToInt(id), " should be doomed");
    }
  }
  return absl::OkStatus();
}

void Destroyed(LedgerModel& model, SegmentId id) {
  model.in_destruction.erase(id);
  model.segments.erase(id);
  Sweep(model);
}

absl::Status Trim(LedgerModel& model, const std::string& tenant, const std::string& device,
                  uint64_t keep_bytes, const absl::StatusOr<std::vector<SegmentId>>& answer) {
  if ((!tenant.empty() && !model.tenants.contains(tenant)) ||
      (!device.empty() && DeviceIndex(model, device) >= model.devices.size())) {
    return ExpectCode(answer.status(), absl::StatusCode::kNotFound);
  }
  if (!answer.ok()) return Wrong("expected a trim, got ", answer.status().ToString());
  const uint64_t before = SumOf(model, "", kEverywhere, Which::kGivenUp).segments;
  for (const auto& [name, entry] : model.tenants) {
    if (!tenant.empty() && name != tenant) continue;
    for (size_t d = 0; d < model.devices.size(); ++d) {
      if (!device.empty() && model.devices[d].uuid != device) continue;
      while (Retained(model, name, d) > keep_bytes) GiveUpOldest(model, name, d);
    }
  }
  const std::set<SegmentId> distinct(answer->begin(), answer->end());
  if (distinct.size() != answer->size() ||
      answer->size() != SumOf(model, "", kEverywhere, Which::kGivenUp).segments - before) {
    return Wrong("expected ", SumOf(model, "", kEverywhere, Which::kGivenUp).segments - before,
                 " trimmed segments, got ", answer->size());
  }
  for (SegmentId id : distinct) {
    auto it = model.segments.find(id);
    if (it == model.segments.end() || !it->second.given_up || model.in_destruction.contains(id)) {
      return Wrong("segment ", ToInt(id), " was trimmed though it was not retained");
    }
  }
  return absl::OkStatus();
}

absl::Status MakeRoomOnDevice(LedgerModel& model, SessionId session, size_t device, uint64_t bytes,
                              bool answer) {
  while (SumOf(model, "", device, Which::kGivenUp).bytes < bytes &&
         (GiveUpOldest(model, model.sessions.at(session).tenant, device) ||
          GiveUpOfLargestRetainer(model, device))) {
  }
  const bool expected = SumOf(model, "", device, Which::kGivenUp).bytes > 0;
  if (answer == expected) return absl::OkStatus();
  return Wrong("expected ", expected ? "" : "no ", "memory to come back");
}

absl::Status DriverDenial(LedgerModel& model, SessionId session, size_t device, uint64_t bytes,
                          const absl::Status& answer) {
  const std::string tenant = model.sessions.at(session).tenant;
  return ExpectDenial(model, answer, tenant,
                      {{Denial::Cause::kDriver, tenant, device},
                       bytes,
                       SumOf(model, "", device, Which::kAll).bytes,
                       model.devices[device].capacity_bytes});
}

}  // namespace gpumemd::model
