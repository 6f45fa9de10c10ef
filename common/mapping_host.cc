#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/mapping.h"

namespace gpumem {
namespace {

class HostMapping : public Mapping {
 public:
  HostMapping(void* data, uint64_t size) : Mapping(data, size) {}
  ~HostMapping() override { munmap(data(), size()); }
};

// OK where `request` names a whole file of shared memory. A mapping beyond the end of
// a file would be granted, and kill the process when used.
absl::Status CheckRequest(const MapRequest& request) {
  struct stat file = {};
  if (fstat(request.fd, &file) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", request.fd, " cannot be mapped: it is not open"));
  }
  if (request.bytes == 0 || static_cast<uint64_t>(file.st_size) != request.bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptor ", request.fd, " cannot be mapped: it holds ", file.st_size,
                     " bytes, not ", request.bytes, "; only the whole of it can be mapped"));
  }
  return absl::OkStatus();
}

absl::Status MmapError(const char* what, uint64_t bytes) {
  const int error = errno;
  const std::string message = absl::StrCat(what, " ", bytes, " bytes of shared memory");
  // mmap(2) says ENOMEM, EAGAIN or ENFILE when something is used up.
  if (error == ENOMEM || error == EAGAIN || error == ENFILE) {
    return absl::ResourceExhaustedError(
        absl::StrCat(absl::ErrnoToStatus(error, message).message(),
                     "; check this process's memory limits and vm.max_map_count"));
  }
  return absl::InvalidArgumentError(absl::ErrnoToStatus(error, message).message());
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Mapping>>> MapHost(absl::Span<const MapRequest> requests,
                                                              bool read_only) {
  if (requests.empty()) return absl::InvalidArgumentError("nothing to map: no descriptors");
  uint64_t total = 0;
  for (const MapRequest& request : requests) {
    if (absl::Status status = CheckRequest(request); !status.ok()) return status;
    if (request.bytes > std::numeric_limits<size_t>::max() - total) {
      return absl::ResourceExhaustedError("the memory to map exceeds the range of addresses");
    }
    total += request.bytes;
  }

  void* const range =
      mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return MmapError("reserving addresses for", total);

  // From here every part of the range has an owner that unmaps it, filled or not.
  std::vector<std::unique_ptr<Mapping>> mappings;
  mappings.reserve(requests.size());
  char* next = static_cast<char*>(range);
  for (const MapRequest& request : requests) {
    mappings.push_back(std::make_unique<HostMapping>(next, request.bytes));
    next += request.bytes;
  }
  const int protection = read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (mmap(mappings[i]->data(), requests[i].bytes, protection, MAP_SHARED | MAP_FIXED,
             requests[i].fd, 0) == MAP_FAILED) {
      return MmapError("mapping", requests[i].bytes);
    }
  }
  return mappings;
}

}  // namespace gpumem
