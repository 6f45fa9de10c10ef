// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/quota_keys.h"
#include "daemon/config/config.h"

namespace gpumemd {
namespace quota_config_test {

using gpumem::FindQuotaKey;
using gpumem::kQuotaKeys;
using gpumem::QuotaKey;
using gpumem::QuotaUnit;

TEST(QuotaConfig, HasEachKey) {
  std::set<absl::string_view> keys;
  ForEachQuotaKey([&](absl::string_view key, auto member, auto) {
    ASSERT_NE(FindQuotaKey(key), nullptr) << key;
    EXPECT_EQ(FindQuotaKey(key)->key, key);
    const bool takes_shares =
        std::is_same_v<decltype(member), std::optional<SizeLimit> QuotaConfig::*>;
    EXPECT_EQ(takes_shares, !FindQuotaKey(key)->share_of.empty()) << key;
    keys.insert(key);
  });
  for (const QuotaKey& key : kQuotaKeys) {
    const bool found = keys.contains(key.key);
    EXPECT_TRUE(found || key.unit == QuotaUnit::kDeviceBytes) << key.key;  // "device"
  }
}

TEST(QuotaConfig, HasNoOtherFields) {
  // Copies by the table alone.
  const QuotaConfig all{.limit = SizeLimit{.bytes = 1},
                        .device_limits = {{"GPU-1", SizeLimit{.bytes = 2}}},
                        .total_limit_bytes = 3,
                        .pinned_limit = SizeLimit{.bytes = 4},
                        .tier_limit = SizeLimit{.bytes = 14},
                        .max_segments = 5,
                        .max_sessions = 6,
                        .max_in_flight = 7,
                        .max_retained = SizeLimit{.bytes = 8},
                        .guarantee = SizeLimit{.bytes = 9},
                        .device_guarantees = {{"GPU-1", SizeLimit{.bytes = 10}}},
                        .priority = 11,
                        .max_waiting = 12,
                        .max_publications = 13,
                        .kind = Kind::kIpc,
                        .scrub = true,
                        .revocable = true,
                        .swappable = true,
                        .min_residence = absl::Seconds(1),
                        .idle_suspend = absl::Seconds(2),
                        .parent = "team",
                        .release = ReleasePolicy::kOnExit,
                        .preload = PreloadMode::kBroker};
  QuotaConfig copy;
  ForEachQuotaKey([&](absl::string_view key, auto member, auto) {
    EXPECT_TRUE(copy.*member != all.*member) << key;
    copy.*member = all.*member;
  });
  EXPECT_EQ(copy, all);
}

TEST(QuotaConfig, EachKeyIsReadToldAndResolved) {
  for (const QuotaKey& key : kQuotaKeys) {
    std::string value = "1";
    if (key.unit == QuotaUnit::kDeviceBytes || key.key == "guarantee") continue;  // no defaults
    if (key.unit == QuotaUnit::kSwitch) value = "true";
    if (key.unit == QuotaUnit::kDuration) value = "\"1s\"";
    if (key.unit == QuotaUnit::kKind) value = "\"ipc\"";
    if (key.unit == QuotaUnit::kRelease) value = "\"on-exit\"";
    if (key.unit == QuotaUnit::kPreload) value = "\"broker\"";
    if (key.unit == QuotaUnit::kTenant) value = "\"team\"";
    const std::string rest =
        "[[tenant]]\nname = \"team\"\n[[rule]]\ntenant = \"user-{uid}\"\ndefault = true\n";
    const auto without = ParseConfig(rest, "a.toml", SystemNames());
    const auto with =
        ParseConfig(absl::StrCat("[tenant_defaults]\n", key.key, " = ", value, "\n", rest),
                    "a.toml", SystemNames());
    ASSERT_TRUE(without.ok()) << without.status();
    ASSERT_TRUE(with.ok()) << with.status();
    EXPECT_EQ(ConfigChanges(*without, *with).at(0),
              absl::StrCat("tenant_defaults: changed ", key.key));
    EXPECT_NE(ResolveQuota(with->tenant_defaults, {}), ResolveQuota(without->tenant_defaults, {}))
        << key.key;
  }
}

}  // namespace quota_config_test
}  // namespace gpumemd
