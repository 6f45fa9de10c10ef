// Maps shared memory, given as file descriptors, into this process.
//
// Thread-safe. Sizes are bytes. Knows no daemon and no lease: whoever maps memory
// makes sure that it may.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gpumem {

// One allocation, mapped. Its end unmaps it, in any thread; the caller makes sure
// that nothing uses the memory by then, GPU work included.
class Mapping {
 public:
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  virtual ~Mapping() = default;

  // Where it starts: an ordinary pointer (MapHost) or a device pointer (MapCuda).
  void* data() const { return data_; }
  uint64_t size() const { return size_; }

 protected:
  Mapping(void* data, uint64_t size) : data_(data), size_(size) {}

 private:
  void* data_;
  uint64_t size_;
};

struct MapRequest {
  int fd = -1;         // borrowed: may be closed as soon as the call returns
  uint64_t bytes = 0;  // the whole allocation; a part cannot be mapped
};

// Both map every request, all or none, one after another without a gap in one range
// of addresses, and answer one Mapping per request, in order. The Mappings are
// independent of each other: each unmaps its own part, and the last one gives the
// range of addresses back.
//
// With `read_only` a write faults. That guards against mistakes; it is no security
// boundary, since whoever has the descriptor chooses.
//
// Statuses of both:
//   INVALID_ARGUMENT    no requests, or a descriptor is no shared memory of that size
//   RESOURCE_EXHAUSTED  out of addresses or memory
//   INTERNAL            any other error, by its name

// Maps memfds.
absl::StatusOr<std::vector<std::unique_ptr<Mapping>>> MapHost(absl::Span<const MapRequest> requests,
                                                              bool read_only);

// Maps exported driver allocations for use by one device. Needs no CUDA context and
// makes none.
//   UNAVAILABLE    this process has no usable CUDA driver; the sentence says why
//   NOT_FOUND      this process does not see the device (CUDA_VISIBLE_DEVICES)
//   UNIMPLEMENTED  the driver cannot map such memory
absl::StatusOr<std::vector<std::unique_ptr<Mapping>>> MapCuda(const std::string& device_uuid,
                                                              absl::Span<const MapRequest> requests,
                                                              bool read_only);

}  // namespace gpumem
