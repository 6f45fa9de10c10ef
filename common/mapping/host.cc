// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "common/mapping/address.h"
#include "common/mapping/mapping.h"
#include "common/trace/span.h"

namespace gpumem {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

void* Reserve(void* address, uint64_t bytes, int flags) {
  return mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1,
              0);
}

class HostRange : public AddressRange {
 public:
  HostRange(uintptr_t base, uint64_t bytes) : AddressRange(base, bytes) {}
  ~HostRange() override { munmap(reinterpret_cast<void*>(base()), bytes()); }
};

absl::Status MmapError(const char* what, uint64_t bytes) {
  const int error = errno;
  const std::string message = absl::StrCat(what, " ", bytes, " bytes of shared memory");
  // mmap(2) returns ENOMEM, EAGAIN or ENFILE when a resource is exhausted.
  if (error == ENOMEM || error == EAGAIN || error == ENFILE) {
    return absl::ResourceExhaustedError(
        absl::StrCat(absl::ErrnoToStatus(error, message).message(),
                     "; check the memory limits of this process (ulimit -v) and vm.max_map_count"));
  }
  return absl::InvalidArgumentError(absl::ErrnoToStatus(error, message).message());
}

class HostMapping : public Mapping {
 public:
  // `range`: that it lies in, if any.
  HostMapping(void* data, uint64_t size, bool read_only, std::shared_ptr<const AddressRange> range)
      : Mapping(data, size), read_only_(read_only), range_(std::move(range)) {}
  ~HostMapping() override {
    if (!detached_) Unmap();
  }

  // Switches to `data`, where its memory is also mapped already, and unmaps the old address.
  void MoveTo(void* data, std::shared_ptr<const AddressRange> range) {
    Unmap();
    Mapping::MoveTo(data);
    range_ = std::move(range);
  }

 private:
  void Unmap() const {
    const trace::Span span("unmap", size());
    // The addresses of a range stay reserved.
    if (range_ == nullptr || Reserve(data(), size(), MAP_FIXED) == MAP_FAILED) {
      munmap(data(), size());
    }
  }

  absl::StatusOr<Reserved> DetachMemory() override {
    // The memory gives way to the reservation in one step, so that no other thread gets the
    // addresses. The kernel keeps the memory if it refuses.
    if (Reserve(data(), size(), MAP_FIXED) == MAP_FAILED) return MmapError("detaching", size());
    detached_ = true;
    if (range_ == nullptr) {
      range_ = std::make_shared<const HostRange>(reinterpret_cast<uintptr_t>(data()), size());
    }
    return Reserved{.bytes = size(),
                    .options = {.read_only = read_only_, .address = data(), .range = range_}};
  }

  const bool read_only_;
  bool detached_ = false;
  std::shared_ptr<const AddressRange> range_;
};

// Checks that `request` covers a whole file of shared memory. A mapping beyond the end of a file
// would succeed, and kill the process when used. Raises `alignment`, in bytes, to the file's page
// size.
absl::Status CheckRequest(const MapRequest& request, uint64_t* alignment) {
  struct stat file = {};
  if (fstat(request.fd, &file) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", request.fd, " cannot be mapped: it is not open"));
  }
  if (request.bytes == 0 || static_cast<uint64_t>(file.st_size) != request.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", request.fd, " cannot be mapped: it has ", file.st_size,
                     " bytes, not ", request.bytes, "; only all of it can be mapped"));
  }
  // Huge pages go to their own multiples only.
  *alignment = std::max(*alignment, static_cast<uint64_t>(file.st_blksize));
  return absl::OkStatus();
}

absl::StatusOr<char*> ReserveAt(void* address, uint64_t bytes) {
  void* const range = Reserve(address, bytes, MAP_FIXED_NOREPLACE);
  if (range == address) return static_cast<char*>(range);
  if (range == MAP_FAILED && errno != EEXIST && errno != EPERM) {
    return MmapError("reserving addresses for", bytes);
  }
  // A kernel before 4.17 takes the address as a hint.
  if (range != MAP_FAILED) munmap(range, bytes);
  return AddressTaken(address, bytes);
}

absl::StatusOr<char*> ReserveAnywhere(uint64_t bytes, uint64_t alignment) {
  const uint64_t page = 4096;
  const uint64_t spare = alignment > page ? alignment : 0;
  if (bytes > std::numeric_limits<size_t>::max() - spare) {
    return absl::ResourceExhaustedError("the sizes of the memory to map exceed the address space");
  }
  void* const range = Reserve(nullptr, bytes + spare, 0);
  if (range == MAP_FAILED) return MmapError("reserving addresses for", bytes);
  char* const begin = static_cast<char*>(range);
  if (spare == 0) return begin;
  const uint64_t before = -reinterpret_cast<uintptr_t>(begin) % alignment;
  if (before > 0) munmap(begin, before);
  if (before < spare) munmap(begin + before + bytes, spare - before);
  return begin + before;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const AddressRange>> ReserveHostAddresses(uint64_t bytes) {
  absl::StatusOr<char*> base = ReserveAnywhere(bytes, kHugePage);
  if (!base.ok()) return base.status();
  return std::make_shared<const HostRange>(reinterpret_cast<uintptr_t>(*base), bytes);
}

absl::StatusOr<Mappings> MapHost(absl::Span<const MapRequest> requests, const MapOptions& options) {
  if (requests.empty()) return absl::InvalidArgumentError("there are no descriptors to map");
  if (!options.device_uuids.empty()) {
    return absl::InvalidArgumentError(
        "GPUs cannot use memory of the host backend; leave map_devices empty");
  }
  if (options.range == nullptr) {
    if (absl::Status status = CheckAddress(options.address); !status.ok()) return status;
  }
  uint64_t total = 0;
  uint64_t alignment = 1;
  for (const MapRequest& request : requests) {
    if (absl::Status status = CheckRequest(request, &alignment); !status.ok()) return status;
    if (request.bytes > std::numeric_limits<size_t>::max() - total) {
      return absl::ResourceExhaustedError(
          "the sizes of the memory to map exceed the address space");
    }
    total += request.bytes;
  }

  trace::Span reserve("reserve addresses", total);
  absl::StatusOr<char*> range = options.range != nullptr     ? static_cast<char*>(options.address)
                                : options.address != nullptr ? ReserveAt(options.address, total)
                                                             : ReserveAnywhere(total, alignment);
  if (!range.ok()) return range.status();
  reserve.End();

  // From here every part of the range has an owner that unmaps it, filled or not.
  Mappings mappings;
  mappings.reserve(requests.size());
  char* next = *range;
  for (const MapRequest& request : requests) {
    mappings.push_back(
        std::make_unique<HostMapping>(next, request.bytes, options.read_only, options.range));
    next += request.bytes;
  }
  const int protection = options.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  const trace::Span span("map", total);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (mmap(mappings[i]->data(), requests[i].bytes, protection, MAP_SHARED | MAP_FIXED,
             requests[i].fd, 0) == MAP_FAILED) {
      return MmapError("mapping", requests[i].bytes);
    }
    Failpoint("map-segment");
  }
  return mappings;
}

absl::StatusOr<Mappings> MapHostAgain(absl::Span<const Mapping* const> mappings,
                                      const MapOptions& options) {
  if (mappings.empty()) return absl::InvalidArgumentError("there are no mappings to map again");
  uint64_t total = 0;
  for (const Mapping* mapping : mappings) total += mapping->size();
  absl::StatusOr<char*> range = options.range != nullptr ? static_cast<char*>(options.address)
                                                         : ReserveAnywhere(total, kHugePage);
  if (!range.ok()) return range.status();
  Mappings again;
  again.reserve(mappings.size());
  char* next = *range;
  for (const Mapping* mapping : mappings) {
    again.push_back(
        std::make_unique<HostMapping>(next, mapping->size(), options.read_only, options.range));
    next += mapping->size();
  }
  const int protection = options.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  for (size_t i = 0; i < mappings.size(); ++i) {
    // With an old size of 0, mremap() of a shared mapping makes another mapping of the same memory.
    void* const at = again[i]->data();
    if (mremap(mappings[i]->data(), 0, mappings[i]->size(), MREMAP_MAYMOVE | MREMAP_FIXED, at) ==
            MAP_FAILED ||
        mprotect(at, mappings[i]->size(), protection) != 0) {
      absl::Status error = MmapError("mapping once more", mappings[i]->size());
      // The kernel may have unmapped the addresses first, which their owner unmaps.
      Reserve(at, mappings[i]->size(), MAP_FIXED_NOREPLACE);
      return error;
    }
  }
  return again;
}

absl::Status MoveHost(absl::Span<Mapping* const> mappings,
                      const std::shared_ptr<const AddressRange>& range, void* address) {
  auto* next = static_cast<char*>(address);
  for (const Mapping* mapping : mappings) {
    // A second mapping (MapHostAgain): no other thread can take the old addresses in between.
    if (mremap(mapping->data(), 0, mapping->size(), MREMAP_MAYMOVE | MREMAP_FIXED, next) ==
        MAP_FAILED) {
      absl::Status error = MmapError("moving", mapping->size());
      const auto moved = static_cast<uint64_t>(next - static_cast<char*>(address));
      if (moved > 0) Reserve(address, moved, MAP_FIXED);
      // The kernel may have unmapped the old range first.
      Reserve(next, mapping->size(), MAP_FIXED_NOREPLACE);
      return error;
    }
    next += mapping->size();
  }
  next = static_cast<char*>(address);
  for (Mapping* mapping : mappings) {
    static_cast<HostMapping*>(mapping)->MoveTo(next, range);
    next += mapping->size();
  }
  return absl::OkStatus();
}

}  // namespace gpumem
