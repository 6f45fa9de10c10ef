// SPDX-License-Identifier: Apache-2.0
// Why memory, or one more of a counted object, was refused: the ledger's decision, before it
// becomes a status. The same as gpumem.v1.Denial of proto/gpumem/v1/denial.proto.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace gpumemd {

struct Denial {
  // The numbers are those of the protocol, which says what each means.
  enum class Cause {
    kUnspecified = 0,
    kDeviceLimit = 1,
    kTotalLimit = 2,
    kCapacity = 3,
    kDriver = 4,
    kMaxSegments = 5,
    kMaxSessions = 6,
    kMaxInFlight = 7,
    kDaemonLimit = 8,
    kMaxWaiting = 9,
    kGuarantees = 10,
    kQueue = 11,
    kUnbrokered = 12,
    kMaxPublications = 13,
  };
  struct Holder {
    std::string tenant;
    uint64_t used = 0;  // as Denial::used
    bool operator==(const Holder&) const = default;
  };

  Cause cause = Cause::kUnspecified;
  std::string tenant;       // the tenant that asked
  std::string device_uuid;  // empty: the cause is not about one device
  // Bytes for causes about memory, a count for the others.
  uint64_t asked = 0, used = 0, limit = 0;
  std::string help;             // one sentence; empty: DenialError() writes it
  std::string limited_tenant;   // the limit's tenant; empty: that of `tenant`
  std::vector<Holder> holders;  // the largest holders of `used`, the largest first
  // Of kQueue: the limit at which the requests that go first wait; its unit is that of the numbers.
  Cause queued_at = Cause::kUnspecified;

  bool operator==(const Denial&) const = default;
};

// Returns all causes but kUnspecified, in the order of their numbers.
absl::Span<const Denial::Cause> DenialCauses();

// Returns the name of a cause as people see it: "device-limit".
std::string NameOf(Denial::Cause cause);

// Returns RESOURCE_EXHAUSTED: a sentence for people, and the denial as the payload that goes to the
// client (common/denial.h).
absl::Status DenialError(const Denial& denial);

// Returns the denial that a status carries, or nothing.
std::optional<Denial> DenialOf(const absl::Status& status);

}  // namespace gpumemd
