// SPDX-License-Identifier: Apache-2.0
// The journal's records of tenants that were made at run time. For the ledger's source files only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "daemon/core/journal/records.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/state.h"

namespace gpumemd {

// All require that the tenant was made at run time.
journal::MadeTenant RecordOf(const records::Tenant& tenant);
journal::MadeTenantQuota QuotaRecordOf(const records::MadeTenant& made);
// Returns nullopt if the quota names no more devices than `index`.
std::optional<journal::MadeTenantDevice> DeviceRecordOf(const records::MadeTenant& made,
                                                        uint32_t index);

// Returns nullopt if the tenant has used nothing of the device.
std::optional<journal::MadeTenantUse> UseRecordOf(const LedgerState& state,
                                                  const records::Tenant& tenant, size_t device);

}  // namespace gpumemd
