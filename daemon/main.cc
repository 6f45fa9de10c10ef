// SPDX-License-Identifier: Apache-2.0
// gpumemd: flags, signals and the log; server.h is the daemon itself.
#include <grpc/support/log.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/bytes.h"
#include "common/cuda/toolkit.h"
#include "common/endpoints.h"
#include "common/version.h"
#include "daemon/audit/audit_output.h"
#include "daemon/config/config.h"
#include "daemon/core/audit/audit.h"
#include "daemon/device/context/process.h"
#include "daemon/log/log.h"
#include "daemon/malloc_arenas.h"
#include "daemon/restart/fd_store/fd_store.h"
#include "daemon/server/server.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

struct Flags {
  std::string config_file;
  std::string backend;
  std::string runtime_dir;
  std::string state_dir;
  std::string log_level;
  uint32_t host_devices = 0;
  std::string host_device_bytes;
  bool check_config = false;
};

constexpr char kDescription[] =
    "Share the GPU memory of this machine between processes.\n\n"
    "Workers allocate and open memory segments through libgpumem. Each process\n"
    "belongs to a tenant, and each tenant has quotas. Memory of dead processes is\n"
    "reclaimed.\n\n"
    "Without a configuration file and flags gpumemd uses the GPUs, or host memory if\n"
    "there are none, and makes each user a tenant.\n"
    "Sockets: /run/gpumem for root, $XDG_RUNTIME_DIR/gpumem for other users.\n"
    "Changed quotas: /var/lib/gpumem for root, ~/.local/state/gpumem for other users\n"
    "(systemd: StateDirectory=).\n\n"
    "Signals: SIGHUP reloads tenants, rules and quotas; SIGTERM and SIGINT stop.\n"
    "Exit codes: 0 stopped, 1 could not start, 2 wrong flags or configuration.";

// Flags win over the file.
absl::Status ApplyFlags(const Flags& flags, Config& config) {
  if (flags.backend == "cuda") config.backend = BackendChoice::kCuda;
  if (flags.backend == "host") config.backend = BackendChoice::kHost;
  if (flags.backend == "auto") config.backend = BackendChoice::kAuto;
  if (flags.log_level == "debug") config.log_level = LogLevel::kDebug;
  if (flags.log_level == "info") config.log_level = LogLevel::kInfo;
  if (flags.log_level == "warn") config.log_level = LogLevel::kWarn;
  if (flags.log_level == "error") config.log_level = LogLevel::kError;
  if (flags.host_devices > 0) config.host_devices = flags.host_devices;
  if (!flags.host_device_bytes.empty()) {
    absl::StatusOr<uint64_t> bytes = gpumem::ParseBytes(flags.host_device_bytes);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--host-device-bytes: ", bytes.status().message()));
    }
    config.host_device_bytes = *bytes;
  }
  if (!flags.runtime_dir.empty()) config.runtime_dir = flags.runtime_dir;
  if (config.runtime_dir.empty()) config.runtime_dir = gpumem::DaemonRuntimeDir();
  if (!flags.state_dir.empty()) config.state_dir = flags.state_dir;
  if (config.state_dir.empty()) config.state_dir = gpumem::DaemonStateDir();
  return absl::OkStatus();
}

absl::StatusOr<Config> Load(const Flags& flags) {
  absl::StatusOr<Config> config = flags.config_file.empty()
                                      ? absl::StatusOr<Config>(DefaultConfig())
                                      : LoadConfigFile(flags.config_file);
  if (!config.ok()) return config.status();
  if (absl::Status applied = ApplyFlags(flags, *config); !applied.ok()) return applied;
  return config;
}

// Logs a message of gRPC. By default gRPC writes to standard error and blocks until it is read.
void LogMessageOfGrpc(gpr_log_func_args* message) {
  const auto level = message->severity == GPR_LOG_SEVERITY_ERROR  ? spdlog::level::warn
                     : message->severity == GPR_LOG_SEVERITY_INFO ? spdlog::level::info
                                                                  : spdlog::level::debug;
  LogLimited(level, "messages of gRPC", std::nullopt, "gRPC: {}", message->message);
}

void SetLogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::set_level(spdlog::level::debug);
    case LogLevel::kInfo:
      return spdlog::set_level(spdlog::level::info);
    case LogLevel::kWarn:
      return spdlog::set_level(spdlog::level::warn);
    case LogLevel::kError:
      return spdlog::set_level(spdlog::level::err);
  }
}

// Each segment and each session takes descriptors: ask for all that we may have.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app(kDescription, "gpumemd");
  app.set_help_flag("-h,--help", "Show this help and exit");
  app.set_version_flag("--version",
                       absl::StrCat("gpumemd ", GPUMEM_VERSION, " (", gpumem::BuiltWith(), ")"),
                       "Show the version and exit");
  app.add_option("--config", flags.config_file, "Read this configuration file (TOML)")
      ->type_name("FILE");
  app.add_option("--backend", flags.backend, "Use this backend")
      ->check(CLI::IsMember({"auto", "cuda", "host"}).description(""))
      ->type_name("auto|cuda|host");
  app.add_option("--runtime-dir", flags.runtime_dir, "Serve sockets in this folder")
      ->type_name("DIR");
  app.add_option("--state-dir", flags.state_dir, "Keep changed quotas in this folder")
      ->type_name("DIR");
  app.add_option("--host-devices", flags.host_devices, "Offer N devices, 1 to 64 (host backend)")
      ->check(CLI::Range(1, 64).description(""))
      ->type_name("N");
  app.add_option("--host-device-bytes", flags.host_device_bytes,
                 "Set the size of each host device, such as 8GiB")
      ->type_name("SIZE");
  app.add_option("--log-level", flags.log_level, "Log messages of this level and above")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}).description(""))
      ->type_name("debug|info|warn|error");
  app.add_flag("--check-config", flags.check_config, "Check the configuration and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    std::cerr << "gpumemd: " << error.what() << "\nSee gpumemd --help.\n";
    return 2;
  }

  absl::StatusOr<Config> config = Load(flags);
  if (!config.ok()) {
    std::cerr << "gpumemd: " << config.status().message() << "\n";
    return 2;
  }
  if (flags.check_config) {
    for (const std::string& notice : config->notices) std::cout << "note: " << notice << "\n";
    std::cout << (config->file.empty() ? "the built-in configuration" : config->file)
              << ": ok, tenants: " << config->tenants.size() << ", rules: " << config->rules.size()
              << "\n";
    return 0;
  }
  RaiseDescriptorLimit();

  // Before any thread exists, so that all of them inherit it: signals come to the loop
  // below and nowhere else.
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  absl::StatusOr<std::unique_ptr<Log>> log = Log::Start(StderrIsJournal());
  if (!log.ok()) {
    std::cerr << "gpumemd: " << log.status().message() << "\n";
    return 1;
  }
  gpr_set_log_function(LogMessageOfGrpc);
  SetLogLevel(config->log_level);

  absl::StatusOr<std::unique_ptr<FdStore>> store = FdStore::FromEnvironment();
  if (!store.ok()) {
    spdlog::error("{}", std::string(store.status().message()));
    return 1;
  }
  Reloading reloading{.done = [](const Config& taken) { SetLogLevel(taken.log_level); }};
  if (!flags.config_file.empty()) reloading.load = [&flags] { return Load(flags); };
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(*config, reloading, store->get());
  if (!server.ok()) {
    spdlog::error("{}", std::string(server.status().message()));
    return 1;
  }
  spdlog::info("{}", (*server)->Summary());
  // Without a listening manager there is no receiver.
  (*store)->NotifyReady((*server)->StatusLine()).IgnoreError();
  while (true) {
    siginfo_t info{};
    const int signal = sigwaitinfo(&signals, &info);
    if (signal < 0) continue;  // interrupted
    // The sender, if the kernel reports it; signals from a terminal have none.
    std::vector<AuditOperator> by;
    if (info.si_code == SI_USER) by.push_back({.uid = info.si_uid, .pid = info.si_pid});
    if (signal == SIGHUP) {
      (*store)->NotifyReloading().IgnoreError();
      (void)(*server)->Reload(by);  // it has logged what came of it
      (*store)->NotifyReady((*server)->StatusLine()).IgnoreError();
      continue;
    }
    const char* name = signal == SIGTERM ? "SIGTERM" : "SIGINT";
    spdlog::info("{}: stopping", name);
    (*server)->Stopping(name, by);
    // gpumem-keeper announces by sigqueue(3) that it starts the next daemon. systemd does not say
    // whether it restarts the service or stops it: clients wait for another daemon in either case.
    const bool keeper_restarts = signal == SIGTERM && info.si_code == SI_QUEUE;
    const bool manager_may_restart = signal == SIGTERM && (*store)->keeper_pid() == 0;
    if (keeper_restarts || manager_may_restart) (*server)->HandOver();
    break;
  }
  (*store)->NotifyStopping("stopping").IgnoreError();
  server->reset();
  spdlog::info("stopped");
  return 0;
}

}  // namespace
}  // namespace gpumemd

int main(int argc, char** argv) {
  gpumemd::LimitMallocArenas();
  gpumemd::LimitMallocTrimThreshold();
  // An allocation that fails ends the process, and the next daemon goes on. gRPC catches what its
  // callbacks throw: some calls would be answered as unknown to the daemon, and some never.
  std::set_new_handler([] {
    constexpr char kWhy[] = "gpumemd: out of memory\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kWhy, sizeof(kWhy) - 1);
    std::abort();
  });
  // Abseil may have been built without NDEBUG, as Debian's is: then every lock of every mutex, of
  // gRPC's too, first takes one that the whole process shares, to look for cycles. With 64 clients
  // on 16 cores that takes nearly half of the daemon's throughput (docs/benchmarks.md).
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // The daemon runs itself again for each CUDA context that it needs.
  if (const std::optional<int> status = gpumemd::RunAsContextProcess(argc, argv)) return *status;
  return gpumemd::Main(argc, argv);
}
