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
  explicit PinnedDevice(uint64_t capacity_bytes)
      : free_(std::make_shared<FreeBytes>(capacity_bytes)) {
    info_.uuid = kPinnedDeviceUuid;
    info_.name = "pinned host memory";
    info_.backend = Backend::kHost;
    info_.capacity_bytes = capacity_bytes;
    info_.granularity_bytes = kGranularity;
    info_.kinds = {Kind::kPinned};
  }

  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    absl::StatusOr<Share> share = Take(spec.bytes);
    if (!share.ok()) return share.status();
    absl::StatusOr<UniqueFd> fd = Make(spec.bytes);
    if (!fd.ok()) return fd.status();
    return std::make_unique<MemfdAllocation>(*std::move(share), *std::move(fd));
  }

  absl::StatusOr<std::unique_ptr<Allocation>> Adopt(const CreateSpec& spec, UniqueFd fd) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    if (absl::Status sized = CheckMemfd(fd.get(), spec.bytes); !sized.ok()) return sized;
    absl::StatusOr<Share> share = Take(spec.bytes);
    if (!share.ok()) return share.status();
    return std::make_unique<MemfdAllocation>(*std::move(share), std::move(fd));
  }

  absl::StatusOr<uint64_t> DriverFreeBytes() const override { return free_->get(); }

 private:
  absl::StatusOr<Share> Take(uint64_t bytes) {
    std::optional<Share> share = Share::Take(free_, bytes);
    if (share.has_value()) return *std::move(share);
    return absl::ResourceExhaustedError(
        absl::StrCat("the host memory to pin is used up: ", gpumem::FormatBytes(bytes), " asked, ",
                     gpumem::FormatBytes(free_->get()), " of ",
                     gpumem::FormatBytes(info_.capacity_bytes), " free"));
  }

  absl::StatusOr<UniqueFd> Make(uint64_t bytes) {
    absl::StatusOr<std::optional<UniqueFd>> huge = MakeHugeMemfd("gpumem:pinned", bytes);
    if (!huge.ok()) return huge.status();
    if (huge->has_value()) return **std::move(huge);
    // Filling it can take seconds.
    const absl::StatusOr<std::shared_ptr<void>> entered = gate_->Enter(bytes);
    if (!entered.ok()) return entered.status();
    absl::StatusOr<UniqueFd> fd = MakeSealedMemfd("gpumem:pinned", bytes);
    if (!fd.ok()) return fd;
    if (absl::Status status = FillMemfd(fd->get(), bytes); !status.ok()) return status;
    return fd;
  }

  DeviceInfo info_;
  const std::shared_ptr<FreeBytes> free_;
  const std::shared_ptr<MemoryGate> gate_ = std::make_shared<MemoryGate>();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakePinnedDevice(uint64_t capacity_bytes) {
  if (capacity_bytes < kGranularity) {
    return absl::InvalidArgumentError(absl::StrCat("the host memory to pin is at least ",
                                                   gpumem::FormatBytes(kGranularity), ", not ",
                                                   gpumem::FormatBytes(capacity_bytes)));
  }
  return std::make_unique<PinnedDevice>(capacity_bytes - capacity_bytes % kGranularity);
}

}  // namespace gpumemd
