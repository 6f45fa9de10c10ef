// SPDX-License-Identifier: Apache-2.0
// The model of devices: their kinds, and the device that a request goes to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

// Returns the number of devices if there is none of that UUID.
size_t DeviceIndex(const LedgerModel& model, const std::string& uuid);
bool Pinned(const LedgerModel& model, size_t device);
Kind KindFor(const LedgerModel& model, const std::string& tenant, const AcquireSpec& spec,
             size_t device);
// Returns the bytes that the tenant can get on the device at most.
uint64_t Obtainable(const LedgerModel& model, const std::string& name, size_t device);

// Returns the device for a request; else the code of its refusal.
absl::StatusOr<size_t> DeviceFor(const LedgerModel& model, const std::string& tenant,
                                 const AcquireSpec& spec);

}  // namespace gpumemd::model
