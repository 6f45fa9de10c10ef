// SPDX-License-Identifier: Apache-2.0
#include "client/cli/doctor/collect.h"

#include <grp.h>
#include <linux/magic.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/cli/commands/connection.h"
#include "client/session/session.h"
#include "common/cuda/driver.h"
#include "common/cuda/nvml.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"
#include "common/version.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string UserName(uid_t uid) {
  const passwd* user = getpwuid(uid);
  return user == nullptr ? absl::StrCat(uid) : user->pw_name;
}

std::string GroupName(gid_t gid) {
  const group* found = getgrgid(gid);
  return found == nullptr ? absl::StrCat(gid) : found->gr_name;
}

// Returns "0660 root gpumem"; empty if it cannot be seen.
std::string ModeOf(const std::string& path) {
  struct stat file;
  if (stat(path.c_str(), &file) != 0) return "";
  return absl::StrFormat("%04o %s %s", file.st_mode & 07777u, UserName(file.st_uid),
                         GroupName(file.st_gid));
}

SocketFacts LookAtSocket(const std::string& runtime_dir, const char* name, int type) {
  const std::string path = SocketPath(runtime_dir, name);
  SocketFacts facts{.name = name, .mode = ModeOf(path)};
  std::error_code error;
  const absl::Status connected = ConnectUnix(path, type, absl::Now() + absl::Seconds(5)).status();
  if (connected.ok()) {
    facts.state = SocketFacts::State::kOpen;
  } else if (absl::IsPermissionDenied(connected)) {
    facts.state = SocketFacts::State::kDenied;
  } else if (std::filesystem::exists(path, error)) {
    facts.state = SocketFacts::State::kNobodyListens;
  }
  return facts;
}

absl::StatusOr<DaemonFacts> AskDaemon(const std::string& runtime_dir,
                                      std::optional<absl::Duration> timeout) {
  auto admin = ConnectAdmin(runtime_dir, timeout);
  if (!admin.ok()) return admin.status();
  auto status = Call(**admin, &Admin::Stub::GetStatus, v1::GetStatusRequest());
  if (!status.ok()) return status.status();
  DaemonFacts facts{.version = status->version(),
                    .pid = static_cast<pid_t>(status->pid()),
                    .cuda = status->backend() == v1::BACKEND_CUDA,
                    .cuda_toolkit = status->has_cuda_toolkit()
                                        ? std::optional(status->cuda_toolkit())
                                        : std::nullopt,
                    .uptime_ms = status->uptime_ms(),
                    .draining = status->draining(),
                    .keeps_memory = status->keeps_memory(),
                    .store_full = status->store_full(),
                    .unkept_segments = status->unkept_segments(),
                    .generation = status->generation(),
                    .sessions = status->sessions(),
                    .segments = status->segments(),
                    .notices = {status->notices().begin(), status->notices().end()}};
  for (const v1::ForeignProcess& process : status->foreign_processes()) {
    ++facts.foreign_processes;
    facts.foreign_bytes += process.bytes();
  }
  auto sessions = Call(**admin, &Admin::Stub::ListSessions, v1::ListSessionsRequest());
  if (!sessions.ok()) return sessions.status();
  for (const v1::SessionInfo& session : sessions->sessions()) {
    facts.unbrokered_bytes += session.unbrokered_bytes();
  }
  auto publications = Call(**admin, &Admin::Stub::ListPublications, v1::ListPublicationsRequest());
  if (!publications.ok()) return publications.status();
  for (const v1::PublicationInfo& each : publications->publications()) {
    if (each.segments() <= facts.largest_publication) continue;
    facts.largest_publication = each.segments();
    facts.largest_publication_name = absl::StrCat(each.tenant(), "/", each.name());
  }
  return facts;
}

WorkerFacts BeWorker(const std::string& runtime_dir, std::optional<absl::Duration> timeout) {
  WorkerFacts facts;
  auto session =
      internal::Session::Connect({.runtime_dir = runtime_dir,
                                  .tenant = "",
                                  .name = "gpumemctl",
                                  .timeout = timeout.value_or(ConnectOptions().timeout)});
  if (!session.ok()) {
    facts.error = std::string(session.status().message());
    return facts;
  }
  facts.version = (*session)->welcome().daemon_version();
  facts.tenant = (*session)->welcome().tenant();
  auto who = (*session)->WhoAmI((*session)->Deadline({}));
  if (!who.ok()) {
    facts.error = std::string(who.status().message());
    return facts;
  }
  facts.rule = who->rule();
  facts.cgroup_unknown = who->identity().cgroup_unknown();
  return facts;
}

ProcessFacts LookAtProcess(pid_t pid) {
  const std::string proc = absl::StrCat("/proc/", pid);
  ProcessFacts facts;
  std::error_code error;
  // Another process may have that pid here, if the daemon is in another PID namespace.
  if (!absl::StartsWith(ReadFile(proc + "/comm"), "gpumemd")) return facts;
  facts.seen = true;
  facts.files_limit = FilesLimit(ReadFile(proc + "/limits"));
  uint64_t open = 0;
  std::filesystem::directory_iterator fds(proc + "/fd", error);
  if (!error) {
    for (const auto& each : fds) open += each.path().empty() ? 0 : 1;
    facts.files_open = open;
  }
  facts.unit = ServiceOf(ReadFile(proc + "/cgroup"));
  const std::string status = ReadFile(proc + "/status");
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::ConsumePrefix(&line, "PPid:")) continue;
    const std::string parent =
        ReadFile(absl::StrCat("/proc/", absl::StripAsciiWhitespace(line), "/comm"));
    facts.parent = std::string(absl::StripAsciiWhitespace(parent));
  }
  return facts;
}

UnitFacts AskSystemd(const std::string& unit) {
  UnitFacts facts;
  std::error_code error;
  if (!std::filesystem::exists("/run/systemd/system", error)) return facts;
  for (const char c : unit) {  // it is passed to a shell
    const bool harmless = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
                          c == '-' || c == '_' || c == '@' || c == ':';
    if (!harmless) return facts;
  }
  const std::string command =
      absl::StrCat("systemctl show ", unit,
                   " -p FileDescriptorStoreMax -p NFileDescriptorStore 2>/dev/null </dev/null");
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "re"), pclose);
  if (pipe == nullptr) return facts;
  std::string text;
  char part[256];
  while (size_t length = fread(part, 1, sizeof part, pipe.get())) text.append(part, length);
  facts.store_max = NumberOf(text, "FileDescriptorStoreMax");
  facts.store_now = NumberOf(text, "NFileDescriptorStore");
  return facts;
}

std::vector<DeviceFile> LookAtDeviceFiles() {
  std::vector<DeviceFile> files;
  const auto add = [&](const std::string& path) {
    struct stat file;
    if (stat(path.c_str(), &file) != 0 || !S_ISCHR(file.st_mode)) return;
    files.push_back(
        {.path = path, .usable = access(path.c_str(), R_OK | W_OK) == 0, .mode = ModeOf(path)});
  };
  add("/dev/nvidiactl");
  add("/dev/nvidia-uvm");
  for (int i = 0; i < 64; ++i) add(absl::StrCat("/dev/nvidia", i));
  return files;
}

// Collects the GPUs that this process sees, from libcuda.
void LookAtGpus(const Nvml* nvml, const std::string& nvml_error, DriverFacts* facts) {
#if GPUMEM_WITH_CUDA
  const absl::StatusOr<const CudaDriver*> cuda = CudaDriver::Get();
  if (!cuda.ok()) {
    facts->cuda_error = std::string(cuda.status().message());
    return;
  }
  for (const CudaDriver::VisibleDevice& device : (*cuda)->devices()) {
    GpuFacts gpu{.uuid = device.uuid, .unknown = nvml_error};
    if (nvml != nullptr) {
      const auto handle = nvml->FindDevice(device.uuid);
      const absl::StatusOr<bool> mode =
          handle.ok() ? nvml->PersistenceMode(*handle) : absl::StatusOr<bool>(handle.status());
      if (mode.ok()) {
        gpu.persistent = *mode;
      } else {
        gpu.unknown = std::string(mode.status().message());
      }
    }
    facts->gpus.push_back(std::move(gpu));
  }
#else
  facts->built_in = nvml == nullptr && nvml_error.empty();
#endif
}

DriverFacts LookAtDriver() {
  DriverFacts facts;
  facts.module = ModuleVersion(ReadFile("/proc/driver/nvidia/version"));
  facts.files = LookAtDeviceFiles();
  if (facts.module.empty() && facts.files.empty()) return facts;
  const absl::StatusOr<const Nvml*> nvml = Nvml::Get();
  if (nvml.ok()) {
    facts.version = (*nvml)->DriverVersion().value_or("");
    facts.cuda_version = (*nvml)->CudaVersion().value_or("");
  } else {
    facts.nvml_error = std::string(nvml.status().message());
  }
  LookAtGpus(nvml.ok() ? *nvml : nullptr, facts.nvml_error, &facts);
  return facts;
}

CgroupLayout LookAtCgroups() {
  struct statfs root = {};
  if (statfs("/sys/fs/cgroup", &root) != 0) return CgroupLayout::kUnknown;
  if (root.f_type == CGROUP2_SUPER_MAGIC) return CgroupLayout::kUnified;
  struct statfs unified = {};
  const bool beside =
      statfs("/sys/fs/cgroup/unified", &unified) == 0 && unified.f_type == CGROUP2_SUPER_MAGIC;
  if (beside) return CgroupLayout::kHybrid;
  return root.f_type == TMPFS_MAGIC ? CgroupLayout::kLegacy : CgroupLayout::kUnknown;
}

}  // namespace

std::string ModuleVersion(absl::string_view text) {
  // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build …"
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (!absl::StartsWith(lines.front(), "NVRM version:")) return "";
  for (absl::string_view word : absl::StrSplit(lines.front(), ' ', absl::SkipEmpty())) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(word.front()))) continue;
    if (absl::StrContains(word, '.')) return std::string(word);
  }
  return "";
}

std::optional<uint64_t> FilesLimit(absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "Max open files")) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t limit = 0;
    if (!words.empty() && absl::SimpleAtoi(words.front(), &limit)) return limit;
  }
  return std::nullopt;
}

std::string ServiceOf(absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    for (absl::string_view part : absl::StrSplit(line, '/')) {
      if (absl::EndsWith(part, ".service")) return std::string(part);
    }
  }
  return "";
}

std::optional<uint64_t> NumberOf(absl::string_view lines, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    if (!absl::ConsumePrefix(&line, key) || !absl::ConsumePrefix(&line, "=")) continue;
    uint64_t number = 0;
    if (absl::SimpleAtoi(line, &number)) return number;
  }
  return std::nullopt;
}

Facts Collect(const std::string& runtime_dir, std::optional<absl::Duration> timeout) {
  Facts facts{.cli_version = GPUMEM_VERSION, .uid = geteuid(), .runtime_dir = runtime_dir};
  std::error_code error;
  facts.runtime_dir_there = std::filesystem::is_directory(runtime_dir, error);
  facts.sockets = {LookAtSocket(runtime_dir, kSessionSocket, SOCK_SEQPACKET),
                   LookAtSocket(runtime_dir, kAdminSocket, SOCK_STREAM)};
  SocketFacts& admin = facts.sockets[1];
  if (admin.state == SocketFacts::State::kOpen) {
    absl::StatusOr<DaemonFacts> daemon = AskDaemon(runtime_dir, timeout);
    if (daemon.ok()) {
      facts.daemon = *std::move(daemon);
    } else if (absl::IsPermissionDenied(daemon.status())) {
      admin.state = SocketFacts::State::kDenied;  // by the daemon, not by the file mode
    } else {
      facts.admin_error = std::string(daemon.status().message());
    }
  }
  if (facts.sockets[0].state == SocketFacts::State::kOpen)
    facts.worker = BeWorker(runtime_dir, timeout);
  if (facts.daemon) facts.process = LookAtProcess(facts.daemon->pid);
  if (!facts.process.unit.empty()) facts.unit = AskSystemd(facts.process.unit);
  facts.driver = LookAtDriver();
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    facts.files_soft = limit.rlim_cur;
    facts.files_hard = limit.rlim_max;
  }
  facts.cgroups = LookAtCgroups();
  return facts;
}

}  // namespace gpumem::cli
