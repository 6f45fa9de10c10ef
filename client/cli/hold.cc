// gpumemctl hold: a worker made from the shell.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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

absl::Status PrintHeld(const Client& client, const std::vector<Segment>& segments,
                       const DeviceList& devices, const HoldCommand& command,
                       const GlobalOptions& options) {
  Table table({{"LEASE", Align::kRight},
               {"SEGMENT", Align::kRight},
               {"DEVICE"},
               {"SIZE", Align::kRight},
               {"TICKET"}});
  std::string lines;
  uint64_t bytes = 0;
  for (const Segment& segment : segments) {
    absl::StatusOr<Ticket> ticket = segment.Share();
    if (!ticket.ok()) return ticket.status();
    bytes += segment.size();
    table.AddRow({absl::StrCat(segment.lease_id()), absl::StrCat(segment.segment_id()),
                  ShortDevice(devices, segment.device_uuid()), Size(segment.size(), options.exact),
                  ticket->value});
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
    json["ticket"] = ticket->value;
    lines += OneLine(json);
  }
  if (options.json) {
    Print(lines);
    return absl::OkStatus();
  }
  Print(absl::StrCat(table.ToString(), "Holding ", Size(bytes, options.exact), " as tenant ",
                     client.tenant(), ", session ", client.session_id(), ", ",
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

}  // namespace

absl::Status Run(const HoldCommand& command, const GlobalOptions& options) {
  StopSignals signals;
  auto client = Client::Connect(
      {.runtime_dir = options.runtime_dir, .tenant = command.tenant, .name = "gpumemctl hold"});
  if (!client.ok()) return client.status();
  absl::StatusOr<DeviceList> devices = ListDevices(**client);
  if (!devices.ok()) return devices.status();
  AcquireOptions acquire{.bytes = command.bytes};
  if (!command.device.empty()) {
    absl::StatusOr<std::string> uuid = ResolveDevice(*devices, command.device);
    if (!uuid.ok()) return uuid.status();
    acquire.device_uuid = *std::move(uuid);
  }

  absl::StatusOr<std::vector<Segment>> segments = (*client)->AcquireMany(acquire, command.count);
  if (!segments.ok()) return segments.status();
  if (command.fill) {
    for (const Segment& segment : *segments) {
      if (absl::Status status = Fill(segment); !status.ok()) return status;
    }
  }
  if (auto status = PrintHeld(**client, *segments, *devices, command, options); !status.ok()) {
    return status;
  }

  signals.Wait(command.duration ? absl::Now() + *command.duration : absl::InfiniteFuture());

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
