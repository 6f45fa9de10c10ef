// SPDX-License-Identifier: Apache-2.0
#include "daemon/tier/tier_device.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "common/start_thread.h"
#include "daemon/device/create_check.h"
#include "daemon/device/machine_memory.h"
#include "daemon/tier/tier_memory.h"

namespace gpumemd {
namespace {

using gpumem::FormatBytes;
using gpumem::UniqueFd;

class TierAllocation final : public Allocation {
 public:
  TierAllocation(std::shared_ptr<TierMemory> memory, std::vector<TierExtent> extents)
      : memory_(std::move(memory)),
        place_{.fd = memory_->file().fd(), .extents = std::move(extents)} {}
  ~TierAllocation() override { memory_->Give(place_.extents); }
  const TierPlace* tier_place() const override { return &place_; }

 private:
  const std::shared_ptr<TierMemory> memory_;
  const TierPlace place_;
};

class FileTierDevice final : public TierDevice {
 public:
  FileTierDevice(std::shared_ptr<TierMemory> memory, bool inherited,
                 std::vector<std::string> notices)
      : memory_(std::move(memory)), inherited_(inherited), notices_(std::move(notices)) {
    info_.uuid = kTierDeviceUuid;
    info_.name = "host tier";
    info_.backend = Backend::kHost;
    info_.capacity_bytes = memory_->file().bytes();
    info_.granularity_bytes = kTierGranule;
    info_.kinds = {Kind::kTier};
  }
  ~FileTierDevice() override {
    stop_ = true;
    if (prefault_.joinable()) prefault_.join();
  }

  absl::Status Prefault() {
    absl::StatusOr<std::thread> thread = gpumem::StartThread([this] {
      memory_->AllocateAhead(stop_);
      prefault_done_.Notify();
    });
    if (!thread.ok()) return thread.status();
    prefault_ = *std::move(thread);
    return absl::OkStatus();
  }

  const DeviceInfo& info() const override { return info_; }
  int file() const override { return memory_->file().fd(); }
  bool inherited() const override { return inherited_; }
  const std::vector<std::string>& notices() const override { return notices_; }

  uint64_t AwaitPrefault() const override {
    if (prefault_.joinable()) prefault_done_.WaitForNotification();
    return memory_->allocated_bytes();
  }

  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    std::optional<std::vector<TierExtent>> extents = memory_->Take(spec.bytes);
    if (!extents.has_value()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the host tier is full: ", FormatBytes(spec.bytes), " asked, ",
          FormatBytes(memory_->free_bytes()), " of ", FormatBytes(info_.capacity_bytes), " free"));
    }
    auto allocation = std::make_unique<TierAllocation>(memory_, *std::move(extents));
    const absl::Status prepared = memory_->Prepare(allocation->tier_place()->extents, spec.tenant);
    if (!prepared.ok()) return prepared;
    return allocation;
  }

  absl::StatusOr<std::unique_ptr<Allocation>> Adopt(const CreateSpec& spec, UniqueFd) override {
    if (absl::Status status = CheckCreate(info_, spec.kind, spec.bytes); !status.ok()) {
      return status;
    }
    if (!inherited_) {
      return absl::InvalidArgumentError(
          "the file of the host tier was not handed over: its contents are lost");
    }
    uint64_t bytes = 0;
    for (const TierExtent& extent : spec.extents) {
      bytes += std::min(extent.bytes, info_.capacity_bytes);  // no overflow; checked below
    }
    if (bytes != spec.bytes) {
      return absl::InvalidArgumentError(absl::StrCat("the extents have ", bytes, " bytes in all, ",
                                                     "and the segment has ", spec.bytes));
    }
    if (absl::Status taken = memory_->TakeExactly(spec.extents, spec.tenant); !taken.ok()) {
      return taken;
    }
    return std::make_unique<TierAllocation>(memory_, spec.extents);
  }

  absl::StatusOr<uint64_t> DriverFreeBytes() const override { return memory_->free_bytes(); }

 private:
  const std::shared_ptr<TierMemory> memory_;  // shared with the allocations
  const bool inherited_;
  const std::vector<std::string> notices_;
  DeviceInfo info_;
  std::atomic<bool> stop_ = false;
  absl::Notification prefault_done_;
  std::thread prefault_;
};

// Takes over the file of an earlier daemon if it has one. Adds notices about it.
std::optional<TierPages> AdoptFile(TierOptions& options, std::vector<std::string>* notices) {
  if (!options.file.valid()) return std::nullopt;
  absl::StatusOr<TierPages> file = TierPages::Adopt(std::move(options.file), options.huge_pages);
  if (!file.ok()) {
    notices->push_back(absl::StrCat("The file of the host tier that was handed over is unusable: ",
                                    file.status().message(), "."));
    return std::nullopt;
  }
  if (file->bytes() != options.capacity_bytes) {
    notices->push_back(
        absl::StrCat("The host tier keeps its size of ", FormatBytes(file->bytes()),
                     ", since it has contents of suspended memory. The configured size of ",
                     FormatBytes(options.capacity_bytes),
                     " takes effect when gpumemd starts without suspended memory."));
  }
  return *std::move(file);
}

absl::StatusOr<TierPages> MakeFile(const TierOptions& options, std::vector<std::string>* notices) {
  if (options.huge_pages) {
    const uint64_t free = FreeHugePageBytes(options.root);
    // Otherwise the machine might make the missing ones of memory that others need.
    if (free >= options.capacity_bytes) {
      absl::StatusOr<std::optional<TierPages>> huge = TierPages::MakeHuge(options.capacity_bytes);
      if (!huge.ok()) return huge.status();
      if (huge->has_value()) return **std::move(huge);
    }
    notices->push_back(absl::StrCat(
        "The host tier has no reserved huge pages: it needs ", FormatBytes(options.capacity_bytes),
        ", and ", FormatBytes(free),
        " are free (vm.nr_hugepages), or the control group of the daemon allows none (hugetlb)."));
  }
  return TierPages::Make(options.capacity_bytes, options.huge_pages);
}

// Adds a notice if the machine has too little memory for all pages.
void CheckMachine(const TierMemory& memory, const std::string& root,
                  std::vector<std::string>* notices) {
  if (!memory.file().takes_memory()) return;
  const uint64_t missing = memory.file().bytes() - memory.allocated_bytes();
  const absl::StatusOr<uint64_t> to_take = BytesToTake(root);
  if (!to_take.ok() || *to_take >= missing) return;
  notices->push_back(absl::StrCat(
      "The host tier is larger than the memory that is left: it needs ", FormatBytes(missing),
      ", and the machine, or the control group of the daemon, has ", FormatBytes(*to_take),
      " beside its reserve. More is not suspended than there is memory for."));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TierDevice>> MakeTierDevice(TierOptions options) {
  options.capacity_bytes -= options.capacity_bytes % kTierGranule;
  std::vector<std::string> notices;
  std::optional<TierPages> file = AdoptFile(options, &notices);
  const bool inherited = file.has_value();
  if (!inherited) {
    if (options.capacity_bytes == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a host tier has at least ", FormatBytes(kTierGranule)));
    }
    absl::StatusOr<TierPages> made = MakeFile(options, &notices);
    if (!made.ok()) return made.status();
    file = *std::move(made);
  }
  auto memory = std::make_shared<TierMemory>(*std::move(file), inherited, options.root);
  CheckMachine(*memory, options.root, &notices);
  auto device = std::make_unique<FileTierDevice>(std::move(memory), inherited, std::move(notices));
  if (options.prefault) {
    if (absl::Status started = device->Prefault(); !started.ok()) return started;
  }
  return device;
}

}  // namespace gpumemd
