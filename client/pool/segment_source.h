// SPDX-License-Identifier: Apache-2.0
// The source of the pool's memory: segments of one device and kind.
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
#include "gpumem/suspend.h"

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

  // The granularity of sizes.
  virtual uint64_t granularity() const = 0;
  // True if Acquire and Move can place a range at a requested address, and adjacent ranges can be
  // used as one.
  virtual bool places() const = 0;

  // Acquires `count` segments of `bytes` each, all or none, adjacent if it places them. `at`: the
  // address of the first; 0: any. `bytes` is a multiple of the granularity. `wish`: the caller can
  // do with less, so no session is asked to give memory back (Pressure).
  //   FAILED_PRECONDITION  that address is taken
  //   RESOURCE_EXHAUSTED   a quota or the device denies it
  //   UNAVAILABLE          the daemon is gone
  virtual absl::StatusOr<std::vector<Range>> Acquire(uint64_t bytes, uint64_t count, uintptr_t at,
                                                     bool wish) = 0;
  // Acquires one segment, and waits for it in the daemon's queue. Other threads may call meanwhile.
  //   RESOURCE_EXHAUSTED  also after the wait, and at once if waiting is useless
  //   CANCELLED           as `disturbance` says
  //   and as Acquire
  virtual absl::StatusOr<Range> AcquireWaiting(uint64_t bytes, uintptr_t at, absl::Duration wait,
                                               const Disturbance& disturbance) = 0;
  virtual absl::Status Release(uint64_t id) = 0;
  // Requires places(). Moves the segments with their contents to adjacent addresses from `at` on;
  // all, or none after any error. They must be unused meanwhile. Does not call the daemon.
  //   FAILED_PRECONDITION  those addresses are taken
  //   any other            the driver's refusal
  virtual absl::Status Move(absl::Span<const uint64_t> ids, uintptr_t at) = 0;

  // Suspends the segments, and brings them back, all or none: Client::Suspend and Resume. Meanwhile
  // none of them may be released, moved or shared.
  virtual absl::Status Suspend(absl::Span<const uint64_t> ids, const SuspendOptions& options) = 0;
  // Leaves out those that are not suspended.
  virtual absl::Status Resume(absl::Span<const uint64_t> ids, const ResumeOptions& options) = 0;
  // True if any of the segments is suspended: after a Suspend() that could not be undone.
  virtual bool AnySuspended(absl::Span<const uint64_t> ids) const = 0;

  // Returns the bytes that the tenant can still get on the device, and may have in all.
  virtual absl::StatusOr<std::pair<uint64_t, uint64_t>> Room() = 0;
  // Returns a ticket for the segment, for sessions of the same tenant.
  virtual absl::StatusOr<std::string> Share(uint64_t id) = 0;

 protected:
  SegmentSource() = default;
};

}  // namespace gpumem::internal
