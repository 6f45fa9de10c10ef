// SPDX-License-Identifier: Apache-2.0
// Parents and guarantees: checks between tenants, when the file is read and when the devices are
// known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "daemon/config/config.h"

namespace gpumemd {
namespace tenants_test {

using ::testing::IsEmpty;

using gpumem::kGiB;

absl::StatusOr<Config> Parse(absl::string_view text) {
  return ParseConfig(text, "gpumem.toml", SystemNames());
}

std::string ErrorOf(absl::string_view text) {
  absl::StatusOr<Config> config = Parse(text);
  return config.ok() ? "OK" : std::string(config.status().message());
}

const std::vector<DeviceInfo>& Devices() {
  static const auto& devices = *new std::vector<DeviceInfo>{
      {.uuid = "GPU-1", .capacity_bytes = 80 * kGiB, .kinds = {Kind::kVmm}},
      {.uuid = "GPU-2", .capacity_bytes = 40 * kGiB, .kinds = {Kind::kVmm}},
      {.uuid = "PINNED-0", .capacity_bytes = kGiB, .kinds = {Kind::kPinned}}};
  return devices;
}

std::string ErrorOnDevices(absl::string_view text) {
  absl::StatusOr<Config> config = Parse(text);
  EXPECT_TRUE(config.ok()) << config.status();
  if (!config.ok()) return "not valid at all";
  absl::Status checked = CheckGuarantees(*config, Devices());
  if (checked.ok()) return "OK";
  EXPECT_EQ(checked.code(), absl::StatusCode::kInvalidArgument);
  return std::string(checked.message());
}

// --- Reading -------------------------------------------------------------------------

TEST(ConfigTenants, ReadsEveryKeyOfAQuota) {
  absl::StatusOr<Config> config = Parse(R"(
[tenant_defaults]
priority = -1000
max_waiting = 7
max_publications = 8
kind = "vmm"
scrub = true
revocable = true
parent = "lab"
[[tenant]]
name = "lab"
revocable = false
[[tenant]]
name = "serving"
guarantee = "40GiB"
priority = 1000
max_waiting = 0
kind = "pinned"
scrub = false
parent = ""
device = [{uuid = "GPU-1", guarantee = "25%"}, {uuid = "GPU-2", limit = "50%", guarantee = 7}]
)");
  ASSERT_TRUE(config.ok()) << config.status();
  const QuotaConfig defaults{.max_segments = 4096,
                             .max_sessions = 256,
                             .max_in_flight = 64,
                             .priority = -1000,
                             .max_waiting = 7,
                             .max_publications = 8,
                             .kind = Kind::kVmm,
                             .scrub = true,
                             .revocable = true,
                             .parent = "lab"};
  EXPECT_EQ(config->tenant_defaults, defaults);
  QuotaConfig serving = defaults;
  serving.guarantee = SizeLimit{.bytes = 40 * kGiB};
  serving.device_guarantees = {{"GPU-1", {.percent = 25}}, {"GPU-2", {.bytes = 7}}};
  serving.device_limits = {{"GPU-2", {.percent = 50}}};
  serving.priority = 1000;
  serving.max_waiting = 0;
  serving.kind = Kind::kPinned;
  serving.scrub = false;
  serving.parent = "";
  EXPECT_EQ(QuotaOf(*config, "serving"), serving);
  EXPECT_EQ(ResolveQuota(serving, Devices()),
            (Quota{.device_limits = {{"GPU-2", 20 * kGiB}},
                   .max_segments = 4096,
                   .max_sessions = 256,
                   .max_in_flight = 64,
                   .max_waiting = 0,
                   .max_publications = 8,
                   .guarantee_bytes = 40 * kGiB,
                   .device_guarantees = {{"GPU-1", 20 * kGiB}, {"GPU-2", 7}},
                   .priority = 1000,
                   .kind = Kind::kPinned,
                   .revocable = true}));
  // A share becomes bytes of each device, and nothing of host memory.
  EXPECT_EQ(
      ResolveQuota({.guarantee = SizeLimit{.percent = 50}, .parent = "lab"}, Devices()),
      (Quota{.device_guarantees = {{"GPU-1", 40 * kGiB}, {"GPU-2", 20 * kGiB}}, .parent = "lab"}));
}

TEST(ConfigTenants, AnInheritedParentIsNotItsOwnNorThatOfThoseAboveIt) {
  absl::StatusOr<Config> config = Parse(R"(
[tenant_defaults]
parent = "users"
[[tenant]]
name = "all"
[[tenant]]
name = "users"
parent = "all"
[[tenant]]
name = "alice"
[[tenant]]
name = "service"
parent = ""
[[tenant]]
name = "batch"
parent = "all"
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(QuotaOf(*config, "all").parent, "");
  EXPECT_EQ(QuotaOf(*config, "users").parent, "all");
  EXPECT_EQ(QuotaOf(*config, "alice").parent, "users");
  EXPECT_EQ(QuotaOf(*config, "service").parent, "");
  EXPECT_EQ(QuotaOf(*config, "batch").parent, "all");
  EXPECT_EQ(QuotaOf(*config, "user-1000").parent, "users");
}

TEST(ConfigTenants, AParentNeedsNoRule) {
  absl::StatusOr<Config> config =
      Parse("[[tenant]]\nname = \"lab\"\n[[tenant]]\nname = \"user-1\"\nparent = \"lab\"\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->notices, IsEmpty());
}

// --- Mistakes that show in the text --------------------------------------------------

struct Mistake {
  const char* text;
  const char* error;
};

class ConfigTenantsMistakeTest : public testing::TestWithParam<Mistake> {};

TEST_P(ConfigTenantsMistakeTest, IsFoundWhenTheFileIsRead) {
  EXPECT_EQ(ErrorOf(GetParam().text), absl::StrCat("gpumem.toml:", GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    Values, ConfigTenantsMistakeTest,
    testing::Values(
        Mistake{"[tenant_defaults]\nguarantee = \"1GiB\"",
                "2: tenant_defaults.guarantee: the tenant of each user would get this guarantee, "
                "and users have no upper bound; set it in a [[tenant]]"},
        Mistake{"[[tenant_defaults.device]]\nuuid = \"G\"\nguarantee = 1",
                "3: tenant_defaults.device.guarantee: the tenant of each user would get this "
                "guarantee, and users have no upper bound; set it in a [[tenant]]"},
        Mistake{"[[tenant]]\nname = \"a\"\nguarantee = \"some\"",
                "3: tenant.guarantee: \"some\" is not a size (expected bytes such as \"40GiB\", or "
                "a percentage of the device such as \"50%\")"},
        Mistake{"[tenant_defaults]\npriority = 1001",
                "2: tenant_defaults.priority: 1001 is not valid (expected a whole number from "
                "-1000 to 1000)"},
        Mistake{"[tenant_defaults]\npriority = \"high\"",
                "2: tenant_defaults.priority: \"high\" is not valid (expected a whole number from "
                "-1000 to 1000)"},
        Mistake{"[tenant_defaults]\nmax_waiting = -1",
                "2: tenant_defaults.max_waiting: -1 is not valid (expected a whole number from 0 "
                "to 4294967295)"},
        Mistake{"[tenant_defaults]\nkind = \"managed\"",
                "2: tenant_defaults.kind: \"managed\" is not valid (expected one of \"vmm\", "
                "\"mempool\", \"ipc\", \"pinned\", \"host\")"},
        Mistake{"[tenant_defaults]\nkind = \"tier\"",
                "2: tenant_defaults.kind: \"tier\" is not valid (expected one of \"vmm\", "
                "\"mempool\", \"ipc\", \"pinned\", \"host\")"},
        Mistake{"[tenant_defaults]\nscrub = \"yes\"",
                "2: tenant_defaults.scrub: \"yes\" is not valid (expected true or false)"},
        Mistake{"[tenant_defaults]\nkind = \"mempool\"\nrevocable = true",
                "3: tenant_defaults.revocable: memory of kind \"mempool\" cannot be taken back, so "
                "that a tenant with revocable = true needs another kind"},
        Mistake{"[tenant_defaults]\nrevocable = true\n[[tenant]]\nname = \"a\"\nkind = \"mempool\"",
                "5: tenant.kind: memory of kind \"mempool\" cannot be taken back, so that a tenant "
                "with revocable = true needs another kind"},
        Mistake{"[[tenant]]\nname = \"a\"\n[[tenant.device]]\nuuid = \"G\"",
                "3: tenant.device.limit: missing (expected bytes such as \"40GiB\", or a "
                "percentage of the device such as \"50%\"; or a guarantee)"}));

INSTANTIATE_TEST_SUITE_P(
    Parents, ConfigTenantsMistakeTest,
    testing::Values(
        Mistake{"[[tenant]]\nname = \"lab\"\n[[tenant]]\nname = \"a\"\nparent = \"lap\"",
                "5: tenant.parent: no [[tenant]] is named \"lap\" (did you mean \"lab\"?)"},
        Mistake{
            "[[tenant]]\nname = \"a\"\nparent = \"institute\"",
            "3: tenant.parent: no [[tenant]] is named \"institute\" (add one, or remove the line)"},
        Mistake{"[tenant_defaults]\nparent = \"lab\"",
                "2: tenant_defaults.parent: no [[tenant]] is named \"lab\" (add one, or remove the "
                "line)"},
        Mistake{"[[tenant]]\nname = \"a\"\nparent = 3",
                "3: tenant.parent: 3 is not a tenant's name (expected the name of a [[tenant]], or "
                "\"\" for none)"},
        Mistake{"[[tenant]]\nname = \"a\"\nparent = \"a\"",
                "3: tenant.parent: tenant \"a\" is an ancestor of itself (a under a)"},
        Mistake{"[[tenant]]\nname = \"top\"\nparent = \"b\"\n[[tenant]]\nname = \"a\"\n"
                "parent = \"b\"\n[[tenant]]\nname = \"b\"\nparent = \"a\"",
                "6: tenant.parent: tenant \"a\" is an ancestor of itself (a under b under a)"},
        Mistake{"[tenant_defaults]\nparent = \"a\"\n[[tenant]]\nname = \"a\"\nparent = \"b\"\n"
                "[[tenant]]\nname = \"b\"\nparent = \"a\"",
                "5: tenant.parent: tenant \"a\" is an ancestor of itself (a under b under a)"}));

// Eight levels, one under the other.
std::string Chain(int levels) {
  std::string text;
  for (int i = 1; i <= levels; ++i) {
    absl::StrAppend(&text, "[[tenant]]\nname = \"t", i, "\"\n",
                    i > 1 ? absl::StrCat("parent = \"t", i - 1, "\"\n") : "\n");
  }
  return text;
}

TEST(ConfigTenants, AreOnEightLevelsAtMost) {
  EXPECT_EQ(ErrorOf(Chain(8)), "OK");
  EXPECT_EQ(ErrorOf(Chain(9)),
            "gpumem.toml:27: tenant.parent: tenant \"t9\" is on level 9 (expected at most 8)");
  EXPECT_EQ(ErrorOf("[tenant_defaults]\nparent = \"t7\"\n" + Chain(8)), "OK");
  EXPECT_EQ(ErrorOf("[tenant_defaults]\nparent = \"t8\"\n" + Chain(8)),
            "gpumem.toml:2: tenant_defaults.parent: each user's tenant would be on level 9 "
            "(expected at most 8)");
}

INSTANTIATE_TEST_SUITE_P(
    Guarantees, ConfigTenantsMistakeTest,
    testing::Values(
        Mistake{"[[tenant]]\nname = \"a\"\nlimit = \"1GiB\"\nguarantee = \"2GiB\"",
                "4: tenant.guarantee: the guarantee of tenant \"a\", 2.00 GiB, is above its limit "
                "of 1.00 GiB; lower the guarantee or raise the limit"},
        Mistake{"[tenant_defaults]\nlimit = \"50%\"\n[[tenant]]\nname = \"a\"\n"
                "guarantee = \"60%\"",
                "5: tenant.guarantee: the guarantee of tenant \"a\", 60%, is above its limit of "
                "50%; lower the guarantee or raise the limit"},
        Mistake{"[[tenant]]\nname = \"a\"\nlimit = \"50%\"\n[[tenant.device]]\nuuid = \"GPU-7\"\n"
                "guarantee = \"60%\"",
                "6: tenant.device.guarantee: the guarantee of tenant \"a\" on GPU-7, 60%, is above "
                "its limit of 50%; lower the guarantee or raise the limit"},
        Mistake{"[[tenant]]\nname = \"b\"\nguarantee = \"60%\"\n[[tenant]]\nname = \"a\"\n"
                "guarantee = \"40.5%\"",
                "6: tenant.guarantee: the guarantees of all tenants add up to 100.5%, which is "
                "more than the device's 100% (b 60%, a 40.5%); lower one of them"},
        Mistake{"[[tenant]]\nname = \"lab\"\nlimit = \"10GiB\"\n[[tenant]]\nname = \"a\"\n"
                "parent = \"lab\"\nguarantee = \"6GiB\"\n[[tenant]]\nname = \"b\"\n"
                "parent = \"lab\"\nguarantee = \"6GiB\"",
                "11: tenant.guarantee: the guarantees of the members of tenant \"lab\" add up to "
                "12.00 GiB, above its limit of 10.00 GiB (a 6.00 GiB, b 6.00 GiB); lower one of "
                "them or raise the limit"},
        Mistake{"[[tenant]]\nname = \"lab\"\nlimit = \"10GiB\"\n[[tenant]]\nname = \"a\"\n"
                "parent = \"lab\"\nlimit = \"11GiB\"",
                "7: tenant.limit: the limit of tenant \"a\", 11.00 GiB, is above that of the "
                "parent, \"lab\", 10.00 GiB; lower it, or leave it out"},
        Mistake{"[[tenant]]\nname = \"lab\"\nlimit = \"50%\"\n[[tenant]]\nname = \"a\"\n"
                "parent = \"lab\"\n[[tenant.device]]\nuuid = \"GPU-7\"\nlimit = \"60%\"",
                "9: tenant.device.limit: the limit of tenant \"a\" on GPU-7, 60%, is above that of "
                "the parent, \"lab\", 50%; lower it, or leave it out"}));

TEST(ConfigTenants, WhatIsInheritedIsNoClaim) {
  // The members' own limit is the defaults', the parent's is lower: it simply goes first.
  EXPECT_EQ(ErrorOf("[tenant_defaults]\nlimit = \"50%\"\n[[tenant]]\nname = \"lab\"\n"
                    "limit = \"20%\"\n[[tenant]]\nname = \"a\"\nparent = \"lab\""),
            "OK");
}

TEST(ConfigTenants, ExactSharesFit) {
  EXPECT_EQ(ErrorOf("[[tenant]]\nname = \"a\"\nguarantee = \"33.3%\"\n[[tenant]]\nname = \"b\"\n"
                    "guarantee = \"33.3%\"\n[[tenant]]\nname = \"c\"\nguarantee = \"33.4%\""),
            "OK");
  // A team needs the larger of its guarantee and the sum of its members'.
  EXPECT_EQ(ErrorOf("[[tenant]]\nname = \"lab\"\nguarantee = \"60%\"\n[[tenant]]\nname = \"a\"\n"
                    "parent = \"lab\"\nguarantee = \"60%\"\n[[tenant]]\nname = \"b\"\n"
                    "guarantee = \"40%\""),
            "OK");
}

// --- What only the devices tell ------------------------------------------------------

TEST(ConfigTenants, BytesAreCheckedAgainstTheDevices) {
  EXPECT_EQ(ErrorOnDevices("[[tenant]]\nname = \"a\"\nguarantee = \"40GiB\""), "OK");
  EXPECT_EQ(ErrorOnDevices("[[tenant]]\nname = \"b\"\nguarantee = \"30GiB\"\n[[tenant]]\n"
                           "name = \"a\"\nguarantee = \"11GiB\""),
            "gpumem.toml:6: tenant.guarantee: the guarantees of all tenants add up to 41.00 GiB on "
            "GPU-2, which is more than the device's 40.00 GiB (b 30.00 GiB, a 11.00 GiB); lower "
            "one of them");
  // Another one on the smaller device makes it right.
  EXPECT_EQ(ErrorOnDevices("[[tenant]]\nname = \"b\"\nguarantee = \"30GiB\"\n[[tenant]]\n"
                           "name = \"a\"\nguarantee = \"11GiB\"\n"
                           "device = [{uuid = \"GPU-2\", guarantee = \"10GiB\"}]"),
            "OK");
}

TEST(ConfigTenants, BytesAndSharesAreComparedOnTheDevices) {
  EXPECT_EQ(ErrorOnDevices("[[tenant]]\nname = \"a\"\nlimit = \"50%\"\nguarantee = \"21GiB\""),
            "gpumem.toml:4: tenant.guarantee: the guarantee of tenant \"a\" on GPU-2, 21.00 GiB, "
            "is above its limit of 20.00 GiB; lower the guarantee or raise the limit");
  EXPECT_EQ(ErrorOnDevices("[[tenant]]\nname = \"lab\"\nlimit = \"50%\"\n[[tenant]]\n"
                           "name = \"a\"\nparent = \"lab\"\nlimit = \"21GiB\""),
            "gpumem.toml:7: tenant.limit: the limit of tenant \"a\" on GPU-2, 21.00 GiB, is above "
            "that of the parent, \"lab\", 20.00 GiB; lower it, or leave it out");
  EXPECT_EQ(ErrorOnDevices("[[tenant]]\nname = \"a\"\ntotal_limit = \"50GiB\"\n"
                           "guarantee = \"26GiB\""),
            "gpumem.toml:4: tenant.guarantee: the guarantees of tenant \"a\" and its members on "
            "all devices add up to 52.00 GiB, above its total limit of 50.00 GiB; lower a "
            "guarantee or raise the total limit");
}

}  // namespace tenants_test
}  // namespace gpumemd
