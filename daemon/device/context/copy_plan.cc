// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/copy_plan.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

// An item, resolved.
struct Wanted {
  CopyDirection direction = CopyDirection::kOut;
  const TierPlace* place = nullptr;
  int fd = -1;
  uint64_t bytes = 0;
};

absl::StatusOr<Wanted> Resolve(const CopyItem& item) {
  const auto wrong = [&item](absl::string_view what) {
    return absl::InternalError(absl::StrCat("cannot copy ", item.bytes, " bytes: ", what));
  };
  if (item.from == nullptr || item.to == nullptr) return wrong("a segment is absent");
  const TierPlace* const from = item.from->tier_place();
  const TierPlace* const to = item.to->tier_place();
  if ((from == nullptr) == (to == nullptr)) return wrong("one of two segments is of kind tier");
  Wanted wanted{.direction = to != nullptr ? CopyDirection::kOut : CopyDirection::kIn,
                .place = to != nullptr ? to : from,
                .fd = to != nullptr ? item.from->fd() : item.to->fd(),
                .bytes = item.bytes};
  if (wanted.fd < 0) return wrong("the device's segment has no descriptor");
  uint64_t in_tier = 0;
  for (const TierExtent& extent : wanted.place->extents) in_tier += extent.bytes;
  if (in_tier != item.bytes) return wrong(absl::StrCat("in the tier it has ", in_tier));
  return wanted;
}

class Planner {
 public:
  explicit Planner(const CopyLimits& limits) : limits_(limits) {}

  void Add(const Wanted& wanted) {
    // Batches are kept apart by whatever they have in common.
    if (!batches_.empty() && (batches_.back().direction != wanted.direction ||
                              batches_.back().tier_fd != wanted.place->fd)) {
      full_ = true;
    }
    if (bytes_ + wanted.bytes > limits_.bytes ||
        extents_ + wanted.place->extents.size() > limits_.extents) {
      full_ = true;
    }
    uint64_t offset = 0;
    CopyPart* part = nullptr;  // of this item, in the last batch
    for (TierExtent extent : wanted.place->extents) {
      while (extent.bytes > 0) {
        if (IsFull(part == nullptr)) {
          Begin(wanted);
          part = nullptr;
        }
        CopyBatch& batch = batches_.back();
        if (part == nullptr) {
          part = &batch.parts.emplace_back(
              CopyPart{.fd = wanted.fd, .segment_bytes = wanted.bytes, .offset = offset});
        }
        const uint64_t bytes = std::min(extent.bytes, limits_.bytes - bytes_);
        part->extents.push_back({.offset = extent.offset, .bytes = bytes});
        extent.offset += bytes;
        extent.bytes -= bytes;
        offset += bytes;
        bytes_ += bytes;
        ++extents_;
      }
    }
  }

  std::vector<CopyBatch> Take() && { return std::move(batches_); }

 private:
  bool IsFull(bool new_part) const {
    return full_ || batches_.empty() || bytes_ >= limits_.bytes || extents_ >= limits_.extents ||
           (new_part && batches_.back().parts.size() >= limits_.parts);
  }
  void Begin(const Wanted& wanted) {
    batches_.push_back({.direction = wanted.direction, .tier_fd = wanted.place->fd});
    bytes_ = 0;
    extents_ = 0;
    full_ = false;
  }

  const CopyLimits limits_;
  std::vector<CopyBatch> batches_;
  uint64_t bytes_ = 0;  // of the last batch
  size_t extents_ = 0;  // likewise
  bool full_ = false;   // the last batch takes no further item
};

}  // namespace

absl::StatusOr<std::vector<CopyBatch>> PlanCopy(absl::Span<const CopyItem> items,
                                                const CopyLimits& limits) {
  Planner planner(limits);
  for (const CopyItem& item : items) {
    const absl::StatusOr<Wanted> wanted = Resolve(item);
    if (!wanted.ok()) return wanted.status();
    planner.Add(*wanted);
  }
  return std::move(planner).Take();
}

}  // namespace gpumemd
