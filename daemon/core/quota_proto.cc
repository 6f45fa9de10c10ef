// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/quota_proto.h"

#include <cstdint>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/kind_proto.h"
#include "daemon/core/requested_kind.h"

namespace gpumemd {

namespace v1 = gpumem::v1;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::RepeatedPtrField;

namespace {

using BytesByDevice = std::map<std::string, uint64_t>;

constexpr uint64_t kMostMilliseconds = 24 * 3600 * 1000;

// Returns the field of that name, which v1::Quota has.
const FieldDescriptor* Field(absl::string_view name) {
  return v1::Quota::descriptor()->FindFieldByName(std::string(name));
}

// True for fields such as `devices`, with an entry (device_uuid, bytes) for each device.
bool IsByDevice(const FieldDescriptor* field) { return field->is_repeated(); }

// Write(): sets a field by its descriptor.

void Write(uint64_t value, const FieldDescriptor* field, v1::Quota* quota) {
  quota->GetReflection()->SetUInt64(quota, field, value);
}
void Write(uint32_t value, const FieldDescriptor* field, v1::Quota* quota) {
  quota->GetReflection()->SetUInt32(quota, field, value);
}
void Write(int32_t value, const FieldDescriptor* field, v1::Quota* quota) {
  quota->GetReflection()->SetInt32(quota, field, value);
}
void Write(bool value, const FieldDescriptor* field, v1::Quota* quota) {
  quota->GetReflection()->SetBool(quota, field, value);
}
void Write(absl::Duration value, const FieldDescriptor* field, v1::Quota* quota) {
  quota->GetReflection()->SetUInt64(quota, field,
                                    static_cast<uint64_t>(absl::ToInt64Milliseconds(value)));
}
void Write(const std::string& value, const FieldDescriptor* field, v1::Quota* quota) {
  quota->GetReflection()->SetString(quota, field, value);
}
void Write(Kind value, const FieldDescriptor* field, v1::Quota* quota) {
  quota->GetReflection()->SetEnumValue(quota, field, ToProto(value));
}
void Write(ReleasePolicy value, const FieldDescriptor* field, v1::Quota* quota) {
  quota->GetReflection()->SetEnumValue(
      quota, field,
      value == ReleasePolicy::kOnExit ? v1::RELEASE_POLICY_ON_EXIT : v1::RELEASE_POLICY_TRUST);
}
void Write(PreloadMode value, const FieldDescriptor* field, v1::Quota* quota) {
  quota->GetReflection()->SetEnumValue(quota, field, ToProto(value));
}
void Write(const BytesByDevice& values, const FieldDescriptor* field, v1::Quota* quota) {
  if (!IsByDevice(field)) return;
  for (const auto& [uuid, bytes] : values) {
    Message* entry = quota->GetReflection()->AddMessage(quota, field);
    const FieldDescriptor* uuid_field = entry->GetDescriptor()->field(0);
    const FieldDescriptor* bytes_field = entry->GetDescriptor()->field(1);
    entry->GetReflection()->SetString(entry, uuid_field, uuid);
    entry->GetReflection()->SetUInt64(entry, bytes_field, bytes);
  }
}
template <typename T>
void Write(const std::optional<T>& value, const FieldDescriptor* field, v1::Quota* quota) {
  if (value) Write(*value, field, quota);
}

// Read(): returns OK, or INVALID_ARGUMENT for a value that this daemon does not know. Requires that
// the field is present.

absl::Status Read(const v1::Quota& quota, const FieldDescriptor* field, uint64_t* value) {
  *value = quota.GetReflection()->GetUInt64(quota, field);
  return absl::OkStatus();
}
absl::Status Read(const v1::Quota& quota, const FieldDescriptor* field, uint32_t* value) {
  *value = quota.GetReflection()->GetUInt32(quota, field);
  return absl::OkStatus();
}
absl::Status Read(const v1::Quota& quota, const FieldDescriptor* field, int32_t* value) {
  *value = quota.GetReflection()->GetInt32(quota, field);
  return absl::OkStatus();
}
absl::Status Read(const v1::Quota& quota, const FieldDescriptor* field, bool* value) {
  *value = quota.GetReflection()->GetBool(quota, field);
  return absl::OkStatus();
}
absl::Status Read(const v1::Quota& quota, const FieldDescriptor* field, absl::Duration* value) {
  const uint64_t ms = quota.GetReflection()->GetUInt64(quota, field);
  if (ms > kMostMilliseconds) {
    return absl::InvalidArgumentError(
        absl::StrCat(field->name(), " is at most ", kMostMilliseconds, ", a day, not ", ms));
  }
  *value = absl::Milliseconds(static_cast<int64_t>(ms));
  return absl::OkStatus();
}
absl::Status Read(const v1::Quota& quota, const FieldDescriptor* field, std::string* value) {
  *value = quota.GetReflection()->GetString(quota, field);
  return absl::OkStatus();
}
absl::Status Read(const v1::Quota& quota, const FieldDescriptor* field,
                  std::optional<Kind>* value) {
  absl::StatusOr<std::optional<Kind>> kind =
      RequestedKind(quota.GetReflection()->GetEnumValue(quota, field));
  if (!kind.ok()) return absl::InvalidArgumentError(kind.status().message());
  if (*kind && !gpumem::GivesMemory(TraitsOf(**kind))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kind ", KindName(**kind), " cannot be a tenant's default: requests of it get no memory"));
  }
  *value = *kind;
  return absl::OkStatus();
}
absl::Status Read(const v1::Quota& quota, const FieldDescriptor* field, ReleasePolicy* value) {
  switch (quota.GetReflection()->GetEnumValue(quota, field)) {
    case v1::RELEASE_POLICY_TRUST:
      *value = ReleasePolicy::kTrust;
      return absl::OkStatus();
    case v1::RELEASE_POLICY_ON_EXIT:
      *value = ReleasePolicy::kOnExit;
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          "a release policy is RELEASE_POLICY_TRUST or RELEASE_POLICY_ON_EXIT");
  }
}
absl::Status Read(const v1::Quota& quota, const FieldDescriptor* field,
                  std::optional<PreloadMode>* value) {
  switch (quota.GetReflection()->GetEnumValue(quota, field)) {
    case v1::PRELOAD_MODE_ACCOUNT:
      *value = PreloadMode::kAccount;
      return absl::OkStatus();
    case v1::PRELOAD_MODE_BROKER:
      *value = PreloadMode::kBroker;
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          "a preload mode is PRELOAD_MODE_ACCOUNT or PRELOAD_MODE_BROKER");
  }
}
absl::Status Read(const v1::Quota& quota, const FieldDescriptor* field, BytesByDevice* values) {
  if (!IsByDevice(field)) return absl::OkStatus();
  for (int i = 0; i < quota.GetReflection()->FieldSize(quota, field); ++i) {
    const Message& entry = quota.GetReflection()->GetRepeatedMessage(quota, field, i);
    const FieldDescriptor* uuid_field = entry.GetDescriptor()->field(0);
    const FieldDescriptor* bytes_field = entry.GetDescriptor()->field(1);
    (*values)[entry.GetReflection()->GetString(entry, uuid_field)] =
        entry.GetReflection()->GetUInt64(entry, bytes_field);
  }
  return absl::OkStatus();
}
template <typename T>
absl::Status Read(const v1::Quota& quota, const FieldDescriptor* field, std::optional<T>* value) {
  return Read(quota, field, &value->emplace());
}

absl::StatusOr<QuotaOverride> ChangeOf(const v1::Quota& quota,
                                       const RepeatedPtrField<std::string>& clear) {
  QuotaOverride change{.clear = {clear.begin(), clear.end()}};
  absl::Status right;
  ForEachQuotaField([&](absl::string_view name, auto member) {
    const FieldDescriptor* field = Field(name);
    const bool present = IsByDevice(field) ? quota.GetReflection()->FieldSize(quota, field) > 0
                                           : quota.GetReflection()->HasField(quota, field);
    if (!present) return;
    change.set.emplace(name);
    right.Update(Read(quota, field, &(change.values.*member)));
  });
  if (!right.ok()) return right;
  return change;
}

}  // namespace

v1::HoldersShown ToProto(HoldersShown shown) {
  switch (shown) {
    case HoldersShown::kAll:
      return v1::HOLDERS_SHOWN_ALL;
    case HoldersShown::kOwn:
      return v1::HOLDERS_SHOWN_OWN;
    case HoldersShown::kNone:
      return v1::HOLDERS_SHOWN_NONE;
  }
  return v1::HOLDERS_SHOWN_UNSPECIFIED;
}

v1::PreloadMode ToProto(PreloadMode mode) {
  return mode == PreloadMode::kBroker ? v1::PRELOAD_MODE_BROKER : v1::PRELOAD_MODE_ACCOUNT;
}

v1::Quota ToProto(const Quota& quota) {
  v1::Quota proto;
  ForEachQuotaField(
      [&](absl::string_view name, auto member) { Write(quota.*member, Field(name), &proto); });
  return proto;
}

absl::StatusOr<QuotaOverride> FromProto(const v1::SetQuotaRequest& request) {
  return ChangeOf(request.quota(), request.clear());
}

absl::StatusOr<QuotaOverride> FromProto(const v1::UpdateTenantRequest& request) {
  return ChangeOf(request.quota(), request.clear());
}

absl::StatusOr<QuotaOverride> FromProto(const v1::UpdateChildTenantRequest& request) {
  return ChangeOf(request.quota(), request.clear());
}

absl::StatusOr<QuotaOverride> FromProto(const v1::Quota& quota) { return ChangeOf(quota, {}); }

absl::StatusOr<QuotaOverride> FromProto(const v1::QuotaOverride& override) {
  return ChangeOf(override.quota(), override.clear());
}

v1::QuotaOverride ToProto(const std::string& tenant, const QuotaOverride& override) {
  v1::QuotaOverride proto;
  proto.set_tenant(tenant);
  for (const std::string& name : override.clear) proto.add_clear(name);
  v1::Quota& quota = *proto.mutable_quota();
  ForEachQuotaField([&](absl::string_view name, auto member) {
    if (override.set.contains(name)) Write(override.values.*member, Field(name), &quota);
  });
  // The device's default, which Quota::kind tells by its absence.
  if (override.set.contains("kind") && !override.values.kind) quota.set_kind(v1::KIND_UNSPECIFIED);
  return proto;
}

}  // namespace gpumemd
