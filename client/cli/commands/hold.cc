// SPDX-License-Identifier: Apache-2.0
// gpumemctl hold: a worker process from the shell.
#include <sys/eventfd.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/commands/client_devices.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/exit_code.h"
#include "client/cli/text/format.h"
#include "client/cli/text/json.h"
#include "client/cli/text/print.h"
#include "client/cli/text/stop_signals.h"
#include "client/cli/text/table.h"
#include "client/cli/views/device_list.h"
#include "client/mapping/kind.h"
#include "client/mapping/remapping.h"
#include "common/cuda/device_copy.h"
#include "common/unique_fd.h"
#include "gpumem/client.h"

namespace gpumem::cli {
namespace {

// The deadlines of connecting, and of a request for memory.
constexpr absl::Duration kConnecting = absl::Seconds(10);
constexpr absl::Duration kGetting = absl::Seconds(30);

constexpr uint8_t kFillByte = 0xA5;

absl::Status Fill(const Segment& segment) {
  std::unique_ptr<DeviceCopier> copier = DeviceCopier::ForHost();
  if (segment.backend() == Backend::kCuda) {
    auto cuda = DeviceCopier::ForCuda(internal::Remapping::GpuOf(segment));
    if (!cuda.ok()) return cuda.status();
    copier = *std::move(cuda);
  }
  return copier->Fill(segment.data(), kFillByte, segment.size());
}

// "-" for memory of the process's own driver.
std::string Address(const Segment& segment) {
  if (segment.data() == nullptr) return "-";
  return absl::StrFormat("0x%x", reinterpret_cast<uintptr_t>(segment.data()));
}

// In hexadecimal digits; absent if it was not requested, or the kind has none.
absl::StatusOr<std::optional<std::string>> IpcHandle(const Segment& segment,
                                                     const HoldCommand& command) {
  if (!command.show_handle || internal::TraitsOf(segment.kind()).sharing != Sharing::kIpcHandle)
    return std::nullopt;
  absl::StatusOr<Handle> handle = segment.ipc_handle();
  if (!handle.ok()) return handle.status();
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(handle->data()), handle->size()));
}

absl::Status PrintHeld(const Client& client, const std::vector<Segment>& segments,
                       const DeviceList& devices, const HoldCommand& command,
                       const GlobalOptions& options) {
  Table table({{"LEASE", Align::kRight},
               {"SEGMENT", Align::kRight},
               {"DEVICE"},
               {"KIND"},
               {"SIZE", Align::kRight},
               {"ADDRESS", Align::kRight},
               {"TICKET"}});
  Table handles({{"SEGMENT", Align::kRight}, {"IPC HANDLE"}});
  std::string lines;
  uint64_t bytes = 0;
  for (const Segment& segment : segments) {
    absl::StatusOr<Ticket> ticket = Ticket{.value = "-"};
    if (!internal::TraitsOf(segment.kind()).charge_only) ticket = segment.Share();
    if (!ticket.ok()) return ticket.status();
    absl::StatusOr<std::optional<std::string>> handle = IpcHandle(segment, command);
    if (!handle.ok()) return handle.status();
    bytes += segment.size();
    table.AddRow({absl::StrCat(segment.lease_id()), absl::StrCat(segment.segment_id()),
                  ShortDevice(devices, segment.device_uuid()),
                  std::string(KindName(segment.kind())), Size(segment.size(), options.exact),
                  Address(segment), ticket->value});
    if (*handle) handles.AddRow({absl::StrCat(segment.segment_id()), **handle});
    Json json = Json::object();
    json["event"] = "held";
    json["session_id"] = client.session_id();
    json["tenant"] = client.tenant();
    json["lease_id"] = segment.lease_id();
    json["segment_id"] = segment.segment_id();
    json["device_uuid"] = segment.device_uuid();
    json["kind"] = std::string(KindName(segment.kind()));
    json["size_bytes"] = segment.size();
    json["reused"] = segment.reused();
    json["address"] = nullptr;
    json["ticket"] = nullptr;
    if (segment.data() != nullptr) {
      json["address"] = Address(segment);
      json["ticket"] = ticket->value;
    }
    json["ipc_handle"] = nullptr;
    if (*handle) json["ipc_handle"] = **handle;
    lines += DocumentLine(json);
  }
  if (options.json) {
    Print(lines);
    return absl::OkStatus();
  }
  Print(absl::StrCat(table.ToString({kAnyWidth, options.headers}),
                     handles.empty() ? "" : handles.ToString({kAnyWidth, options.headers}),
                     "Holding ", Size(bytes, options.exact), " as tenant ",
                     Printable(client.tenant()), ", session ", client.session_id(), ", ",
                     command.duration
                         ? absl::StrCat("for ", absl::FormatDuration(*command.duration))
                         : "until SIGINT (Ctrl-C) or SIGTERM",
                     ".\n"));
  return absl::OkStatus();
}

void PrintReleased(size_t segments, uint64_t bytes, const GlobalOptions& options) {
  if (options.json) {
    Json json = Json::object();
    json["event"] = "released";
    json["segments"] = segments;
    json["size_bytes"] = bytes;
    Print(DocumentLine(json));
  } else {
    Print(absl::StrCat("Released ", Size(bytes, options.exact), ".\n"));
  }
}

// Reports each lost segment to the user once.
class LossReport {
 public:
  LossReport(const std::vector<Segment>& segments, const GlobalOptions& options)
      : json_(options.json) {
    for (const Segment& segment : segments) segments_[segment.lease_id()] = segment.segment_id();
  }

  // Must always be called in the same thread.
  void Tell(const SegmentsLost& lost) {
    std::vector<uint64_t> leases;
    std::vector<uint64_t> segments;
    for (const uint64_t lease : lost.lease_ids) {
      const auto found = segments_.find(lease);
      if (found == segments_.end()) continue;
      leases.push_back(lease);
      segments.push_back(found->second);
      segments_.erase(found);
    }
    if (leases.empty()) return;
    std::string line;
    if (json_) {
      Json json = Json::object();
      json["event"] = "lost";
      json["lease_ids"] = leases;
      json["segment_ids"] = segments;
      line = DocumentLine(json);
    } else {
      line =
          absl::StrCat("gpumemctl: lost ", segments.size() == 1 ? "segment " : "segments ",
                       absl::StrJoin(segments, ", "),
                       ": its CUDA context in the daemon is gone; open mappings stay usable, and "
                       "no session can open it again\n");
    }
    std::fputs(line.c_str(), stderr);
  }

 private:
  const bool json_;
  std::map<uint64_t, uint64_t> segments_;  // by lease; those not reported yet
};

// An event that occurs once in another thread, to wait for with poll().
class Happening {
 public:
  Happening() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  void Happen() const { (void)!eventfd_write(fd_.get(), 1); }
  int fd() const { return fd_.get(); }

 private:
  const UniqueFd fd_;
};

// Returns the command with devices as the client names them. Statuses as DeviceForClient.
absl::StatusOr<HoldCommand> WithDevices(HoldCommand command, const DeviceList& devices) {
  std::vector<DeviceName*> names = {&command.device};
  for (DeviceName& name : command.map_devices) names.push_back(&name);
  for (DeviceName* name : names) {
    absl::StatusOr<DeviceName> resolved = DeviceForClient(devices, *name);
    if (!resolved.ok()) return resolved.status();
    *name = *std::move(resolved);
  }
  return command;
}

absl::StatusOr<std::vector<Segment>> Get(Client& client, const HoldCommand& command,
                                         const GlobalOptions& options, const CancelToken& cancel) {
  const absl::Duration timeout = options.timeout.value_or(kGetting);
  if (!command.tickets.empty()) {
    return client.OpenMany(command.tickets, {.read_only = command.read_only,
                                             .map_devices = command.map_devices,
                                             .revocable = command.revocable,
                                             .timeout = timeout});
  }
  return client.AcquireMany({.bytes = command.bytes,
                             .device = command.device,
                             .kind = command.kind,
                             .map_devices = command.map_devices,
                             .wait = command.wait,
                             .cancel = cancel,
                             .revocable = command.revocable,
                             .timeout = timeout},
                            command.count);
}

void TellWaiting(const HoldCommand& command, const GlobalOptions& options) {
  const uint64_t bytes = command.bytes * static_cast<uint64_t>(command.count);
  const bool for_ever = command.wait == absl::InfiniteDuration();
  std::string line;
  if (options.json) {
    Json json = Json::object();
    json["event"] = "waiting";
    json["size_bytes"] = bytes;
    json["wait_ms"] = nullptr;
    if (!for_ever) json["wait_ms"] = absl::ToInt64Milliseconds(command.wait);
    line = DocumentLine(json);
  } else {
    line = absl::StrCat(
        "gpumemctl: waiting for ", Size(bytes, options.exact),
        for_ever ? "" : absl::StrCat(", for ", absl::FormatDuration(command.wait), " at most"),
        "; SIGINT (Ctrl-C) or SIGTERM ends it\n");
  }
  std::fputs(line.c_str(), stderr);
}

// As Get(), but ends at a signal. Reports a wait that takes more than a moment.
absl::StatusOr<std::vector<Segment>> GetUnlessStopped(Client& client, const HoldCommand& command,
                                                      const GlobalOptions& options,
                                                      StopSignals& signals) {
  constexpr absl::Duration kMoment = absl::Milliseconds(300);
  const CancelToken cancel;
  if (command.wait == absl::ZeroDuration()) return Get(client, command, options, cancel);
  absl::StatusOr<std::vector<Segment>> segments;
  const Happening done;
  std::thread getter([&] {
    segments = Get(client, command, options, cancel);
    done.Happen();
  });
  StopSignals::Event event = signals.Wait(absl::Now() + kMoment, done.fd());
  if (event == StopSignals::Event::kTimeout) {
    TellWaiting(command, options);
    event = signals.Wait(absl::InfiniteFuture(), done.fd());
  }
  if (event == StopSignals::Event::kStop) cancel.Cancel();
  getter.join();
  if (event == StopSignals::Event::kStop) {
    return absl::CancelledError("stopped by a signal while waiting; nothing is held");
  }
  return segments;
}

// The daemon is gone, or has ended the session: held memory stays mapped.
void TellEnded(const absl::Status& why, const GlobalOptions& options) {
  std::string line;
  if (options.json) {
    Json json = Json::object();
    json["event"] = "session_ended";
    json["message"] = std::string(why.message());
    line = DocumentLine(json);
  } else {
    line = absl::StrCat("gpumemctl: ", Printable(why.message()),
                        "; held memory stays mapped, and is no longer charged to a tenant\n");
  }
  std::fputs(line.c_str(), stderr);
}

// Receives revocations.
class Revocations {
 public:
  void Hear(const Revocation& revocation) {
    {
      absl::MutexLock lock(&mutex_);
      heard_ = revocation;
    }
    happening_.Happen();
  }
  // Readable once there is a revocation.
  int fd() const { return happening_.fd(); }

  // Reports to the user; returns the status for the time when the memory is released.
  absl::Status Tell(const GlobalOptions& options) const {
    absl::MutexLock lock(&mutex_);
    if (options.json) {
      Json json = Json::object();
      json["event"] = "revoked";
      json["lease_ids"] = heard_.lease_ids;
      json["until_end_ms"] = absl::ToInt64Milliseconds(heard_.until_end);
      std::fputs(DocumentLine(json).c_str(), stderr);
    }
    absl::Status status = absl::AbortedError(
        "the daemon revoked the memory for another tenant's guarantee; hold has released it");
    status.SetPayload(kRevokedPayload, absl::Cord());
    return status;
  }

 private:
  const Happening happening_;
  mutable absl::Mutex mutex_;
  Revocation heard_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status Run(const HoldCommand& given, const GlobalOptions& options) {
  StopSignals signals;
  auto client = Client::Connect({.runtime_dir = options.runtime_dir,
                                 .tenant = given.as,
                                 .name = "gpumemctl hold",
                                 // An operator wants a quick answer. A socket that the service
                                 // manager holds listens also without a daemon.
                                 .timeout = options.timeout.value_or(kConnecting),
                                 .wait = false});
  if (!client.ok()) return client.status();
  absl::StatusOr<DeviceList> devices = ListDevices(**client);
  if (!devices.ok()) return devices.status();

  absl::StatusOr<HoldCommand> resolved = WithDevices(given, *devices);
  if (!resolved.ok()) return resolved.status();
  const HoldCommand& command = *resolved;
  auto segments = GetUnlessStopped(**client, command, options, signals);
  if (!segments.ok()) return segments.status();
  if (command.fill) {
    for (const Segment& segment : *segments) {
      if (absl::Status status = Fill(segment); !status.ok()) return status;
    }
  }
  if (auto status = PrintHeld(**client, *segments, *devices, command, options); !status.ok()) {
    return status;
  }
  LossReport losses(*segments, options);
  Revocations revocations;
  auto watch = (*client)->StartWatch(
      {.segments_lost = [&](const SegmentsLost& lost) { losses.Tell(lost); },
       .revocation = [&](const Revocation& revocation) { revocations.Hear(revocation); },
       .ended = [&](const absl::Status& why) { TellEnded(why, options); }});
  if (!watch.ok()) return watch.status();

  const StopSignals::Event end =
      signals.Wait(command.duration ? absl::Now() + *command.duration : absl::InfiniteFuture(),
                   revocations.fd());

  watch->reset();
  absl::Status result;
  uint64_t bytes = 0;
  for (Segment& segment : *segments) {
    bytes += segment.size();
    // Without a daemon, the end of this process releases them.
    if (!absl::IsUnavailable(result)) result.Update(segment.Release(absl::Seconds(2)));
  }
  if (result.ok()) PrintReleased(segments->size(), bytes, options);
  if (result.ok() && end == StopSignals::Event::kInput) result = revocations.Tell(options);
  return result;
}

}  // namespace gpumem::cli
