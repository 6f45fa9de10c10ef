#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/host_ipc.h"
#include "common/mapping.h"
#include "common/shared_openings.h"
#include "common/unique_fd.h"

namespace gpumem {
namespace {

class PoolOpening : public Opening {
 public:
  PoolOpening(void* data, uint64_t bytes) : Opening(data, bytes) {}
  ~PoolOpening() override { munmap(data(), bytes()); }
};

class HostPool : public ImportedPool {
 public:
  HostPool(UniqueFd fd, uint64_t inode)
      : fd_(std::move(fd)), inode_(inode), openings_(std::make_shared<SharedOpenings>()) {}

  absl::StatusOr<std::unique_ptr<Mapping>> Open(const ExportData& data, uint64_t bytes,
                                                const MapOptions& options) override {
    if (absl::Status status = CheckOpenOptions(options); !status.ok()) return status;
    if (!options.device_uuids.empty()) {
      return absl::InvalidArgumentError("memory of the host backend is not opened for GPUs");
    }
    const std::optional<HostPoolData> parsed = FromExportData<HostPoolData>(data);
    const uint64_t page = kHostPoolPageBytes;
    if (!parsed.has_value() || parsed->inode != inode_ || parsed->allocation == 0 ||
        parsed->bytes == 0 || parsed->bytes % page != 0 || parsed->offset % page != 0 ||
        parsed->bytes > kHostPoolBytes || parsed->offset > kHostPoolBytes - parsed->bytes) {
      return absl::InvalidArgumentError("the export data is of no memory of this pool");
    }
    return openings_->Get(data, bytes, [&] { return OpenNew(*parsed); });
  }

 private:
  absl::StatusOr<std::unique_ptr<Opening>> OpenNew(const HostPoolData& data) {
    uint64_t there = 0;
    const off_t entry = static_cast<off_t>(HostPoolEntry(data.offset));
    if (pread(fd_.get(), &there, sizeof(there), entry) != sizeof(there)) {
      return absl::InternalError(absl::ErrnoToStatus(errno, "reading a pool's table").message());
    }
    if (there != data.allocation) {
      return absl::NotFoundError(
          "the memory of kind mempool is not there: its owner has freed it or is gone");
    }
    void* const at = mmap(nullptr, data.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(),
                          static_cast<off_t>(kHostPoolHeaderBytes + data.offset));
    if (at == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat(absl::ErrnoToStatus(errno, "mmap").message(),
                       "; check this process's memory limits and vm.max_map_count"));
    }
    return std::make_unique<PoolOpening>(at, data.bytes);
  }

  const UniqueFd fd_;
  const uint64_t inode_;
  const std::shared_ptr<SharedOpenings> openings_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<ImportedPool>> ImportHostPool(int fd) {
  struct stat file = {};
  if (fstat(fd, &file) != 0 ||
      file.st_size != static_cast<off_t>(kHostPoolHeaderBytes + kHostPoolBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", fd, " is no memory pool of the host backend"));
  }
  UniqueFd own(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) return absl::ErrnoToStatus(errno, "F_DUPFD_CLOEXEC");
  return std::make_shared<HostPool>(std::move(own), file.st_ino);
}

}  // namespace gpumem
