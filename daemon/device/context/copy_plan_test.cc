// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/copy_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/bytes.h"
#include "daemon/device/testing/tier_memory.h"

namespace gpumemd {
namespace {

using gpumem::kMiB;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// A segment that is only a number.
class NumberedSegment : public Allocation {
 public:
  explicit NumberedSegment(int fd) : fd_(fd) {}
  int fd() const override { return fd_; }

 private:
  const int fd_;
};

class CopyPlanTest : public testing::Test {
 protected:
  CopyPlanTest() : tier_(*TierMemory::Make(64 * kMiB)) {}

  // Adds a segment with descriptor `fd`, whose contents are at `extents` in the tier.
  void Add(CopyDirection direction, int fd, std::vector<TierExtent> extents) {
    uint64_t bytes = 0;
    for (const TierExtent& extent : extents) bytes += extent.bytes;
    held_.push_back(std::make_unique<NumberedSegment>(fd));
    const Allocation* const segment = held_.back().get();
    held_.push_back(tier_->Place(std::move(extents)));
    const Allocation* const in_tier = held_.back().get();
    items_.push_back(direction == CopyDirection::kOut
                         ? CopyItem{.from = segment, .to = in_tier, .bytes = bytes}
                         : CopyItem{.from = in_tier, .to = segment, .bytes = bytes});
  }

  std::unique_ptr<TierMemory> tier_;
  std::vector<std::unique_ptr<Allocation>> held_;
  std::vector<CopyItem> items_;
};

TEST_F(CopyPlanTest, NothingIsNoBatch) { EXPECT_THAT(*PlanCopy({}), IsEmpty()); }

TEST_F(CopyPlanTest, SegmentsShareABatch) {
  Add(CopyDirection::kOut, 11, {{.offset = 4 * kMiB, .bytes = 2 * kMiB}});
  Add(CopyDirection::kOut, 12,
      {{.offset = 0, .bytes = 2 * kMiB}, {.offset = 8 * kMiB, .bytes = 4 * kMiB}});
  const std::vector<CopyBatch> batches = *PlanCopy(items_);
  ASSERT_THAT(batches, SizeIs(1));
  EXPECT_EQ(batches[0].direction, CopyDirection::kOut);
  EXPECT_EQ(batches[0].tier_fd, tier_->fd());
  ASSERT_THAT(batches[0].parts, SizeIs(2));
  EXPECT_EQ(batches[0].parts[0].fd, 11);
  EXPECT_EQ(batches[0].parts[1].fd, 12);
  EXPECT_EQ(batches[0].parts[1].segment_bytes, 6 * kMiB);
  EXPECT_EQ(batches[0].parts[1].offset, 0u);
  EXPECT_THAT(batches[0].parts[1].extents,
              ElementsAre(TierExtent{.offset = 0, .bytes = 2 * kMiB},
                          TierExtent{.offset = 8 * kMiB, .bytes = 4 * kMiB}));
}

TEST_F(CopyPlanTest, DirectionsAreApart) {
  Add(CopyDirection::kOut, 11, {{.offset = 0, .bytes = 2 * kMiB}});
  Add(CopyDirection::kIn, 12, {{.offset = 2 * kMiB, .bytes = 2 * kMiB}});
  const std::vector<CopyBatch> batches = *PlanCopy(items_);
  ASSERT_THAT(batches, SizeIs(2));
  EXPECT_EQ(batches[0].direction, CopyDirection::kOut);
  EXPECT_EQ(batches[1].direction, CopyDirection::kIn);
  EXPECT_EQ(batches[1].parts.at(0).fd, 12);
}

TEST_F(CopyPlanTest, ASegmentThatFitsIntoABatchIsNotDivided) {
  for (int i = 0; i < 3; ++i) {
    Add(CopyDirection::kOut, i, {{.offset = 0, .bytes = 6 * kMiB}});
  }
  const std::vector<CopyBatch> batches = *PlanCopy(items_, {.bytes = 8 * kMiB});
  ASSERT_THAT(batches, SizeIs(3));
  for (const CopyBatch& batch : batches) {
    ASSERT_THAT(batch.parts, SizeIs(1));
    EXPECT_THAT(batch.parts[0].extents, SizeIs(1));
  }
}

TEST_F(CopyPlanTest, EveryByteIsCopiedOnceWithinTheLimits) {
  const CopyLimits limits = {.parts = 3, .bytes = 8 * kMiB, .extents = 5};
  uint64_t state = 1;
  const auto draw = [&state](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  for (int fd = 0; fd < 200; ++fd) {
    std::vector<TierExtent> extents;
    const uint64_t count = draw(5) == 0 ? 12 : 1 + draw(3);
    for (uint64_t i = 0; i < count; ++i) {
      extents.push_back({.offset = draw(32) * kMiB, .bytes = (1 + draw(10)) * kMiB});
    }
    Add(draw(2) == 0 ? CopyDirection::kOut : CopyDirection::kIn, fd, std::move(extents));
  }
  const std::vector<CopyBatch> batches = *PlanCopy(items_, limits);
  // By descriptor: where the bytes lie in the tier, granule by granule.
  std::vector<std::vector<uint64_t>> planned(items_.size()), wanted(items_.size());
  const auto spread = [](absl::Span<const TierExtent> extents, std::vector<uint64_t>& to) {
    for (const TierExtent& extent : extents) {
      for (uint64_t at = 0; at < extent.bytes; at += kMiB) to.push_back(extent.offset + at);
    }
  };
  for (const CopyBatch& batch : batches) {
    uint64_t bytes = 0;
    size_t extents = 0;
    EXPECT_LE(batch.parts.size(), limits.parts);
    for (const CopyPart& part : batch.parts) {
      const bool out = items_[part.fd].to->tier_place() != nullptr;
      EXPECT_EQ(batch.direction, out ? CopyDirection::kOut : CopyDirection::kIn);
      EXPECT_EQ(part.segment_bytes, items_[part.fd].bytes);
      EXPECT_EQ(part.offset, planned[part.fd].size() * kMiB);
      spread(part.extents, planned[part.fd]);
      extents += part.extents.size();
      for (const TierExtent& extent : part.extents) bytes += extent.bytes;
    }
    EXPECT_GT(bytes, 0u);
    EXPECT_LE(bytes, limits.bytes);
    EXPECT_LE(extents, limits.extents);
  }
  for (size_t i = 0; i < items_.size(); ++i) {
    const TierPlace* place = items_[i].to->tier_place();
    if (place == nullptr) place = items_[i].from->tier_place();
    spread(place->extents, wanted[i]);
  }
  EXPECT_EQ(planned, wanted);
}

TEST_F(CopyPlanTest, RefusesWhatIsNoCopy) {
  Add(CopyDirection::kOut, 11, {{.offset = 0, .bytes = 2 * kMiB}});
  CopyItem wrong = items_[0];
  wrong.bytes = 4 * kMiB;
  EXPECT_EQ(PlanCopy({wrong}).status().code(), absl::StatusCode::kInternal);
  wrong = items_[0];
  wrong.to = wrong.from;
  EXPECT_EQ(PlanCopy({wrong}).status().code(), absl::StatusCode::kInternal);
  wrong = items_[0];
  wrong.from = wrong.to;
  EXPECT_EQ(PlanCopy({wrong}).status().code(), absl::StatusCode::kInternal);
  wrong = items_[0];
  wrong.from = nullptr;
  EXPECT_EQ(PlanCopy({wrong}).status().code(), absl::StatusCode::kInternal);
  items_.clear();
  Add(CopyDirection::kIn, -1, {{.offset = 0, .bytes = 2 * kMiB}});
  EXPECT_EQ(PlanCopy(items_).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace gpumemd
