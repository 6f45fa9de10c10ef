#include "daemon/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/status/status.h"

namespace gpumemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kGiB = uint64_t{1} << 30;

NameLookup TestNames() {
  return {.user = [](const std::string& name) -> std::optional<uid_t> {
            if (name == "alice") return 1001;
            return std::nullopt;
          },
          .group = [](const std::string& name) -> std::optional<gid_t> {
            if (name == "ml") return 2001;
            return std::nullopt;
          }};
}

absl::StatusOr<Config> Parse(absl::string_view text) {
  return ParseConfig(text, "gpumem.toml", TestNames());
}

std::string ErrorOf(absl::string_view text) {
  absl::StatusOr<Config> config = Parse(text);
  if (config.ok()) return "OK";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(ConfigTest, EmptyTextIsTheDefault) {
  absl::StatusOr<Config> config = Parse("");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->file, "gpumem.toml");
  EXPECT_EQ(config->runtime_dir, "");
  EXPECT_EQ(config->backend, BackendChoice::kAuto);
  EXPECT_EQ(config->log_level, LogLevel::kInfo);
  EXPECT_EQ(config->max_sessions, 4096u);
  EXPECT_EQ(config->max_segments, 100000u);
  EXPECT_EQ(config->session_socket_mode, 0666u);
  EXPECT_EQ(config->api_socket_mode, 0666u);
  EXPECT_EQ(config->admin_socket_mode, 0660u);
  EXPECT_EQ(config->admin_gid, std::nullopt);
  EXPECT_EQ(config->drain_timeout, absl::Seconds(10));
  EXPECT_EQ(config->host_devices, 1u);
  EXPECT_EQ(config->host_device_bytes, 8 * kGiB);
  EXPECT_EQ(config->tenant_defaults, DefaultConfig().tenant_defaults);
  EXPECT_EQ(config->tenant_defaults.limit, std::nullopt);
  EXPECT_EQ(config->tenant_defaults.max_sessions, 256u);
  EXPECT_THAT(config->tenants, IsEmpty());
  ASSERT_THAT(config->rules, SizeIs(1));
  EXPECT_EQ(MatchTenant(config->rules, {.uid = 1000}, "")->tenant, "user-1000");
}

TEST(ConfigTest, ReadsEveryKey) {
  absl::StatusOr<Config> config = Parse(R"(
[daemon]
runtime_dir = "/run/other"
backend = "host"
log_level = "debug"
max_sessions = 10
max_segments = 20
session_socket_mode = "0660"
api_socket_mode = "600"
admin_socket_mode = "0600"
admin_group = "ml"
drain_timeout = "1m30s"
[host]
devices = 2
device_bytes = "1.5GiB"
[tenant_defaults]
limit = "50%"
total_limit = "64GiB"
max_segments = 1
max_sessions = 2
max_in_flight = 3
max_retained = "12.5%"
release = "on-exit"
[[tenant]]
name = "training"
limit = 1073741824
max_retained = 0
release = "trust"
[[tenant.device]]
uuid = "GPU-1"
limit = "10GiB"
[[tenant.device]]
uuid = "GPU-2"
limit = "25%"
[[tenant]]
name = "lab.1_x-y"
[[rule]]
tenant = "training"
user = "alice"
group = "ml"
cgroup = "/kubepods*"
[[rule]]
tenant = "lab.1_x-y"
uid = 7
gid = 8
[[rule]]
tenant = "u{uid}"
default = true
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->runtime_dir, "/run/other");
  EXPECT_EQ(config->backend, BackendChoice::kHost);
  EXPECT_EQ(config->log_level, LogLevel::kDebug);
  EXPECT_EQ(config->max_sessions, 10u);
  EXPECT_EQ(config->max_segments, 20u);
  EXPECT_EQ(config->session_socket_mode, 0660u);
  EXPECT_EQ(config->api_socket_mode, 0600u);
  EXPECT_EQ(config->admin_socket_mode, 0600u);
  EXPECT_EQ(config->admin_gid, 2001u);
  EXPECT_EQ(config->drain_timeout, absl::Seconds(90));
  EXPECT_EQ(config->host_devices, 2u);
  EXPECT_EQ(config->host_device_bytes, 3 * kGiB / 2);
  QuotaConfig defaults{.limit = SizeLimit{.percent = 50},
                       .total_limit_bytes = 64 * kGiB,
                       .max_segments = 1,
                       .max_sessions = 2,
                       .max_in_flight = 3,
                       .max_retained = SizeLimit{.percent = 12.5},
                       .release = ReleasePolicy::kOnExit};
  EXPECT_EQ(config->tenant_defaults, defaults);
  QuotaConfig training = defaults;
  training.limit = SizeLimit{.bytes = kGiB};
  training.device_limits = {{"GPU-1", {.bytes = 10 * kGiB}}, {"GPU-2", {.percent = 25}}};
  training.max_retained = SizeLimit{.bytes = 0};
  training.release = ReleasePolicy::kTrust;
  EXPECT_THAT(config->tenants,
              ElementsAre(TenantConfig{"training", training}, TenantConfig{"lab.1_x-y", defaults}));
  ASSERT_THAT(config->rules, SizeIs(3));
  EXPECT_EQ(config->rules[0].tenant, "training");
  EXPECT_EQ(config->rules[0].uid, 1001u);
  EXPECT_EQ(config->rules[0].gid, 2001u);
  EXPECT_EQ(config->rules[0].cgroup, "/kubepods*");
  EXPECT_EQ(config->rules[0].description, "rule 1 (user = alice, group = ml, cgroup = /kubepods*)");
  EXPECT_EQ(config->rules[1].uid, 7u);
  EXPECT_EQ(config->rules[1].gid, 8u);
  EXPECT_EQ(config->rules[1].cgroup, std::nullopt);
  EXPECT_EQ(config->rules[1].description, "rule 2 (uid = 7, gid = 8)");
  EXPECT_EQ(config->rules[2].uid, std::nullopt);
  EXPECT_EQ(config->rules[2].description, "rule 3 (default)");
  EXPECT_THAT(config->notices, IsEmpty());
}

struct Mistake {
  const char* text;
  const char* error;
};

class ConfigMistakeTest : public testing::TestWithParam<Mistake> {};

TEST_P(ConfigMistakeTest, NamesFileLineKeyAndWhatWasExpected) {
  EXPECT_EQ(ErrorOf(GetParam().text), GetParam().error);
}

INSTANTIATE_TEST_SUITE_P(
    Values, ConfigMistakeTest,
    testing::Values(
        Mistake{"[[tenant]]\nname = \"a\"\n\nlimit = \"40Gib/s\"",
                "gpumem.toml:4: tenant.limit: \"40Gib/s\" is not a size (expected bytes such as "
                "\"40GiB\", or a percentage of the device such as \"50%\")"},
        Mistake{"[tenant_defaults]\nlimit = \"101%\"",
                "gpumem.toml:2: tenant_defaults.limit: \"101%\" is not a size (expected bytes such "
                "as \"40GiB\", or a percentage of the device such as \"50%\")"},
        Mistake{"[tenant_defaults]\nlimit = \"nan%\"",
                "gpumem.toml:2: tenant_defaults.limit: \"nan%\" is not a size (expected bytes such "
                "as \"40GiB\", or a percentage of the device such as \"50%\")"},
        Mistake{"[tenant_defaults]\nlimit = -1",
                "gpumem.toml:2: tenant_defaults.limit: -1 is not a size (expected bytes such as "
                "\"40GiB\", or a percentage of the device such as \"50%\")"},
        Mistake{"[tenant_defaults]\ntotal_limit = \"50%\"",
                "gpumem.toml:2: tenant_defaults.total_limit: \"50%\" is not a size (expected bytes "
                "such as \"64GiB\")"},
        Mistake{"[tenant_defaults]\nmax_segments = 4294967296",
                "gpumem.toml:2: tenant_defaults.max_segments: 4294967296 is not valid (expected a "
                "whole number from 0 to 4294967295)"},
        Mistake{"[tenant_defaults]\nrelease = \"never\"",
                "gpumem.toml:2: tenant_defaults.release: \"never\" is not valid (expected one of "
                "\"trust\", \"on-exit\")"},
        Mistake{"[daemon]\nbackend = \"gpu\"",
                "gpumem.toml:2: daemon.backend: \"gpu\" is not valid (expected one of \"auto\", "
                "\"cuda\", \"host\")"},
        Mistake{"[daemon]\nlog_level = 3",
                "gpumem.toml:2: daemon.log_level: 3 is not valid (expected one of \"debug\", "
                "\"info\", \"warn\", \"error\")"},
        Mistake{"[daemon]\nruntime_dir = \"run\"",
                "gpumem.toml:2: daemon.runtime_dir: \"run\" is not an absolute path (expected one "
                "such as \"/run/gpumem\")"},
        Mistake{"[daemon]\nmax_sessions = 0",
                "gpumem.toml:2: daemon.max_sessions: 0 is not valid (expected a whole number from "
                "1 to 1000000)"},
        Mistake{"[daemon]\napi_socket_mode = \"0888\"",
                "gpumem.toml:2: daemon.api_socket_mode: \"0888\" is not a file mode (expected "
                "octal digits in quotes such as \"0660\")"},
        Mistake{"[daemon]\napi_socket_mode = 432",
                "gpumem.toml:2: daemon.api_socket_mode: 432 is not a file mode (expected octal "
                "digits in quotes such as \"0660\")"},
        Mistake{"[daemon]\ndrain_timeout = \"10\"",
                "gpumem.toml:2: daemon.drain_timeout: \"10\" is not a duration (expected one such "
                "as \"10s\" or \"1m30s\", at most a day)"},
        Mistake{"[daemon]\ndrain_timeout = \"-1s\"",
                "gpumem.toml:2: daemon.drain_timeout: \"-1s\" is not a duration (expected one such "
                "as \"10s\" or \"1m30s\", at most a day)"},
        Mistake{"[daemon]\nadmin_group = \"nobody-knows\"",
                "gpumem.toml:2: daemon.admin_group: this machine has no group \"nobody-knows\""},
        Mistake{"[host]\ndevices = 65",
                "gpumem.toml:2: host.devices: 65 is not valid (expected a whole number from 1 to "
                "64)"},
        Mistake{"[host]\ndevice_bytes = 0",
                "gpumem.toml:2: host.device_bytes: a device has at least one byte"}));

INSTANTIATE_TEST_SUITE_P(
    Shape, ConfigMistakeTest,
    testing::Values(
        Mistake{"[daemon]\n\nmax_session = 3",
                "gpumem.toml:3: daemon.max_session: unknown key (did you mean \"max_sessions\"?)"},
        Mistake{"\n[deamon]\nmax_sessions = 3",
                "gpumem.toml:2: deamon: unknown key (did you mean \"daemon\"?)"},
        Mistake{"[host]\nspeed = 3",
                "gpumem.toml:2: host.speed: unknown key (known here: device_bytes, devices)"},
        Mistake{"daemon = 3", "gpumem.toml:1: daemon: 3 is not a table (expected [daemon])"},
        Mistake{"[tenant]\nname = \"a\"",
                "gpumem.toml:1: tenant: a table is not a list of tables (expected [[tenant]] in "
                "double brackets, once for each)"},
        Mistake{"tenant = [1]",
                "gpumem.toml:1: tenant: an array with 1 is not a list of tables (expected "
                "[[tenant]] in double brackets, once for each)"},
        // The first of two mistakes in the file, whichever is found first.
        Mistake{"[host]\ndevices = 0\n[daemon]\nmax_sessions = 0",
                "gpumem.toml:2: host.devices: 0 is not valid (expected a whole number from 1 to "
                "64)"}));

INSTANTIATE_TEST_SUITE_P(
    Tenants, ConfigMistakeTest,
    testing::Values(
        Mistake{"\n[[tenant]]\nlimit = 1",
                "gpumem.toml:2: tenant.name: missing (expected 1 to 63 letters, digits, '.', '_' "
                "or '-')"},
        Mistake{"[[tenant]]\nname = \"a/b\"",
                "gpumem.toml:2: tenant.name: \"a/b\" is not a tenant's name (expected 1 to 63 "
                "letters, digits, '.', '_' or '-')"},
        Mistake{"[[tenant]]\nname = \"u-{uid}\"",
                "gpumem.toml:2: tenant.name: \"u-{uid}\" is not a tenant's name (expected 1 to 63 "
                "letters, digits, '.', '_' or '-')"},
        Mistake{"[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"a\"",
                "gpumem.toml:4: tenant.name: tenant \"a\" is there twice"},
        Mistake{"[[tenant]]\nname = \"a\"\n[[tenant.device]]\nuuid = \"G\"",
                "gpumem.toml:3: tenant.device.limit: missing (expected bytes such as \"40GiB\", or "
                "a percentage of the device such as \"50%\")"},
        Mistake{"[[tenant]]\nname = \"a\"\n[[tenant.device]]\nuuid = \"G\"\nlimit = 1\n"
                "[[tenant.device]]\nuuid = \"G\"\nlimit = 2",
                "gpumem.toml:7: tenant.device.uuid: device \"G\" is named twice"}));

INSTANTIATE_TEST_SUITE_P(
    Rules, ConfigMistakeTest,
    testing::Values(
        Mistake{"[[tenant]]\nname = \"training\"\n[[rule]]\ntenant = \"trainig\"\nuid = 1",
                "gpumem.toml:4: rule.tenant: no [[tenant]] is named \"trainig\" (did you mean "
                "\"training\"?)"},
        Mistake{"[[rule]]\ntenant = \"x\"\nuid = 1",
                "gpumem.toml:2: rule.tenant: no [[tenant]] is named \"x\" (add one, or write a "
                "name for each user: \"user-{uid}\")"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"",
                "gpumem.toml:1: rule: no condition (expected uid, user, gid, group, cgroup, or "
                "default = true for everybody)"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\ndefault = false",
                "gpumem.toml:1: rule: no condition (expected uid, user, gid, group, cgroup, or "
                "default = true for everybody)"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nuid = 3\ndefault = true",
                "gpumem.toml:4: rule.default: a rule that is for everybody has no other condition"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nuser = \"bob\"",
                "gpumem.toml:3: rule.user: this machine has no user \"bob\""},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\ngroup = \"bobs\"",
                "gpumem.toml:3: rule.group: this machine has no group \"bobs\""},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nuid = 3\nuser = \"alice\"",
                "gpumem.toml:4: rule.user: a rule has uid or user, not both"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nuid = 4294967295",
                "gpumem.toml:3: rule.uid: 4294967295 is not valid (expected a whole number from 0 "
                "to 4294967294)"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nuid = -1",
                "gpumem.toml:3: rule.uid: -1 is not valid (expected a whole number from 0 "
                "to 4294967294)"},
        Mistake{"[[rule]]\ntenant = \"u{gid}\"\nuid = 1",
                "gpumem.toml:2: rule.tenant: \"u{gid}\" is not a tenant's name (expected 1 to 63 "
                "letters, digits, '.', '_' or '-'; {uid} in it stands for the user's id)"}));

TEST(ConfigTest, WhatIsNoTomlNamesTheLine) {
  EXPECT_THAT(ErrorOf("[daemon]\nbackend = \n"),
              testing::StartsWith("gpumem.toml:2: not valid TOML: "));
  EXPECT_THAT(ErrorOf("[daemon]\nmax_sessions = 1\nmax_sessions = 2\n"),
              testing::StartsWith("gpumem.toml:3: not valid TOML: "));
  EXPECT_THAT(ErrorOf("[daemon"), testing::StartsWith("gpumem.toml:1: not valid TOML: "));
  EXPECT_THAT(ErrorOf("\xff\xfe"), testing::StartsWith("gpumem.toml:1: not valid TOML: "));
}

TEST(ConfigTest, ATenantsLimitGoesBeforeTheDefaultsOfADevice) {
  absl::StatusOr<Config> config = Parse(R"(
[[tenant]]
name = "own"
limit = "3GiB"
[[tenant]]
name = "inherits"
[tenant_defaults]
limit = "2GiB"
device = [{uuid = "GPU-1", limit = "1GiB"}]
[[rule]]
tenant = "own"
uid = 1
[[rule]]
tenant = "inherits"
default = true
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(QuotaOf(*config, "own").device_limits, IsEmpty());
  EXPECT_EQ(QuotaOf(*config, "own").limit, SizeLimit{.bytes = 3 * kGiB});
  EXPECT_EQ(QuotaOf(*config, "inherits"), config->tenant_defaults);
  EXPECT_EQ(QuotaOf(*config, "nobody"), config->tenant_defaults);
}

TEST(ConfigTest, ResolvesPercentagesOnEachDevice) {
  QuotaConfig quota{.limit = SizeLimit{.percent = 50},
                    .device_limits = {{"B", {.percent = 10}}, {"gone", {.bytes = 1}}},
                    .total_limit_bytes = 7,
                    .max_segments = 1,
                    .max_sessions = 2,
                    .max_in_flight = 3,
                    .max_retained = SizeLimit{.percent = 25},
                    .release = ReleasePolicy::kOnExit};
  std::vector<DeviceInfo> devices = {{.uuid = "A", .capacity_bytes = 1001},
                                     {.uuid = "B", .capacity_bytes = 2000}};
  EXPECT_EQ(ResolveQuota(quota, devices), (Quota{.device_limits = {{"A", 500}, {"B", 200}},
                                                 .total_limit_bytes = 7,
                                                 .max_segments = 1,
                                                 .max_sessions = 2,
                                                 .max_in_flight = 3,
                                                 .device_max_retained = {{"A", 250}, {"B", 500}},
                                                 .release = ReleasePolicy::kOnExit}));
  EXPECT_EQ(ResolveQuota({.limit = SizeLimit{.bytes = 5}, .max_retained = SizeLimit{.bytes = 6}},
                         devices),
            (Quota{.limit_bytes = 5, .max_retained_bytes = 6}));
  EXPECT_EQ(ResolveQuota({}, devices), Quota{});
  EXPECT_EQ(SizeLimit{.percent = 100}.Of(141'000'000'000), 141'000'000'000u);
}

TEST(ConfigTest, NotesWhatIsHardlyMeant) {
  absl::StatusOr<Config> config = Parse(R"(
[[tenant]]
name = "orphan"
[[tenant]]
name = "user-1000"
[[tenant]]
name = "user-x"
device = [{uuid = "GPU-mistyped", limit = 1}, {uuid = "GPU-1", limit = 1}]
)");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->notices,
              ElementsAre("tenant \"orphan\" is configured, but no rule makes anybody it",
                          "tenant \"user-x\" is configured, but no rule makes anybody it"));
  std::vector<DeviceInfo> devices = {{.uuid = "GPU-1"}};
  EXPECT_THAT(
      DeviceNotices(*config, devices),
      ElementsAre("the configuration limits device GPU-mistyped, which this daemon does not have"));
}

TEST(ConfigTest, SystemNamesKnowRoot) {
  EXPECT_EQ(SystemNames().user("root"), 0u);
  EXPECT_EQ(SystemNames().group("root"), 0u);
  EXPECT_EQ(SystemNames().user("no-such-user-here"), std::nullopt);
  EXPECT_EQ(SystemNames().group("no-such-group-here"), std::nullopt);
}

TEST(LoadConfigFileTest, TheExampleIsValid) {
  absl::StatusOr<Config> config = LoadConfigFile("deploy/gpumemd.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->file, "deploy/gpumemd.toml");
  EXPECT_EQ(config->tenant_defaults.limit, SizeLimit{.percent = 50});
  EXPECT_THAT(config->notices, IsEmpty());
}

// The commented-out examples must not rot: without the '#' they are valid as well.
TEST(LoadConfigFileTest, TheExamplesInTheExampleAreValid) {
  std::ifstream file("deploy/gpumemd.toml");
  std::string text;
  for (std::string line; std::getline(file, line);) {
    bool example = line.size() > 1 && line[0] == '#' && line[1] != ' ';
    text += (example ? line.substr(1) : line) + "\n";
  }
  absl::StatusOr<Config> config =
      ParseConfig(text, "example",
                  {.user = [](const std::string&) { return uid_t{1}; },
                   .group = [](const std::string&) { return gid_t{1}; }});
  ASSERT_TRUE(config.ok()) << config.status() << "\n" << text;
  EXPECT_EQ(config->runtime_dir, "/run/gpumem");
  EXPECT_EQ(config->admin_gid, 1u);
  ASSERT_THAT(config->tenants, SizeIs(1));
  EXPECT_THAT(config->tenants[0].quota.device_limits, SizeIs(1));
  EXPECT_THAT(config->rules, SizeIs(2));
}

TEST(LoadConfigFileTest, TellsWhatIsWrongWithTheFile) {
  absl::Status missing = LoadConfigFile("/no/such/file.toml").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()),
              testing::HasSubstr("cannot read the configuration /no/such/file.toml"));
  EXPECT_FALSE(LoadConfigFile("/").ok());
  EXPECT_EQ(LoadConfigFile("/dev/zero").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gpumemd
