// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/pinned_device.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "daemon/device/create_check.h"
#include "daemon/device/free_bytes.h"
#include "daemon/device/machine_memory.h"
#include "daemon/device/memfd.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

constexpr uint64_t kGranularity = uint64_t{2} << 20;  // a huge page, on the machines we know

class PinnedDevice : public Device {
 public:
  explicit PinnedDevice(PinnedDeviceOptions options)
      : options_(std::move(options)), free_(std::make_shared<FreeBytes>(options_.capacity_bytes)) {
    info_.uuid = kPinnedDeviceUuid;
    info_.name = "pinned host memory";
    info_.backend = Backend::kHost;
    info_.capacity_bytes = options_.capacity_bytes;
    info_.granularity_bytes = kGranularity;
    info_.kinds = {Kind::kPinned};
    if (options_.host_kind != HostKind::kNone) info_.kinds.push_back(Kind::kHost);
  }

  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    absl::StatusOr<Share> share = Take(spec.bytes);
    if (!share.ok()) return share.status();
    absl::StatusOr<UniqueFd> fd =
        IsDriver(spec.kind) ? MakeByDriver(spec.bytes) : MakeMemfd(spec);
    if (!fd.ok()) return fd.status();
    return std::make_unique<DescriptorAllocation>(*std::move(share), *std::move(fd));
  }

  absl::StatusOr<std::unique_ptr<Allocation>> Adopt(const CreateSpec& spec, UniqueFd fd) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    // The size of the driver's memory cannot be seen.
    absl::Status sized = IsDriver(spec.kind) ? absl::OkStatus() : CheckMemfd(fd.get(), spec.bytes);
    if (!sized.ok()) return sized;
    absl::StatusOr<Share> share = Take(spec.bytes);
    if (!share.ok()) return share.status();
    return std::make_unique<DescriptorAllocation>(*std::move(share), std::move(fd));
  }

  absl::StatusOr<uint64_t> DriverFreeBytes() const override { return free_->get(); }

 private:
  using HostKind = PinnedDeviceOptions::HostKind;

  // True if memory of the kind is the driver's, and no memfd.
  bool IsDriver(Kind kind) const {
    return kind == Kind::kHost && options_.host_kind == HostKind::kDriver;
  }

  absl::StatusOr<Share> Take(uint64_t bytes) {
    std::optional<Share> share = Share::Take(free_, bytes);
    if (share.has_value()) return *std::move(share);
    return absl::ResourceExhaustedError(
        absl::StrCat("the host memory to pin is used up: ", gpumem::FormatBytes(bytes), " asked, ",
                     gpumem::FormatBytes(free_->get()), " of ",
                     gpumem::FormatBytes(info_.capacity_bytes), " free"));
  }

  absl::StatusOr<UniqueFd> MakeByDriver(uint64_t bytes) {
    const absl::StatusOr<std::shared_ptr<void>> entered = gate_->Enter(bytes);
    if (!entered.ok()) return entered.status();
    return options_.make_host(bytes);
  }

  absl::StatusOr<UniqueFd> MakeMemfd(const CreateSpec& spec) {
    const uint64_t bytes = spec.bytes;
    // Clients map kind host twice and move it, by mremap(), which refuses such mappings.
    if (spec.kind != Kind::kHost) {
      absl::StatusOr<std::optional<UniqueFd>> huge = MakeHugeMemfd("gpumem:pinned", bytes);
      if (!huge.ok()) return huge.status();
      if (huge->has_value()) return **std::move(huge);
    }
    // Filling it can take seconds.
    const absl::StatusOr<std::shared_ptr<void>> entered = gate_->Enter(bytes);
    if (!entered.ok()) return entered.status();
    absl::StatusOr<UniqueFd> fd = MakeSealedMemfd("gpumem:pinned", bytes);
    if (!fd.ok()) return fd;
    if (absl::Status status = FillMemfd(fd->get(), bytes); !status.ok()) return status;
    return fd;
  }

  const PinnedDeviceOptions options_;
  DeviceInfo info_;
  const std::shared_ptr<FreeBytes> free_;
  const std::shared_ptr<MemoryGate> gate_ = MemoryGate::Shared();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakePinnedDevice(PinnedDeviceOptions options) {
  if (options.capacity_bytes < kGranularity) {
    return absl::InvalidArgumentError(absl::StrCat("the host memory to pin is at least ",
                                                   gpumem::FormatBytes(kGranularity), ", not ",
                                                   gpumem::FormatBytes(options.capacity_bytes)));
  }
  options.capacity_bytes -= options.capacity_bytes % kGranularity;
  return std::make_unique<PinnedDevice>(std::move(options));
}

}  // namespace gpumemd
