// SPDX-License-Identifier: Apache-2.0
#include "daemon/tier/tier_pages.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "daemon/device/memfd.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

constexpr char kName[] = "gpumem:tier";

// Returns the errno of `call`, repeated while it is interrupted; 0: it succeeded.
template <typename Call>
int ErrorOf(Call call) {
  while (call() != 0) {
    if (errno != EINTR && errno != EAGAIN) return errno;
  }
  return 0;
}

bool IsHugeFile(int fd) {
  struct statfs info;
  return fstatfs(fd, &info) == 0 && info.f_type == HUGETLBFS_MAGIC;
}

}  // namespace

absl::StatusOr<TierPages> TierPages::Make(uint64_t bytes, bool advise_huge) {
  absl::StatusOr<UniqueFd> fd = MakeSealedMemfd(kName, bytes);
  if (!fd.ok()) return fd.status();
  return TierPages(*std::move(fd), bytes, /*reserved=*/false, advise_huge);
}

absl::StatusOr<std::optional<TierPages>> TierPages::MakeHuge(uint64_t bytes) {
  UniqueFd fd(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
  if (!fd.valid()) {
    if (errno == EMFILE || errno == ENFILE) return MemfdError(errno, "memfd_create", bytes);
    return std::nullopt;  // the kernel has none of this size
  }
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return std::nullopt;
  {
    // The first shared mapping reserves the pages for the file, and they stay reserved.
    const MemfdMapping whole(fd.get(), 0, bytes);
    if (!whole.valid()) return std::nullopt;
    // A control group may let this process reserve pages, and use none (hugetlb.2MB.max). EINVAL:
    // the kernel is older than 5.14, and the first use tells.
    const int populated =
        ErrorOf([&] { return madvise(whole.address(), kTierGranule, MADV_POPULATE_WRITE); });
    if (populated != 0 && populated != EINVAL) return std::nullopt;
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return MemfdError(errno, "F_ADD_SEALS", bytes);
  }
  return TierPages(std::move(fd), bytes, /*reserved=*/true, /*advise_huge=*/false);
}

absl::StatusOr<TierPages> TierPages::Adopt(UniqueFd fd, bool advise_huge) {
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0 ||
      static_cast<uint64_t>(info.st_size) % kTierGranule != 0) {
    return absl::InvalidArgumentError("this descriptor is not of a host tier");
  }
  const uint64_t bytes = static_cast<uint64_t>(info.st_size);
  if (absl::Status sealed = CheckMemfd(fd.get(), bytes); !sealed.ok()) return sealed;
  const bool huge = IsHugeFile(fd.get());
  return TierPages(std::move(fd), bytes, huge, advise_huge && !huge);
}

std::vector<TierExtent> TierPages::Allocated() const {
  if (reserved_) return {{.offset = 0, .bytes = bytes_}};
  std::vector<TierExtent> found;
  off_t hole = 0;
  while (true) {
    const off_t data = lseek(fd(), hole, SEEK_DATA);
    if (data < 0) return found;  // ENXIO: none behind it
    hole = lseek(fd(), data, SEEK_HOLE);
    if (hole < 0) return found;
    const uint64_t begin =
        (static_cast<uint64_t>(data) + kTierGranule - 1) / kTierGranule * kTierGranule;
    const uint64_t end = static_cast<uint64_t>(hole) / kTierGranule * kTierGranule;
    if (begin < end) found.push_back({.offset = begin, .bytes = end - begin});
  }
}

TierPages::Range::Range(const TierPages& file, const TierExtent& range)
    : file_(file),
      offset_(range.offset),
      mapping_(file.fd(), range.offset, range.bytes),
      error_(mapping_.valid() ? 0 : errno) {
  // Only advice: the machine may not allow it.
  if (error_ == 0 && file_.advise_huge_) {
    (void)madvise(mapping_.address(), range.bytes, MADV_HUGEPAGE);
  }
}

absl::Status TierPages::Range::Allocate(const TierExtent& part) const {
  if (error_ != 0) return MemfdError(error_, "mmap", part.bytes);
  int error = ErrorOf([&] { return madvise(At(part), part.bytes, MADV_POPULATE_WRITE); });
  Leave(part);
  if (error == 0) return absl::OkStatus();
  if (error == EFAULT) error = ENOMEM;  // a plain access would raise SIGBUS
  if (error != EINVAL) return MemfdError(error, "MADV_POPULATE_WRITE", part.bytes);
  // A kernel older than 5.14.
  error = ErrorOf([&] {
    return fallocate(file_.fd(), 0, static_cast<off_t>(part.offset),
                     static_cast<off_t>(part.bytes));
  });
  return error == 0 ? absl::OkStatus() : MemfdError(error, "fallocate", part.bytes);
}

absl::Status TierPages::Range::Zero(const TierExtent& part) const {
  if (error_ != 0) return MemfdError(error_, "mmap", part.bytes);
  memset(At(part), 0, part.bytes);
  Leave(part);
  return absl::OkStatus();
}

void TierPages::Range::Leave(const TierExtent& part) const {
  // Otherwise the end of the mapping would do it, in one thread.
  (void)madvise(At(part), part.bytes, MADV_DONTNEED);
}

}  // namespace gpumemd
