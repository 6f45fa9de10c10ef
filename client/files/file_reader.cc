// SPDX-License-Identifier: Apache-2.0
#include "client/files/file_reader.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumem::internal {

absl::StatusOr<std::unique_ptr<FileReader>> FileReader::Open(const std::string& path) {
  // O_NONBLOCK: a FIFO must be refused, not waited for.
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  struct stat before = {};
  if (fstat(file.get(), &before) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
  }
  if (S_ISDIR(before.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a folder: name the files in it, each with --file"));
  }
  if (!S_ISREG(before.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  if (before.st_size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is empty: a published file needs at least one byte"));
  }
  return std::unique_ptr<FileReader>(new FileReader(path, std::move(file), before));
}

FileReader::FileReader(std::string path, UniqueFd file, const struct stat& before)
    : path_(std::move(path)), file_(std::move(file)), before_(before) {}

std::string FileReader::name() const { return path_.substr(path_.rfind('/') + 1); }

void FileReader::AskBefore(uint64_t end) {
  end = std::min(end, bytes());
  uint64_t from = asked_.load(std::memory_order_relaxed);
  do {
    if (from >= end) return;
  } while (!asked_.compare_exchange_weak(from, end, std::memory_order_relaxed));
  posix_fadvise(file_.get(), static_cast<off_t>(from), static_cast<off_t>(end - from),
                POSIX_FADV_WILLNEED);
}

bool FileReader::IsCached(uint64_t offset) const {
  char byte = 0;
  iovec one = {.iov_base = &byte, .iov_len = 1};
  return preadv2(file_.get(), &one, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1;
}

absl::Status FileReader::Read(uint64_t offset, uint64_t bytes, void* buffer) {
  char* const at = static_cast<char*>(buffer);
  iovec all = {.iov_base = at, .iov_len = bytes};
  // Cached pages need no read-ahead, whose request checks every page.
  const ssize_t there = preadv2(file_.get(), &all, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  uint64_t done = there > 0 ? static_cast<uint64_t>(there) : 0;
  if (done < bytes) AskBefore(offset + bytes + kAheadBytes);
  while (done < bytes) {
    const ssize_t got =
        pread(file_.get(), at + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::DataLossError(absl::StrCat("cannot read ", path_, " at byte ", offset + done,
                                              ": ", absl::ErrnoToStatus(errno, "").message()));
    }
    if (got == 0) {
      return absl::AbortedError(absl::StrCat(path_, " was truncated to ", offset + done,
                                             " bytes while it was read: try again"));
    }
    done += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

absl::Status FileReader::CheckUnchanged() const {
  struct stat now = {};
  const auto same = [](const timespec& a, const timespec& b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
  };
  if (fstat(file_.get(), &now) == 0 && now.st_size == before_.st_size &&
      same(now.st_mtim, before_.st_mtim) && same(now.st_ctim, before_.st_ctim)) {
    return absl::OkStatus();
  }
  return absl::AbortedError(
      absl::StrCat(path_, " changed while it was read: nothing was published; try again"));
}

}  // namespace gpumem::internal
