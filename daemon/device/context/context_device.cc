// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/context_device.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "daemon/device/context/copier.h"
#include "daemon/device/context/keeper.h"
#include "daemon/device/create_check.h"

namespace gpumemd {
namespace {

class ContextDevice : public Device {
 public:
  ContextDevice(std::unique_ptr<Device> base, ContextDeviceOptions options)
      : base_(std::move(base)),
        info_(base_->info()),
        reserve_(std::move(options.reserve)),
        keeper_(std::make_shared<ContextKeeper>(ContextSpec{
            .device_uuid = info_.uuid, .socket_path = std::move(options.socket_path)})) {
    // The first kind is the default, so the kinds that give memory come first.
    const auto last = std::find_if(info_.kinds.begin(), info_.kinds.end(),
                                   [](Kind kind) { return TraitsOf(kind).charge_only; });
    info_.kinds.insert(last, options.kinds.begin(), options.kinds.end());
    if (!options.copier) return;
    copier_ =
        std::make_unique<TierCopier>(ContextSpec{.device_uuid = info_.uuid}, options.copier_idle);
  }
  ~ContextDevice() override { keeper_->OnLost(nullptr); }

  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    if (!IsContextBound(spec.kind)) return base_->Create(spec);
    std::shared_ptr<void> reservation;
    if (reserve_ != nullptr) {
      absl::StatusOr<std::shared_ptr<void>> reserved = reserve_(spec.bytes);
      if (!reserved.ok()) return reserved.status();
      reservation = *std::move(reserved);
    }
    return keeper_->Create(spec, PoolMax(spec.limit_bytes), std::move(reservation));
  }

  absl::StatusOr<std::unique_ptr<Allocation>> Adopt(const CreateSpec& spec,
                                                    gpumem::UniqueFd fd) override {
    return base_->Adopt(spec, std::move(fd));
  }

  void PrepareCopies() override {
    if (copier_ == nullptr) return base_->PrepareCopies();
    copier_->Prepare();
  }

  absl::Status Copy(absl::Span<const CopyItem> items) override {
    return copier_ == nullptr ? base_->Copy(items) : copier_->Copy(items);
  }

  absl::StatusOr<uint64_t> DriverFreeBytes() const override { return base_->DriverFreeBytes(); }

  absl::StatusOr<std::vector<PoolStatus>> Pools() override { return keeper_->Pools(); }

  absl::StatusOr<PoolStatus> SetPool(absl::string_view tenant, const PoolChange& change) override {
    absl::StatusOr<PoolStatus> pool = keeper_->SetPool(tenant, change);
    return absl::IsNotFound(pool.status()) ? Device::SetPool(tenant, change) : pool;
  }

  absl::StatusOr<PoolStatus> TrimPool(absl::string_view tenant, uint64_t keep_bytes) override {
    absl::StatusOr<PoolStatus> pool = keeper_->TrimPool(tenant, keep_bytes);
    return absl::IsNotFound(pool.status()) ? Device::TrimPool(tenant, keep_bytes) : pool;
  }

  pid_t context_pid() const override { return keeper_->pid(); }
  pid_t copier_pid() const override { return copier_ == nullptr ? 0 : copier_->pid(); }

  void OnContextLost(std::function<void()> on_lost) override {
    keeper_->OnLost(std::move(on_lost));
  }

  void EndContext() override {
    keeper_->End();
    if (copier_ != nullptr) copier_->End();
  }

 private:
  // Whole granules, rounded up: the driver reserves no less.
  uint64_t PoolMax(uint64_t limit_bytes) const {
    const uint64_t capacity = info_.capacity_bytes;
    if (limit_bytes == 0 || limit_bytes >= capacity) return capacity;
    const uint64_t granule = GranularityOf(info_, Kind::kMempool);
    const uint64_t rest = limit_bytes % granule;
    return rest == 0 ? limit_bytes : limit_bytes - rest + granule;
  }

  const std::unique_ptr<Device> base_;
  DeviceInfo info_;
  const std::function<absl::StatusOr<std::shared_ptr<void>>(uint64_t)> reserve_;
  const std::shared_ptr<ContextKeeper> keeper_;  // shared with the Allocations
  std::unique_ptr<TierCopier> copier_;           // null: the base copies
};

}  // namespace

std::unique_ptr<Device> AddContextKinds(std::unique_ptr<Device> base,
                                        ContextDeviceOptions options) {
  return std::make_unique<ContextDevice>(std::move(base), std::move(options));
}

}  // namespace gpumemd
