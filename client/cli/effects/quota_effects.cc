// SPDX-License-Identifier: Apache-2.0
// The effects of changes of a quota.
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/effects/effects.h"
#include "client/cli/text/format.h"
#include "client/cli/views/quota_values.h"
#include "common/quota_keys.h"

namespace gpumem::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr char kNothing[] = "none";

// Returns the value of a field for people; "none" if the message has none.
std::string ValueOf(const v1::Quota& quota, const QuotaKey& key, const DeviceList& devices,
                    bool exact) {
  const FieldDescriptor* field = v1::Quota::descriptor()->FindFieldByName(std::string(key.field));
  const auto& reflection = *quota.GetReflection();
  if (field->is_repeated()) {
    std::vector<std::string> entries;
    for (int i = 0; i < reflection.FieldSize(quota, field); ++i) {
      // DeviceLimit and DeviceGuarantee both have the UUID first, then the bytes.
      const Message& entry = reflection.GetRepeatedMessage(quota, field, i);
      const auto& type = *entry.GetDescriptor();
      const auto& values = *entry.GetReflection();
      entries.push_back(absl::StrCat(ShortDevice(devices, values.GetString(entry, type.field(0))),
                                     " = ", Size(values.GetUInt64(entry, type.field(1)), exact)));
    }
    return entries.empty() ? kNothing : absl::StrJoin(entries, ", ");
  }
  if (field->has_presence() && !reflection.HasField(quota, field)) return kNothing;
  switch (key.unit) {
    case QuotaUnit::kBytes:
      return Size(reflection.GetUInt64(quota, field), exact);
    case QuotaUnit::kCount:
      return absl::StrCat(reflection.GetUInt32(quota, field));
    case QuotaUnit::kNumber:
      return absl::StrCat(reflection.GetInt32(quota, field));
    case QuotaUnit::kDuration:
      return DurationText(reflection.GetUInt64(quota, field));
    case QuotaUnit::kSwitch:
      return reflection.GetBool(quota, field) ? "on" : "off";
    case QuotaUnit::kKind:
      return Word(quota.kind());
    case QuotaUnit::kRelease:
      return quota.release() == v1::RELEASE_POLICY_ON_EXIT ? "on-exit" : "trust";
    case QuotaUnit::kPreload:
      return Word(quota.preload());
    case QuotaUnit::kDeviceBytes:
    case QuotaUnit::kTenant:
      break;
  }
  return kNothing;
}

bool IsSet(const v1::Quota& quota, const QuotaKey& key) {
  const FieldDescriptor* field = v1::Quota::descriptor()->FindFieldByName(std::string(key.field));
  return field->is_repeated()
             ? quota.GetReflection()->FieldSize(quota, field) > 0
             : field->has_presence() && quota.GetReflection()->HasField(quota, field);
}

bool Clears(const v1::SetQuotaRequest& request, const QuotaKey& key) {
  return std::find(request.clear().begin(), request.clear().end(), key.field) !=
         request.clear().end();
}

// Returns what a cleared setting becomes: a limit none, the others their defaults.
std::string Cleared(const QuotaKey& key) {
  const bool limit = key.unit == QuotaUnit::kBytes || key.unit == QuotaUnit::kDeviceBytes ||
                     key.unit == QuotaUnit::kCount;
  return limit ? kNothing : "the default";
}

// True if a change of the plain field removes the values of single devices.
bool Replaced(const v1::SetQuotaRequest& request, const QuotaKey& key) {
  const QuotaKey* plain = key.all_devices.empty() ? nullptr : FindQuotaKey(key.all_devices);
  return plain != nullptr && (IsSet(request.quota(), *plain) || Clears(request, *plain));
}

// Adds a sentence for each count that is above its new limit.
void AddAboveCounts(const v1::Quota& quota, const v1::Usage& usage, Effects* effects) {
  for (const QuotaKey& key : kQuotaKeys) {
    if (key.unit != QuotaUnit::kCount || key.usage.empty() || !IsSet(quota, key)) continue;
    const FieldDescriptor* limit = v1::Quota::descriptor()->FindFieldByName(std::string(key.field));
    const FieldDescriptor* count = v1::Usage::descriptor()->FindFieldByName(std::string(key.usage));
    const uint32_t used = usage.GetReflection()->GetUInt32(usage, count);
    const uint32_t most = quota.GetReflection()->GetUInt32(quota, limit);
    if (used <= most) continue;
    effects->takes = true;
    effects->lines.push_back(absl::StrCat(std::string(key.row), ": ", used, " of ", most,
                                          " in use: nothing new until usage is below the limit"));
  }
}

// Adds a sentence for each use that is above the new limits.
void AddAboveLimits(const v1::Quota& quota, const v1::Usage& usage, const DeviceList& devices,
                    bool exact, Effects* effects) {
  const auto compare = [&](uint64_t used, uint64_t limit, const std::string& where) {
    if (used <= limit) return;
    effects->takes = true;
    effects->lines.push_back(absl::StrCat(where, Size(used, exact), " of ", Size(limit, exact),
                                          " in use: nothing new until usage is below the limit"));
  };
  std::map<std::string, uint64_t> own;
  for (const v1::DeviceLimit& limit : quota.devices()) {
    own[limit.device_uuid()] = limit.limit_bytes();
  }
  uint64_t total = 0;
  for (const v1::DeviceUsage& device : usage.devices()) {
    const std::string where =
        absl::StrCat("device ", ShortDevice(devices, device.device_uuid()), ": ");
    if (IsPinnedMemory(device.device_uuid())) {
      if (quota.has_pinned_limit_bytes()) {
        compare(device.charged_bytes(), quota.pinned_limit_bytes(), where);
      }
      continue;
    }
    if (IsHostTier(device.device_uuid())) {
      if (quota.has_tier_limit_bytes()) {
        compare(device.charged_bytes(), quota.tier_limit_bytes(), where);
      }
      continue;
    }
    total += device.charged_bytes();
    const auto limit = own.find(device.device_uuid());
    if (limit != own.end()) {
      compare(device.charged_bytes(), limit->second, where);
    } else if (quota.has_limit_bytes()) {
      compare(device.charged_bytes(), quota.limit_bytes(), where);
    }
  }
  if (quota.has_total_limit_bytes()) compare(total, quota.total_limit_bytes(), "all devices: ");
}

}  // namespace

Effects QuotaSetEffects(const v1::SetQuotaRequest& request, const v1::GetQuotaResponse& now,
                        const DeviceList& devices, bool exact) {
  Effects effects;
  for (const QuotaKey& key : kQuotaKeys) {
    const bool sets = IsSet(request.quota(), key);
    const bool replaced = Replaced(request, key) && IsSet(now.quota(), key);
    if (!Clears(request, key) && !sets && !replaced) continue;
    const std::string before = ValueOf(now.quota(), key, devices, exact);
    const std::string after = sets ? ValueOf(request.quota(), key, devices, exact) : Cleared(key);
    effects.lines.push_back(absl::StrCat(std::string(key.key), ": ", after, " (now ", before, ")"));
  }
  AddAboveLimits(request.quota(), now.usage(), devices, exact, &effects);
  AddAboveCounts(request.quota(), now.usage(), &effects);
  const bool more_guaranteed = request.quota().guarantee_bytes() > now.quota().guarantee_bytes() ||
                               !request.quota().guarantees().empty();
  if (more_guaranteed) {
    effects.takes = true;
    effects.lines.emplace_back(
        "revocable memory of others may be revoked for the guarantee, when it is needed");
  }
  return effects;
}

Effects QuotaUnsetEffects(const v1::UnsetQuotaRequest& request, const v1::GetQuotaResponse& now) {
  Effects effects;
  for (const std::string& field : now.overridden()) {
    const bool named = request.fields().empty() ||
                       std::find(request.fields().begin(), request.fields().end(), field) !=
                           request.fields().end();
    if (named) effects.lines.push_back(absl::StrCat(field, " follows the configuration again"));
  }
  return effects;
}

}  // namespace gpumem::cli
