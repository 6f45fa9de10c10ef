// Where the pool's memory comes from and goes back to: segments of one device and kind.
//
// Thread-safe. Calls may take as long as the daemon and the driver take.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/session/interrupt.h"

namespace gpumem::internal {

class SegmentSource {
 public:
  struct Range {
    uint64_t id = 0;  // for Release
    uintptr_t at = 0;
    uint64_t bytes = 0;
  };

  SegmentSource(const SegmentSource&) = delete;
  SegmentSource& operator=(const SegmentSource&) = delete;
  virtual ~SegmentSource() = default;

  // What sizes are multiples of.
  virtual uint64_t granularity() const = 0;
  // Whether Acquire and Move can put a range where it is wished, and two that touch can be used as
  // one.
  virtual bool places() const = 0;

  // `count` segments of `bytes` each, one behind the other where it places them; all or none.
  // `at`: where the first is to begin; 0: anywhere. `bytes` is a multiple of the granularity.
  //   FAILED_PRECONDITION  that address is taken
  //   RESOURCE_EXHAUSTED   a quota or the device stands in the way
  //   UNAVAILABLE          the daemon is gone
  // `wish`: it would do with less, so nobody is asked to give memory back for it (Pressure).
  virtual absl::StatusOr<std::vector<Range>> Acquire(uint64_t bytes, uint64_t count, uintptr_t at,
                                                     bool wish) = 0;
  // One of so many bytes, for which it waits in the daemon's queue. Others may call meanwhile.
  //   RESOURCE_EXHAUSTED  also after the wait, and at once where waiting is of no use
  //   CANCELLED           as the disturbance says
  //   and as Acquire
  virtual absl::StatusOr<Range> AcquireWaiting(uint64_t bytes, uintptr_t at, absl::Duration wait,
                                               const Disturbance& disturbance) = 0;
  virtual absl::Status Release(uint64_t id) = 0;
  // Where it places them: the segments come to lie one behind the other from `at` on, each with all
  // that is in it; all, or none, whatever goes wrong. Nobody uses them meanwhile. The daemon is not
  // asked.
  //   FAILED_PRECONDITION  those addresses are taken
  //   any other            the driver's refusal
  virtual absl::Status Move(absl::Span<const uint64_t> ids, uintptr_t at) = 0;

  // Bytes that the tenant can still get on the device, and may have in all.
  virtual absl::StatusOr<std::pair<uint64_t, uint64_t>> Room() = 0;
  // A ticket for the segment, for sessions of the same tenant.
  virtual absl::StatusOr<std::string> Share(uint64_t id) = 0;

 protected:
  SegmentSource() = default;
};

}  // namespace gpumem::internal
