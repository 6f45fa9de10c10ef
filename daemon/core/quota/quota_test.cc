// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/quota/quota.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "common/quota_keys.h"
#include "daemon/core/quota/testing/every_field.h"

namespace gpumemd {
namespace {

using gpumem::FindQuotaKey;
using gpumem::kQuotaKeys;
using gpumem::QuotaKey;
using gpumem::QuotaUnit;

template <typename T>
constexpr QuotaUnit UnitOf() {
  if (std::is_same_v<T, std::optional<uint64_t>>) return QuotaUnit::kBytes;
  if (std::is_same_v<T, std::map<std::string, uint64_t>>) return QuotaUnit::kDeviceBytes;
  if (std::is_same_v<T, std::optional<uint32_t>>) return QuotaUnit::kCount;
  if (std::is_same_v<T, int32_t>) return QuotaUnit::kNumber;
  if (std::is_same_v<T, absl::Duration>) return QuotaUnit::kDuration;
  if (std::is_same_v<T, bool>) return QuotaUnit::kSwitch;
  if (std::is_same_v<T, std::optional<Kind>>) return QuotaUnit::kKind;
  if (std::is_same_v<T, ReleasePolicy>) return QuotaUnit::kRelease;
  if (std::is_same_v<T, std::optional<PreloadMode>>) return QuotaUnit::kPreload;
  return QuotaUnit::kTenant;
}

TEST(Quota, HasTheFieldOfEachKey) {
  std::set<absl::string_view> fields;
  ForEachQuotaField([&](absl::string_view field, auto member) {
    const QuotaKey* key = FindQuotaKey(field);
    ASSERT_NE(key, nullptr) << field;
    EXPECT_EQ(key->field, field);
    const QuotaUnit unit = UnitOf<std::decay_t<decltype(Quota().*member)>>();
    if (fields.insert(field).second) {
      EXPECT_EQ(unit, key->unit) << field;
    } else {  // the same on single devices
      EXPECT_EQ(key->unit, QuotaUnit::kBytes) << field;
      EXPECT_EQ(unit, QuotaUnit::kDeviceBytes) << field;
    }
  });
  EXPECT_EQ(fields.size(), std::size(kQuotaKeys));
}

TEST(Quota, HasNoOtherFields) {
  // Copies by the table alone.
  Quota all = EveryField().values;
  all.device_max_retained = {{"GPU-1", 14}};
  all.parent = "team";
  Quota copy;
  ForEachQuotaField([&](absl::string_view field, auto member) {
    EXPECT_NE(copy.*member, all.*member) << field;
    copy.*member = all.*member;
  });
  EXPECT_EQ(copy, all);
}

}  // namespace
}  // namespace gpumemd
