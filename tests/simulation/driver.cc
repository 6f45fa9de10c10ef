// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/driver.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/tier/tier_device.h"

namespace gpumemd::simulation {

Memory::~Memory() {
  driver->used_[device] -= bytes;
  driver->all_.erase(fd);
}

MemoryPtr Driver::Make(size_t device, uint64_t bytes) {
  const uint64_t taken = used_[device] + (device == 0 ? foreign : 0);
  if (taken + bytes > capacity_[device]) return nullptr;
  used_[device] += bytes;
  auto memory = std::make_shared<Memory>();
  memory->driver = this;
  memory->device = device;
  memory->bytes = bytes;
  memory->fd = next_fd_++;
  all_[memory->fd] = memory;
  return memory;
}

MemoryPtr Driver::Find(int fd) const {
  const auto it = all_.find(fd);
  return it == all_.end() ? nullptr : it->second.lock();
}

class Devices::GpuMemory final : public Allocation {
 public:
  GpuMemory(Devices* devices, MemoryPtr memory) : devices_(*devices), memory_(std::move(memory)) {
    fd_ = memory_->fd;
    devices_.held_.insert(this);
  }
  ~GpuMemory() override {
    if (memory_ != nullptr) devices_.host_.Pause("free");
    devices_.held_.erase(this);
  }
  int fd() const override { return fd_; }
  Memory* memory() const { return memory_.get(); }
  void Abandon() { memory_.reset(); }

 private:
  Devices& devices_;
  MemoryPtr memory_;  // null: the daemon is dead
  int fd_ = -1;
};

class Devices::TierMemory final : public Allocation {
 public:
  TierMemory(std::shared_ptr<Extents> extents, TierPlace place)
      : extents_(std::move(extents)), place_(std::move(place)) {}
  ~TierMemory() override { extents_->Give(place_.extents); }
  const TierPlace* tier_place() const override { return &place_; }

 private:
  const std::shared_ptr<Extents> extents_;
  const TierPlace place_;
};

class Devices::Gpu final : public Device {
 public:
  Gpu(Devices* devices, size_t index) : devices_(*devices), index_(index) {
    info_.uuid = absl::StrCat("GPU-", index);
    info_.name = "simulated";
    info_.backend = Backend::kCuda;
    info_.capacity_bytes = devices_.driver_.capacity(index);
    info_.granularity_bytes = kGranule;
    info_.kinds = {Kind::kVmm};
  }
  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) override {
    if (!devices_.host_.Pause("create")) return absl::UnavailableError("dead");
    MemoryPtr memory;
    if (!devices_.host_.Fails()) memory = devices_.driver_.Make(index_, spec.bytes);
    if (memory == nullptr) return absl::ResourceExhaustedError("the driver has no memory");
    std::unique_ptr<Allocation> made = std::make_unique<GpuMemory>(&devices_, memory);
    devices_.host_.Pause("created");
    return made;
  }

  absl::StatusOr<std::unique_ptr<Allocation>> Adopt(const CreateSpec& spec,
                                                    gpumem::UniqueFd fd) override {
    const int number = fd.release();
    if (!devices_.host_.Pause("adopt")) return absl::UnavailableError("dead");
    MemoryPtr memory = devices_.driver_.Find(number);
    if (memory == nullptr || memory->bytes != spec.bytes || memory->device != index_) {
      return absl::InvalidArgumentError("it is not of that size");
    }
    return std::make_unique<GpuMemory>(&devices_, std::move(memory));
  }

  absl::Status Copy(absl::Span<const CopyItem> items) override {
    for (const CopyItem& item : items) {
      if (!devices_.host_.Pause("copy")) return absl::UnavailableError("dead");
      if (devices_.host_.Fails()) return absl::UnavailableError("the copier has ended");
      const TierPlace* const out = item.to->tier_place();
      const TierPlace* const back = item.from->tier_place();
      auto& file = devices_.driver_.tier_file;
      if (out != nullptr) {
        const Memory* const from = static_cast<const GpuMemory*>(item.from)->memory();
        if (from == nullptr) return absl::UnavailableError("dead");
        ForEachGranule(*out, [&](uint64_t granule) { file[granule] = from->contents; });
      } else {
        Memory* const to = static_cast<const GpuMemory*>(item.to)->memory();
        if (to == nullptr) return absl::UnavailableError("dead");
        to->contents = file[back->extents.front().offset];
        // Parts of different contents make none of them.
        ForEachGranule(*back, [&](uint64_t granule) {
          if (file[granule] != to->contents) to->contents = ~uint64_t{0};
        });
      }
    }
    devices_.host_.Pause("copied");
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> DriverFreeBytes() const override {
    return devices_.driver_.capacity(index_) - devices_.driver_.used(index_);
  }

 private:
  template <typename Visit>
  static void ForEachGranule(const TierPlace& place, Visit visit) {
    for (const TierExtent& extent : place.extents) {
      for (uint64_t at = 0; at < extent.bytes; at += kGranule) visit(extent.offset + at);
    }
  }

  Devices& devices_;
  const size_t index_;
  DeviceInfo info_;
};

class Devices::Tier final : public Device {
 public:
  Tier(Devices* devices, uint64_t bytes)
      : devices_(*devices), extents_(std::make_shared<Extents>(bytes, kGranule)) {
    info_.uuid = kTierDeviceUuid;
    info_.name = "simulated tier";
    info_.capacity_bytes = bytes;
    info_.granularity_bytes = kGranule;
    info_.kinds = {Kind::kTier};
  }
  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) override {
    if (!devices_.host_.Pause("create-tier")) return absl::UnavailableError("dead");
    if (devices_.host_.Fails()) return absl::ResourceExhaustedError("no host memory");
    std::optional<std::vector<TierExtent>> extents = extents_->Take(spec.bytes);
    if (!extents) return absl::ResourceExhaustedError("the tier is full");
    return std::make_unique<TierMemory>(extents_, TierPlace{.extents = *std::move(extents)});
  }
  absl::StatusOr<std::unique_ptr<Allocation>> Adopt(const CreateSpec& spec,
                                                    gpumem::UniqueFd) override {
    if (absl::Status taken = extents_->TakeExactly(spec.extents); !taken.ok()) return taken;
    return std::make_unique<TierMemory>(extents_, TierPlace{.extents = spec.extents});
  }
  absl::StatusOr<uint64_t> DriverFreeBytes() const override { return extents_->free_bytes(); }

 private:
  Devices& devices_;
  const std::shared_ptr<Extents> extents_;
  DeviceInfo info_;
};

std::unique_ptr<Device> Devices::MakeGpu(size_t index) {
  return std::make_unique<Gpu>(this, index);
}
std::unique_ptr<Device> Devices::MakeTier(uint64_t bytes) {
  return std::make_unique<Tier>(this, bytes);
}

void Devices::Abandon() {
  for (GpuMemory* memory : held_) memory->Abandon();
}

}  // namespace gpumemd::simulation
