// SPDX-License-Identifier: Apache-2.0
// Every mistake that an operator can make: one sentence with file, line, key and the expected
// value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "daemon/config/config.h"

namespace gpumemd {
namespace mistakes_test {

std::string ErrorOf(absl::string_view text) {
  absl::StatusOr<Config> config = ParseConfig(
      text, "gpumem.toml",
      {.user = [](const std::string& name) -> std::optional<uid_t> {
         if (name == "alice") return 1001;
         return std::nullopt;
       },
       .group = [](const std::string&) -> std::optional<gid_t> { return std::nullopt; }});
  if (config.ok()) return "OK";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
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
        Mistake{"[daemon]\nview_group = \"nobody-knows\"",
                "gpumem.toml:2: daemon.view_group: this machine has no group \"nobody-knows\""},
        Mistake{"[host]\ndevices = 65",
                "gpumem.toml:2: host.devices: 65 is not valid (expected a whole number from 1 to "
                "64)"},
        Mistake{"[host]\ndevice_bytes = 0",
                "gpumem.toml:2: host.device_bytes: a device has at least one byte"},
        Mistake{"[pinned]\ncapacity = \"101%\"",
                "gpumem.toml:2: pinned.capacity: \"101%\" is not a size (expected bytes such as "
                "\"40GiB\", or a percentage of the machine's memory such as \"50%\")"},
        Mistake{"[pinned]\ncapacity = true",
                "gpumem.toml:2: pinned.capacity: true is not a size (expected bytes such as "
                "\"40GiB\", or a percentage of the machine's memory such as \"50%\")"},
        Mistake{"[tier]\ncapacity = \"101%\"",
                "gpumem.toml:2: tier.capacity: \"101%\" is not a size (expected bytes such as "
                "\"40GiB\", or a percentage of the machine's memory such as \"50%\")"},
        Mistake{"[tier]\nhuge_pages = 2",
                "gpumem.toml:2: tier.huge_pages: 2 is not valid (expected true or false)"},
        Mistake{"[metrics]\nlisten = \"localhost:9400\"",
                "gpumem.toml:2: metrics.listen: \"localhost:9400\" is not an address to listen on "
                "(expected \"unix:/run/gpumem/metrics.sock\", \"127.0.0.1:9400\", "
                "\"[::1]:9400\", or \"\" for none)"},
        Mistake{"[metrics]\nmax_tenants = 0",
                "gpumem.toml:2: metrics.max_tenants: 0 is not valid (expected a whole number from "
                "1 to 100000)"},
        Mistake{
            "[metrics]\nallow_remote = false\nlisten = \"0.0.0.0:9400\"",
            "gpumem.toml:3: metrics.listen: other machines can reach 0.0.0.0, and read the names "
            "and the usage of all tenants; set allow_remote = true to permit that"},
        Mistake{"[metrics]\nsocket_group = \"nobody-knows\"",
                "gpumem.toml:2: metrics.socket_group: this machine has no group "
                "\"nobody-knows\""},
        Mistake{"[tenant_defaults]\npinned_limit = \"all\"",
                "gpumem.toml:2: tenant_defaults.pinned_limit: \"all\" is not a size (expected "
                "bytes such as \"40GiB\", or a percentage of the pinned capacity such as "
                "\"50%\")"},
        Mistake{"[[tenant]]\nname = \"a\"\npinned_limit = -1",
                "gpumem.toml:3: tenant.pinned_limit: -1 is not a size (expected bytes such as "
                "\"40GiB\", or a percentage of the pinned capacity such as \"50%\")"},
        Mistake{"[[tenant]]\nname = \"a\"\ntier_limit = -1",
                "gpumem.toml:3: tenant.tier_limit: -1 is not a size (expected bytes such as "
                "\"40GiB\", or a percentage of the host tier's capacity such as \"50%\")"}));

INSTANTIATE_TEST_SUITE_P(
    Shape, ConfigMistakeTest,
    testing::Values(
        Mistake{"[daemon]\n\nmax_session = 3",
                "gpumem.toml:3: daemon.max_session: unknown key (did you mean \"max_sessions\"?)"},
        Mistake{"\n[deamon]\nmax_sessions = 3",
                "gpumem.toml:2: deamon: unknown key (did you mean \"daemon\"?)"},
        Mistake{"[host]\nspeed = 3",
                "gpumem.toml:2: host.speed: unknown key (known here: device_bytes, devices)"},
        Mistake{"[pinned]\nlimit = 3",
                "gpumem.toml:2: pinned.limit: unknown key (known here: capacity)"},
        Mistake{"[tier]\nlimit = 3",
                "gpumem.toml:2: tier.limit: unknown key (known here: capacity, huge_pages, "
                "prefault)"},
        Mistake{"pinned = \"25%\"",
                "gpumem.toml:1: pinned: \"25%\" is not a table (expected [pinned])"},
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
                "gpumem.toml:4: tenant.name: tenant \"a\" is defined twice"},
        Mistake{"[[tenant]]\nname = \"a\"\n[[tenant.device]]\nuuid = \"G\"\nlimit = 1\n"
                "[[tenant.device]]\nuuid = \"G\"\nlimit = 2",
                "gpumem.toml:7: tenant.device.uuid: device \"G\" is named twice"},
        Mistake{"[[tenant]]\nname = \"a\"\n[[tenant.device]]\n"
                "uuid = \"PINNED-00000000-0000-0000-0000-000000000000\"\nlimit = 1",
                "gpumem.toml:4: tenant.device.uuid: pinned host memory has a separate limit "
                "(pinned_limit, in the table of the tenant), and no guarantee"},
        Mistake{"[[tenant]]\nname = \"a\"\n[[tenant.device]]\n"
                "uuid = \"TIER-00000000-0000-0000-0000-000000000000\"\nlimit = 1",
                "gpumem.toml:4: tenant.device.uuid: the host tier has a separate limit "
                "(tier_limit, in the table of the tenant), and no guarantee"}));

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
                "gpumem.toml:1: rule: no condition (expected uid, user, gid, group, cgroup, unit, "
                "slice, container, pod, qos, slurm_job, slurm_step, namespace, pod_name, "
                "service_account, claim, \"label:KEY\", or default = true for all "
                "processes)"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\ndefault = false",
                "gpumem.toml:1: rule: no condition (expected uid, user, gid, group, cgroup, unit, "
                "slice, container, pod, qos, slurm_job, slurm_step, namespace, pod_name, "
                "service_account, claim, \"label:KEY\", or default = true for all "
                "processes)"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nuid = 3\ndefault = true",
                "gpumem.toml:4: rule.default: a rule with default = true has no other condition"},
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
        Mistake{
            "[[rule]]\ntenant = \"u{gid}\"\nuid = 1",
            "gpumem.toml:2: rule.tenant: \"u{gid}\" is not a tenant's name (expected 1 to 63 "
            "letters, digits, '.', '_' or '-'; these in it stand for the process's: {uid}, {user}, "
            "{group}, {unit}, {slice}, {container}, {pod}, {qos}, {slurm_job}, {slurm_step}, "
            "{namespace}, {pod_name}, {service_account}, {label:KEY})"},
        Mistake{
            "[[rule]]\ntenant = \"{pod}/x\"\npod = \"*\"",
            "gpumem.toml:2: rule.tenant: \"{pod}/x\" is not a tenant's name (expected 1 to 63 "
            "letters, digits, '.', '_' or '-'; these in it stand for the process's: {uid}, {user}, "
            "{group}, {unit}, {slice}, {container}, {pod}, {qos}, {slurm_job}, {slurm_step}, "
            "{namespace}, {pod_name}, {service_account}, {label:KEY})"},
        Mistake{"[[rule]]\ntenant = \"{pod}\"\nuid = 1",
                "gpumem.toml:2: rule.tenant: {pod} has a value only where the rule has the "
                "condition pod or qos or namespace or pod_name or service_account or claim or "
                "label:KEY (expected one such as pod = \"*\")"},
        Mistake{"[[rule]]\ntenant = \"a-{slurm_job}\"\ndefault = true",
                "gpumem.toml:2: rule.tenant: {slurm_job} has a value only where the rule has the "
                "condition slurm_job or slurm_step (expected one such as slurm_job = \"*\")"},
        Mistake{"[[rule]]\ntenant = \"{slurm_job}-{slurm_step}\"\nslurm_job = \"*\"",
                "gpumem.toml:2: rule.tenant: {slurm_step} has a value only where the rule has the "
                "condition slurm_step (expected one such as slurm_step = \"*\")"},
        Mistake{"[[rule]]\ntenant = \"{user}\"\nuid = 1",
                "gpumem.toml:2: rule.tenant: {user} has a value only where the rule has the "
                "condition user (expected one such as user = \"alice\")"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nunit = \"infer\"",
                "gpumem.toml:3: rule.unit: \"infer\" is not a unit of systemd (expected a pattern "
                "such as \"infer@*.service\" or \"session-*.scope\")"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nslice = \"infer.service\"",
                "gpumem.toml:3: rule.slice: \"infer.service\" is not a slice of systemd (expected "
                "a pattern such as \"machine.slice\")"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\ncontainer = \"web\"",
                "gpumem.toml:3: rule.container: \"web\" is not a container's id (expected 64 "
                "hexadecimal digits in lower case, or a pattern such as \"3f2a*\")"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\ncontainer = \"3f2a\"",
                "gpumem.toml:3: rule.container: \"3f2a\" is not a container's id (expected 64 "
                "hexadecimal digits in lower case, or a pattern such as \"3f2a*\")"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\npod = \"web-0\"",
                "gpumem.toml:3: rule.pod: \"web-0\" is not a pod's uid (expected hexadecimal "
                "digits in lower case with '-', or a pattern such as \"*\")"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nqos = \"Burstable\"",
                "gpumem.toml:3: rule.qos: \"Burstable\" is not valid (expected one of "
                "\"guaranteed\", \"burstable\", \"besteffort\", \"*\")"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nslurm_job = \"train\"",
                "gpumem.toml:3: rule.slurm_job: \"train\" is not a job of Slurm (expected its "
                "number, or a pattern such as \"*\")"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nslurm_step = \"\"",
                "gpumem.toml:3: rule.slurm_step: \"\" is not a step of a Slurm job (expected its "
                "number, \"batch\", or a pattern such as \"*\")"},
        Mistake{"[[rule]]\ntenant = \"{service_account}\"\nnamespace = \"a\"",
                "gpumem.toml:2: rule.tenant: {service_account} has a value only where the rule has "
                "the condition service_account (expected one such as service_account = \"*\")"},
        Mistake{"[[rule]]\ntenant = \"{label:a}\"\n\"label:b\" = \"*\"",
                "gpumem.toml:2: rule.tenant: {label:a} has a value only where the rule has the "
                "condition \"label:a\" (expected one such as \"label:a\" = \"*\")"},
        Mistake{
            "[[rule]]\ntenant = \"u{uid}\"\n\"label:a b\" = \"*\"",
            "gpumem.toml:3: rule.label:a b: \"a b\" is not the key of a label (expected one such "
            "as \"label:app.kubernetes.io/name\")"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\n\"label:a\" = \"b/c\"",
                "gpumem.toml:3: rule.label:a: \"b/c\" is not a label's value (expected a pattern "
                "such as \"prod\" or \"*\")"},
        Mistake{
            "[[rule]]\ntenant = \"u{uid}\"\nnamespace = \"Team\"",
            "gpumem.toml:3: rule.namespace: \"Team\" is not a namespace of Kubernetes (expected "
            "a pattern such as \"team-*\")"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\nnamespace = \"a\"\ndefault = true",
                "gpumem.toml:4: rule.default: a rule with default = true has no other condition"},
        Mistake{"[[rule]]\ntenant = \"u{uid}\"\npod = \"*\"\ndefault = true",
                "gpumem.toml:4: rule.default: a rule with default = true has no other condition"}));

TEST(ConfigTomlTest, WhatIsNoTomlNamesTheLine) {
  EXPECT_THAT(ErrorOf("[daemon]\nbackend = \n"),
              testing::StartsWith("gpumem.toml:2: not valid TOML: "));
  EXPECT_THAT(ErrorOf("[daemon]\nmax_sessions = 1\nmax_sessions = 2\n"),
              testing::StartsWith("gpumem.toml:3: not valid TOML: "));
  EXPECT_THAT(ErrorOf("[daemon"), testing::StartsWith("gpumem.toml:1: not valid TOML: "));
  EXPECT_THAT(ErrorOf("\xff\xfe"), testing::StartsWith("gpumem.toml:1: not valid TOML: "));
}

TEST(ConfigMistakesTest, DeepNestingIsAMistakeAndNoCrash) {
  const auto times = [](const std::string& text, int n) {
    std::string all;
    for (int i = 0; i < n; ++i) all += text;
    return all;
  };
  for (const std::string& deep :
       {"a = " + times("[", 200'000), "a = " + times("{b=", 200'000), "a" + times(".b", 200'000),
        "[a" + times(".b", 200'000) + "]", "a = " + times("[\n", 100'000)}) {
    const absl::Status status = ParseConfig("\n" + deep, "gpumem.toml", SystemNames()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("nested deeper than 32"));
  }
  // Brackets of strings and comments nest nothing.
  for (const std::string& flat :
       {"# " + times("[", 100), "[daemon]\nadmin_group = \"" + times("[", 100) + "\"",
        "[daemon]\nadmin_group = '" + times("{", 100) + "'",
        "[daemon]\nadmin_group = \"\\\"" + times("[", 100) + "\"",
        "[daemon]\nadmin_group = \"\"\"\n" + times("[\n", 100) + "\"\"\""}) {
    const absl::Status status = ParseConfig(flat, "gpumem.toml", SystemNames()).status();
    EXPECT_THAT(std::string(status.message()), ::testing::Not(::testing::HasSubstr("deeper")));
  }
}

TEST(ConfigMistakesTest, BytesThatAreNotUtf8) {
  // Each in a place that toml11 reads by other code.
  for (const char* text :
       {"[daemon]\nruntime_dir = '/run/\xff'\n", "[daemon]\nruntime_dir = \"/run/\xff\"\n",
        "[daemon]\nruntime_dir = \"\"\"/\xff\"\"\"\n", "[daemon]\n# \xc3\n", "[daemon]\n\xff = 1\n",
        "[daemon]\n# \xed\xa0\x80\n", "[daemon]\n# \xf4\x90\x80\x80\n", "[daemon]\n# \xc0\x80\n",
        "[daemon]\n# \xe2\x82"}) {
    EXPECT_EQ(ErrorOf(text), "gpumem.toml:2: not valid TOML: a byte that is not UTF-8");
  }
  EXPECT_EQ(
      ErrorOf("[daemon] # \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\nruntime_dir = '/run/\xc3\xa4'"),
      "OK");
}

}  // namespace mistakes_test
}  // namespace gpumemd
