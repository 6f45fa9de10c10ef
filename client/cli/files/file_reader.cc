#include "client/cli/files/file_reader.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

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
      before_(before) {
  if (!direct_.valid()) race_.DirectFails();
}

std::string FileReader::name() const { return path_.substr(path_.rfind('/') + 1); }

FileReader::Race::Way FileReader::Race::Next() {
  if (direct_fails_.load(std::memory_order_relaxed)) return {};
  const int begun = begun_.fetch_add(1, std::memory_order_relaxed);
  if (begun < kTimed) return {.direct = begun % 2 == 0, .timed = true};
  return {.direct = lead_ns_.load(std::memory_order_relaxed) > 0};
}

void FileReader::Race::Took(const Way& way, absl::Duration time) {
  if (!way.timed) return;
  const int64_t ns = absl::ToInt64Nanoseconds(time);
  lead_ns_.fetch_add(way.direct ? -ns : ns, std::memory_order_relaxed);
}

absl::Status FileReader::Read(uint64_t offset, uint64_t bytes, void* buffer) {
  char* const at = static_cast<char*>(buffer);
  iovec all = {.iov_base = at, .iov_len = bytes};
  const ssize_t cached = preadv2(cached_.get(), &all, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  uint64_t done = cached > 0 ? static_cast<uint64_t>(cached) : 0;
  if (done == bytes) return absl::OkStatus();

  const Race::Way way = race_.Next();
  const absl::Time begun = absl::Now();
  if (way.direct) {
    // It begins on the last whole block that the cache had.
    absl::StatusOr<uint64_t> read = ReadOn(true, offset, bytes, done / kAlignment * kAlignment, at);
    if (!read.ok()) return read.status();
    done = *read;
    if (done < bytes) race_.DirectFails();
  }
  if (done < bytes) {
    // All of it at once: how far the kernel would look ahead by itself is little for a fast disk.
    posix_fadvise(cached_.get(), static_cast<off_t>(offset + done),
                  static_cast<off_t>(bytes - done), POSIX_FADV_WILLNEED);
    absl::StatusOr<uint64_t> read = ReadOn(false, offset, bytes, done, at);
    if (!read.ok()) return read.status();
  }
  race_.Took(way, absl::Now() - begun);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> FileReader::ReadOn(bool direct, uint64_t offset, uint64_t bytes,
                                            uint64_t done, char* buffer) {
  while (done < bytes) {
    // A direct read reaches to the end of the file's last block.
    const uint64_t wanted = direct ? RoundUp(bytes - done) : bytes - done;
    const ssize_t got = pread(direct ? direct_.get() : cached_.get(), buffer + done, wanted,
                              static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && direct) return done;  // an error of the disk comes again
    if (got < 0) {
      return absl::DataLossError(absl::StrCat("cannot read ", path_, " at byte ", offset + done,
                                              ": ", absl::ErrnoToStatus(errno, "").message()));
    }
    if (got == 0) {
      return absl::AbortedError(absl::StrCat(
          path_, " became shorter while it was read: it ends at byte ", offset + done, " now"));
    }
    done = std::min(bytes, done + static_cast<uint64_t>(got));
    if (direct && done % kAlignment != 0) return done;
  }
  return done;
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
