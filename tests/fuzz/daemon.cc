// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/daemon.h"

#include <grpc/support/log.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/testing/fuzz/input.h"
#include "daemon/config/config.h"

namespace gpumem::testing {
namespace {

// All tenants are this process's. Revocation would end it.
constexpr char kConfig[] = R"(
[daemon]
backend = "host"
log_level = "error"
drain_timeout = "0s"
revocation_grace = "24h"
suspension_grace = "24h"
max_sessions = 1000
spin = "0"
[host]
devices = 2
device_bytes = "256MiB"
[pinned]
capacity = "64MiB"
[tier]
capacity = "64MiB"
huge_pages = false
[unbrokered]
interval = "0s"
[audit]
output = "off"
[tenant_defaults]
limit = "64MiB"
max_sessions = 1000
max_in_flight = 8
[[tenant]]
name = "a"
[[tenant]]
name = "b"
swappable = true
max_retained = "8MiB"
[[tenant]]
name = "c"
parent = "a"
revocable = true
[[rule]]
tenant = "a"
default = true
[[rule]]
tenant = "b"
default = true
[[rule]]
tenant = "c"
default = true
)";

constexpr int kInputsOfADaemon = 200;

std::string* LastFolder() {
  static auto* const folder = new std::string;
  return folder;
}

}  // namespace

FuzzDaemon& FuzzDaemon::ForInput() {
  static FuzzDaemon* daemon = nullptr;
  static int inputs = 0;
  if (inputs++ % kInputsOfADaemon == 0) {
    delete std::exchange(daemon, nullptr);
    daemon = new FuzzDaemon();
  }
  return *daemon;
}

FuzzDaemon::FuzzDaemon() {
  signal(SIGPIPE, SIG_IGN);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  spdlog::set_level(spdlog::level::off);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_set_log_function([](gpr_log_func_args*) {});
  char dir[] = "/tmp/gpumem-fuzz-XXXXXX";
  FUZZ_CHECK(mkdtemp(dir) != nullptr);
  dir_ = dir;
  // The last daemon lives as long as the process.
  static std::string* const last = [] {
    std::atexit([] { std::filesystem::remove_all(*LastFolder()); });
    return LastFolder();
  }();
  *last = dir_;
  absl::StatusOr<gpumemd::Config> config =
      gpumemd::ParseConfig(kConfig, "fuzz.toml", gpumemd::SystemNames());
  if (!config.ok()) std::fprintf(stderr, "%s\n", config.status().ToString().c_str());
  FUZZ_CHECK(config.ok());
  config->runtime_dir = dir_;
  config->state_dir = absl::StrCat(dir_, "/state");
  auto server = gpumemd::Server::Start(*config);
  if (!server.ok()) std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
  FUZZ_CHECK(server.ok());
  server_ = *std::move(server);
}

FuzzDaemon::~FuzzDaemon() {
  server_.reset();
  std::filesystem::remove_all(dir_);
}

}  // namespace gpumem::testing
