// SPDX-License-Identifier: Apache-2.0
// The model of memory that goes back: retained segments, segments that are given up, and for whom.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/ledger/testing/model/limits.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

void GiveUp(Segment& segment);

// Gives up the segment that the tenant retained first on the device. Returns false if it retains
// none there.
bool GiveUpOldest(LedgerModel& model, const std::string& tenant, size_t device);
void GiveUpAllOf(LedgerModel& model, const std::string& tenant);

// Gives up retained segments as far as `fresh` more segments, and claims before them, need it: the
// tenant's own before others'.
void GiveUpFor(LedgerModel& model, const Request& request, uint32_t fresh, const Claims& claims);
// Unmap ends one mapping; Unimport ends one import of a pool, or all.
void Unmap(LedgerModel& model, SessionId session, SegmentId segment);
void Unimport(LedgerModel& model, SessionId session, size_t device, bool all);

// Updates a segment that may no longer be held.
void SettleUnheld(LedgerModel& model, SegmentId id);
absl::Status TakeDoomed(LedgerModel& model, const std::vector<SegmentId>& answer);
void Destroyed(LedgerModel& model, SegmentId id);
absl::Status Trim(LedgerModel& model, const std::string& tenant, const std::string& device,
                  uint64_t keep_bytes, const absl::StatusOr<std::vector<SegmentId>>& answer);
absl::Status MakeRoomOnDevice(LedgerModel& model, SessionId session, size_t device, uint64_t bytes,
                              bool answer);
absl::Status DriverDenial(LedgerModel& model, SessionId session, size_t device, uint64_t bytes,
                          const absl::Status& answer);

}  // namespace gpumemd::model
