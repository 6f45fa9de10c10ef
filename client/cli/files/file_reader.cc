#include "client/cli/files/file_reader.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gpumem::cli {
namespace {

uint64_t RoundUp(uint64_t bytes) {
  return (bytes + FileReader::kAlignment - 1) / FileReader::kAlignment * FileReader::kAlignment;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileReader>> FileReader::Open(const std::string& path) {
  // O_NONBLOCK: a FIFO is to be refused, not waited for.
  UniqueFd cached(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!cached.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  struct stat before = {};
  if (fstat(cached.get(), &before) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at ", path));
  }
  if (S_ISDIR(before.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a folder: name the files in it, each with --file"));
  }
  if (!S_ISREG(before.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no regular file"));
  }
  if (before.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty: there is nothing to publish"));
  }
  // For what is neither in the cache nor read directly.
  posix_fadvise(cached.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  UniqueFd direct(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  struct stat same = {};
  if (direct.valid() && (fstat(direct.get(), &same) != 0 || same.st_dev != before.st_dev ||
                         same.st_ino != before.st_ino)) {
    direct.reset();  // somebody has put another file there meanwhile
  }
  return std::unique_ptr<FileReader>(
      new FileReader(path, std::move(cached), std::move(direct), before));
}

FileReader::FileReader(std::string path, UniqueFd cached, UniqueFd direct,
                       const struct stat& before)
    : path_(std::move(path)),
      cached_(std::move(cached)),
      direct_(std::move(direct)),
      before_(before),
      use_direct_(direct_.valid()) {}

std::string FileReader::name() const { return path_.substr(path_.rfind('/') + 1); }

absl::Status FileReader::Read(uint64_t offset, uint64_t bytes, void* buffer) {
  iovec all = {.iov_base = buffer, .iov_len = bytes};
  const ssize_t cached = preadv2(cached_.get(), &all, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  uint64_t done = cached > 0 ? static_cast<uint64_t>(cached) : 0;
  if (done == bytes) return absl::OkStatus();
  // Direct reads begin where the cache ended, on the last whole block of it.
  if (use_direct_.load(std::memory_order_relaxed)) done = done / kAlignment * kAlignment;
  while (done < bytes) {
    const bool direct = use_direct_.load(std::memory_order_relaxed) && done % kAlignment == 0;
    const uint64_t wanted = direct ? RoundUp(bytes - done) : bytes - done;
    const ssize_t got =
        pread(direct ? direct_.get() : cached_.get(), static_cast<char*>(buffer) + done, wanted,
              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && direct) {
      // This file system, or this disk, wants it otherwise; an error of the disk comes again.
      use_direct_.store(false, std::memory_order_relaxed);
      continue;
    }
    if (got < 0) {
      return absl::DataLossError(absl::StrCat("cannot read ", path_, " at byte ", offset + done,
                                              ": ", absl::ErrnoToStatus(errno, "").message()));
    }
    if (got == 0) {
      return absl::AbortedError(absl::StrCat(path_,
                                             " became shorter while it was read: it ends at "
                                             "byte ",
                                             offset + done, " now"));
    }
    // A direct read reaches to the end of the file's last block.
    done = std::min(bytes, done + static_cast<uint64_t>(got));
  }
  return absl::OkStatus();
}

absl::Status FileReader::CheckUnchanged() const {
  struct stat now = {};
  if (fstat(cached_.get(), &now) == 0 && now.st_size == before_.st_size &&
      now.st_mtim.tv_sec == before_.st_mtim.tv_sec &&
      now.st_mtim.tv_nsec == before_.st_mtim.tv_nsec) {
    return absl::OkStatus();
  }
  return absl::AbortedError(
      absl::StrCat(path_, " was written to while it was read: nothing is published; try it again"));
}

}  // namespace gpumem::cli
