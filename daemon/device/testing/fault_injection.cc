// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/testing/fault_injection.h"

#include <utility>

namespace gpumemd {
namespace {

class FaultyAllocation : public Allocation {
 public:
  FaultyAllocation(std::unique_ptr<Allocation> allocation, std::shared_ptr<const FaultPlan> plan,
                   Kind kind, uint64_t bytes)
      : plan_(std::move(plan)), kind_(kind), bytes_(bytes), allocation_(std::move(allocation)) {}
  ~FaultyAllocation() override {
    (*plan_)({.type = DeviceOp::Type::kDestroy, .kind = kind_, .bytes = bytes_}).IgnoreError();
  }
  int fd() const override { return allocation_->fd(); }
  std::optional<ExportData> export_data() const override { return allocation_->export_data(); }
  std::optional<ExportedPool> pool() const override { return allocation_->pool(); }
  const TierPlace* tier_place() const override { return allocation_->tier_place(); }
  bool lost() const override { return allocation_->lost(); }

 private:
  const std::shared_ptr<const FaultPlan> plan_;
  const Kind kind_;
  const uint64_t bytes_;
  const std::unique_ptr<Allocation> allocation_;
};

class FaultyDevice : public Device {
 public:
  FaultyDevice(std::unique_ptr<Device> device, FaultPlan plan)
      : device_(std::move(device)), plan_(std::make_shared<const FaultPlan>(std::move(plan))) {}

  const DeviceInfo& info() const override { return device_->info(); }

  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) override {
    absl::Status fault =
        (*plan_)({.type = DeviceOp::Type::kCreate, .kind = spec.kind, .bytes = spec.bytes});
    if (!fault.ok()) return fault;
    absl::StatusOr<std::unique_ptr<Allocation>> allocation = device_->Create(spec);
    if (!allocation.ok()) return allocation;
    return std::make_unique<FaultyAllocation>(*std::move(allocation), plan_, spec.kind, spec.bytes);
  }

  absl::StatusOr<std::unique_ptr<Allocation>> Adopt(const CreateSpec& spec,
                                                    gpumem::UniqueFd fd) override {
    return device_->Adopt(spec, std::move(fd));
  }

  void PrepareCopies() override {
    (*plan_)({.type = DeviceOp::Type::kPrepareCopies}).IgnoreError();
    device_->PrepareCopies();
  }

  absl::Status Copy(absl::Span<const CopyItem> items) override {
    absl::Status fault = (*plan_)({.type = DeviceOp::Type::kCopy});
    return fault.ok() ? device_->Copy(items) : fault;
  }

  absl::StatusOr<uint64_t> DriverFreeBytes() const override {
    absl::Status fault = (*plan_)({.type = DeviceOp::Type::kDriverFreeBytes});
    if (!fault.ok()) return fault;
    return device_->DriverFreeBytes();
  }

  absl::StatusOr<std::vector<PoolStatus>> Pools() override { return device_->Pools(); }
  absl::StatusOr<PoolStatus> SetPool(absl::string_view tenant, const PoolChange& change) override {
    return device_->SetPool(tenant, change);
  }
  absl::StatusOr<PoolStatus> TrimPool(absl::string_view tenant, uint64_t keep_bytes) override {
    return device_->TrimPool(tenant, keep_bytes);
  }
  pid_t context_pid() const override { return device_->context_pid(); }
  pid_t copier_pid() const override { return device_->copier_pid(); }
  void OnContextLost(std::function<void()> on_lost) override {
    device_->OnContextLost(std::move(on_lost));
  }
  void EndContext() override { device_->EndContext(); }

 private:
  const std::unique_ptr<Device> device_;
  const std::shared_ptr<const FaultPlan> plan_;  // shared with the Allocations
};

}  // namespace

std::unique_ptr<Device> InjectFaults(std::unique_ptr<Device> device, FaultPlan plan) {
  return std::make_unique<FaultyDevice>(std::move(device), std::move(plan));
}

void Gate::Pass() {
  ++arrivals_;
  arrivals_.notify_all();
  open_.wait(false);
}

void Gate::AwaitArrivals(int arrivals) {
  for (int seen = arrivals_; seen < arrivals; seen = arrivals_) arrivals_.wait(seen);
}

void Gate::Open() {
  open_ = true;
  open_.notify_all();
}

}  // namespace gpumemd
