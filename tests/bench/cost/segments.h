// SPDX-License-Identifier: Apache-2.0
// A source of segments for a pool that are mere addresses. It adds up what the calls to the daemon
// and to the driver would cost on a GPU.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/pool/segment_source.h"
#include "client/session/interrupt.h"
#include "gpumem/suspend.h"

namespace gpumem::bench {

// Thread-safe.
class CostSegments : public internal::SegmentSource {
 public:
  static constexpr uint64_t kGranule = uint64_t{2} << 20;

  // Microseconds. The first two fit the first replays of the traces, the others are calls of the
  // driver; all on an H200 with driver 580. That several mappings cost one unmapping is assumed.
  static constexpr double kTrip = 170;   // a call to the daemon, and its message on the socket
  static constexpr double kLease = 138;  // a segment of it: made, exported, imported and mapped
  static constexpr double kMap = 3;      // a segment mapped once more
  static constexpr double kUnmap = 30, kUnmapGiB = 10;    // adjoining segments unmapped
  static constexpr double kAccess = 27, kAccessGiB = 33;  // access to all that a call maps

  struct Cost {
    uint64_t acquires = 0, segments = 0;  // calls to the daemon, and what they leased
    uint64_t moves = 0, moved = 0;        // calls of Move, and their segments
    uint64_t unmaps = 0;                  // of adjacent ranges
    uint64_t releases = 0;
    double us = 0;
  };
  Cost cost() const {
    absl::MutexLock lock(&mutex_);
    return cost_;
  }

  uint64_t granularity() const override { return kGranule; }
  bool places() const override { return true; }

  absl::StatusOr<std::vector<Range>> Acquire(uint64_t bytes, uint64_t count, uintptr_t at,
                                             bool) override {
    absl::MutexLock lock(&mutex_);
    if (at == 0) {
      at = FirstGap(bytes * count);
    } else if (!IsFree(at, bytes * count)) {
      return absl::FailedPreconditionError("the address is taken");
    }
    ++cost_.acquires;
    cost_.segments += count;
    cost_.us += kTrip + Access(bytes * count) + static_cast<double>(count) * kLease;
    std::vector<Range> ranges;
    for (uint64_t i = 0; i < count; ++i, at += bytes) {
      ranges.push_back({.id = ++last_id_, .at = at, .bytes = bytes});
      leased_[last_id_] = {at, bytes};
      taken_[at] = bytes;
    }
    return ranges;
  }
  absl::StatusOr<Range> AcquireWaiting(uint64_t, uintptr_t, absl::Duration,
                                       const internal::Disturbance&) override {
    return absl::ResourceExhaustedError("");
  }
  absl::Status Release(uint64_t id) override {
    absl::MutexLock lock(&mutex_);
    ++cost_.releases;
    cost_.us += kUnmap;
    taken_.erase(leased_.at(id).first);
    leased_.erase(id);
    return absl::OkStatus();
  }
  absl::Status Move(absl::Span<const uint64_t> ids, uintptr_t at) override {
    absl::MutexLock lock(&mutex_);
    uint64_t bytes = 0;
    for (const uint64_t id : ids) bytes += leased_.at(id).second;
    if (!IsFree(at, bytes)) return absl::FailedPreconditionError("the address is taken");
    ++cost_.moves;
    cost_.moved += ids.size();
    cost_.us += Access(bytes) + static_cast<double>(ids.size()) * kMap +
                kUnmapGiB * static_cast<double>(bytes) / static_cast<double>(1 << 30);
    uintptr_t end = 0;
    for (const uint64_t id : ids) {
      const auto& [from, size] = leased_.at(id);
      if (from != end) {
        ++cost_.unmaps;
        cost_.us += kUnmap;
      }
      end = from + size;
    }
    for (const uint64_t id : ids) {
      auto& [from, size] = leased_.at(id);
      taken_.erase(from);
      taken_[at] = size;
      from = at;
      at += size;
    }
    return absl::OkStatus();
  }
  absl::Status Suspend(absl::Span<const uint64_t>, const SuspendOptions&) override {
    return absl::OkStatus();
  }
  absl::Status Resume(absl::Span<const uint64_t>, const ResumeOptions&) override {
    return absl::OkStatus();
  }
  bool AnySuspended(absl::Span<const uint64_t>) const override { return false; }
  absl::StatusOr<std::pair<uint64_t, uint64_t>> Room() override {
    return std::pair(uint64_t{1} << 40, uint64_t{1} << 40);
  }
  absl::StatusOr<std::string> Share(uint64_t) override { return std::string(); }

 private:
  static double GiB(uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(uint64_t{1} << 30);
  }
  static double Access(uint64_t bytes) { return kAccess + kAccessGiB * GiB(bytes); }
  bool IsFree(uintptr_t at, uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto next = taken_.lower_bound(at + bytes);
    return next == taken_.begin() || std::prev(next)->first + std::prev(next)->second <= at;
  }
  uintptr_t FirstGap(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    uintptr_t at = uintptr_t{1} << 40;
    for (const auto& [begin, size] : taken_) {
      if (begin - at >= bytes) break;
      at = begin + size;
    }
    return at;
  }

  mutable absl::Mutex mutex_;
  std::map<uintptr_t, uint64_t> taken_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::pair<uintptr_t, uint64_t>> leased_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  Cost cost_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::bench
