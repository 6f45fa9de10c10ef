// SPDX-License-Identifier: Apache-2.0
// gpumemctl against a real daemon: the JSON shapes and exit codes that scripts rely on.
#include "tests/cli/gpumemctl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/cuda/toolkit.h"

namespace gpumem {
namespace {

using demo::Process;
using nlohmann::json;
using ::testing::HasSubstr;

TEST_F(GpumemctlTest, ShowsWhatAHolderHolds) {
  std::unique_ptr<Process> holder =
      Start({"hold", "--size", "3MiB", "--count", "2", "--device", "1", "--fill", "--json"});
  std::vector<json> held;
  for (int i = 0; i < 2; ++i) {
    held.push_back(json::parse(holder->ReadLine(absl::Now() + kTimeout).value_or("")));
    EXPECT_EQ(held[i]["event"], "held");
    EXPECT_EQ(held[i]["kind"], "vmm");
    EXPECT_EQ(held[i]["size_bytes"], 4 * kMiB);
    EXPECT_EQ(held[i]["tenant"], tenant_);
    EXPECT_EQ(held[i]["reused"], false);
    EXPECT_THAT(held[i]["ticket"].get<std::string>(), testing::StartsWith("gmt_"));
  }

  json sessions = Run({"ps", "--json"}).AsJson()["sessions"];
  ASSERT_EQ(sessions.size(), 1u);
  EXPECT_EQ(sessions[0]["session_id"], held[0]["session_id"]);
  EXPECT_EQ(sessions[0]["state"], "live");
  EXPECT_EQ(sessions[0]["pid"], holder->pid());
  EXPECT_EQ(sessions[0]["leased_bytes"], 8 * kMiB);

  json segments = Run({"--json", "segments", "--device", "1"}).AsJson()["segments"];
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_EQ(segments[0]["segment_id"], held[0]["segment_id"]);
  EXPECT_EQ(segments[0]["state"], "leased");
  EXPECT_EQ(segments[0]["session_ids"], json::array({held[0]["session_id"]}));
  EXPECT_EQ(Run({"segments", "--device", "0"}).text, "No segments.\n");

  json quota = Run({"quota", "get", tenant_, "--json"}).AsJson();
  EXPECT_EQ(quota["tenant"], tenant_);
  EXPECT_EQ(quota["usage"]["charged_bytes"], 8 * kMiB);
  EXPECT_EQ(quota["quota"]["limit_bytes"], nullptr);
  EXPECT_EQ(Run({"quota", "get", "--json"}).AsJson()["tenant"], tenant_);

  json devices = Run({"devices", "--json"}).AsJson()["devices"];
  ASSERT_EQ(devices.size(), 3u);  // the last is pinned memory
  EXPECT_EQ(devices[0]["backend"], "host");
  EXPECT_EQ(devices[1]["charged_bytes"], 8 * kMiB);

  json top = Run({"top", "--iterations", "1", "--json"}).AsJson();
  EXPECT_EQ(top["status"]["segments"], 2);
  EXPECT_EQ(top["status"]["cuda_toolkit"], CudaToolkit());
  EXPECT_EQ(top["tenants"][0]["usage"]["charged_bytes"], 8 * kMiB);
  EXPECT_EQ(top["sessions"].size(), 1u);

  holder->Signal(SIGTERM);
  json released = json::parse(holder->ReadLine(absl::Now() + kTimeout).value_or(""));
  EXPECT_EQ(released, (json{{"schema_version", 1},
                            {"event", "released"},
                            {"segments", 2},
                            {"size_bytes", 8 * kMiB}}));
  EXPECT_EQ(holder->Wait(absl::Now() + kTimeout), 0);
}

TEST_F(GpumemctlTest, WhatIsSetIsShownAndCanBeTakenBack) {
  std::unique_ptr<Process> holder = Start({"hold", "--size", "2MiB", "--json"});
  ASSERT_TRUE(holder->ReadLine(absl::Now() + kTimeout).has_value());
  const Answer set = Run({"quota", "set", tenant_, "--guarantee", "8MiB", "--priority", "-5",
                          "--device-guarantee", "1=4MiB", "--scrub"});
  EXPECT_EQ(set.code, 0);
  EXPECT_THAT(set.text, HasSubstr("8.00 MiB*"));
  EXPECT_THAT(set.text, HasSubstr("4.00 MiB*"));
  EXPECT_THAT(set.text, HasSubstr("-5*"));
  const json quota = Run({"quota", "get", tenant_, "--json"}).AsJson();
  EXPECT_EQ(quota["quota"]["guarantee_bytes"], 8 * kMiB);
  EXPECT_EQ(quota["quota"]["guarantees"][0]["guarantee_bytes"], 4 * kMiB);
  EXPECT_EQ(quota["overridden"], json({"guarantee_bytes", "guarantees", "priority", "scrub"}));
  EXPECT_TRUE(Run({"quota", "--json"}).AsJson()["overridden"].is_null());  // as a worker
  const json tenant =
      Run({"quota", "list", "--json"}).AsJson().value("tenants", json::array()).at(0);
  EXPECT_EQ(tenant["overridden"], quota["overridden"]);

  const Answer too_much = Run({"quota", "set", tenant_, "--guarantee", "65MiB"});
  EXPECT_EQ(too_much.code, 1);
  EXPECT_THAT(too_much.text, HasSubstr("more than the device's 64.00 MiB"));

  EXPECT_EQ(
      Run({"quota", "unset", tenant_, "--scrub", "--priority", "--json"}).AsJson()["overridden"],
      json({"guarantee_bytes", "guarantees"}));
  const Answer unset = Run({"quota", "unset", tenant_});
  EXPECT_EQ(unset.code, 0);
  EXPECT_EQ(unset.text.find('*'), std::string::npos) << unset.text;
  EXPECT_EQ(Run({"quota", "unset", tenant_}).code, 1);
  EXPECT_EQ(Run({"quota", "unset", "nobody"}).code, 6);
}

TEST_F(GpumemctlTest, ReloadWithoutAFileSaysSo) {
  const Answer answer = Run({"reload", "--json"});
  EXPECT_EQ(answer.code, 1);
  EXPECT_EQ(answer.AsJson()["error"]["code"], "FAILED_PRECONDITION");
  EXPECT_EQ(Run({"reload", "--dry-run", "--json"}).text, answer.text);
}

TEST_F(GpumemctlTest, AQuotaThatIsSetHolds) {
  std::unique_ptr<Process> holder = Start({"hold", "--size", "2MiB", "--json"});
  ASSERT_TRUE(holder->ReadLine(absl::Now() + kTimeout).has_value());
  Answer set = Run({"quota", "set", tenant_, "--limit", "6MiB", "--device", "1=4MiB", "--json"});
  EXPECT_EQ(set.code, 0) << set.text;
  EXPECT_EQ(set.AsJson()["quota"]["limit_bytes"], 6 * kMiB);
  EXPECT_EQ(set.AsJson()["quota"]["devices"][0]["limit_bytes"], 4 * kMiB);

  EXPECT_EQ(Run({"hold", "--size", "4MiB", "--for", "1ms"}).code, 0);
  Answer denied = Run({"hold", "--size", "6MiB", "--for", "1ms", "--json"});
  EXPECT_EQ(denied.code, 5);
  json denial = denied.AsJson()["error"]["denial"];
  EXPECT_EQ(denied.AsJson()["error"]["code"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(denial["cause"], "device_limit");
  EXPECT_EQ(denial["asked"], 6 * kMiB);
  EXPECT_EQ(denial["limit"], 6 * kMiB);
  EXPECT_EQ(Run({"hold", "--size", "5MiB", "--for", "1ms", "--device", "1"}).code, 5);

  EXPECT_EQ(Run({"quota", "set", tenant_, "--clear", "limit"}).code, 0);
  EXPECT_EQ(Run({"hold", "--size", "6MiB", "--for", "1ms"}).code, 0);
}

TEST_F(GpumemctlTest, OpensATicketReadOnly) {
  json held;
  std::unique_ptr<Process> holder = Hold({"--size", "2MiB", "--fill"}, &held);
  EXPECT_EQ(held["ipc_handle"], nullptr);
  EXPECT_THAT(held["address"].get<std::string>(), testing::StartsWith("0x"));
  json opened;
  std::unique_ptr<Process> opener = Hold({"--open", held["ticket"], "--read-only"}, &opened);
  EXPECT_EQ(opened["segment_id"], held["segment_id"]);
  EXPECT_NE(opened["lease_id"], held["lease_id"]);
  EXPECT_EQ(Find({"segments", "--json"}, "segments", "segment_id", held["segment_id"])["leases"],
            2);
  End(*opener);
  End(*holder);
  EXPECT_EQ(Run({"hold", "--open", held["ticket"], "--for", "1ms"}).code, 6);
}

TEST_F(GpumemctlTest, PinnedMemoryHasItsOwnLimit) {
  json held;
  std::unique_ptr<Process> holder = Hold({"--size", "2MiB", "--kind", "pinned", "--fill"}, &held);
  EXPECT_EQ(held["kind"], "pinned");
  const std::string pinned = held["device_uuid"];
  EXPECT_THAT(pinned, testing::StartsWith("PINNED-"));
  EXPECT_EQ(Find({"devices", "--json"}, "devices", "device_uuid", pinned)["charged_bytes"],
            held["size_bytes"]);
  EXPECT_THAT(Run({"segments"}).text, HasSubstr("2 PINNED"));

  json quota = Run({"quota", "set", tenant_, "--limit", "0", "--total-limit", "0", "--pinned-limit",
                    "4MiB", "--json"})
                   .AsJson();
  EXPECT_EQ(quota["quota"]["pinned_limit_bytes"], 4 * kMiB);
  EXPECT_EQ(quota["usage"]["charged_bytes"], 0);
  EXPECT_EQ(Run({"hold", "--size", "2MiB", "--kind", "pinned", "--for", "1ms"}).code, 0);
  Answer denied = Run({"hold", "--size", "4MiB", "--kind", "pinned", "--for", "1ms", "--json"});
  EXPECT_EQ(denied.code, 5);
  EXPECT_EQ(denied.AsJson()["error"]["denial"]["limit"], 4 * kMiB);
  EXPECT_THAT(denied.AsJson()["error"]["denial"]["help"].get<std::string>(),
              HasSubstr("--pinned-limit"));
  const json tenant = Run({"quota", "list", "--json"}).AsJson()["tenants"][0];
  EXPECT_EQ(tenant["quota"]["pinned_limit_bytes"], 4 * kMiB);
  EXPECT_EQ(tenant["usage"]["devices"][2]["device_uuid"], pinned);
  EXPECT_EQ(tenant["usage"]["devices"][2]["leased_bytes"], 2 * kMiB);
  EXPECT_EQ(tenant["usage"]["devices"][2]["limit_bytes"], 4 * kMiB);
  End(*holder);
}

TEST_F(GpumemctlTest, TellsWhatIsLost) {
  json held;
  std::unique_ptr<Process> holder =
      Hold({"--size", "2MiB", "--kind", "ipc", "--show-handle"}, &held);
  EXPECT_EQ(held["kind"], "ipc");
  EXPECT_THAT(held["ipc_handle"].get<std::string>(), testing::MatchesRegex("[0-9a-f]{128}"));
  json opened;
  std::unique_ptr<Process> opener = Hold({"--open", held["ticket"]}, &opened);
  EXPECT_EQ(opened["segment_id"], held["segment_id"]);

  const json uuid = held["device_uuid"];
  const int context = Find({"devices", "--json"}, "devices", "device_uuid", uuid)["context_pid"];
  ASSERT_GT(context, 0);
  EXPECT_THAT(Run({"devices"}).text, HasSubstr(absl::StrCat("pid ", context)));
  ASSERT_EQ(kill(context, SIGKILL), 0);

  const std::string line = holder->ReadLine(absl::Now() + kTimeout).value_or("{}");
  EXPECT_EQ(json::parse(line), (json{{"schema_version", 1},
                                     {"event", "lost"},
                                     {"lease_ids", {held["lease_id"]}},
                                     {"segment_ids", {held["segment_id"]}}}));
  EXPECT_EQ(json::parse(opener->ReadLine(absl::Now() + kTimeout).value_or("{}"))["lease_ids"],
            json::array({opened["lease_id"]}));
  EXPECT_EQ(Find({"segments", "--json"}, "segments", "segment_id", held["segment_id"])["lost"],
            true);
  EXPECT_THAT(Run({"segments"}).text, HasSubstr("leased, lost"));
  Answer late = Run({"hold", "--open", held["ticket"], "--for", "1ms", "--json"});
  EXPECT_EQ(late.code, 1);
  EXPECT_EQ(late.AsJson()["error"]["code"], "FAILED_PRECONDITION");

  // The next one makes another context.
  EXPECT_EQ(Run({"hold", "--size", "2MiB", "--kind", "ipc", "--for", "1ms"}).code, 0);
  End(*opener);
  End(*holder);
}

TEST_F(GpumemctlTest, ShowsSetsAndTrimsPools) {
  const std::string none =
      "No pools: a tenant has one on a device while it has segments of kind mempool there.\n";
  EXPECT_EQ(Run({"pool"}).text, none);
  json held;
  std::unique_ptr<Process> holder =
      Hold({"--size", "4MiB", "--kind", "mempool", "--device", "1"}, &held);
  EXPECT_EQ(held["kind"], "mempool");

  json pools = Run({"pool", "--json"}).AsJson()["pools"];
  ASSERT_EQ(pools.size(), 1u);
  EXPECT_EQ(pools[0]["tenant"], tenant_);
  EXPECT_EQ(pools[0]["device_uuid"], held["device_uuid"]);
  EXPECT_EQ(pools[0]["segments"], 1);
  EXPECT_EQ(pools[0]["used_bytes"], 4 * kMiB);
  EXPECT_GE(pools[0]["reserved_bytes"], 4 * kMiB);
  EXPECT_THAT(Run({"pool", "list", "--tenant", tenant_, "--device", "1"}).text, HasSubstr(tenant_));
  EXPECT_EQ(Run({"pool", "list", "--device", "0"}).text, none);

  Answer set = Run({"pool", "set", tenant_, "--release-threshold", "8MiB", "--reuse-opportunistic",
                    "off", "--reset-peaks", "--json"});
  EXPECT_EQ(set.code, 0) << set.text;
  EXPECT_EQ(set.AsJson()["release_threshold_bytes"], 8 * kMiB);
  EXPECT_EQ(set.AsJson()["reuse_allow_opportunistic"], false);
  EXPECT_EQ(set.AsJson()["reuse_follow_event_dependencies"],
            pools[0]["reuse_follow_event_dependencies"]);
  EXPECT_EQ(set.AsJson()["used_peak_bytes"], 4 * kMiB);
  Answer trim = Run({"pool", "trim", tenant_, "--device", "1", "--to", "0", "--json"});
  EXPECT_EQ(trim.code, 0) << trim.text;
  EXPECT_EQ(trim.AsJson()["used_bytes"], 4 * kMiB);
  EXPECT_EQ(Run({"pool", "trim", tenant_, "--device", "0"}).code, 6);
  EXPECT_EQ(Run({"pool", "set", "nobody", "--reset-peaks"}).code, 6);
  EXPECT_EQ(Run({"pool", "set", tenant_}).code, 2);
  End(*holder);
}

TEST_F(GpumemctlTest, WhoamiTellsWhoAndWhy) {
  const json who = Run({"whoami", "--json"}).AsJson();
  EXPECT_EQ(who["tenant"], tenant_);
  EXPECT_EQ(who["path"], json::array({tenant_}));
  EXPECT_EQ(who["rule"], "built-in rule (a tenant for each user)");
  EXPECT_EQ(who["rule_number"], 1);
  EXPECT_EQ(who["passed"], json::array());
  EXPECT_EQ(who["identity"]["uid"], getuid());
  EXPECT_EQ(who["identity"]["gid"], getgid());
  EXPECT_GT(who["identity"]["pid"], 0);
  EXPECT_GT(who["session_id"], 0);
  const Answer text = Run({"whoami"});
  EXPECT_THAT(text.text, HasSubstr(absl::StrCat("tenant      ", tenant_, "\n")));
  EXPECT_THAT(text.text, HasSubstr(absl::StrCat("\nuid         ", getuid(), "\n")));
}

TEST_F(GpumemctlTest, ExitCodes) {
  EXPECT_EQ(Run({"status"}).code, 0);
  EXPECT_EQ(Run({"whoami", "--json"}).AsJson()["tenant"], tenant_);
  EXPECT_EQ(Run({"hold", "--size", "1TiB"}).code, 1);
  EXPECT_EQ(Run({"hold"}).code, 2);
  EXPECT_EQ(Run({"--runtime-dir", "/no/such/folder", "devices"}).code, 3);
  EXPECT_EQ(Run({"whoami", "--as", "somebody-else"}).code, 4);
  EXPECT_EQ(Run({"quota", "get", "nobody"}).code, 6);
  EXPECT_EQ(Run({"segments", "--device", "9"}).code, 6);
  Answer error = Run({"quota", "get", "nobody", "--json"});
  EXPECT_EQ(error.AsJson()["error"]["code"], "NOT_FOUND");
  EXPECT_EQ(error.AsJson()["error"]["denial"], nullptr);
}

TEST_F(GpumemctlTest, AWholeProcessNeedsTheDriver) {
  for (const char* const command : {"suspend", "resume"}) {
    const Answer text = Run({command, "--process", absl::StrCat(getpid())});
    EXPECT_EQ(text.code, 1);
    EXPECT_THAT(text.text, HasSubstr("whole process"));
    const Answer error = Run({command, "--process", absl::StrCat(getpid()), "--json"});
    EXPECT_EQ(error.AsJson()["error"]["code"], "UNIMPLEMENTED");
  }
}

TEST_F(GpumemctlTest, DrainingAdmitsNoSessionUntilResumed) {
  EXPECT_EQ(Run({"drain", "--json"}).AsJson()["draining"], true);
  EXPECT_EQ(Run({"whoami"}).code, 3);
  EXPECT_THAT(Run({"status"}).text, HasSubstr("draining"));
  EXPECT_EQ(Run({"undrain"}).text, "Admitting new sessions and requests again.\n");
  EXPECT_EQ(Run({"whoami"}).code, 0);
}

TEST_F(GpumemctlTest, DeprecatedSpellingsWarnOnce) {
  ASSERT_EQ(Run({"drain"}).code, 0);
  EXPECT_EQ(Run({"drain", "--resume"}).text,
            "gpumemctl: warning: --resume is deprecated: use gpumemctl undrain\n"
            "Admitting new sessions and requests again.\n");
  const Answer json_too = Run({"drain", "--resume", "--json"});
  EXPECT_EQ(json::parse(json_too.text.substr(0, json_too.text.find('\n')))["warning"]["message"],
            "--resume is deprecated: use gpumemctl undrain");
  EXPECT_EQ(Run({"hold", "--bytes", "2MiB", "--tenant", tenant_, "--for", "1ms"}).code, 0);
}

TEST_F(GpumemctlTest, ADryRunChangesNothing) {
  json held;
  std::unique_ptr<Process> holder = Hold({"--size", "4MiB", "--kind", "mempool"}, &held);
  EXPECT_EQ(Run({"drain", "--dry-run"}).text,
            "gpumemctl drain would do this:\n"
            "  no new sessions or requests are admitted\n"
            "  present sessions keep what they hold: 1 session, 1 segment\n");
  EXPECT_EQ(Run({"undrain", "--dry-run"}).text, "gpumemctl undrain would change nothing.\n");
  const json quota =
      Run({"quota", "set", tenant_, "--limit", "2MiB", "--dry-run", "--json"}).AsJson();
  EXPECT_EQ(quota["dry_run"], true);
  EXPECT_EQ(quota["command"], "quota set");
  EXPECT_EQ(quota["effects"][0], "limit: 2.00 MiB (now none)");
  EXPECT_THAT(quota["effects"][1].get<std::string>(), HasSubstr("4.00 MiB of 2.00 MiB in use"));
  EXPECT_EQ(Run({"quota", "get", tenant_, "--json"}).AsJson()["quota"]["limit_bytes"], nullptr);
  EXPECT_EQ(Run({"trim", "--dry-run"}).text, "gpumemctl trim would change nothing.\n");
  EXPECT_EQ(Run({"trim", "--tenant", "none", "--dry-run"}).code, 6);
  EXPECT_EQ(Run({"quota", "unset", tenant_, "--dry-run"}).code, 0);
  EXPECT_EQ(Run({"pool", "trim", tenant_, "--dry-run"}).code, 0);
  EXPECT_EQ(Run({"pool", "trim", tenant_, "--device", "1", "--dry-run"}).code, 6);
  EXPECT_EQ(Run({"unpublish", "none", "--dry-run"}).code, 6);
  EXPECT_EQ(Run({"unpublish", "a/none", "--dry-run"}).code, 6);
  EXPECT_EQ(Run({"whoami"}).code, 0);
  End(*holder);
}

TEST_F(GpumemctlTest, ANumberIsTheSameDeviceInEachCommand) {
  const json devices = Run({"devices", "--json"}).AsJson()["devices"];
  json held;
  std::unique_ptr<Process> holder = Hold({"--size", "2MiB", "--device", "1"}, &held);
  EXPECT_EQ(held["device_uuid"], devices[1]["device_uuid"]);
  EXPECT_EQ(Run({"segments", "--device", "1", "--json"}).AsJson()["segments"].size(), 1u);
  End(*holder);
  EXPECT_EQ(Run({"hold", "--size", "2MiB", "--device", "9", "--for", "1ms"}).code, 6);
}

TEST_F(GpumemctlTest, TellsAboutItself) {
  Process bare({.argv = {"client/cli/gpumemctl"}, .stderr_too = true});
  std::string overview;
  while (auto line = bare.ReadLine(absl::Now() + kTimeout)) absl::StrAppend(&overview, *line, "\n");
  EXPECT_EQ(bare.Wait(absl::Now() + kTimeout), 0);
  EXPECT_THAT(overview, HasSubstr("\nCommands that show the state:\n"));
  EXPECT_EQ(Run({"help", "hold"}).text, Run({"hold", "--help"}).text);
  EXPECT_THAT(Run({"version"}).text, HasSubstr("gpumemctl 0."));
  EXPECT_EQ(Run({"version", "--json"}).AsJson()["schema_version"], 1);
  EXPECT_THAT(Run({"completion", "bash"}).text, HasSubstr("complete -F _gpumemctl gpumemctl"));
  const Answer unknown = Run({"statsu"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.text,
            "gpumemctl: unknown command \"statsu\" (did you mean status?); see gpumemctl help\n");
}

}  // namespace
}  // namespace gpumem
