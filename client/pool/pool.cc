// SPDX-License-Identifier: Apache-2.0
#include "gpumem/pool.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/mapping/device_name.h"
#include "client/mapping/kind.h"
#include "client/mapping/placement.h"
#include "client/mapping/visible_devices.h"
#include "client/pool/client_segments.h"
#include "client/pool/engine.h"
#include "client/pool/pressure_listener.h"
#include "client/pool/sharing/block_ticket.h"
#include "client/pool/stream_api.h"
#include "client/session/abandon.h"
#include "client/session/interrupt.h"
#include "client/session/session.h"
#include "gpumem/suspend.h"

namespace gpumem {
namespace {

// More would overflow where sizes are rounded up to it.
constexpr uint64_t kMostGrowBytes = uint64_t{1} << 40;

// Returns the eligible device on which the tenant can get most.
absl::StatusOr<std::string> MostFree(Client& client, const std::vector<DeviceInfo>& devices,
                                     const std::vector<std::string>& among) {
  absl::StatusOr<Usage> usage = client.GetUsage();
  if (!usage.ok()) return usage.status();
  std::string best;
  uint64_t most = 0;
  for (const DeviceInfo& device : devices) {
    if (std::find(among.begin(), among.end(), device.uuid) == among.end()) continue;
    uint64_t free = device.capacity_bytes - std::min(device.capacity_bytes, device.charged_bytes);
    for (const DeviceUsage& own : usage->devices) {
      if (own.device_uuid != device.uuid) continue;
      // An older daemon leaves the estimate to the client.
      free = own.obtainable_bytes.value_or(
          std::min(free, own.limit_bytes - std::min(own.limit_bytes, own.charged_bytes)));
    }
    if (!best.empty() && free <= most) continue;
    most = free;
    best = device.uuid;
  }
  return best;
}

bool Makes(const DeviceInfo& device, Kind kind) {
  return kind == Kind::kDefault ||
         std::find(device.kinds.begin(), device.kinds.end(), kind) != device.kinds.end();
}

// Returns the kind that decides about devices: for the default kind, that of the first device, as
// in the daemon. Pinned memory, which has another kind, is then not eligible.
Kind DefaultedKind(Kind kind, const std::vector<DeviceInfo>& devices) {
  if (kind != Kind::kDefault || devices.empty() || devices.front().kinds.empty()) return kind;
  return devices.front().kinds.front();
}

// Chooses as Client::Acquire does, before anything is acquired.
absl::StatusOr<DeviceInfo> ChooseDevice(Client& client, const v1::Welcome& welcome,
                                        const PoolOptions& options) {
  absl::StatusOr<std::vector<DeviceInfo>> devices = client.Devices();
  if (!devices.ok()) return devices.status();
  std::vector<std::string> among;
  const bool most_free = options.device == internal::kMostFree;
  if (!options.device.empty() && !most_free) {
    absl::StatusOr<std::string> uuid = internal::DeviceUuid(welcome, options.device);
    if (!uuid.ok()) return uuid.status();
    among = {*std::move(uuid)};
  } else if (!internal::TraitsOf(options.kind).host_memory && internal::HasGpus(welcome)) {
    absl::StatusOr<std::vector<std::string>> makers =
        internal::VisibleMakers(welcome, options.kind);
    if (!makers.ok()) return makers.status();
    among = *std::move(makers);
  } else {
    const Kind kind = DefaultedKind(options.kind, *devices);
    for (const DeviceInfo& device : *devices) {
      if (Makes(device, kind)) among.push_back(device.uuid);
    }
  }
  absl::StatusOr<std::string> uuid = among.empty() ? std::string() : among.front();
  if (most_free) uuid = MostFree(client, *devices, among);
  if (!uuid.ok()) return uuid.status();
  for (DeviceInfo& device : *devices) {
    if (device.uuid != *uuid) continue;
    if (device.kinds.empty()) {
      return absl::UnimplementedError(
          absl::StrCat("this library knows no kind of the segments that device ", device.uuid,
                       " makes: the daemon is newer; update the library"));
    }
    device.backend = internal::MappingBackend(welcome, options.kind, device.backend);
    if (Makes(device, options.kind)) return std::move(device);
    return absl::UnimplementedError(
        absl::StrCat("device ", device.uuid, " does not make segments of kind ",
                     KindName(options.kind), "; gpumemctl devices shows the kinds that it makes"));
  }
  return absl::UnimplementedError(
      absl::StrCat("no device here makes segments of kind ", KindName(options.kind)));
}

// Host memory uses the streams of the GPU that this process sees first, if there is one; kind host
// those of the GPU that it is mapped for.
absl::StatusOr<std::unique_ptr<internal::StreamApi>> StreamsOf(const v1::Welcome& welcome,
                                                               const DeviceInfo& device,
                                                               Kind kind) {
  if (!internal::TraitsOf(kind).host_memory) {
    return device.backend == Backend::kCuda ? internal::MakeCudaStreamApi(device.uuid)
                                            : internal::MakeHostStreamApi();
  }
  absl::StatusOr<std::vector<std::string>> visible =
      kind == Kind::kHost && internal::HasGpus(welcome)
          ? internal::VisibleMakers(welcome, Kind::kDefault)
          : internal::VisibleDevices();
  if (!visible.ok() || visible->empty()) return internal::MakeHostStreamApi();
  return internal::MakeCudaStreamApi(visible->front());
}

}  // namespace

class Pool::Impl {
 public:
  Impl(std::shared_ptr<Client> client, internal::AcquireIn acquire, internal::MoveIn move,
       DeviceInfo device, Kind kind, std::unique_ptr<internal::StreamApi> streams,
       std::shared_ptr<internal::PressureListener> listener, const PoolOptions& options)
      : device_(std::move(device)),
        kind_(kind),
        revocable_(options.revocable),
        on_revocation_(options.on_revocation),
        listener_(std::move(listener)),
        engine_(internal::MakeClientSegments(std::move(client), std::move(acquire), std::move(move),
                                             device_, kind, options.revocable, options.map_devices),
                std::move(streams), options) {}
  ~Impl() { listener_->Disable(); }  // the listener calls the engine

  void SetGivesUnderPressure(bool gives) {
    if (!engine_.CheckProcess().ok()) return;
    // Memory kept by CUDA's pool stays charged to the tenant, so giving it back helps no other
    // session.
    gives = gives && !internal::TraitsOf(kind_).pooled;
    std::function<void(const Pressure&)> give;
    std::function<void(const Revocation&)> yield;
    if (gives) give = [this](const Pressure& pressure) { Give(pressure); };
    if (gives || revocable_) yield = [this](const Revocation& revocation) { Yield(revocation); };
    listener_->Enable(std::move(give), std::move(yield));
    if (engine_.Stats().reserved_bytes > 0) listener_->Listen();
  }

  void Give(const Pressure& pressure) {
    // Limits over all devices exclude pinned memory.
    if (pressure.device_uuid.empty() ? internal::TraitsOf(kind_).host_memory
                                     : pressure.device_uuid != device_.uuid) {
      return;
    }
    engine_.GiveBack(pressure.bytes, pressure.deadline == absl::ZeroDuration()
                                         ? absl::InfiniteFuture()
                                         : absl::Now() + pressure.deadline);
  }

  void Yield(Revocation revocation) {
    const absl::Time end = absl::Now() + revocation.until_end;
    if (!engine_.HasAny(revocation.lease_ids)) return;
    engine_.GiveAll();
    if (!on_revocation_ || !engine_.HasAny(revocation.lease_ids)) return;
    revocation.until_end = std::max(end - absl::Now(), absl::ZeroDuration());
    on_revocation_(revocation);
    engine_.GiveAll();
  }

  const DeviceInfo device_;
  const Kind kind_;
  const bool revocable_;
  const std::function<void(const Revocation&)> on_revocation_;
  const std::shared_ptr<internal::PressureListener> listener_;
  internal::Engine engine_;
};

absl::StatusOr<std::unique_ptr<Pool>> Pool::Create(std::shared_ptr<Client> client,
                                                   const PoolOptions& options) {
  if (client == nullptr) return absl::InvalidArgumentError("a pool needs a client");
  if (options.wait < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("PoolOptions::wait is below zero");
  }
  if (options.grow_bytes > kMostGrowBytes) {
    return absl::InvalidArgumentError("PoolOptions::grow_bytes is above 1 TiB");
  }
  const v1::Welcome& welcome = client->session_->welcome();
  absl::StatusOr<DeviceInfo> device = ChooseDevice(*client, welcome, options);
  if (!device.ok()) return device.status();
  const Kind kind = options.kind == Kind::kDefault ? device->kinds.front() : options.kind;
  if (internal::TraitsOf(kind).charge_only) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pool cannot be of kind ", KindName(kind),
                     ": gpumem charges such memory, and the process allocates it by itself"));
  }
  if (options.revocable && !internal::TraitsOf(kind).revocable) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory of kind ", KindName(kind),
                     " cannot be revocable, because CUDA keeps it until all processes that used it "
                     "have ended; use kind vmm"));
  }
  absl::StatusOr<MapOptions> placed =
      internal::Placement(welcome, options.map_devices, /*address=*/nullptr, /*read_only=*/false);
  if (!placed.ok()) return placed.status();
  if (absl::Status status = internal::CheckPlacement(kind, *placed); !status.ok()) return status;
  auto streams = StreamsOf(welcome, *device, kind);
  if (!streams.ok()) return streams.status();
  auto listener = std::make_shared<internal::PressureListener>(client.get());
  const auto acquire = [client = client.get(), listener](std::shared_ptr<const AddressRange> range,
                                                         const AcquireOptions& wanted, int count,
                                                         const internal::Disturbance& disturbance) {
    listener->Listen();  // the pool may have memory to give from now on
    return client->AcquireIn(std::move(range), wanted, count, disturbance);
  };
  auto impl = std::make_unique<Impl>(std::move(client), acquire, &Segment::Move, *std::move(device),
                                     kind, *std::move(streams), std::move(listener), options);
  impl->SetGivesUnderPressure(options.gives_under_pressure);
  return std::unique_ptr<Pool>(new Pool(std::move(impl)));
}

Pool::Pool(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

// In a forked child the parent owns all of it: memory, events and threads.
Pool::~Pool() {
  if (!impl_->engine_.CheckProcess().ok()) internal::Abandon(std::move(impl_));
}

absl::StatusOr<Block> Pool::Allocate(uint64_t bytes, Stream stream) {
  return impl_->engine_.Allocate(bytes, stream);
}

absl::StatusOr<Block> Pool::AllocateSynchronized(uint64_t bytes) {
  return impl_->engine_.AllocateSynchronized(bytes);
}

Block Pool::TryAllocate(uint64_t bytes, Stream stream) {
  return impl_->engine_.TryAllocate(bytes, stream);
}

bool Pool::TryFree(void* data, Stream stream) { return impl_->engine_.TryFree(data, stream); }

absl::Status Pool::Free(const Block& block, Stream stream) {
  return impl_->engine_.Free(block.data, stream);
}

absl::Status Pool::Free(void* data, Stream stream) { return impl_->engine_.Free(data, stream); }

absl::Status Pool::FreeSynchronized(void* data) { return impl_->engine_.FreeSynchronized(data); }

absl::StatusOr<Block> Pool::Find(void* data) const { return impl_->engine_.Find(data); }

absl::StatusOr<Ticket> Pool::Share(const Block& block) {
  absl::StatusOr<internal::BlockTicket> ticket = impl_->engine_.Share(block.data);
  if (!ticket.ok()) return ticket.status();
  return Ticket{internal::FormatBlockTicket(*ticket)};
}

absl::Status Pool::StreamWaits(Stream waiting, Stream awaited) {
  return impl_->engine_.StreamWaits(waiting, awaited);
}

absl::Status Pool::ForgetStream(Stream stream) { return impl_->engine_.ForgetStream(stream); }

absl::StatusOr<uint64_t> Pool::Trim(uint64_t keep_bytes) { return impl_->engine_.Trim(keep_bytes); }

absl::StatusOr<uint64_t> Pool::FreeAllBlocks() {
  return impl_->engine_.FreeAllBlocks(std::nullopt);
}

absl::StatusOr<uint64_t> Pool::FreeAllBlocks(Stream stream) {
  return impl_->engine_.FreeAllBlocks(stream);
}

absl::Status Pool::Suspend(const SuspendOptions& options) {
  if (!internal::TraitsOf(impl_->kind_).suspendable) {
    return absl::UnimplementedError(absl::StrCat("a pool of kind ", KindName(impl_->kind_),
                                                 " cannot be suspended; kind ",
                                                 KindName(Kind::kVmm), " can be"));
  }
  return impl_->engine_.Suspend(options);
}

absl::Status Pool::Suspend() { return Suspend(SuspendOptions()); }

absl::Status Pool::Resume(const ResumeOptions& options) {
  if (options.wait < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("ResumeOptions::wait is below zero");
  }
  return impl_->engine_.Resume(options);
}

absl::Status Pool::Resume() { return Resume(ResumeOptions()); }

bool Pool::suspended() const { return impl_->engine_.suspended(); }

absl::Status Pool::SetLimit(uint64_t bytes) { return impl_->engine_.SetLimit(bytes); }

absl::Status Pool::SetLimitFraction(double fraction) {
  if (!(fraction > 0 && fraction <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fraction must be above 0 and at most 1, not ", fraction));
  }
  const absl::StatusOr<uint64_t> total = impl_->engine_.TotalBytes();
  if (!total.ok()) return total.status();
  return SetLimit(static_cast<uint64_t>(fraction * static_cast<double>(*total)));
}

uint64_t Pool::limit() const { return impl_->engine_.limit(); }

void Pool::SetReleaseThreshold(uint64_t bytes) { impl_->engine_.SetReleaseThreshold(bytes); }

void Pool::SetGivesUnderPressure(bool gives) { impl_->SetGivesUnderPressure(gives); }

void Pool::SetReusePolicy(const ReusePolicy& policy) { impl_->engine_.SetReusePolicy(policy); }

PoolStats Pool::Stats() const { return impl_->engine_.Stats(); }

void Pool::ResetPeaks() { impl_->engine_.ResetPeaks(); }

absl::StatusOr<MemInfo> Pool::MemGetInfo() { return impl_->engine_.MemGetInfo(); }

void Pool::SetHook(std::function<void(const PoolEvent&)> hook) {
  impl_->engine_.SetHook(std::move(hook));
}

void Pool::SetOutOfMemoryCallback(std::function<bool(uint64_t bytes)> callback) {
  impl_->engine_.SetOutOfMemoryCallback(std::move(callback));
}

const std::string& Pool::device_uuid() const { return impl_->device_.uuid; }

Kind Pool::kind() const { return impl_->kind_; }

Backend Pool::backend() const { return impl_->device_.backend; }

}  // namespace gpumem
