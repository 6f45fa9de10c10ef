// SPDX-License-Identifier: Apache-2.0
// gpumemctl run: runs a program that knows nothing of gpumem, and holds it to a quota.
//
// The program runs with libgpumem-preload.so (client/preload), in a new tenant under the caller's.
// The dynamic linker loads the library, or with --via injection the CUDA driver.
// This process keeps the tenant, passes signals on, and tells at the end how much the program used
// at most.
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/commands/client_devices.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/exit_code.h"
#include "client/cli/commands/mps_limit.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/views/device_list.h"
#include "common/preload_library.h"
#include "common/unique_fd.h"
#include "gpumem/client.h"

extern char** environ;

namespace gpumem::cli {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
constexpr absl::Duration kAnswerTimeout = absl::Seconds(30);
constexpr char kLibraryVariable[] = "GPUMEM_PRELOAD_LIBRARY";
constexpr char kInjectionVariable[] = "CUDA_INJECTION64_PATH";
constexpr char kRelocator[] = "libgpumem-relocator.so";
constexpr char kRelocatorVariable[] = "GPUMEM_PRELOAD_RELOCATOR";

bool IsSet(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

// Returns the path of the preload: $GPUMEM_PRELOAD_LIBRARY, else that of the same installation.
absl::StatusOr<std::string> FindPreload() {
  if (IsSet(kLibraryVariable)) {
    const char* const given = std::getenv(kLibraryVariable);
    // The dynamic linker only warns, and the program would run without a limit.
    if (access(given, R_OK) == 0) return std::string(given);
    return absl::NotFoundError(absl::StrCat("$", kLibraryVariable, " names no library: ", given));
  }
  char self[PATH_MAX] = {};
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  const absl::string_view path(self, length > 0 ? static_cast<size_t>(length) : 0);
  const std::string folder(path.substr(0, path.rfind('/')));
  const std::string found = gpumem::FindPreload(folder);
  if (!found.empty()) return found;
  return absl::NotFoundError(absl::StrCat(kPreloadLibrary, " is not beside this program (",
                                          PreloadPlaces(folder)[0], "); name it in $",
                                          kLibraryVariable));
}

// FAILED_PRECONDITION if the driver cannot load the library into the program, which would run
// without a limit, or without memory.
absl::Status CheckInjection(const std::string& library) {
#if !defined(__x86_64__)
  return absl::FailedPreconditionError("--via injection is not available on this processor");
#endif
  // The same one in a program that gpumemctl run has started.
  if (IsSet(kInjectionVariable) && std::getenv(kInjectionVariable) != library) {
    return absl::FailedPreconditionError(absl::StrCat(
        "$", kInjectionVariable, " is set already, to ", std::getenv(kInjectionVariable),
        ": the driver loads one library. Unset it, or use --via preload"));
  }
  const std::string beside = absl::StrCat(library.substr(0, library.rfind('/') + 1), kRelocator);
  if (!IsSet(kRelocatorVariable) && access(beside.c_str(), R_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no ", beside, "; name it in $", kRelocatorVariable));
  }
  return absl::OkStatus();
}

// The environment of the program: this one's, with some variables set.
class Environment {
 public:
  Environment() {
    for (char** each = environ; *each != nullptr; ++each) variables_.emplace_back(*each);
  }
  void Set(absl::string_view name, absl::string_view value) {
    const std::string prefix = absl::StrCat(name, "=");
    std::erase_if(variables_,
                  [&](const std::string& each) { return absl::StartsWith(each, prefix); });
    variables_.push_back(absl::StrCat(prefix, value));
  }
  // Adds a library before those that are preloaded already.
  void Preload(const std::string& library) {
    const char* const others = std::getenv(kPreloadVariable);
    Set(kPreloadVariable, PreloadBefore(library, others == nullptr ? "" : others));
  }
  std::vector<char*> Pointers() {
    std::vector<char*> pointers;
    for (std::string& each : variables_) pointers.push_back(each.data());
    pointers.push_back(nullptr);
    return pointers;
  }

 private:
  std::vector<std::string> variables_;
};

// Where MPS runs, it limits each process as well. A limit that the user has set stays.
void SetMpsLimit(Client& client, uint64_t bytes, Environment& environment) {
  const char* const folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  if (!MpsRuns(folder == nullptr ? "" : folder) || IsSet(kMpsLimitVariable)) return;
  const absl::StatusOr<std::vector<DeviceInfo>> devices = client.Devices();
  if (!devices.ok()) return;
  const auto is_gpu = [](const DeviceInfo& each) { return absl::StartsWith(each.uuid, "GPU-"); };
  const auto gpus = std::count_if(devices->begin(), devices->end(), is_gpu);
  if (gpus > 0) environment.Set(kMpsLimitVariable, MpsLimit(bytes, static_cast<int>(gpus)));
}

absl::StatusOr<std::unique_ptr<Client>> ConnectAs(const GlobalOptions& options,
                                                  const std::string& tenant) {
  return Client::Connect({.runtime_dir = options.runtime_dir,
                          .tenant = tenant,
                          .name = "gpumemctl run",
                          .timeout = options.timeout.value_or(kConnectTimeout),
                          .wait = false});
}

// Waits until the tenant could have command.need bytes. They are free again when this returns: they
// are not kept for the program.
absl::Status AwaitMemory(Client& client, const RunCommand& command, const GlobalOptions& options) {
  if (command.need == 0) return absl::OkStatus();
  if (command.limit.has_value() && command.need > *command.limit) {
    return absl::InvalidArgumentError(
        "--need is more than --limit: the program could never get it");
  }
  absl::StatusOr<DeviceList> devices = ListDevices(client);
  if (!devices.ok()) return devices.status();
  absl::StatusOr<DeviceName> device = DeviceForClient(*devices, command.device);
  if (!device.ok()) return device.status();
  absl::StatusOr<Segment> segment =
      client.Acquire({.bytes = command.need,
                      .device = *device,
                      .kind = Kind::kDriver,
                      .wait = command.wait,
                      .timeout = options.timeout.value_or(kAnswerTimeout)});
  return segment.ok() ? segment->Release() : segment.status();
}

// Signals that are passed on to the program. The others reach it from the terminal, or end this
// process alone.
constexpr int kPassedOn[] = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
// The terminal sends them to the program, too, which decides.
constexpr int kIgnored[] = {SIGINT, SIGQUIT};

sigset_t SignalsOf(absl::Span<const int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

// Construct it before any thread starts: threads inherit the blocked signals, so that only Next()
// receives them.
class Signals {
 public:
  Signals() : blocked_(SignalsOf(kPassedOn)) {
    // Ignored, as it may be inherited, the kernel would reap the program by itself.
    std::signal(SIGCHLD, SIG_DFL);
    sigaddset(&blocked_, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &blocked_, &before_);
    fd_.reset(signalfd(-1, &blocked_, SFD_CLOEXEC));
  }
  ~Signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Let this thread be ended by signals, and no more.
  void Allow() const { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  void Block() const { pthread_sigmask(SIG_BLOCK, &blocked_, nullptr); }
  const sigset_t& before() const { return before_; }
  // Blocks until one arrives. 0: none did; below 0: none can.
  int Next() const {
    signalfd_siginfo info = {};
    if (read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return errno == EINTR ? 0 : -1;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t blocked_;
  sigset_t before_;
  UniqueFd fd_;
};

// Runs the program, and returns the status of waitpid(2).
absl::StatusOr<int> RunProgram(const std::vector<std::string>& program, Environment environment,
                               const Signals& signals) {
  for (const int signal : kIgnored) std::signal(signal, SIG_IGN);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  const absl::Cleanup destroy = [&attributes] { posix_spawnattr_destroy(&attributes); };
  const sigset_t defaults = SignalsOf(kIgnored);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setsigmask(&attributes, &signals.before());
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::vector<std::string> arguments = program;
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, pointers[0], nullptr, &attributes, pointers.data(),
                                 environment.Pointers().data());
  if (error != 0) {
    absl::Status status = absl::NotFoundError(
        absl::StrCat("cannot run ", program[0], ": ", std::generic_category().message(error)));
    // As shells do: 127 without such a program, 126 for one that cannot be executed.
    status.SetPayload(kProgramPayload, absl::Cord(error == ENOENT ? "127" : "126"));
    return status;
  }
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) return status;
    if (ended < 0 && errno != EINTR)
      return absl::InternalError(absl::StrCat("cannot wait for ", program[0]));
    const int signal = signals.Next();
    if (signal < 0) return absl::InternalError("this process receives no signals");
    if (signal != 0 && signal != SIGCHLD) kill(pid, signal);
  }
}

// Tells on stderr what the program used at most: stdout is the program's.
void PrintPeaks(const Usage& usage, const RunCommand& command, const GlobalOptions& options) {
  const std::string& path = command.program[0];
  const std::string program = path.substr(path.rfind('/') + 1);
  std::string lines;
  for (const DeviceUsage& device : usage.devices) {
    if (device.peak_bytes == 0) continue;
    if (options.json) {
      Json json = Json::object();
      json["event"] = "used";
      json["device_uuid"] = device.device_uuid;
      json["peak_bytes"] = device.peak_bytes;
      json["limit_bytes"] = device.limit_bytes;
      lines += DocumentLine(json);
    } else {
      absl::StrAppend(&lines, "gpumem: ", program, " used at most ",
                      Size(device.peak_bytes, options.exact), " of ",
                      Size(device.limit_bytes, options.exact), " on ", device.device_uuid, "\n");
    }
  }
  std::fputs(lines.c_str(), stderr);
}

}  // namespace

absl::Status Run(const RunCommand& command, const GlobalOptions& options) {
  const Signals signals;
  absl::StatusOr<std::string> preload = FindPreload();
  if (!preload.ok()) return preload.status();
  const bool injected = command.via == RunVia::kInjection;
  if (absl::Status usable = injected ? CheckInjection(*preload) : absl::OkStatus(); !usable.ok())
    return usable;
  auto parent = ConnectAs(options, command.as);
  if (!parent.ok()) return parent.status();
  // Before there is a tenant: its peak is to be the program's.
  signals.Allow();
  absl::Status there = AwaitMemory(**parent, command, options);
  signals.Block();
  if (!there.ok()) return there;
  absl::StatusOr<std::string> tenant = (*parent)->CreateTenant(
      {.name = command.name, .limits = {.limit_bytes = command.limit, .preload = command.mode}});
  if (!tenant.ok()) return tenant.status();
  // Memory of processes that the program leaves behind stays charged, until they end.
  const absl::Cleanup end = [&] { (void)(*parent)->EndTenant(*tenant); };
  auto client = ConnectAs(options, *tenant);
  if (!client.ok()) return client.status();

  Environment environment;
  environment.Set("GPUMEM_TENANT", *tenant);
  if (!options.runtime_dir.empty()) environment.Set("GPUMEM_RUNTIME_DIR", options.runtime_dir);
  if (injected) {
    environment.Set(kInjectionVariable, *preload);
  } else {
    environment.Preload(*preload);
  }
  if (command.limit.has_value()) SetMpsLimit(**client, *command.limit, environment);
  absl::StatusOr<int> ended = RunProgram(command.program, std::move(environment), signals);
  if (!ended.ok()) return ended.status();
  if (!command.quiet) {
    if (absl::StatusOr<Usage> usage = (*client)->GetUsage(); usage.ok())
      PrintPeaks(*usage, command, options);
  }
  const int code = WIFEXITED(*ended) ? WEXITSTATUS(*ended) : 128 + WTERMSIG(*ended);
  if (code == 0) return absl::OkStatus();
  absl::Status status = Silent(absl::UnknownError("the program failed"));
  status.SetPayload(kProgramPayload, absl::Cord(absl::StrCat(code)));
  return status;
}

}  // namespace gpumem::cli
