// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/memfd.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace gpumemd {
namespace {

int Fallocate(int fd, uint64_t bytes) {
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  return result;
}

absl::Status Seal(int fd, uint64_t bytes) {
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return MemfdError(errno, "F_ADD_SEALS", bytes);
  }
  return absl::OkStatus();
}

// True if the error means that too few are free, or that the kernel has none of this size.
bool LacksHugePages(int error) {
  return error == ENOMEM || error == ENOSPC || error == EINVAL || error == ENODEV ||
         error == ENOENT || error == ENOSYS;
}

}  // namespace

absl::Status MemfdError(int error, const char* call, uint64_t bytes) {
  const std::string message = absl::StrCat(absl::ErrnoToStatus(error, call).message(),
                                           ", for a segment of ", gpumem::FormatBytes(bytes));
  switch (error) {
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(
          absl::StrCat(message, "; raise the daemon's limit of open files"));
    case ENOMEM:
    case ENOSPC:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status CheckMemfd(int fd, uint64_t bytes) {
  constexpr int kFixed = F_SEAL_SHRINK | F_SEAL_GROW;
  struct stat info;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &info) == 0 && static_cast<uint64_t>(info.st_size) == bytes && seals != -1 &&
      (seals & kFixed) == kFixed) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("this descriptor is not of shared memory of ", gpumem::FormatBytes(bytes)));
}

absl::StatusOr<gpumem::UniqueFd> MakeSealedMemfd(const std::string& name, uint64_t bytes) {
  gpumem::UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return MemfdError(errno, "memfd_create", bytes);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return MemfdError(errno, "ftruncate", bytes);
  }
  if (absl::Status status = Seal(fd.get(), bytes); !status.ok()) return status;
  return fd;
}

absl::StatusOr<std::optional<gpumem::UniqueFd>> MakeHugeMemfd(const std::string& name,
                                                              uint64_t bytes) {
  gpumem::UniqueFd fd(
      memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
  const char* const call = !fd.valid() ? "memfd_create" : "fallocate";
  // It also gives the file its size.
  if (!fd.valid() || Fallocate(fd.get(), bytes) != 0) {
    if (LacksHugePages(errno)) return std::nullopt;
    return MemfdError(errno, call, bytes);
  }
  if (absl::Status status = Seal(fd.get(), bytes); !status.ok()) return status;
  return fd;
}

MemfdMapping::MemfdMapping(int fd, uint64_t offset, uint64_t bytes) : bytes_(bytes) {
  void* const address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  address_ = address == MAP_FAILED ? nullptr : static_cast<char*>(address);
}

MemfdMapping::~MemfdMapping() {
  if (valid()) munmap(address_, bytes_);
}

absl::Status FillMemfd(int fd, uint64_t bytes) {
  return Fallocate(fd, bytes) == 0 ? absl::OkStatus() : MemfdError(errno, "fallocate", bytes);
}

}  // namespace gpumemd
