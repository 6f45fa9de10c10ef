// SPDX-License-Identifier: Apache-2.0
// The model of guarantees: what must be available for each tenant, and what requests they allow.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/core/ledger/testing/model/model.h"

namespace gpumemd::model {

// Returns the bytes that must be available for a tenant ("": all) that holds `more` more itself.
// `emptied`: as if no other memory were held.
uint64_t Need(const LedgerModel& model, const std::string& tenant, size_t device, uint64_t more = 0,
              bool emptied = false);

// Returns the part of the tenant's guarantee that is not held; without guarantees above it.
uint64_t UnusedGuarantee(const LedgerModel& model, const std::string& name, size_t device);

// Returns the unused guarantees of the tenant and those above it, if they cover the request; else
// 0.
uint64_t Deficit(const LedgerModel& model, const Request& request);

// True if no guarantee and no configured limit rules out the request on its device. `emptied`: as
// if no memory were held.
bool Allowed(const LedgerModel& model, const Request& request, bool emptied);

}  // namespace gpumemd::model
