// SPDX-License-Identifier: Apache-2.0
// A page of memory in which the daemon tells the sessions of a tenant how much memory they can get,
// so that they need not ask. The daemon writes it, and its clients can only read it.
//
// The figures are guarded by a sequence (seqlock): it is odd while they are written, and a reader
// that has seen it change reads again. A page of a daemon that has ended is not changed any more:
// readers use it only while their session is connected.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"

namespace gpumem {

// Of one device, for one tenant.
struct MemoryFigures {
  uint64_t limit_bytes = 0;
  uint64_t free_bytes = 0;  // that the tenant can get at most
  bool operator==(const MemoryFigures&) const = default;
};

// The page as both sides see it. Changes are another magic.
struct MemoryPageLayout {
  static constexpr uint64_t kMagic = 0x3130'6567'6170'6d67;  // "gmpage01"
  static constexpr size_t kBytes = 4096;
  static constexpr size_t kDevices = 252;  // further ones are not in it

  struct Entry {
    std::atomic<uint64_t> limit_bytes;
    std::atomic<uint64_t> free_bytes;
  };

  std::atomic<uint64_t> magic;  // 0: closed
  std::atomic<uint64_t> sequence;
  std::atomic<uint64_t> devices;  // entries in use
  Entry entries[kDevices];
};
static_assert(sizeof(MemoryPageLayout) <= MemoryPageLayout::kBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The daemon's end. Not thread-safe, but for fd().
class MemoryPageWriter {
 public:
  // Makes a page without figures, whose descriptor is sealed: it cannot change in size, and can be
  // mapped and written by no other owner of the descriptor.
  //   UNIMPLEMENTED       the kernel has no such seal (Linux before 5.1)
  //   RESOURCE_EXHAUSTED  there is no memory, or no descriptor left
  static absl::StatusOr<std::unique_ptr<MemoryPageWriter>> Make();
  // Marks the page as closed, for those that still have it.
  ~MemoryPageWriter();
  MemoryPageWriter(const MemoryPageWriter&) = delete;
  MemoryPageWriter& operator=(const MemoryPageWriter&) = delete;

  int fd() const { return fd_.get(); }
  // Writes the figures if they have changed. True if they had.
  bool Write(absl::Span<const MemoryFigures> figures);

 private:
  MemoryPageWriter(UniqueFd fd, MemoryPageLayout* page) : fd_(std::move(fd)), page_(page) {}

  const UniqueFd fd_;
  MemoryPageLayout* const page_;
};

// A client's end. Thread-safe.
class MemoryPageReader {
 public:
  // Maps the page. The descriptor is not needed after that.
  //   INVALID_ARGUMENT  it is no page of this layout
  static absl::StatusOr<std::unique_ptr<MemoryPageReader>> Open(const UniqueFd& fd);
  ~MemoryPageReader();
  MemoryPageReader(const MemoryPageReader&) = delete;
  MemoryPageReader& operator=(const MemoryPageReader&) = delete;

  // Returns the figures of a device by its place; nullopt if the page is closed, or has no such
  // device, or its writer seems to have died while it wrote.
  std::optional<MemoryFigures> Read(size_t device) const;

 private:
  explicit MemoryPageReader(const MemoryPageLayout* page) : page_(page) {}

  const MemoryPageLayout* const page_;
};

}  // namespace gpumem
