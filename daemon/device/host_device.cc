// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/host_device.h"

#include <unistd.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "daemon/device/charge_only.h"
#include "daemon/device/copy_host.h"
#include "daemon/device/create_check.h"
#include "daemon/device/free_bytes.h"
#include "daemon/device/memfd.h"

namespace gpumemd {
namespace {

class MemfdDevice : public HostDevice {
 public:
  explicit MemfdDevice(DeviceInfo info)
      : info_(std::move(info)), free_(std::make_shared<FreeBytes>(info_.capacity_bytes)) {}

  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    if (TraitsOf(spec.kind).charge_only) return MakeChargeOnly();
    const uint64_t bytes = spec.bytes;
    absl::StatusOr<Share> share = Take(bytes);
    if (!share.ok()) return share.status();
    absl::StatusOr<gpumem::UniqueFd> fd =
        MakeSealedMemfd(absl::StrCat("gpumem:", info_.uuid), bytes);
    if (!fd.ok()) return fd.status();
    return std::make_unique<DescriptorAllocation>(*std::move(share), *std::move(fd));
  }

  absl::StatusOr<std::unique_ptr<Allocation>> Adopt(const CreateSpec& spec,
                                                    gpumem::UniqueFd fd) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    if (TraitsOf(spec.kind).charge_only) return MakeChargeOnly();
    if (absl::Status sized = CheckMemfd(fd.get(), spec.bytes); !sized.ok()) return sized;
    absl::StatusOr<Share> share = Take(spec.bytes);
    if (!share.ok()) return share.status();
    return std::make_unique<DescriptorAllocation>(*std::move(share), std::move(fd));
  }

  absl::Status Copy(absl::Span<const CopyItem> items) override { return CopyHostMemory(items); }

  absl::StatusOr<uint64_t> DriverFreeBytes() const override { return free_->get(); }

  absl::StatusOr<std::shared_ptr<void>> Reserve(uint64_t bytes) override {
    absl::StatusOr<Share> share = Take(bytes);
    if (!share.ok()) return share.status();
    return std::make_shared<Share>(*std::move(share));
  }

 private:
  absl::StatusOr<Share> Take(uint64_t bytes) {
    std::optional<Share> share = Share::Take(free_, bytes);
    if (share.has_value()) return *std::move(share);
    return absl::ResourceExhaustedError(
        absl::StrCat("the device ", info_.uuid, " is full: ", gpumem::FormatBytes(bytes),
                     " asked, ", gpumem::FormatBytes(free_->get()), " of ",
                     gpumem::FormatBytes(info_.capacity_bytes), " free"));
  }

  const DeviceInfo info_;
  const std::shared_ptr<FreeBytes> free_;
};

}  // namespace

std::string HostDeviceUuid(uint32_t index) {
  return absl::StrFormat("HOST-%08x-0000-0000-0000-000000000000", index);
}

absl::StatusOr<std::unique_ptr<HostDevice>> MakeHostDevice(const HostDeviceOptions& options) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (options.granularity_bytes == 0 || options.granularity_bytes % page != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the granularity of a host device is a multiple of the page size (", page,
                     " bytes) above zero, not ", options.granularity_bytes));
  }
  DeviceInfo info;
  info.capacity_bytes = options.capacity_bytes - options.capacity_bytes % options.granularity_bytes;
  if (info.capacity_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a host device has at least ", gpumem::FormatBytes(options.granularity_bytes),
                     ", not ", gpumem::FormatBytes(options.capacity_bytes)));
  }
  info.uuid = HostDeviceUuid(options.index);
  info.name = "host memory";
  info.backend = Backend::kHost;
  info.granularity_bytes = options.granularity_bytes;
  info.kinds = {Kind::kVmm, Kind::kDriver};
  for (uint32_t i = 0; i < options.siblings; ++i) {
    if (i == options.index) continue;
    info.peers.push_back({.uuid = HostDeviceUuid(i), .access = true, .native_atomics = true});
  }
  return std::make_unique<MemfdDevice>(std::move(info));
}

}  // namespace gpumemd
