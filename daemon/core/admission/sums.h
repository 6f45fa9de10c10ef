// SPDX-License-Identifier: Apache-2.0
// Sums over the accounts of a tenant or of all devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "daemon/core/admission/account.h"
#include "daemon/device/device.h"

namespace gpumemd {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

// Return the part of an account that comes back without its holders: retained or releasing.
inline uint64_t Recoverable(const Account& account) {
  return account.bytes(SegmentState::kRetained) + account.bytes(SegmentState::kReleasing);
}
inline uint64_t RecoverableSegments(const Account& account) {
  return account.segments(SegmentState::kRetained) + account.segments(SegmentState::kReleasing);
}

// Return the account without its releasing part.
inline uint64_t Staying(const Account& account) {
  return account.charged() - account.bytes(SegmentState::kReleasing);
}
inline uint64_t StayingSegments(const Account& account) {
  return account.segments() - account.segments(SegmentState::kReleasing);
}

template <typename Measure>
uint64_t SumOver(const std::vector<Account>& accounts, Measure measure) {
  uint64_t sum = 0;
  for (const Account& account : accounts) sum += measure(account);
  return sum;
}

// Leaves out pinned memory, which the limits over all devices do not count.
template <typename Measure>
uint64_t SumUnpinned(const std::vector<DeviceInfo>& devices, const std::vector<Account>& accounts,
                     Measure measure) {
  uint64_t sum = 0;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!IsHostMemory(devices[i])) sum += measure(accounts[i]);
  }
  return sum;
}

}  // namespace gpumemd
