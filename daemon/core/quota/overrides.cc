#include "daemon/core/quota/overrides.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/requested_kind.h"

namespace gpumemd {

namespace v1 = gpumem::v1;
using google::protobuf::FieldDescriptor;

namespace {

constexpr char kParent[] = "parent";

// Each plain field with its field of single devices: setting the plain one means all devices.
constexpr std::pair<const char*, const char*> kForAllDevices[] = {
    {"limit_bytes", "devices"},
    {"guarantee_bytes", "guarantees"},
};

bool Names(const google::protobuf::RepeatedPtrField<std::string>& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void Unname(google::protobuf::RepeatedPtrField<std::string>* names, absl::string_view name) {
  names->erase(std::remove(names->begin(), names->end(), name), names->end());
}

const std::vector<const FieldDescriptor*>& Fields() {
  static const auto& fields = *[] {
    auto* list = new std::vector<const FieldDescriptor*>;
    for (int i = 0; i < v1::Quota::descriptor()->field_count(); ++i) {
      const FieldDescriptor* field = v1::Quota::descriptor()->field(i);
      if (field->name() != kParent) list->push_back(field);
    }
    return list;
  }();
  return fields;
}

bool IsField(absl::string_view name) {
  return std::any_of(Fields().begin(), Fields().end(),
                     [&](const FieldDescriptor* field) { return field->name() == name; });
}

std::string FieldNames() {
  return absl::StrJoin(Fields(), ", ", [](std::string* out, const FieldDescriptor* field) {
    absl::StrAppend(out, field->name());
  });
}

bool Has(const v1::Quota& quota, const FieldDescriptor& field) {
  return field.is_repeated() ? quota.GetReflection()->FieldSize(quota, &field) > 0
                             : quota.GetReflection()->HasField(quota, &field);
}

const FieldDescriptor& Field(const std::string& name) {
  return *v1::Quota::descriptor()->FindFieldByName(name);
}

// Sets the entries of `from` in `to`, by device.
template <typename Entries>
void MergeEntries(const Entries& from, Entries* to) {
  for (const auto& entry : from) {
    auto same = std::find_if(to->begin(), to->end(), [&](const auto& other) {
      return other.device_uuid() == entry.device_uuid();
    });
    *(same == to->end() ? to->Add() : &*same) = entry;
  }
}

ReleasePolicy FromProto(v1::ReleasePolicy policy) {
  return policy == v1::RELEASE_POLICY_ON_EXIT ? ReleasePolicy::kOnExit : ReleasePolicy::kTrust;
}

absl::Status CheckValues(const v1::Quota& set) {
  if (set.has_max_in_flight() && set.max_in_flight() == 0) {
    return absl::InvalidArgumentError(
        "max_in_flight of 0 would let the tenant make no call, not even to release; use at least "
        "1");
  }
  if (set.priority() < -1000 || set.priority() > 1000) {
    return absl::InvalidArgumentError(
        absl::StrCat("a priority is from -1000 to 1000, not ", set.priority()));
  }
  if (const auto kind = RequestedKind(set.kind()); !kind.ok()) {
    return absl::InvalidArgumentError(kind.status().message());
  }
  if (set.has_release() && set.release() != v1::RELEASE_POLICY_TRUST &&
      set.release() != v1::RELEASE_POLICY_ON_EXIT) {
    return absl::InvalidArgumentError(
        "a release policy is RELEASE_POLICY_TRUST or RELEASE_POLICY_ON_EXIT");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRequest(const v1::SetQuotaRequest& request) {
  const v1::Quota& set = request.quota();
  if (!set.parent().empty() || Names(request.clear(), kParent)) {
    return absl::InvalidArgumentError(
        "the tenant that another one is under cannot be changed here; write it into the "
        "configuration (parent = \"…\" in the [[tenant]]) and reload that");
  }
  for (const std::string& name : request.clear()) {
    if (!IsField(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a quota has no field \"", name, "\" to clear; it has ", FieldNames()));
    }
    if (Has(set, Field(name))) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is both set and cleared; choose one"));
    }
  }
  const bool changes = std::any_of(Fields().begin(), Fields().end(),
                                   [&](const FieldDescriptor* field) { return Has(set, *field); });
  if (!changes && request.clear().empty()) {
    return absl::InvalidArgumentError("nothing to change: name at least one limit");
  }
  return CheckValues(set);
}

absl::Status CheckRemembered(const v1::QuotaOverride& override) {
  if (override.tenant().empty()) return absl::InvalidArgumentError("an override without a tenant");
  const std::string of = absl::StrCat(" (tenant \"", override.tenant(), "\")");
  if (!override.quota().parent().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a parent cannot be overridden", of));
  }
  for (const std::string& name : override.clear()) {
    if (!IsField(name)) {
      return absl::InvalidArgumentError(absl::StrCat("a quota has no field \"", name, "\"", of));
    }
  }
  absl::Status right = CheckValues(override.quota());
  return right.ok() ? right : absl::InvalidArgumentError(absl::StrCat(right.message(), of));
}

void Merge(const v1::SetQuotaRequest& request, v1::QuotaOverride* override) {
  const v1::Quota& set = request.quota();
  v1::Quota& merged = *override->mutable_quota();
  const auto drop = [&](const char* name) {
    merged.GetReflection()->ClearField(&merged, &Field(name));
    Unname(override->mutable_clear(), name);
  };
  // Drop the fields that the request clears, and those that its plain fields replace.
  for (const auto& [plain, of_devices] : kForAllDevices) {
    if (Has(set, Field(plain)) || Names(request.clear(), plain)) drop(of_devices);
  }
  for (const std::string& name : request.clear()) {
    drop(name.c_str());
    override->add_clear(name);
  }
  // Add the fields that it sets. Entries of single devices are added on top of a clear of theirs.
  for (const FieldDescriptor* field : Fields()) {
    if (!Has(set, *field) || field->is_repeated()) continue;
    Unname(override->mutable_clear(), field->name());
  }
  v1::Quota plain = set;
  plain.clear_devices();
  plain.clear_guarantees();
  merged.MergeFrom(plain);
  MergeEntries(set.devices(), merged.mutable_devices());
  MergeEntries(set.guarantees(), merged.mutable_guarantees());
}

std::vector<std::string> FieldsOf(const v1::QuotaOverride& override) {
  std::vector<std::string> names;
  for (const FieldDescriptor* field : Fields()) {
    if (Has(override.quota(), *field) || Names(override.clear(), field->name())) {
      names.push_back(field->name());
    }
  }
  return names;
}

absl::Status Remove(absl::Span<const std::string> fields, v1::QuotaOverride* override) {
  const std::vector<std::string> overridden = FieldsOf(*override);
  if (overridden.empty()) {
    return absl::FailedPreconditionError(
        "nothing of the tenant's quota is overridden: all of it is as the configuration says");
  }
  for (const std::string& name : fields) {
    if (!IsField(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a quota has no field \"", name, "\" to unset; it has ", FieldNames()));
    }
    if (std::find(overridden.begin(), overridden.end(), name) == overridden.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "\"", name, "\" is not overridden (what is: ", absl::StrJoin(overridden, ", "), ")"));
    }
  }
  for (const std::string& name : fields.empty() ? absl::MakeConstSpan(overridden) : fields) {
    v1::Quota& quota = *override->mutable_quota();
    quota.GetReflection()->ClearField(&quota, &Field(name));
    Unname(override->mutable_clear(), name);
  }
  return absl::OkStatus();
}

void Apply(const v1::QuotaOverride& override, Quota* quota) {
  const v1::Quota& set = override.quota();
  const auto cleared = [&](const char* name) { return Names(override.clear(), name); };

  // Drop values of devices that a plain limit replaces, including those from percentages.
  if (set.has_limit_bytes() || cleared("limit_bytes") || cleared("devices")) {
    quota->device_limits.clear();
  }
  if (set.has_guarantee_bytes() || cleared("guarantee_bytes") || cleared("guarantees")) {
    quota->device_guarantees.clear();
  }
  if (set.has_max_retained_bytes() || cleared("max_retained_bytes")) {
    quota->device_max_retained.clear();
  }

  // One row for each field: its name, the override's value, and the member that it sets.
  const Quota none;
  const auto apply = [&](const char* name, bool has, auto value, auto* field, const auto& without) {
    if (cleared(name)) *field = without;
    if (has) *field = value;
  };
#define APPLY(proto, member) \
  apply(#proto, set.has_##proto(), set.proto(), &quota->member, none.member)
  APPLY(limit_bytes, limit_bytes);
  APPLY(total_limit_bytes, total_limit_bytes);
  APPLY(pinned_limit_bytes, pinned_limit_bytes);
  APPLY(max_segments, max_segments);
  APPLY(max_sessions, max_sessions);
  APPLY(max_in_flight, max_in_flight);
  APPLY(max_retained_bytes, max_retained_bytes);
  APPLY(guarantee_bytes, guarantee_bytes);
  APPLY(priority, priority);
  APPLY(max_waiting, max_waiting);
  APPLY(max_publications, max_publications);
  APPLY(scrub, scrub);
  APPLY(revocable, revocable);
#undef APPLY
  apply("kind", set.has_kind(), RequestedKind(set.kind()).value_or(std::nullopt), &quota->kind,
        none.kind);
  apply("release", set.has_release(), FromProto(set.release()), &quota->release, none.release);
  for (const v1::DeviceLimit& device : set.devices()) {
    quota->device_limits[device.device_uuid()] = device.limit_bytes();
  }
  for (const v1::DeviceGuarantee& device : set.guarantees()) {
    quota->device_guarantees[device.device_uuid()] = device.guarantee_bytes();
  }
}

}  // namespace gpumemd
