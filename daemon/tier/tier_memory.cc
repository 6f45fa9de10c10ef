// SPDX-License-Identifier: Apache-2.0
#include "daemon/tier/tier_memory.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "common/start_thread.h"

namespace gpumemd {
namespace {

// More threads allocate pages no faster.
constexpr size_t kMostWorkers = 8;
// What one thread works on before it looks for the next piece. Small enough for several threads to
// work on one segment.
constexpr uint64_t kPieceBytes = uint64_t{16} << 20;

// Works on all pieces, in several threads if there are several pieces. Stops at the first error, or
// when `stop` is set, and returns the error.
absl::Status WorkOn(absl::Span<const TierExtent> pieces, const std::atomic<bool>& stop,
                    const std::function<absl::Status(const TierExtent&)>& work) {
  std::atomic<size_t> next = 0;
  absl::Mutex mutex;
  absl::Status failed;  // the first error
  std::atomic<bool> ends = false;
  const auto loop = [&] {
    while (!stop && !ends) {
      const size_t i = next.fetch_add(1);
      if (i >= pieces.size()) return;
      absl::Status done = work(pieces[i]);
      if (done.ok()) continue;
      ends = true;
      absl::MutexLock lock(&mutex);
      failed.Update(done);
    }
  };
  const size_t processors = std::max(2u, std::thread::hardware_concurrency());
  const size_t workers = std::min({pieces.size(), kMostWorkers, processors / 2});
  std::vector<std::thread> others;
  for (size_t i = 1; i < workers; ++i) {
    absl::StatusOr<std::thread> thread = gpumem::StartThread(loop);
    if (!thread.ok()) break;  // fewer do it, too
    others.push_back(*std::move(thread));
  }
  loop();
  for (std::thread& thread : others) thread.join();
  absl::MutexLock lock(&mutex);
  return failed;
}

// Returns the range from the first piece to the last one, which are in the order of their offsets.
TierExtent RangeOf(absl::Span<const TierExtent> pieces) {
  const uint64_t begin = pieces.front().offset;
  return {.offset = begin, .bytes = pieces.back().offset + pieces.back().bytes - begin};
}

}  // namespace

TierMemory::TierMemory(TierPages file, bool inherited, const std::string& root)
    : file_(std::move(file)),
      gate_(root.empty() ? MemoryGate::Shared() : std::make_shared<MemoryGate>(root)),
      extents_(file_.bytes(), kTierGranule),
      granules_(file_.bytes() / kTierGranule) {
  absl::MutexLock lock(&mutex_);
  if (!inherited) return;
  // Equal to no tenant's name.
  SetOwner({{.offset = 0, .bytes = file_.bytes()}}, std::make_shared<const std::string>());
  if (!file_.takes_memory()) return;
  for (const TierExtent& extent : file_.Allocated()) MarkAllocated(extent);
}

uint64_t TierMemory::free_bytes() const {
  absl::MutexLock lock(&mutex_);
  return extents_.free_bytes();
}

uint64_t TierMemory::allocated_bytes() const {
  absl::MutexLock lock(&mutex_);
  return allocated_bytes_;
}

std::optional<std::vector<TierExtent>> TierMemory::Take(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  return extents_.Take(bytes);
}

absl::Status TierMemory::TakeExactly(absl::Span<const TierExtent> extents,
                                     const std::string& tenant) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status taken = extents_.TakeExactly(extents); !taken.ok()) return taken;
  SetOwner(extents, std::make_shared<const std::string>(tenant));
  return absl::OkStatus();
}

void TierMemory::Give(absl::Span<const TierExtent> extents) {
  absl::MutexLock lock(&mutex_);
  extents_.Give(extents);
}

absl::Status TierMemory::Prepare(absl::Span<const TierExtent> extents, const std::string& tenant) {
  std::vector<TierExtent> missing, foreign;
  {
    absl::MutexLock lock(&mutex_);
    missing = PiecesOf(extents, [](const Granule& granule) { return !granule.allocated; });
    foreign = PiecesOf(extents, [&](const Granule& granule) {
      return granule.owner != nullptr && (tenant.empty() || *granule.owner != tenant);
    });
  }
  const std::atomic<bool> never = false;
  if (absl::Status done = Allocate(missing, never); !done.ok()) return done;
  if (!foreign.empty()) {
    const TierPages::Range range(file_, RangeOf(foreign));
    absl::Status done =
        WorkOn(foreign, never, [&](const TierExtent& piece) { return range.Zero(piece); });
    if (!done.ok()) return done;
  }
  absl::MutexLock lock(&mutex_);
  SetOwner(extents, std::make_shared<const std::string>(tenant));
  return absl::OkStatus();
}

void TierMemory::AllocateAhead(const std::atomic<bool>& stop) {
  std::vector<TierExtent> missing;
  {
    absl::MutexLock lock(&mutex_);
    missing = PiecesOf({{.offset = 0, .bytes = file_.bytes()}},
                       [](const Granule& granule) { return !granule.allocated; });
  }
  // Create() tries again, and reports the error.
  Allocate(missing, stop).IgnoreError();
}

std::vector<TierExtent> TierMemory::PiecesOf(
    absl::Span<const TierExtent> extents,
    const std::function<bool(const Granule&)>& matches) const {
  std::vector<TierExtent> pieces;
  for (const TierExtent& extent : extents) {
    bool extends = false;  // the last piece ends where this granule begins
    for (uint64_t at = extent.offset; at < extent.offset + extent.bytes; at += kTierGranule) {
      if (!matches(granules_[at / kTierGranule])) {
        extends = false;
      } else if (extends && pieces.back().bytes < kPieceBytes) {
        pieces.back().bytes += kTierGranule;
      } else {
        pieces.push_back({.offset = at, .bytes = kTierGranule});
        extends = true;
      }
    }
  }
  return pieces;
}

void TierMemory::SetOwner(absl::Span<const TierExtent> extents, const Owner& owner) {
  for (const TierExtent& extent : extents) {
    for (uint64_t at = extent.offset; at < extent.offset + extent.bytes; at += kTierGranule) {
      granules_[at / kTierGranule].owner = owner;
    }
  }
}

void TierMemory::MarkAllocated(const TierExtent& extent) {
  for (uint64_t at = extent.offset; at < extent.offset + extent.bytes; at += kTierGranule) {
    bool& allocated = granules_[at / kTierGranule].allocated;
    if (!std::exchange(allocated, true)) allocated_bytes_ += kTierGranule;
  }
}

absl::Status TierMemory::Allocate(absl::Span<const TierExtent> pieces,
                                  const std::atomic<bool>& stop) {
  if (pieces.empty()) return absl::OkStatus();
  const TierPages::Range range(file_, RangeOf(pieces));
  return WorkOn(pieces, stop, [&](const TierExtent& piece) { return AllocateOne(range, piece); });
}

absl::Status TierMemory::AllocateOne(const TierPages::Range& range, const TierExtent& piece) {
  std::shared_ptr<void> entered;
  if (file_.takes_memory()) {
    absl::StatusOr<std::shared_ptr<void>> admitted = gate_->Enter(piece.bytes);
    if (!admitted.ok()) return admitted.status();
    entered = *std::move(admitted);
  }
  if (absl::Status allocated = range.Allocate(piece); !allocated.ok()) return allocated;
  absl::MutexLock lock(&mutex_);
  MarkAllocated(piece);
  return absl::OkStatus();
}

}  // namespace gpumemd
