// SPDX-License-Identifier: Apache-2.0
#include "common/quota_keys.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "proto/gpumem/v1/broker.pb.h"

namespace gpumem {
namespace quota_keys_test {

using google::protobuf::FieldDescriptor;

FieldDescriptor::CppType TypeOf(QuotaUnit unit) {
  switch (unit) {
    case QuotaUnit::kBytes:
    case QuotaUnit::kDuration:
      return FieldDescriptor::CPPTYPE_UINT64;
    case QuotaUnit::kDeviceBytes:
      return FieldDescriptor::CPPTYPE_MESSAGE;
    case QuotaUnit::kCount:
      return FieldDescriptor::CPPTYPE_UINT32;
    case QuotaUnit::kNumber:
      return FieldDescriptor::CPPTYPE_INT32;
    case QuotaUnit::kSwitch:
      return FieldDescriptor::CPPTYPE_BOOL;
    case QuotaUnit::kKind:
    case QuotaUnit::kRelease:
    case QuotaUnit::kPreload:
      return FieldDescriptor::CPPTYPE_ENUM;
    case QuotaUnit::kTenant:
      return FieldDescriptor::CPPTYPE_STRING;
  }
  return FieldDescriptor::CPPTYPE_STRING;
}

TEST(QuotaKeys, AreTheFieldsOfTheProtocol) {
  std::set<std::string> fields;
  for (const QuotaKey& key : kQuotaKeys) {
    const std::string name(key.field);
    EXPECT_TRUE(fields.insert(name).second) << name << " is there twice";
    const FieldDescriptor* field = v1::Quota::descriptor()->FindFieldByName(name);
    ASSERT_NE(field, nullptr) << name;
    EXPECT_EQ(field->number(), key.number) << name;
    EXPECT_EQ(field->cpp_type(), TypeOf(key.unit)) << name;
    EXPECT_EQ(field->is_repeated(), key.unit == QuotaUnit::kDeviceBytes) << name;
    EXPECT_EQ(field->has_presence(),
              key.unit != QuotaUnit::kDeviceBytes && key.unit != QuotaUnit::kTenant)
        << name << ": overrides tell an absent value from 0";
  }
  for (int i = 0; i < v1::Quota::descriptor()->field_count(); ++i) {
    EXPECT_TRUE(fields.contains(v1::Quota::descriptor()->field(i)->name()))
        << v1::Quota::descriptor()->field(i)->name() << " has no row";
  }
}

TEST(QuotaKeys, HaveTheColumnsOfTheirUnit) {
  for (const QuotaKey& key : kQuotaKeys) {
    EXPECT_EQ(key.help.empty(), key.unit == QuotaUnit::kTenant) << key.field;
    EXPECT_EQ(!key.help_off.empty(), key.unit == QuotaUnit::kSwitch) << key.field;
    EXPECT_EQ(!key.all_devices.empty(), key.unit == QuotaUnit::kDeviceBytes) << key.field;
    EXPECT_EQ(key.least < key.most, key.unit == QuotaUnit::kNumber) << key.field;
    EXPECT_TRUE(key.share_of.empty() || key.unit == QuotaUnit::kBytes) << key.field;
    if (!key.all_devices.empty()) {
      ASSERT_NE(FindQuotaKey(key.all_devices), nullptr) << key.field;
      EXPECT_EQ(FindQuotaKey(key.all_devices)->unit, QuotaUnit::kBytes) << key.field;
    }
  }
}

TEST(QuotaKeys, LimitFieldsOfTheUsage) {
  for (const QuotaKey& key : kQuotaKeys) {
    if (key.usage.empty()) continue;
    EXPECT_FALSE(key.row.empty()) << key.field;
    const FieldDescriptor* used = v1::Usage::descriptor()->FindFieldByName(std::string(key.usage));
    ASSERT_NE(used, nullptr) << key.field;
    if (used->is_repeated()) continue;  // the sum over its devices
    EXPECT_EQ(used->cpp_type(), TypeOf(key.unit)) << key.field;
  }
}

TEST(QuotaKeys, AreFoundByFieldAndKey) {
  EXPECT_EQ(FindQuotaKey("total_limit"), FindQuotaKey("total_limit_bytes"));
  EXPECT_EQ(FindQuotaKey("total"), nullptr);
  for (const QuotaKey& key : kQuotaKeys) {
    EXPECT_EQ(FindQuotaKey(key.field), &key);
    EXPECT_EQ(FindQuotaKey(key.key), &key);
  }
}

}  // namespace quota_keys_test
}  // namespace gpumem
