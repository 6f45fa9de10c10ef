// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/daemon.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/testing/fuzz/input.h"
#include "daemon/config/config.h"
#include "daemon/device/context/process.h"

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
[[tenant]]
name = "honest"
guarantee = "4MiB"
[[rule]]
tenant = "a"
default = true
[[rule]]
tenant = "b"
default = true
[[rule]]
tenant = "c"
default = true
[[rule]]
tenant = "honest"
default = true
)";

constexpr int kInputsOfADaemon = 200;
// How long the daemon may take to see that a client has gone.
constexpr absl::Duration kEndTime = absl::Seconds(10);

FuzzDaemon* current = nullptr;

}  // namespace

FuzzDaemon& FuzzDaemon::ForInput() {
  static int inputs = 0;
  if (inputs++ % kInputsOfADaemon == 0) {
    const bool first = current == nullptr;
    delete std::exchange(current, nullptr);
    current = new FuzzDaemon();
    // Before the process destroys what the daemon's threads use: the log, for one.
    if (first) std::atexit([] { delete std::exchange(current, nullptr); });
  }
  return *current;
}

FuzzDaemon::FuzzDaemon() {
  signal(SIGPIPE, SIG_IGN);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  spdlog::set_level(spdlog::level::off);
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_set_log_function([](gpr_log_func_args*) {});
  google::protobuf::SetLogHandler(nullptr);  // it reports text that is not UTF-8
  char dir[] = "/tmp/gpumem-fuzz-XXXXXX";
  FUZZ_CHECK(mkdtemp(dir) != nullptr);
  dir_ = dir;
  absl::StatusOr<gpumemd::Config> config =
      gpumemd::ParseConfig(kConfig, "fuzz.toml", gpumemd::SystemNames());
  FUZZ_CHECK_OK(config);
  config->runtime_dir = dir_;
  config->state_dir = absl::StrCat(dir_, "/state");
  auto server = gpumemd::Server::Start(*config);
  FUZZ_CHECK_OK(server);
  server_ = *std::move(server);
}

FuzzDaemon::~FuzzDaemon() {
  server_.reset();
  std::filesystem::remove_all(dir_);
}

void FuzzDaemon::CheckAfterInput(size_t others) const {
  FUZZ_CHECK_OK(views().CheckInvariants());
  const absl::Time deadline = absl::Now() + kEndTime;
  size_t live = 0, waiting = 0;
  do {
    const auto sessions = views().ListSessions("");
    FUZZ_CHECK_OK(sessions);
    live = static_cast<size_t>(std::count_if(sessions->begin(), sessions->end(),
                                             [](const auto& session) { return session.live; }));
    waiting = views().ListWaiting("", "")->size();
    if (live <= others && waiting == 0) return;
    absl::SleepFor(absl::Milliseconds(1));
  } while (absl::Now() < deadline);
  std::fprintf(stderr, "%zu live sessions, %zu waiting requests\n", live, waiting);
  FUZZ_FAIL("the session of a client that has gone does not end");
}

}  // namespace gpumem::testing

// The daemon runs this program again for each context that it needs.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (const std::optional<int> status = gpumemd::RunAsContextProcess(*argc, *argv)) _exit(*status);
  return 0;
}
