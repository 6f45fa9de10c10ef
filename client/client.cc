// SPDX-License-Identifier: Apache-2.0
#include "gpumem/client.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/mapping/device_name.h"
#include "client/mapping/kind.h"
#include "client/mapping/mapper.h"
#include "client/mapping/placement.h"
#include "client/mapping/segment_state.h"
#include "client/pool/sharing/shared_block.h"
#include "client/session/abandon.h"
#include "client/session/convert.h"
#include "client/session/interrupt.h"
#include "client/session/session.h"
#include "client/session/ticket.h"
#include "client/session/watch.h"
#include "common/failpoint.h"
#include "common/trace/file.h"
#include "common/trace/span.h"
#include "common/unix_channel.h"

namespace gpumem {
namespace {

constexpr int kMaxSegments = static_cast<int>(kMaxMessageFds);  // of one call

// Sets the device that the options name.
absl::Status ChooseDevice(const v1::Welcome& welcome, const AcquireOptions& options,
                          v1::AcquireRequest* request) {
  const bool most_free = options.device == internal::kMostFree;
  request->set_most_free(most_free);
  if (!most_free && !options.device.empty()) {
    absl::StatusOr<std::string> uuid = internal::DeviceUuid(welcome, options.device);
    if (!uuid.ok()) return uuid.status();
    request->set_device_uuid(*std::move(uuid));
    return absl::OkStatus();
  }
  // Memory of a GPU that this process does not see would be useless to it.
  if (!options.map_devices.empty() || internal::TraitsOf(options.kind).host_memory ||
      !internal::HasGpus(welcome)) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> makers = internal::VisibleMakers(welcome, options.kind);
  if (!makers.ok()) return makers.status();
  if (most_free) {
    request->mutable_among_device_uuids()->Add(makers->begin(), makers->end());
  } else {
    request->set_device_uuid(makers->front());
  }
  return absl::OkStatus();
}

}  // namespace

CancelToken::CancelToken() : interrupt_(std::make_shared<internal::Interrupt>()) {}

void CancelToken::Cancel() const { interrupt_->Cancel(); }

bool CancelToken::cancelled() const { return interrupt_->cancelled(); }

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ConnectOptions& options) {
  if (absl::Status traces = trace::TraceToFileOfEnvironment(); !traces.ok()) return traces;
  absl::StatusOr<std::shared_ptr<internal::Session>> session = internal::Session::Connect(options);
  if (!session.ok()) return session.status();
  return std::unique_ptr<Client>(new Client(*std::move(session)));
}

Client::Client(std::shared_ptr<internal::Session> session)
    : session_(std::move(session)), opened_(std::make_unique<internal::OpenedSegments>()) {}

Client::~Client() {
  if (session_->forked()) {
    // A thread that only the parent has may hold its lock.
    internal::Abandon(std::move(opened_));
    return;
  }
  opened_.reset();
  // Segments may keep the session for longer.
  session_->SendReleases();
}

absl::StatusOr<Segment> Client::Acquire(const AcquireOptions& options) {
  absl::StatusOr<std::vector<Segment>> segments = AcquireMany(options, 1);
  if (!segments.ok()) return segments.status();
  return std::move(segments->front());
}

absl::StatusOr<std::vector<Segment>> Client::AcquireMany(const AcquireOptions& options, int count) {
  internal::Disturbance disturbance;
  if (options.cancel.has_value()) disturbance.interrupt = options.cancel->interrupt_;
  return AcquireIn(nullptr, options, count, disturbance);
}

absl::StatusOr<std::vector<Segment>> Client::AcquireIn(std::shared_ptr<const AddressRange> range,
                                                       const AcquireOptions& options, int count,
                                                       const internal::Disturbance& disturbance) {
  const trace::CallSpan call("acquire");
  if (count < 1 || count > kMaxSegments) {
    return absl::InvalidArgumentError(
        absl::StrCat("one call acquires 1 to ", kMaxSegments, " segments, not ", count));
  }
  if (options.bytes == 0) {
    return absl::InvalidArgumentError("a segment has at least one byte: set AcquireOptions::bytes");
  }
  if (options.wait < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("AcquireOptions::wait is below zero");
  }
  absl::StatusOr<MapOptions> placement = internal::Placement(
      session_->welcome(), options.map_devices, options.address, /*read_only=*/false);
  if (!placement.ok()) return placement.status();
  placement->range = std::move(range);
  if (absl::Status status = internal::CheckPlacement(options.kind, *placement); !status.ok()) {
    return status;
  }
  v1::AcquireRequest request;
  if (absl::Status status = ChooseDevice(session_->welcome(), options, &request); !status.ok()) {
    return status;
  }
  request.set_bytes(options.bytes);
  request.set_kind(internal::ToProto(options.kind));
  request.set_count(static_cast<uint32_t>(count));
  request.set_without_pressure(!options.presses_others);
  request.set_revocable(options.revocable);
  request.set_wait_ms(internal::ToWaitMs(options.wait));
  request.set_tag(options.tag);
  request.set_scratch(options.scratch);
  const absl::Time deadline = session_->Deadline(options.timeout) + options.wait;
  const bool waits = request.wait_ms() > 0 || disturbance.interrupt != nullptr;
  internal::ArrivalMapper mapper(*session_, *placement);
  absl::StatusOr<std::vector<Segment>> segments =
      Mapped(waits ? session_->AcquireWaiting(request, deadline, disturbance)
                   : session_->Acquire(request, deadline, &mapper),
             mapper);
  if (!segments.ok()) return segments.status();
  for (Segment& segment : *segments) segment.state_->tag = options.tag;
  return segments;
}

absl::StatusOr<Segment> Client::Open(absl::string_view ticket, const OpenOptions& options) {
  absl::StatusOr<std::vector<Segment>> segments = OpenMany({std::string(ticket)}, options);
  if (!segments.ok()) return segments.status();
  return std::move(segments->front());
}

absl::StatusOr<std::vector<Segment>> Client::OpenMany(absl::Span<const std::string> tickets,
                                                      const OpenOptions& options) {
  const trace::CallSpan call("open");
  if (tickets.empty() || tickets.size() > static_cast<size_t>(kMaxSegments)) {
    return absl::InvalidArgumentError(
        absl::StrCat("one call opens 1 to ", kMaxSegments, " tickets, not ", tickets.size()));
  }
  absl::StatusOr<MapOptions> placement = internal::Placement(
      session_->welcome(), options.map_devices, options.address, options.read_only);
  if (!placement.ok()) return placement.status();
  v1::OpenRequest request;
  request.set_revocable(options.revocable);
  for (const std::string& ticket : tickets) {
    absl::StatusOr<std::string> bytes = internal::ParseTicket(ticket);
    if (!bytes.ok()) return bytes.status();
    request.add_tickets(*std::move(bytes));
  }
  internal::ArrivalMapper mapper(*session_, *placement);
  return Mapped(session_->Open(request, session_->Deadline(options.timeout), &mapper), mapper);
}

absl::StatusOr<std::vector<Segment>> Client::Mapped(absl::StatusOr<internal::Grant> grant,
                                                    internal::ArrivalMapper& mapper) {
  if (!grant.ok()) return grant.status();
  absl::StatusOr<std::vector<internal::MappedLease>> mapped = mapper.Take(*grant);
  if (!mapped.ok()) return mapped.status();
  Failpoint("client-mapped");
  grant->Keep();
  std::vector<Segment> segments;
  segments.reserve(mapped->size());
  for (internal::MappedLease& lease : *mapped) {
    segments.push_back(Segment(std::make_unique<Segment::State>(session_, std::move(lease))));
  }
  return segments;
}

absl::StatusOr<Usage> Client::GetUsage() {
  absl::StatusOr<v1::GetUsageResponse> response =
      session_->GetUsage(session_->Deadline(std::nullopt));
  if (!response.ok()) return response.status();
  return internal::FromProto(response->usage());
}

absl::StatusOr<std::vector<DeviceInfo>> Client::Devices() {
  absl::StatusOr<v1::ListDevicesResponse> response =
      session_->ListDevices(session_->Deadline(std::nullopt));
  if (!response.ok()) return response.status();
  std::vector<DeviceInfo> devices;
  for (const v1::Device& device : response->devices()) {
    devices.push_back(internal::FromProto(device));
  }
  return devices;
}

absl::StatusOr<std::unique_ptr<Watch>> Client::StartWatch(WatchHandlers handlers) {
  return internal::StartWatch(session_, std::move(handlers));
}

const std::string& Client::tenant() const { return session_->welcome().tenant(); }

const std::string& Client::rule() const { return session_->welcome().rule(); }

uint64_t Client::session_id() const { return session_->welcome().session_id(); }

const std::string& Client::daemon_version() const { return session_->welcome().daemon_version(); }

}  // namespace gpumem
