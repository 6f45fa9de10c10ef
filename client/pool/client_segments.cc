// SPDX-License-Identifier: Apache-2.0
#include "client/pool/client_segments.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/node_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "client/mapping/kind.h"
#include "common/mapping/mapping.h"

namespace gpumem::internal {
namespace {

// The alignment of addresses (client.h).
constexpr uint64_t kStep = uint64_t{2} << 20;

class ClientSegments : public SegmentSource {
 public:
  ClientSegments(std::shared_ptr<Client> client, AcquireIn acquire, MoveIn move,
                 const DeviceInfo& device, Kind kind, bool revocable,
                 std::vector<DeviceName> map_devices)
      : client_(std::move(client)),
        acquire_(std::move(acquire)),
        move_(std::move(move)),
        device_(device),
        kind_(kind),
        revocable_(revocable),
        map_devices_(std::move(map_devices)) {}

  uint64_t granularity() const override {
    const bool own_steps = internal::TraitsOf(kind_).pooled && device_.pool_granularity_bytes > 0;
    if (own_steps) return device_.pool_granularity_bytes;
    return places() ? std::max(kStep, device_.granularity_bytes) : device_.granularity_bytes;
  }

  bool places() const override { return internal::TraitsOf(kind_).movable; }

  absl::StatusOr<std::vector<Range>> Acquire(uint64_t bytes, uint64_t count, uintptr_t at,
                                             bool wish) override {
    AcquireOptions options = Options(bytes);
    options.presses_others = !wish;
    return Lease(std::move(options), count, at, {});
  }

  absl::StatusOr<Range> AcquireWaiting(uint64_t bytes, uintptr_t at, absl::Duration wait,
                                       const Disturbance& disturbance) override {
    AcquireOptions options = Options(bytes);
    options.wait = std::max(wait, absl::ZeroDuration());
    absl::StatusOr<std::vector<Range>> ranges = Lease(std::move(options), 1, at, disturbance);
    if (!ranges.ok()) return ranges.status();
    return ranges->front();
  }

  absl::Status Release(uint64_t id) override {
    Segment segment;
    {
      absl::MutexLock lock(&mutex_);
      auto found = segments_.find(id);
      segment = std::move(found->second.segment);
      segments_.erase(found);
    }
    const auto at = reinterpret_cast<uintptr_t>(segment.data());
    // A thread that frees a block does not wait for the daemon: the release follows soon, and
    // before the next call.
    segment = Segment();
    absl::MutexLock lock(&mutex_);
    taken_.erase(at);  // unmapped by now: the next segment may use the addresses
    return absl::OkStatus();
  }

  absl::Status Move(absl::Span<const uint64_t> ids, uintptr_t at) override {
    std::shared_ptr<const AddressRange> addresses;
    std::vector<Segment*> segments;
    std::vector<uintptr_t> from;
    {
      absl::MutexLock lock(&mutex_);
      addresses = Addresses();
      uint64_t all = 0;
      for (const uint64_t id : ids) {
        segments.push_back(&segments_.at(id).segment);
        from.push_back(reinterpret_cast<uintptr_t>(segments.back()->data()));
        all += segments.back()->size();
      }
      if (addresses == nullptr || !IsFree(*addresses, at, all)) return NoRoom();
      uintptr_t to = at;
      for (const Segment* segment : segments) {
        taken_[to] = segment->size();
        to += segment->size();
      }
    }
    absl::Status moved = move_(segments, addresses, reinterpret_cast<void*>(at));
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < segments.size(); ++i) {
      taken_.erase(moved.ok() ? from[i] : at);
      at += segments[i]->size();
    }
    return moved;
  }

  absl::Status Suspend(absl::Span<const uint64_t> ids, const SuspendOptions& options) override {
    return client_->Suspend(Segments(ids), options);
  }

  absl::Status Resume(absl::Span<const uint64_t> ids, const ResumeOptions& options) override {
    std::vector<Segment*> segments = Segments(ids);
    std::erase_if(segments, [](const Segment* segment) { return !segment->suspended(); });
    return segments.empty() ? absl::OkStatus() : client_->Resume(segments, options);
  }

  bool AnySuspended(absl::Span<const uint64_t> ids) const override {
    absl::MutexLock lock(&mutex_);
    return std::any_of(ids.begin(), ids.end(),
                       [this](uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                         return segments_.at(id).segment.suspended();
                       });
  }

  absl::StatusOr<std::pair<uint64_t, uint64_t>> Room() override {
    // Guarantees of other tenants do not bind revocable leases, and the page knows no others.
    if (!revocable_) {
      const absl::StatusOr<DeviceMemory> memory = client_->GetMemory(device_.uuid);
      if (!memory.ok()) return memory.status();
      if (memory->from_page) return std::pair(memory->free_bytes, memory->limit_bytes);
    }
    absl::StatusOr<Usage> usage = client_->GetUsage();
    if (!usage.ok()) return usage.status();
    uint64_t free = 0, total = 0;
    for (const DeviceUsage& own : usage->devices) {
      if (own.device_uuid != device_.uuid) continue;
      total = own.limit_bytes;
      // Guarantees of other tenants do not bind revocable leases.
      if (own.obtainable_bytes.has_value() && !revocable_) {
        return std::pair(*own.obtainable_bytes, total);
      }
      // The tenant can reuse its retained memory.
      const uint64_t held = own.charged_bytes - std::min(own.charged_bytes, own.retained_bytes);
      free = total - std::min(total, held);
    }
    absl::StatusOr<std::vector<DeviceInfo>> devices = client_->Devices();
    if (!devices.ok()) return devices.status();
    for (const DeviceInfo& device : *devices) {
      if (device.uuid != device_.uuid) continue;
      free = std::min(
          free, device.capacity_bytes - std::min(device.capacity_bytes, device.charged_bytes));
    }
    return std::pair(free, total);
  }

  absl::StatusOr<std::string> Share(uint64_t id) override {
    absl::MutexLock lock(&mutex_);
    Leased& leased = segments_.at(id);
    if (leased.ticket.empty()) {
      absl::StatusOr<Ticket> ticket = leased.segment.Share();
      if (!ticket.ok()) return ticket.status();
      leased.ticket = std::move(ticket->value);
    }
    return leased.ticket;
  }

 private:
  AcquireOptions Options(uint64_t bytes) const {
    return {.bytes = bytes,
            .device = device_.uuid,
            .kind = kind_,
            .map_devices = map_devices_,
            .revocable = revocable_};
  }

  // Returns the segments. They keep their addresses until they are released.
  std::vector<Segment*> Segments(absl::Span<const uint64_t> ids) {
    absl::MutexLock lock(&mutex_);
    std::vector<Segment*> segments;
    for (const uint64_t id : ids) segments.push_back(&segments_.at(id).segment);
    return segments;
  }

  // Leases `count` segments with these options, from `at` on, or at the first gap.
  absl::StatusOr<std::vector<Range>> Lease(AcquireOptions options, uint64_t count, uintptr_t at,
                                           const Disturbance& disturbance) {
    std::shared_ptr<const AddressRange> addresses;
    if (places()) {
      const uint64_t all = options.bytes * count;
      absl::MutexLock lock(&mutex_);
      addresses = Addresses();
      if (addresses != nullptr) {
        if (at == 0) {
          at = FirstGap(*addresses, all);
        } else if (!IsFree(*addresses, at, all)) {
          return NoRoom();
        }
        // Without a gap of that size, it goes to another address, if the daemon has the memory.
        if (at == 0) addresses = nullptr;
        if (at != 0) taken_[at] = all;
      }
    }
    if (addresses == nullptr && at != 0) {
      return absl::FailedPreconditionError("no range of addresses could be reserved");
    }
    options.address = reinterpret_cast<void*>(at);
    absl::StatusOr<std::vector<Segment>> segments =
        acquire_(addresses, options, static_cast<int>(count), disturbance);
    absl::MutexLock lock(&mutex_);
    taken_.erase(at);
    if (!segments.ok()) return segments.status();
    std::vector<Range> ranges;
    for (Segment& segment : *segments) {
      const Range range = {.id = segment.lease_id(),
                           .at = reinterpret_cast<uintptr_t>(segment.data()),
                           .bytes = segment.size()};
      if (addresses != nullptr) taken_[range.at] = range.bytes;
      segments_.emplace(range.id, Leased{std::move(segment), ""});
      ranges.push_back(range);
    }
    return ranges;
  }

  // Reserves somewhat more than twice the device's capacity, so that there are gaps between
  // segments that stay. Null: impossible.
  std::shared_ptr<const AddressRange> Addresses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!addresses_.has_value()) {
      const uint64_t bytes = device_.capacity_bytes / kStep * 2 * kStep + 2 * kStep;
      auto reserved = device_.backend == Backend::kCuda ? ReserveCudaAddresses(bytes)
                                                        : ReserveHostAddresses(bytes);
      addresses_ = reserved.ok() ? *std::move(reserved) : nullptr;
    }
    return *addresses_;
  }

  // Returns the first address in the range with that much room; 0: none.
  uintptr_t FirstGap(const AddressRange& addresses, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    uintptr_t at = addresses.base();
    for (const auto& [begin, size] : taken_) {
      if (begin - at >= bytes) break;
      at = begin + size;
    }
    return bytes <= addresses.base() + addresses.bytes() - at ? at : 0;
  }

  bool IsFree(const AddressRange& addresses, uintptr_t at, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uintptr_t end = addresses.base() + addresses.bytes();
    if (at < addresses.base() || at > end || bytes > end - at) return false;
    const auto next = taken_.lower_bound(at + bytes);
    return next == taken_.begin() || std::prev(next)->first + std::prev(next)->second <= at;
  }
  static absl::Status NoRoom() {
    return absl::FailedPreconditionError("the pool's range of addresses has no room there");
  }

  const std::shared_ptr<Client> client_;
  const AcquireIn acquire_;
  const MoveIn move_;
  const DeviceInfo device_;
  const Kind kind_;
  const bool revocable_;
  const std::vector<DeviceName> map_devices_;
  mutable absl::Mutex mutex_;
  struct Leased {
    Segment segment;
    std::string ticket;  // once requested
  };
  std::optional<std::shared_ptr<const AddressRange>> addresses_ ABSL_GUARDED_BY(mutex_);
  // Parts of addresses_ that are mapped, about to be mapped, or not unmapped yet.
  std::map<uintptr_t, uint64_t> taken_ ABSL_GUARDED_BY(mutex_);
  // By lease. A segment that is being moved, suspended or resumed keeps its entry.
  absl::node_hash_map<uint64_t, Leased> segments_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<SegmentSource> MakeClientSegments(std::shared_ptr<Client> client, AcquireIn acquire,
                                                  MoveIn move, const DeviceInfo& device, Kind kind,
                                                  bool revocable,
                                                  std::vector<DeviceName> map_devices) {
  return std::make_unique<ClientSegments>(std::move(client), std::move(acquire), std::move(move),
                                          device, kind, revocable, std::move(map_devices));
}

}  // namespace gpumem::internal
