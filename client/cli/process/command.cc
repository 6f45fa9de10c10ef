// SPDX-License-Identifier: Apache-2.0
#include "client/cli/process/command.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands/caution.h"
#include "client/cli/commands/connection.h"
#include "client/cli/process/whole_process.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "common/cuda/nvml.h"

namespace gpumem::cli {
namespace {

using v1::Admin;

// How much longer than the session the daemon may take for its answer, which names the rest.
constexpr absl::Duration kDaemonMargin = absl::Seconds(2);

class AdminBroker final : public ProcessBroker {
 public:
  explicit AdminBroker(AdminConnection* admin) : admin_(*admin) {}

  absl::StatusOr<LedgerLists> Lists() override {
    LedgerLists lists;
    absl::Status status = Get(&Admin::Stub::GetStatus, v1::GetStatusRequest(), &lists.status);
    if (status.ok()) {
      status = Get(&Admin::Stub::ListSessions, v1::ListSessionsRequest(), &lists.sessions);
    }
    if (status.ok()) {
      status = Get(&Admin::Stub::ListSegments, v1::ListSegmentsRequest(), &lists.segments);
    }
    if (status.ok()) {
      status = Get(&Admin::Stub::ListHolders, v1::ListHoldersRequest(), &lists.holders);
    }
    if (!status.ok()) return status;
    return lists;
  }

  absl::StatusOr<v1::GetStatusResponse> Status() override {
    return Call(admin_, &Admin::Stub::GetStatus, v1::GetStatusRequest());
  }

  absl::StatusOr<v1::SuspendSessionResponse> Suspend(uint64_t session,
                                                     absl::Duration timeout) override {
    return Call(admin_, &Admin::Stub::SuspendSession,
                RequestOf<v1::SuspendSessionRequest>(session, timeout));
  }

  absl::StatusOr<v1::ResumeSessionResponse> Resume(uint64_t session,
                                                   absl::Duration timeout) override {
    return Call(admin_, &Admin::Stub::ResumeSession,
                RequestOf<v1::ResumeSessionRequest>(session, timeout));
  }

 private:
  template <typename Request>
  static Request RequestOf(uint64_t session, absl::Duration timeout) {
    Request request;
    request.set_session_id(session);
    request.set_timeout_ms(
        static_cast<uint64_t>(std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout))));
    return request;
  }

  template <typename Method, typename Request, typename Response>
  absl::Status Get(Method method, const Request& request, Response* response) {
    absl::StatusOr<Response> answer = Call(admin_, method, request);
    if (!answer.ok()) return answer.status();
    *response = *std::move(answer);
    return absl::OkStatus();
  }

  AdminConnection& admin_;
};

class ThisMachine final : public ProcessMachine {
 public:
  ThisMachine(pid_t pid, Target target) : pid_(pid), target_(std::move(target)) {}

  absl::StatusOr<TargetFacts> Look() override { return target_.Look(); }
  Caller Self() override { return {.uid = geteuid(), .pid = getpid()}; }
  bool IsDaemon(pid_t pid) override { return absl::StartsWith(CommandOf(pid), "gpumemd"); }

  absl::StatusOr<DeviceBytesMap> Memory(const std::vector<std::string>& devices) override {
    const absl::StatusOr<const Nvml*> nvml = Nvml::Get();
    if (!nvml.ok()) return Unreported(nvml.status().message());
    DeviceBytesMap memory;
    for (const std::string& uuid : devices) {
      const auto device = (*nvml)->FindDevice(uuid);
      if (!device.ok()) return Unreported(device.status().message());
      const auto processes = (*nvml)->Processes(*device);
      if (!processes.ok()) return Unreported(processes.status().message());
      const auto found = processes->find(static_cast<unsigned>(pid_));
      if (found == processes->end()) continue;
      if (!found->second.has_value()) {
        return Unreported(absl::StrCat("it does not say for ", uuid));
      }
      memory[uuid] = *found->second;
    }
    return memory;
  }

  uint64_t AvailableHostBytes() override { return cli::AvailableHostBytes(); }
  absl::Time Now() override { return absl::Now(); }
  void Sleep(absl::Duration time) override { absl::SleepFor(time); }

 private:
  absl::Status Unreported(absl::string_view why) const {
    return absl::FailedPreconditionError(
        absl::StrCat("the driver does not report how much memory process ", pid_, " has: ", why));
  }

  const pid_t pid_;
  const Target target_;
};

// Returns the document of a command: that of its daemon's call, with the process's own members.
Json ProcessJson(const google::protobuf::Message& leases, pid_t pid,
                 const std::vector<uint64_t>& sessions, const DeviceBytesMap& moved) {
  Json json = ToJson(leases);
  json["pid"] = pid;
  json["session_ids"] = sessions;
  json["devices"] = Json::array();
  for (const auto& [uuid, bytes] : moved) {
    json["devices"].push_back({{"device_uuid", uuid}, {"bytes", bytes}});
  }
  return json;
}

// Returns one line for each device.
std::string MovedLines(const DeviceBytesMap& moved, absl::string_view words, bool exact) {
  std::string text;
  for (const auto& [uuid, bytes] : moved) {
    absl::StrAppend(&text, "  ", Size(bytes, exact), " ", words, " ", uuid, "\n");
  }
  return text;
}

std::string View(pid_t pid, const SuspendedProcess& done, bool exact) {
  return absl::StrCat("Suspended process ", pid, ": ",
                      Counted(done.leases.suspended_leases(), "lease"), ", ",
                      Size(done.leases.moved_bytes(), exact), " moved to the host tier.\n",
                      done.leases.dropped_bytes() == 0
                          ? ""
                          : absl::StrCat("  ", Size(done.leases.dropped_bytes(), exact),
                                         " of scratch memory dropped\n"),
                      done.leases.resident_bytes() == 0
                          ? ""
                          : absl::StrCat("  ", Size(done.leases.resident_bytes(), exact),
                                         " stay on their devices: other sessions use them\n"),
                      MovedLines(done.moved, "moved to its host memory from", exact));
}

std::string View(pid_t pid, const ResumedProcess& done, bool exact) {
  return absl::StrCat("Resumed process ", pid, ": ", Counted(done.leases.resumed_leases(), "lease"),
                      ", ", Size(done.leases.resumed_bytes(), exact), " on the devices.\n",
                      MovedLines(done.moved, "restored to", exact));
}

template <typename Done>
absl::Status PrintDone(const absl::StatusOr<Done>& done, pid_t pid, const GlobalOptions& options) {
  if (!done.ok()) return done.status();
  Print(options.json ? Document(ProcessJson(done->leases, pid, done->sessions, done->moved))
                     : View(pid, *done, options.exact));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunOnProcess(const SuspendCommand& command, const GlobalOptions& options) {
  // First of all: without these calls nothing is to be changed.
  absl::StatusOr<std::unique_ptr<Checkpointer>> driver = Checkpointer::ForCuda();
  if (!driver.ok()) return driver.status();
  const pid_t pid = *command.process;
  absl::StatusOr<Target> target = Target::Open(pid);
  if (!target.ok()) return target.status();
  const absl::Duration timeout =
      std::max(options.timeout.value_or(kCallTimeout), absl::Milliseconds(1));
  auto admin = ConnectAdmin(options.runtime_dir, timeout + kDaemonMargin);
  if (!admin.ok()) return admin.status();
  AdminBroker broker(admin->get());
  ThisMachine machine(pid, *std::move(target));
  const ProcessRecords records(ProcessRecords::DefaultFolder());
  WholeProcess process(&broker, &machine, driver->get(), &records);
  const auto effects = [&] {
    return command.resume ? process.ResumeEffects(command.bytes, options.exact)
                          : process.SuspendEffects(options.exact);
  };
  absl::StatusOr<bool> proceed =
      Proceed(command.caution, command.resume ? "resume" : "suspend", effects, options);
  if (!proceed.ok() || !*proceed) return proceed.status();
  return command.resume ? PrintDone(process.Resume(timeout, command.bytes), pid, options)
                        : PrintDone(process.Suspend(timeout), pid, options);
}

}  // namespace gpumem::cli
