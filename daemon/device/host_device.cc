#include "daemon/device/host_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "daemon/device/create_check.h"

namespace gpumemd {
namespace {

// What a device has left; its Allocations hold on to it too.
class FreeBytes {
 public:
  explicit FreeBytes(uint64_t capacity_bytes) : bytes_(capacity_bytes) {}

  uint64_t get() const { return bytes_.load(); }
  void Give(uint64_t bytes) { bytes_.fetch_add(bytes); }
  // False where there are not as many.
  bool Take(uint64_t bytes) {
    uint64_t free = bytes_.load();
    do {
      if (bytes > free) return false;
    } while (!bytes_.compare_exchange_weak(free, free - bytes));
    return true;
  }

 private:
  std::atomic<uint64_t> bytes_;
};

// Bytes taken from a device; its end gives them back.
class Share {
 public:
  // Nothing where the device has less than `bytes` left.
  static std::optional<Share> Take(std::shared_ptr<FreeBytes> from, uint64_t bytes) {
    if (!from->Take(bytes)) return std::nullopt;
    return Share(std::move(from), bytes);
  }
  Share(Share&&) = default;
  Share& operator=(Share&&) = delete;
  ~Share() {
    if (from_ != nullptr) from_->Give(bytes_);
  }

 private:
  Share(std::shared_ptr<FreeBytes> from, uint64_t bytes) : from_(std::move(from)), bytes_(bytes) {}

  std::shared_ptr<FreeBytes> from_;  // null after a move
  uint64_t bytes_;
};

class MemfdAllocation : public Allocation {
 public:
  MemfdAllocation(Share share, gpumem::UniqueFd fd)
      : share_(std::move(share)), fd_(std::move(fd)) {}
  int fd() const override { return fd_.get(); }

 private:
  const Share share_;  // destroyed last: the bytes are free once the memfd is closed
  const gpumem::UniqueFd fd_;
};

absl::Status SystemError(int error, const char* call, uint64_t bytes) {
  const std::string message = absl::StrCat(absl::ErrnoToStatus(error, call).message(),
                                           ", for a segment of ", gpumem::FormatBytes(bytes));
  switch (error) {
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(
          absl::StrCat(message, "; raise the daemon's limit of open files"));
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

// A memfd of fixed size, whose pages are zero until somebody writes them. Without the
// seals one client could truncate it, and every other would die of SIGBUS.
absl::StatusOr<gpumem::UniqueFd> MakeSealedMemfd(const std::string& name, uint64_t bytes) {
  gpumem::UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return SystemError(errno, "memfd_create", bytes);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return SystemError(errno, "ftruncate", bytes);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return SystemError(errno, "F_ADD_SEALS", bytes);
  }
  return fd;
}

class HostDevice : public Device {
 public:
  explicit HostDevice(DeviceInfo info)
      : info_(std::move(info)), free_(std::make_shared<FreeBytes>(info_.capacity_bytes)) {}

  const DeviceInfo& info() const override { return info_; }

  absl::StatusOr<std::unique_ptr<Allocation>> Create(Kind kind, uint64_t bytes) override {
    if (absl::Status status = CheckCreate(info_, kind, bytes); !status.ok()) return status;
    std::optional<Share> share = Share::Take(free_, bytes);
    if (!share.has_value()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the device ", info_.uuid, " is full: ", gpumem::FormatBytes(bytes),
                       " asked, ", gpumem::FormatBytes(free_->get()), " of ",
                       gpumem::FormatBytes(info_.capacity_bytes), " free"));
    }
    absl::StatusOr<gpumem::UniqueFd> fd =
        MakeSealedMemfd(absl::StrCat("gpumem:", info_.uuid), bytes);
    if (!fd.ok()) return fd.status();
    return std::make_unique<MemfdAllocation>(*std::move(share), *std::move(fd));
  }

  absl::StatusOr<uint64_t> DriverFreeBytes() const override { return free_->get(); }

 private:
  const DeviceInfo info_;
  const std::shared_ptr<FreeBytes> free_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeHostDevice(const HostDeviceOptions& options) {
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
  info.uuid = absl::StrFormat("HOST-%08x-0000-0000-0000-000000000000", options.index);
  info.name = "host memory";
  info.backend = Backend::kHost;
  info.granularity_bytes = options.granularity_bytes;
  info.kinds = {Kind::kVmm};
  return std::make_unique<HostDevice>(std::move(info));
}

}  // namespace gpumemd
