// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/operator.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/daemon_process.h"
#include "tests/support/http_get.h"

namespace gpumem::soak {
namespace {

using testing::Child;

// Tenants of the workers, and one of attackers. Quotas are small, so that they are full often.
constexpr char kConfig[] = R"([host]
device_bytes = "512MiB"
[pinned]
capacity = "128MiB"
[tier]
capacity = "128MiB"
huge_pages = false
[daemon]
revocation_grace = "3s"
revocation_kill_after = "2s"
[unbrokered]
interval = "500ms"
[tenant_defaults]
limit = "64MiB"
max_retained = "8MiB"
[[tenant]]
name = "guest"
limit = "16MiB"
max_segments = 256
max_sessions = 32
max_in_flight = 16
[[tenant]]
name = "team"
limit = "96MiB"
[[tenant]]
name = "red"
parent = "team"
limit = "48MiB"
[[tenant]]
name = "green"
parent = "team"
limit = "32MiB"
guarantee = "8MiB"
[[tenant]]
name = "blue"
parent = "team"
priority = 5
[[tenant]]
name = "served"
limit = "16MiB"
[[tenant]]
name = "market"
limit = "32MiB"
[[tenant]]
name = "spot"
parent = "market"
limit = "32MiB"
revocable = true
[[tenant]]
name = "prod"
parent = "market"
limit = "32MiB"
guarantee = "24MiB"
)";

}  // namespace

std::string Operator::ConfigOf(const std::string& folder, int variant) {
  std::string config =
      absl::StrCat(kConfig, "[metrics]\nlisten = \"unix:", folder, "/metrics.sock\"\n",
                   "[audit]\noutput = \"json\"\nper_second = 1\npath = \"", folder,
                   "/audit.json\"\n[privacy]\nholders = \"", variant % 2 == 0 ? "own" : "all",
                   "\"\n[[tenant]]\nname = \"reloaded\"\nlimit = \"", 1 + variant % 7, "MiB\"\n");
  for (const char* tenant : {"guest", "red", "green", "blue", "served", "spot", "prod"}) {
    absl::StrAppend(&config, "[[rule]]\ntenant = \"", tenant, "\"\ndefault = true\n");
  }
  return config;
}

Operator::Operator(testing::KeptDaemon& daemon, std::string folder, uint64_t seed)
    : daemon_(daemon), folder_(std::move(folder)), random_(seed) {}

const std::vector<std::string>& Operator::Tasks() {
  static const auto* const tasks = new std::vector<std::string>{
      "status", "ps",     "segments",     "devices", "usage",     "map",       "quota-list",
      "top",    "doctor", "events",       "follow",  "trace",     "quota-set", "quota-unset",
      "tenant", "trim",   "suspend",      "demote",  "drain",     "reload",    "scrape",
      "scrape", "page",   "publications", "hold",    "unbrokered"};
  return *tasks;
}

void Operator::StartWeb() {
  const char* const named = std::getenv("GPUMEM_GPUMEM_WEB");
  const std::string program = named != nullptr ? named : testing::ProgramPath("gpumem-web");
  if (access(program.c_str(), X_OK) != 0) return;
  web_ = Child({program, "--runtime-dir", daemon_.runtime_dir(), "--listen",
                absl::StrCat("unix:", folder_, "/web.sock"), "--group", "root"});
}

void Operator::Step() {
  if (bag_.empty()) {
    bag_ = Tasks();
    std::shuffle(bag_.begin(), bag_.end(), random_);
  }
  const std::string task = std::move(bag_.back());
  bag_.pop_back();
  Do(task);
}

void Operator::Do(const std::string& task) {
  if (task == "quota-list") {
    Ctl(task, {"quota", "list"});
  } else if (task == "usage") {
    Ctl(task, {"usage", "red"});
  } else if (task == "events") {
    Ctl(task, {"events", "--since", "1m"});
  } else if (task == "top") {
    Ctl(task, {"top", "--iterations", "1"}, /*may_fail=*/true);
  } else if (task == "doctor") {
    Ctl(task, {"doctor"}, /*may_fail=*/true);  // it tells of this machine, too
  } else if (task == "follow") {
    // The one before is killed.
    follower_ = Child({"/bin/sh", "-c", "exec \"$@\" >/dev/null 2>&1", "sh",
                       testing::ProgramPath("gpumemctl"), "--runtime-dir", daemon_.runtime_dir(),
                       "events", "--follow", "--json"});
    ++counts_[task];
  } else if (task == "trace") {
    Ctl(task, {"trace", "on", "--seconds", "0.2", "--force", "--out", folder_ + "/trace"},
        /*may_fail=*/true);
  } else if (task == "quota-set") {
    Ctl(task, {"quota", "set", "red", "--limit", absl::StrCat(1 + random_() % 40, "MiB"), "--yes"});
  } else if (task == "quota-unset") {
    Ctl(task, {"quota", "unset", "red"}, /*may_fail=*/true);  // if nothing was set
  } else if (task == "tenant") {
    const std::string name = absl::StrCat("job-", random_() % 8);
    Ctl(task, {"tenant", "create", name, "--owner", "soak", "--limit", "4MiB"});
    Ctl("tenant-end", {"tenant", "end", name, "--owner", "soak", "--yes"});
  } else if (task == "trim") {
    Ctl(task, {"trim", "--yes"});
  } else if (task == "suspend") {
    Ctl(task, {"suspend", "--tenant", "served", "--timeout", "3s", "--yes"}, /*may_fail=*/true);
    Ctl("resume", {"resume", "--tenant", "served", "--timeout", "3s"}, /*may_fail=*/true);
  } else if (task == "demote") {
    Ctl(task, {"demote", "--tenant", "served", "--timeout", "3s", "--yes"}, /*may_fail=*/true);
    Ctl("promote", {"promote", "--tenant", "served", "--timeout", "3s"}, /*may_fail=*/true);
  } else if (task == "drain") {
    Ctl(task, {"drain", "--yes"});
    Ctl("undrain", {"undrain"});
  } else if (task == "reload") {
    // The audit's file is a new one after each, and so is not large.
    unlink((folder_ + "/audit.json").c_str());
    daemon_.Reconfigure(ConfigOf(folder_, ++variant_));
    ++counts_[task];
  } else if (task == "scrape") {
    Get(task, absl::StrCat("unix:", folder_, "/metrics.sock"));
  } else if (task == "page") {
    if (web_.running()) Get(task, absl::StrCat("unix:", folder_, "/web.sock:/"));
  } else if (task == "hold") {
    Ctl(task, {"hold", "--size", "1MiB", "--for", "100ms"}, /*may_fail=*/true);
  } else if (task == "unbrokered") {
    // In place of a driver, on the host backend: this process has 2 GiB, or nothing.
    const std::string path = daemon_.runtime_dir() + "/host-process-memory";
    FILE* const file = fopen((path + ".new").c_str(), "w");
    if (file == nullptr) return;
    if (random_() % 2 == 0)
      fprintf(file, "HOST-00000000-0000-0000-0000-000000000000 %d %llu\n", getpid(), 2ULL << 30);
    fclose(file);
    rename((path + ".new").c_str(), path.c_str());
    ++counts_[task];
  } else {
    Ctl(task, {task});
  }
}

void Operator::Ctl(const std::string& what, const std::vector<std::string>& args, bool may_fail) {
  // A daemon that is killed meanwhile does not answer.
  const int attempts = may_fail ? 1 : 3;
  int code = 0;
  for (int i = 0; i < attempts; ++i) {
    std::vector<std::string> command = {"/bin/sh", "-c",
                                        // Not the default tenant, which is that of attackers:
                                        // it is refused after a flood.
                                        "GPUMEM_TENANT=blue exec \"$@\" >\"$0\" 2>&1 </dev/null",
                                        folder_ + "/output", testing::ProgramPath("gpumemctl"),
                                        "--runtime-dir", daemon_.runtime_dir()};
    command.insert(command.end(), args.begin(), args.end());
    code = Child(std::move(command)).Wait();
    if (code == 0) break;
  }
  if (code == 0) {
    ++counts_["ctl-" + what];
    return;
  }
  ++counts_["ctl-" + what + "-refused"];
  if (may_fail || wrong_.size() > 20) return;
  std::string output(2000, '\0');
  const int fd = open((folder_ + "/output").c_str(), O_RDONLY | O_CLOEXEC);
  output.resize(static_cast<size_t>(std::max<ssize_t>(0, read(fd, output.data(), 2000))));
  close(fd);
  wrong_.push_back(absl::StrCat("gpumemctl ", absl::StrJoin(args, " "), ": ", output));
}

void Operator::Get(const std::string& what, const std::string& url) {
  const auto answer = testing::HttpGet(url);
  // Beside attackers, or while gpumemd is started again, there may be no answer, or 503.
  const bool served = answer.ok() && answer->code == 200;
  ++counts_[served ? what : what + "-refused"];
  if (answer.ok() && answer->code != 200 && answer->code != 503) {
    wrong_.push_back(absl::StrCat(what, " answers ", answer->code));
  }
}

void Operator::End() {
  follower_ = {};
  Ctl("quota-unset", {"quota", "unset", "red"}, /*may_fail=*/true);
  Ctl("undrain", {"undrain"});
}

}  // namespace gpumem::soak
