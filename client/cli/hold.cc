// gpumemctl hold: a worker made from the shell.
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "client/cli/format.h"
#include "client/cli/json.h"
#include "client/cli/print.h"
#include "client/cli/stop_signals.h"
#include "client/cli/table.h"
#include "client/client.h"
#include "common/device_copy.h"

namespace gpumem::cli {
namespace {

constexpr uint8_t kFillByte = 0xA5;

// The client's devices as the protocol's, which the rest of gpumemctl works with.
absl::StatusOr<DeviceList> ListDevices(Client& client) {
  absl::StatusOr<std::vector<DeviceInfo>> devices = client.Devices();
  if (!devices.ok()) return devices.status();
  DeviceList list;
  for (const DeviceInfo& info : *devices) {
    v1::Device& device = list.emplace_back();
    device.set_index(static_cast<uint32_t>(list.size() - 1));
    device.set_device_uuid(info.uuid);
  }
  return list;
}

absl::Status Fill(const Segment& segment) {
  std::unique_ptr<DeviceCopier> copier = DeviceCopier::ForHost();
  if (segment.backend() == Backend::kCuda) {
    auto cuda = DeviceCopier::ForCuda(segment.device_uuid());
    if (!cuda.ok()) return cuda.status();
    copier = *std::move(cuda);
  }
  return copier->Fill(segment.data(), kFillByte, segment.size());
}

std::string Address(const Segment& segment) {
  return absl::StrFormat("0x%x", reinterpret_cast<uintptr_t>(segment.data()));
}

// In hexadecimal digits; absent where it is not asked for, or the kind has none.
absl::StatusOr<std::optional<std::string>> IpcHandle(const Segment& segment,
                                                     const HoldCommand& command) {
  if (!command.show_handle || segment.kind() != Kind::kIpc) return std::nullopt;
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
    absl::StatusOr<Ticket> ticket = segment.Share();
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
    json["address"] = Address(segment);
    json["ticket"] = ticket->value;
    json["ipc_handle"] = nullptr;
    if (*handle) json["ipc_handle"] = **handle;
    lines += OneLine(json);
  }
  if (options.json) {
    Print(lines);
    return absl::OkStatus();
  }
  Print(absl::StrCat(table.ToString(), handles.empty() ? "" : handles.ToString(), "Holding ",
                     Size(bytes, options.exact), " as tenant ", client.tenant(), ", session ",
                     client.session_id(), ", ",
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
    Print(OneLine(json));
  } else {
    Print(absl::StrCat("Released ", Size(bytes, options.exact), ".\n"));
  }
}

// Tells the user, once, of each segment that is lost.
class LossReport {
 public:
  LossReport(const std::vector<Segment>& segments, const GlobalOptions& options)
      : json_(options.json) {
    for (const Segment& segment : segments) segments_[segment.lease_id()] = segment.segment_id();
  }

  // To be called in one thread.
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
      line = OneLine(json);
    } else {
      line = absl::StrCat("gpumemctl: lost ", segments.size() == 1 ? "segment " : "segments ",
                          absl::StrJoin(segments, ", "),
                          ": the CUDA context in the daemon is gone; what is open stays usable, "
                          "and nobody can open it any more\n");
    }
    std::fputs(line.c_str(), stderr);
  }

 private:
  const bool json_;
  std::map<uint64_t, uint64_t> segments_;  // by lease; those not told of
};

absl::StatusOr<std::vector<Segment>> Get(Client& client, const HoldCommand& command) {
  if (!command.tickets.empty()) {
    return client.OpenMany(command.tickets,
                           {.read_only = command.read_only, .map_devices = command.map_devices});
  }
  return client.AcquireMany({.bytes = command.bytes,
                             .device = command.device,
                             .kind = command.kind,
                             .map_devices = command.map_devices},
                            command.count);
}

}  // namespace

absl::Status Run(const HoldCommand& command, const GlobalOptions& options) {
  StopSignals signals;
  auto client = Client::Connect(
      {.runtime_dir = options.runtime_dir, .tenant = command.tenant, .name = "gpumemctl hold"});
  if (!client.ok()) return client.status();
  absl::StatusOr<DeviceList> devices = ListDevices(**client);
  if (!devices.ok()) return devices.status();

  absl::StatusOr<std::vector<Segment>> segments = Get(**client, command);
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
  auto watch = (*client)->StartWatch(
      {.segments_lost = [&losses](const SegmentsLost& lost) { losses.Tell(lost); }});
  if (!watch.ok()) return watch.status();

  signals.Wait(command.duration ? absl::Now() + *command.duration : absl::InfiniteFuture());

  watch->reset();
  absl::Status result;
  uint64_t bytes = 0;
  for (Segment& segment : *segments) {
    bytes += segment.size();
    result.Update(segment.Release());
  }
  if (result.ok()) PrintReleased(segments->size(), bytes, options);
  return result;
}

}  // namespace gpumem::cli
