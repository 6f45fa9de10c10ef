// SPDX-License-Identifier: Apache-2.0
#include "common/quota_keys.h"

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "client/cli/options/command_line.h"
#include "client/cli/options/values.h"

namespace gpumem::cli {
namespace {

// Returns the arguments that set a key to a value other than the default.
std::vector<std::string> Setting(const QuotaKey& key) {
  const std::string option = "--" + OptionOf(key);
  switch (key.unit) {
    case QuotaUnit::kBytes:
      return {option, "1GiB"};
    case QuotaUnit::kDeviceBytes:
      return {option, "0=1GiB"};
    case QuotaUnit::kCount:
    case QuotaUnit::kNumber:
      return {option, "7"};
    case QuotaUnit::kDuration:
      return {option, "7s"};
    case QuotaUnit::kSwitch:
      return {option};
    case QuotaUnit::kKind:
      return {option, "ipc"};
    case QuotaUnit::kRelease:
      return {option, "on-exit"};
    case QuotaUnit::kPreload:
      return {option, "broker"};
    case QuotaUnit::kTenant:
      break;
  }
  return {option, "lab"};
}

TEST(QuotaOptions, EachKeyCanBeSetClearedAndUnset) {
  for (const QuotaKey& key : kQuotaKeys) {
    std::vector<std::string> set = {"quota", "set", "t"};
    for (const std::string& argument : Setting(key)) set.push_back(argument);
    const CommandLine line = ParseCommandLine(set);
    if (key.unit == QuotaUnit::kTenant) {
      EXPECT_NE(line.error, "") << key.key;
      continue;
    }
    ASSERT_TRUE(line.command.has_value()) << key.key << ": " << line.error;
    const v1::Quota& quota = std::get<QuotaSetCommand>(*line.command).request.quota();
    std::vector<const google::protobuf::FieldDescriptor*> fields;
    quota.GetReflection()->ListFields(quota, &fields);
    ASSERT_EQ(fields.size(), 1u) << key.key;
    EXPECT_EQ(fields[0]->name(), key.field);

    const CommandLine clear = ParseCommandLine({"quota", "set", "t", "--clear", OptionOf(key)});
    ASSERT_TRUE(clear.command.has_value()) << clear.error;
    EXPECT_EQ(std::get<QuotaSetCommand>(*clear.command).request.clear(0), key.field);

    const CommandLine unset = ParseCommandLine({"quota", "unset", "t", "--" + OptionOf(key)});
    ASSERT_TRUE(unset.command.has_value()) << unset.error;
    EXPECT_EQ(std::get<QuotaUnsetCommand>(*unset.command).request.fields(0), key.field);
  }
}

}  // namespace
}  // namespace gpumem::cli
