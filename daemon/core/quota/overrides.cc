// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/quota/overrides.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/quota_keys.h"

namespace gpumemd {

using gpumem::FindQuotaKey;
using gpumem::kQuotaKeys;
using gpumem::QuotaKey;
using gpumem::QuotaUnit;

namespace {

using BytesByDevice = std::map<std::string, uint64_t>;

template <typename Member>
constexpr bool kIsByDevice = std::is_same_v<Member, BytesByDevice Quota::*>;

bool Sets(const QuotaOverride& override, absl::string_view field) {
  return override.set.contains(field);
}

bool Clears(const QuotaOverride& override, absl::string_view field) {
  return std::find(override.clear.begin(), override.clear.end(), field) != override.clear.end();
}

// Returns the rows of the fields that an override may have, in the order of gpumem.v1.Quota.
const std::vector<const QuotaKey*>& Keys() {
  static const auto& keys = *[] {
    auto* list = new std::vector<const QuotaKey*>;
    for (const QuotaKey& key : kQuotaKeys) {
      if (key.unit != QuotaUnit::kTenant) list->push_back(&key);
    }
    std::sort(list->begin(), list->end(),
              [](const QuotaKey* a, const QuotaKey* b) { return a->number < b->number; });
    return list;
  }();
  return keys;
}

bool IsField(absl::string_view name) {
  return std::any_of(Keys().begin(), Keys().end(),
                     [&](const QuotaKey* key) { return key->field == name; });
}

std::string FieldNames() {
  return absl::StrJoin(Keys(), ", ", [](std::string* out, const QuotaKey* key) {
    absl::StrAppend(out, key->field);
  });
}

// Returns the field whose change removes the bytes on single devices that `field` names.
absl::string_view AllDevicesOf(absl::string_view field) {
  const absl::string_view plain = FindQuotaKey(field)->all_devices;
  return plain.empty() ? field : plain;
}

// True if a field is set or cleared that only the configuration sets.
bool ChangesParent(const QuotaOverride& override) {
  return std::any_of(std::begin(kQuotaKeys), std::end(kQuotaKeys), [&](const QuotaKey& key) {
    return key.unit == QuotaUnit::kTenant &&
           (Sets(override, key.field) || Clears(override, key.field));
  });
}

// Makes the override neither set nor clear a field.
void Drop(absl::string_view field, QuotaOverride* override) {
  override->set.erase(std::string(field));
  std::erase(override->clear, field);
  const Quota none;
  ForEachQuotaField([&](absl::string_view name, auto member) {
    if (name == field) override->values.*member = none.*member;
  });
}

absl::Status CheckValues(const QuotaOverride& override) {
  if (Sets(override, "max_in_flight") && override.values.max_in_flight == 0u) {
    return absl::InvalidArgumentError(
        "max_in_flight of 0 would let the tenant make no call, not even to release; use at least "
        "1");
  }
  absl::Status right;
  ForEachQuotaField([&](absl::string_view field, auto member) {
    if constexpr (std::is_same_v<decltype(member), int32_t Quota::*>) {
      const QuotaKey& key = *FindQuotaKey(field);
      const int32_t value = override.values.*member;
      if (!Sets(override, field) || (value >= key.least && value <= key.most)) return;
      right.Update(absl::InvalidArgumentError(
          absl::StrCat("a ", field, " is from ", key.least, " to ", key.most, ", not ", value)));
    }
  });
  return right;
}

}  // namespace

absl::Status CheckChange(const QuotaOverride& change) {
  if (ChangesParent(change)) {
    return absl::InvalidArgumentError(
        "the parent of a tenant cannot be changed here; set it in the configuration (parent = "
        "\"…\" in the [[tenant]]) and reload");
  }
  for (const std::string& name : change.clear) {
    if (!IsField(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a quota has no field \"", name, "\" to clear; it has ", FieldNames()));
    }
    if (Sets(change, name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is both set and cleared; choose one"));
    }
  }
  if (change.set.empty() && change.clear.empty()) {
    return absl::InvalidArgumentError("nothing to change: name at least one limit");
  }
  return CheckValues(change);
}

absl::Status CheckRemembered(absl::string_view tenant, const QuotaOverride& override) {
  if (tenant.empty()) return absl::InvalidArgumentError("an override without a tenant");
  const std::string of = absl::StrCat(" (tenant \"", tenant, "\")");
  if (Sets(override, "parent")) {
    return absl::InvalidArgumentError(absl::StrCat("a parent cannot be overridden", of));
  }
  for (const std::string& name : override.clear) {
    if (!IsField(name)) {
      return absl::InvalidArgumentError(absl::StrCat("a quota has no field \"", name, "\"", of));
    }
  }
  absl::Status right = CheckValues(override);
  return right.ok() ? right : absl::InvalidArgumentError(absl::StrCat(right.message(), of));
}

void Merge(const QuotaOverride& change, QuotaOverride* override) {
  // Drop the fields that the change clears, and those that its plain fields replace.
  for (const QuotaKey& key : kQuotaKeys) {
    if (key.unit != QuotaUnit::kDeviceBytes) continue;
    if (Sets(change, key.all_devices) || Clears(change, key.all_devices)) Drop(key.field, override);
  }
  for (const std::string& name : change.clear) {
    Drop(name, override);
    override->clear.push_back(name);
  }
  // Add the fields that it sets. Entries of single devices are added on top of a clear of theirs.
  ForEachQuotaField([&](absl::string_view field, auto member) {
    if (!Sets(change, field)) return;
    override->set.emplace(field);
    if constexpr (kIsByDevice<decltype(member)>) {
      for (const auto& [uuid, bytes] : change.values.*member) {
        (override->values.*member)[uuid] = bytes;
      }
    } else {
      std::erase(override->clear, field);
      override->values.*member = change.values.*member;
    }
  });
}

std::vector<std::string> FieldsOf(const QuotaOverride& override) {
  std::vector<std::string> names;
  for (const QuotaKey* key : Keys()) {
    if (Sets(override, key->field) || Clears(override, key->field)) names.emplace_back(key->field);
  }
  return names;
}

absl::Status Remove(absl::Span<const std::string> fields, QuotaOverride* override) {
  const std::vector<std::string> overridden = FieldsOf(*override);
  if (overridden.empty()) {
    return absl::FailedPreconditionError("no field of the tenant's quota is overridden");
  }
  for (const std::string& name : fields) {
    if (!IsField(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a quota has no field \"", name, "\" to unset; it has ", FieldNames()));
    }
    if (std::find(overridden.begin(), overridden.end(), name) == overridden.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "\"", name, "\" is not overridden (these are: ", absl::StrJoin(overridden, ", "), ")"));
    }
  }
  for (const std::string& name : fields.empty() ? absl::MakeConstSpan(overridden) : fields) {
    Drop(name, override);
  }
  return absl::OkStatus();
}

void Apply(const QuotaOverride& override, Quota* quota) {
  const Quota none;
  ForEachQuotaField([&](absl::string_view field, auto member) {
    if constexpr (kIsByDevice<decltype(member)>) {
      // A plain field replaces the values of devices, including those from percentages.
      const absl::string_view plain = AllDevicesOf(field);
      if (Sets(override, plain) || Clears(override, plain) || Clears(override, field)) {
        (quota->*member).clear();
      }
      for (const auto& [uuid, bytes] : override.values.*member) (quota->*member)[uuid] = bytes;
    } else {
      if (Clears(override, field)) quota->*member = none.*member;
      if (Sets(override, field)) quota->*member = override.values.*member;
    }
  });
}

}  // namespace gpumemd
