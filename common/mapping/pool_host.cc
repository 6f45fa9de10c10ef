// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/mapping/host_ipc.h"
#include "common/mapping/host_owner.h"
#include "common/mapping/mapping.h"
#include "common/mapping/shared_openings.h"
#include "common/unique_fd.h"

namespace gpumem {
namespace {

class HostPool : public ImportedPool {
 public:
  HostPool(std::string runtime_dir, UniqueFd fd, uint64_t inode)
      : runtime_dir_(std::move(runtime_dir)),
        fd_(std::move(fd)),
        inode_(inode),
        openings_(std::make_shared<SharedOpenings>()) {}

  absl::StatusOr<std::unique_ptr<Mapping>> Open(const ExportData& data, uint64_t bytes,
                                                const MapOptions& options) override {
    if (absl::Status status = CheckOpenOptions(options); !status.ok()) return status;
    if (!options.device_uuids.empty()) {
      return absl::InvalidArgumentError(
          "GPUs cannot use memory of the host backend; leave map_devices empty");
    }
    const std::optional<HostPoolData> parsed = FromExportData<HostPoolData>(data);
    if (!parsed.has_value() || parsed->inode != inode_) {
      return absl::InvalidArgumentError("the export data is not of memory of this pool");
    }
    return openings_->Get(data, bytes, [&] {
      return OpenFromOwner(HostIpcSocket(runtime_dir_, parsed->device_index), data, "mempool");
    });
  }

 private:
  const std::string runtime_dir_;
  const UniqueFd fd_;  // keeps the inode from being another's
  const uint64_t inode_;
  const std::shared_ptr<SharedOpenings> openings_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<ImportedPool>> ImportHostPool(const std::string& runtime_dir,
                                                             int fd) {
  struct stat file = {};
  if (fstat(fd, &file) != 0 || file.st_size != 0 || fcntl(fd, F_GET_SEALS) == -1) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", fd, " is not a memory pool of the host backend"));
  }
  UniqueFd own(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) return absl::ErrnoToStatus(errno, "duplicating a memory pool's descriptor");
  return std::make_shared<HostPool>(runtime_dir, std::move(own), file.st_ino);
}

}  // namespace gpumem
