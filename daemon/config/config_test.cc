// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "common/bytes.h"

namespace gpumemd {
namespace config_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using gpumem::kGiB;

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

TEST(ConfigTest, EmptyTextIsTheDefault) {
  absl::StatusOr<Config> config = Parse("");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->file, "gpumem.toml");
  EXPECT_EQ(config->runtime_dir, "");
  EXPECT_EQ(config->backend, BackendChoice::kAuto);
  EXPECT_EQ(config->log_level, LogLevel::kInfo);
  EXPECT_EQ(config->max_sessions, 4096u);
  EXPECT_EQ(config->max_sessions_per_uid, std::nullopt);
  EXPECT_EQ(config->privacy.holders, HoldersShown::kOwn);
  EXPECT_EQ(config->max_segments, 100000u);
  EXPECT_EQ(config->session_socket_mode, 0666u);
  EXPECT_EQ(config->admin_socket_mode, 0660u);
  EXPECT_EQ(config->admin_gid, std::nullopt);
  EXPECT_EQ(config->view_socket_mode, 0660u);
  EXPECT_EQ(config->view_gid, std::nullopt);
  EXPECT_EQ(config->drain_timeout, absl::Seconds(10));
  EXPECT_FALSE(config->refuse_when_store_full);
  EXPECT_EQ(config->host_devices, 1u);
  EXPECT_EQ(config->host_device_bytes, 8 * kGiB);
  EXPECT_EQ(config->pinned_capacity, SizeLimit{.percent = 25});
  EXPECT_EQ(config->tier, TierConfig());
  EXPECT_EQ(config->tenant_defaults, DefaultConfig().tenant_defaults);
  EXPECT_EQ(config->tenant_defaults.limit, std::nullopt);
  EXPECT_EQ(config->tenant_defaults.pinned_limit, std::nullopt);
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
max_sessions_per_uid = 5
max_segments = 20
session_socket_mode = "0660"
api_socket_mode = "600"
admin_socket_mode = "0600"
admin_group = "ml"
view_socket_mode = "0600"
view_group = "ml"
drain_timeout = "1m30s"
when_store_full = "refuse"
revocation_grace = "3s"
suspension_grace = "4s"
spin = "20,always"
revocation_kill_after = "0s"
state_dir = "/var/lib/other"
[host]
devices = 2
device_bytes = "1.5GiB"
[pinned]
capacity = "12GiB"
[tier]
capacity = "24GiB"
huge_pages = false
prefault = true
[privacy]
holders = "all"
[tenant_defaults]
limit = "50%"
total_limit = "64GiB"
pinned_limit = "10%"
tier_limit = "40%"
max_segments = 1
max_sessions = 2
max_in_flight = 3
max_retained = "12.5%"
release = "on-exit"
preload = "broker"
[[tenant]]
name = "training"
limit = 1073741824
pinned_limit = "2GiB"
tier_limit = "3GiB"
max_retained = 0
release = "trust"
preload = "account"
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
  EXPECT_EQ(config->max_sessions_per_uid, 5u);
  EXPECT_EQ(config->privacy.holders, HoldersShown::kAll);
  EXPECT_EQ(config->max_segments, 20u);
  EXPECT_EQ(config->session_socket_mode, 0660u);
  EXPECT_EQ(config->admin_socket_mode, 0600u);
  EXPECT_EQ(config->admin_gid, 2001u);
  EXPECT_EQ(config->view_socket_mode, 0600u);
  EXPECT_EQ(config->view_gid, 2001u);
  EXPECT_EQ(config->drain_timeout, absl::Seconds(90));
  EXPECT_TRUE(config->refuse_when_store_full);
  EXPECT_EQ(config->revocation_grace, absl::Seconds(3));
  EXPECT_EQ(config->suspension_grace, absl::Seconds(4));
  EXPECT_EQ(config->spin, (gpumem::SpinOptions{.most = absl::Microseconds(20), .always = true}));
  EXPECT_EQ(config->revocation_kill_after, absl::ZeroDuration());
  EXPECT_EQ(config->state_dir, "/var/lib/other");
  EXPECT_EQ(config->host_devices, 2u);
  EXPECT_EQ(config->host_device_bytes, 3 * kGiB / 2);
  EXPECT_EQ(config->pinned_capacity, SizeLimit{.bytes = 12 * kGiB});
  EXPECT_EQ(config->tier,
            (TierConfig{.capacity = {.bytes = 24 * kGiB}, .huge_pages = false, .prefault = true}));
  QuotaConfig defaults{.limit = SizeLimit{.percent = 50},
                       .total_limit_bytes = 64 * kGiB,
                       .pinned_limit = SizeLimit{.percent = 10},
                       .tier_limit = SizeLimit{.percent = 40},
                       .max_segments = 1,
                       .max_sessions = 2,
                       .max_in_flight = 3,
                       .max_retained = SizeLimit{.percent = 12.5},
                       .max_waiting = 256,
                       .max_publications = 256,
                       .release = ReleasePolicy::kOnExit,
                       .preload = PreloadMode::kBroker};
  EXPECT_EQ(config->tenant_defaults, defaults);
  QuotaConfig training = defaults;
  training.limit = SizeLimit{.bytes = kGiB};
  training.device_limits = {{"GPU-1", {.bytes = 10 * kGiB}}, {"GPU-2", {.percent = 25}}};
  training.pinned_limit = SizeLimit{.bytes = 2 * kGiB};
  training.tier_limit = SizeLimit{.bytes = 3 * kGiB};
  training.max_retained = SizeLimit{.bytes = 0};
  training.release = ReleasePolicy::kTrust;
  training.preload = PreloadMode::kAccount;
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

TEST(ConfigTest, NotesSettingsThatAreProbablyMistakes) {
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
              ElementsAre("tenant \"orphan\" is configured, but no rule assigns processes to it",
                          "tenant \"user-x\" is configured, but no rule assigns processes to it"));
  std::vector<DeviceInfo> devices = {{.uuid = "GPU-1"}};
  EXPECT_THAT(
      DeviceNotices(*config, devices),
      ElementsAre("the configuration names device GPU-mistyped, which this daemon does not have"));
}

TEST(ConfigTest, RulesByWhatTheCgroupSays) {
  absl::StatusOr<Config> config = Parse(R"(
[[rule]]
tenant = "{slurm_job}-{slurm_step}-{user}"
user = "alice"
slurm_step = "batch"
slurm_job = 42
[[rule]]
tenant = "{unit}-{slice}"
unit = "infer@*.service"
slice = "system*"
[[rule]]
tenant = "{pod}.{container}.{qos}"
pod = "099b88fb-2a99-45ad-af94-d91eb81a87e9"
container = "*"
qos = "burstable"
)");
  ASSERT_TRUE(config.ok()) << config.status();
  std::vector<std::string> descriptions;
  for (const Rule& rule : config->rules) descriptions.push_back(rule.description);
  EXPECT_THAT(descriptions,
              ElementsAre("rule 1 (user = alice, slurm_job = 42, slurm_step = batch)",
                          "rule 2 (unit = infer@*.service, slice = system*)",
                          "rule 3 (container = *, pod = 099b88fb-2a99-45ad-af94-d91eb81a87e9, "
                          "qos = burstable)"));
  const auto tenant = [&](const char* cgroup) {
    return MatchTenant(config->rules, {.uid = 1001, .cgroup = Cgroup::Parse(cgroup)}, "")->tenant;
  };
  EXPECT_EQ(tenant("0::/system.slice/slurmstepd.scope/job_42/step_batch\n"), "42-batch-alice");
  EXPECT_EQ(tenant("0::/system.slice/infer@1.service\n"), "infer_1.service-system.slice");
}

TEST(ConfigTest, RulesForTenantsMadeAtRunTime) {
  absl::StatusOr<Config> config = Parse(R"(
[[rule]]
tenant = "job-{slurm_job}"
slurm_job = "*"
made = true
[[rule]]
tenant = "night"
made = true
default = true
)");
  ASSERT_TRUE(config.ok()) << config.status();  // "night" need not be in the file
  EXPECT_TRUE(config->rules[0].made);
  EXPECT_EQ(config->rules[0].description, "rule 1 (slurm_job = *, made)");
  EXPECT_EQ(config->rules[1].description, "rule 2 (made, default)");
  config = Parse("[[rule]]\ntenant = \"night\"\nmade = true\n");
  EXPECT_FALSE(config.ok()) << "made alone is no condition";
}

TEST(ConfigTest, KnowsWhichTenantsTemplatesMayMake) {
  absl::StatusOr<Config> config = Parse(R"(
[[tenant]]
name = "job-42"
[[tenant]]
name = "user-7"
[[tenant]]
name = "jobs"
[[rule]]
tenant = "job-{slurm_job}"
slurm_job = "*"
)");
  ASSERT_TRUE(config.ok()) << config.status();
  // user-7 is the tenant of processes with an ambiguous cgroup and uid 7.
  EXPECT_THAT(config->notices,
              ElementsAre("tenant \"jobs\" is configured, but no rule assigns processes to it"));
}

TEST(ConfigTest, WhereTheAuditGoes) {
  EXPECT_EQ(Parse("").value().audit, AuditConfig{});
  EXPECT_EQ(Parse("[audit]\noutput = \"json\"\npath = \"/var/log/a\"\ngrants = false\n"
                  "per_second = 0")
                .value()
                .audit,
            (AuditConfig{
                .output = AuditTo::kJson, .path = "/var/log/a", .grants = false, .per_second = 0}));
  EXPECT_THAT(std::string(Parse("[audit]\noutput = \"syslog\"").status().message()),
              testing::HasSubstr("audit.output"));
  EXPECT_THAT(std::string(Parse("[audit]\noutput = \"journal\"\npath = \"/a\"").status().message()),
              testing::HasSubstr("audit.path: a file is only written with output = \"json\""));
}

TEST(ConfigTest, SaysWhatHappensAboutMemoryThatIsTakenPastTheBroker) {
  EXPECT_EQ(Parse("").value().unbrokered, UnbrokeredConfig{});
  const Config config = Parse(R"(
[unbrokered]
reaction = "terminate"
tolerance = "1MiB"
context_allowance = "2GiB"
interval = "100ms"
)")
                            .value();
  EXPECT_EQ(config.unbrokered, (UnbrokeredConfig{.reaction = UnbrokeredReaction::kTerminate,
                                                 .tolerance = 1 << 20,
                                                 .context_allowance = 2 * kGiB,
                                                 .interval = absl::Milliseconds(100)}));
  EXPECT_EQ(Parse("[unbrokered]\ninterval = \"0s\"").value().unbrokered.interval,
            absl::ZeroDuration());
  EXPECT_THAT(std::string(Parse("[unbrokered]\ninterval = \"1ms\"").status().message()),
              testing::HasSubstr("unbrokered.interval: too short (expected at least \"10ms\""));
  EXPECT_THAT(std::string(Parse("[unbrokered]\nreaction = \"kill\"").status().message()),
              testing::HasSubstr("expected one of \"report\", \"deny-new\", \"terminate\""));
}

TEST(ConfigTest, ChangesAreToldByTheKeysOfTheFile) {
  const Config before = Parse(R"(
[[tenant]]
name = "a"
limit = "1GiB"
[[tenant]]
name = "b"
[[rule]]
tenant = "a"
uid = 1
)")
                            .value();
  EXPECT_THAT(ConfigChanges(before, before), IsEmpty());
  const Config after = Parse(R"(
[daemon]
log_level = "debug"
[unbrokered]
reaction = "deny-new"
[tenant_defaults]
max_sessions = 3
[[tenant]]
name = "a"
limit = "2GiB"
guarantee = "1GiB"
priority = 1
max_waiting = 1
max_publications = 1
kind = "ipc"
scrub = true
revocable = true
parent = "c"
release = "on-exit"
device = [{uuid = "G", guarantee = 1}]
[[tenant]]
name = "c"
[[rule]]
tenant = "a"
uid = 2
)")
                           .value();
  EXPECT_THAT(
      ConfigChanges(before, after),
      ElementsAre("tenant_defaults: changed max_sessions",
                  "tenant \"a\": changed limit, guarantee, device, max_sessions, "
                  "max_waiting, max_publications, priority, kind, scrub, revocable, parent, "
                  "release",
                  "tenant \"c\": new", "tenant \"b\": no longer configured",
                  "rules: changed (1 now); sessions keep their tenants", "unbrokered: changed",
                  "log_level: changed"));
}

TEST(ConfigTest, SystemNamesKnowRoot) {
  EXPECT_EQ(SystemNames().user("root"), 0u);
  EXPECT_EQ(SystemNames().group("root"), 0u);
  EXPECT_EQ(SystemNames().user("no-such-user-here"), std::nullopt);
  EXPECT_EQ(SystemNames().group("no-such-group-here"), std::nullopt);
}

}  // namespace config_test
}  // namespace gpumemd
