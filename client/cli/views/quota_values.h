// SPDX-License-Identifier: Apache-2.0
// Values of quotas, as the views of one tenant and of all tenants show them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cli/text/format.h"
#include "proto/gpumem/v1/quota.pb.h"

namespace gpumem::cli {

inline constexpr char kNoLimit[] = "none";
inline constexpr char kByDevice[] = "by device";

// Marks values that operators set.
class OverrideMarks {
 public:
  explicit OverrideMarks(const google::protobuf::RepeatedPtrField<std::string>& overridden)
      : unseen_(overridden.begin(), overridden.end()), overridden_(unseen_) {}

  // Returns `cell`, marked if one of these fields is overridden.
  std::string operator()(std::string cell, std::initializer_list<absl::string_view> fields) {
    bool any = false;
    for (absl::string_view field : fields) {
      unseen_.erase(std::string(field));
      any |= overridden_.contains(std::string(field));
    }
    return any ? cell + "*" : cell;
  }

  bool any() const { return !overridden_.empty(); }
  bool has(absl::string_view field) const { return overridden_.contains(std::string(field)); }
  // True if an overridden field was not shown in any cell.
  bool unseen() const { return !unseen_.empty(); }

 private:
  std::set<std::string> unseen_;
  const std::set<std::string> overridden_;
};

inline std::string ByteLimit(bool present, uint64_t bytes, bool exact) {
  return present ? Size(bytes, exact) : kNoLimit;
}

inline std::string DurationText(uint64_t milliseconds) {
  return absl::FormatDuration(absl::Milliseconds(static_cast<int64_t>(milliseconds)));
}

// Returns the tenant's charge on the devices whose UUID matches.
inline uint64_t BytesOn(const v1::Usage& usage, bool (*matches)(absl::string_view uuid)) {
  uint64_t bytes = 0;
  for (const v1::DeviceUsage& device : usage.devices()) {
    if (matches(device.device_uuid())) bytes += device.charged_bytes();
  }
  return bytes;
}
inline uint64_t PinnedBytes(const v1::Usage& usage) { return BytesOn(usage, IsPinnedMemory); }
inline uint64_t TierBytes(const v1::Usage& usage) { return BytesOn(usage, IsHostTier); }

inline uint64_t GuaranteeOn(const v1::Quota& quota, const std::string& uuid) {
  if (IsHostMemory(uuid)) return 0;
  for (const v1::DeviceGuarantee& own : quota.guarantees()) {
    if (own.device_uuid() == uuid) return own.guarantee_bytes();
  }
  return quota.guarantee_bytes();
}

inline bool HasGuarantee(const v1::Quota& quota) {
  return quota.guarantee_bytes() > 0 || !quota.guarantees().empty();
}

}  // namespace gpumem::cli
