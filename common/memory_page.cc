// SPDX-License-Identifier: Apache-2.0
#include "common/memory_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace gpumem {
namespace {

constexpr size_t kBytes = MemoryPageLayout::kBytes;
constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;
// A writer holds no page for longer than some hundred nanoseconds, unless it is not scheduled.
constexpr int kReadAttempts = 1000;

absl::Status Failed(const char* call) {
  const int error = errno;
  const absl::Status status = absl::ErrnoToStatus(error, call);
  const bool lacks = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOSPC;
  return lacks ? absl::ResourceExhaustedError(status.message()) : status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryPageWriter>> MemoryPageWriter::Make() {
  UniqueFd fd(::memfd_create("gpumem-memory-page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Failed("memfd_create");
  if (::ftruncate(fd.get(), kBytes) != 0) return Failed("ftruncate");
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return Failed("mmap");
  // From now on this mapping is the only one that can be written.
  std::unique_ptr<MemoryPageWriter> page(
      new MemoryPageWriter(std::move(fd), static_cast<MemoryPageLayout*>(memory)));
  if (::fcntl(page->fd(), F_ADD_SEALS, kFixedSize | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return errno == EINVAL ? absl::UnimplementedError(
                                 "the kernel cannot seal a page that is read "
                                 "by others (F_SEAL_FUTURE_WRITE, Linux 5.1)")
                           : Failed("F_ADD_SEALS");
  }
  page->page_->magic.store(MemoryPageLayout::kMagic, std::memory_order_release);
  return page;
}

MemoryPageWriter::~MemoryPageWriter() {
  page_->magic.store(0, std::memory_order_release);
  ::munmap(page_, kBytes);
}

bool MemoryPageWriter::Write(absl::Span<const MemoryFigures> figures) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const size_t count = std::min(figures.size(), MemoryPageLayout::kDevices);
  bool changed = page_->devices.load(kRelaxed) != count;
  for (size_t i = 0; i < count && !changed; ++i) {
    const MemoryPageLayout::Entry& entry = page_->entries[i];
    changed = figures[i] != MemoryFigures{.limit_bytes = entry.limit_bytes.load(kRelaxed),
                                          .free_bytes = entry.free_bytes.load(kRelaxed)};
  }
  if (!changed) return false;
  const uint64_t sequence = page_->sequence.load(kRelaxed);
  page_->sequence.store(sequence + 1, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < count; ++i) {
    page_->entries[i].limit_bytes.store(figures[i].limit_bytes, kRelaxed);
    page_->entries[i].free_bytes.store(figures[i].free_bytes, kRelaxed);
  }
  page_->devices.store(count, kRelaxed);
  page_->sequence.store(sequence + 2, std::memory_order_release);
  return true;
}

absl::StatusOr<std::unique_ptr<MemoryPageReader>> MemoryPageReader::Open(const UniqueFd& fd) {
  struct stat info = {};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  // One that could shrink could kill its readers (SIGBUS).
  if (::fstat(fd.get(), &info) != 0 || info.st_size != static_cast<off_t>(kBytes) || seals == -1 ||
      (seals & kFixedSize) != kFixedSize) {
    return absl::InvalidArgumentError("this descriptor is not of a page of the daemon");
  }
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return Failed("mmap");
  std::unique_ptr<MemoryPageReader> reader(
      new MemoryPageReader(static_cast<const MemoryPageLayout*>(memory)));
  if (reader->page_->magic.load(std::memory_order_acquire) != MemoryPageLayout::kMagic) {
    return absl::InvalidArgumentError("this page is closed, or of another layout");
  }
  return reader;
}

MemoryPageReader::~MemoryPageReader() { ::munmap(const_cast<MemoryPageLayout*>(page_), kBytes); }

std::optional<MemoryFigures> MemoryPageReader::Read(size_t device) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  if (device >= MemoryPageLayout::kDevices) return std::nullopt;
  for (int i = 0; i < kReadAttempts; ++i) {
    const uint64_t before = page_->sequence.load(std::memory_order_acquire);
    if (before % 2 != 0) continue;
    const bool there = page_->magic.load(kRelaxed) == MemoryPageLayout::kMagic &&
                       device < page_->devices.load(kRelaxed);
    const MemoryFigures figures = {.limit_bytes = page_->entries[device].limit_bytes.load(kRelaxed),
                                   .free_bytes = page_->entries[device].free_bytes.load(kRelaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (page_->sequence.load(kRelaxed) != before) continue;
    return there ? std::optional(figures) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace gpumem
