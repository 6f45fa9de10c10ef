// SPDX-License-Identifier: Apache-2.0
// The types of the journal's records (records.h), and the strings in them.
#pragma once

#include <cstdint>

#include "daemon/core/journal/text.h"

namespace gpumemd::journal {

using TenantName = Text<63>;  // kMaxTenantName
using DeviceUuid = Text<63>;  // "PINNED-" and 36 characters are the longest so far
using Name = Text<64>;        // of a client, a publication, an event (session.proto, broker.proto)
using Command = Text<16>;     // TASK_COMM_LEN (proc_pid_comm(5)), with its end
using Tag = Text<32>;         // kMaxTag
using ContentId = Text<64>;   // kMaxContentId
using OwnerTag = Text<32>;    // kMaxOwnerTag

// As on disk: a number that was used once never gets another meaning.
enum class Type : uint8_t {
  kCounters = 1,
  kSession = 2,
  kSegment = 3,
  kLease = 4,
  kExposure = 5,
  kPoolImport = 6,
  kPublication = 7,
  kPublicationItem = 8,
  kIpcEvent = 9,
  kAnswer = 10,
  kTierExtent = 11,          // since version 2
  kPublicationContent = 12,  // since version 5
  kClaim = 13,               // since version 5
  kMadeTenant = 14,          // since version 6
  kMadeTenantQuota = 15,     // since version 6
  kMadeTenantDevice = 16,    // since version 6
  kMadeTenantUse = 17,       // since version 8
};
inline constexpr uint8_t kLastType = 17;

}  // namespace gpumemd::journal
