// SPDX-License-Identifier: Apache-2.0
// Byte-seconds: the integral of an account's charged bytes over time.
//
// The sum is in byte-nanoseconds, in 128 bits: exact, and too wide to overflow. 64 bits would hold
// a full GPU for less than a second. Outside it is told in byte-seconds, in 64 bits: a full GPU of
// 192 GiB reaches their end after 2.8 years, and the figure stays there.
//
// The clock is a monotonic one: the wall clock can be set while memory is charged. It goes on over
// restarts of the daemon, and ends with the machine, as the journal does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"

namespace gpumemd {

// Returns the time since a moment that is the same for all daemons of this boot.
using UsageClock = std::function<absl::Duration()>;

// The use of a device by a tenant, as of the last change of its charge.
struct DeviceUse {
  absl::uint128 byte_ns = 0;  // until `at`
  absl::Duration at;          // by the UsageClock
  uint64_t charged = 0;       // since then
  uint64_t peak = 0;

  // Returns the integral until `now`. A moment before `at` counts as `at`.
  absl::uint128 ByteNsUntil(absl::Duration now) const {
    const absl::Duration since = std::max(now - at, absl::ZeroDuration());
    return byte_ns + absl::uint128(charged) * absl::uint128(absl::ToInt64Nanoseconds(since));
  }
};

inline constexpr uint32_t kNanosOfSecond = 1'000'000'000;

inline uint64_t ByteSeconds(absl::uint128 byte_ns) {
  const absl::uint128 seconds = byte_ns / kNanosOfSecond;
  return seconds > UINT64_MAX ? UINT64_MAX : static_cast<uint64_t>(seconds);
}

// The uses that have changed since the journal's last batch: the tenant and the index of the
// device. Of tenants made at run time alone: the journal has no records of other tenants.
struct UsesChanged {
  using Key = std::pair<MadeTenantId, size_t>;

  bool kept = false;  // false: nothing is noted
  std::vector<Key> keys;
};

// An account's part of this. Changes take constant time.
class UsageMeter {
 public:
  // Starts the meter. Both must outlive its last change. A clock that is empty stops it.
  void SetClock(const UsageClock* clock) { clock_ = clock; }
  // Notes `key` in `changed` with each change from now on; null: no longer.
  void NoteIn(UsesChanged* changed, UsesChanged::Key key) {
    changed_ = changed;
    key_ = key;
  }

  absl::Duration Now() const { return runs() ? (*clock_)() : absl::ZeroDuration(); }
  // Call before each change of the charged bytes.
  void Advance(uint64_t charged, absl::Duration now) {
    if (!runs()) return;
    byte_ns_ = Use(charged, 0).ByteNsUntil(now);
    at_ = std::max(at_, now);
    if (changed_ != nullptr && changed_->kept) changed_->keys.push_back(key_);
  }
  DeviceUse Use(uint64_t charged, uint64_t peak) const { return {byte_ns_, at_, charged, peak}; }
  void Forget() {
    byte_ns_ = 0;
    at_ = std::max(at_, Now());
  }
  // Goes on from the use that an earlier daemon has recorded, with these bytes charged now. The
  // time without a daemon counts with the bytes that were charged before.
  void GoOnFrom(const DeviceUse& use, uint64_t charged) {
    if (charged == use.charged) {
      byte_ns_ = use.byte_ns;
      at_ = use.at;
    } else {
      byte_ns_ = use.ByteNsUntil(Now());
      at_ = std::max(use.at, Now());
    }
  }

 private:
  bool runs() const { return clock_ != nullptr && *clock_ != nullptr; }

  const UsageClock* clock_ = nullptr;
  UsesChanged* changed_ = nullptr;
  UsesChanged::Key key_{};
  absl::uint128 byte_ns_ = 0;
  absl::Duration at_;
};

}  // namespace gpumemd
