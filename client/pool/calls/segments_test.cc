// SPDX-License-Identifier: Apache-2.0
// Where a pool's segments are placed. The test answers in place of the client.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/pool/client_segments.h"
#include "client/testing/fake_daemon.h"
#include "common/bytes.h"
#include "common/mapping/mapping.h"
#include "gpumem/client.h"
#include "gpumem/suspend.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace segments_test {

using absl::StatusCode;

class ClientSegmentsTest : public testing::Test {
 protected:
  void Make(Kind kind = Kind::kVmm, Backend backend = Backend::kHost) {
    const DeviceInfo device{.uuid = "HOST-0",
                            .backend = backend,
                            .capacity_bytes = 16 * kMiB,
                            .granularity_bytes = 4096,
                            .pool_granularity_bytes = pool_granularity_};
    segments_ = MakeClientSegments(
        /*client=*/nullptr,
        [this](std::shared_ptr<const AddressRange> range, const AcquireOptions& options, int count,
               const Disturbance&) -> absl::StatusOr<std::vector<Segment>> {
          asked_.push_back(reinterpret_cast<uintptr_t>(options.address));
          range_ = std::move(range);
          counts_.push_back(count);
          if (meanwhile_) std::exchange(meanwhile_, nullptr)();
          if (!granted_.empty()) return std::exchange(granted_, {});
          return absl::ResourceExhaustedError("full");
        },
        [this](absl::Span<Segment* const>, const std::shared_ptr<const AddressRange>&, void*) {
          return moved_;
        },
        device, kind, /*revocable=*/false, {});
  }
  StatusCode Acquire(uint64_t bytes, uintptr_t at = 0, uint64_t count = 1) {
    return segments_->Acquire(bytes, count, at, /*wish=*/false).status().code();
  }

  uint64_t pool_granularity_ = 0;
  std::vector<uintptr_t> asked_;  // addresses
  std::vector<int> counts_;
  std::shared_ptr<const AddressRange> range_;
  std::function<void()> meanwhile_;
  absl::Status moved_;
  std::vector<Segment> granted_;
  std::unique_ptr<SegmentSource> segments_;
};

TEST_F(ClientSegmentsTest, GranularityIsThatOfTheKind) {
  Make();
  EXPECT_TRUE(segments_->places());
  EXPECT_EQ(segments_->granularity(), 2 * kMiB) << "addresses are multiples of it";
  Make(Kind::kIpc);
  EXPECT_FALSE(segments_->places());
  EXPECT_EQ(segments_->granularity(), 4096u);
  Make(Kind::kMempool);
  EXPECT_EQ(segments_->granularity(), 4096u);
  pool_granularity_ = 32 * kMiB;
  Make(Kind::kMempool);
  EXPECT_EQ(segments_->granularity(), 32 * kMiB);
}

TEST_F(ClientSegmentsTest, SegmentsGoToTheFirstGapOfTheRange) {
  Make();
  // While one is being leased, its addresses are taken.
  meanwhile_ = [this] {
    meanwhile_ = [this] {
      EXPECT_EQ(Acquire(2 * kMiB, asked_[0]), StatusCode::kFailedPrecondition);
      EXPECT_EQ(Acquire(2 * kMiB, asked_[0] + 2 * kMiB), StatusCode::kFailedPrecondition);
      EXPECT_EQ(Acquire(8 * kMiB, asked_[1] + 2 * kMiB), StatusCode::kResourceExhausted);
    };
    EXPECT_EQ(Acquire(2 * kMiB), StatusCode::kResourceExhausted);
  };
  EXPECT_EQ(Acquire(2 * kMiB, 0, /*count=*/2), StatusCode::kResourceExhausted);
  ASSERT_EQ(asked_.size(), 3u);
  EXPECT_EQ(asked_[0], range_->base());
  EXPECT_EQ(asked_[1], range_->base() + 4 * kMiB) << "behind both of the first";
  EXPECT_EQ(counts_[0], 2);
  // None of them was leased.
  EXPECT_EQ(Acquire(2 * kMiB), StatusCode::kResourceExhausted);
  EXPECT_EQ(asked_.back(), range_->base());
}

TEST_F(ClientSegmentsTest, AGapBeforeOthersIsUsedIfItIsLargeEnough) {
  Make();
  Acquire(2 * kMiB);
  const uintptr_t base = range_->base();
  meanwhile_ = [&] {
    EXPECT_EQ(Acquire(4 * kMiB), StatusCode::kResourceExhausted);
    EXPECT_EQ(asked_.back(), base);
    EXPECT_EQ(Acquire(6 * kMiB), StatusCode::kResourceExhausted);
    EXPECT_EQ(asked_.back(), base + 6 * kMiB) << "the gap is too small";
  };
  EXPECT_EQ(Acquire(2 * kMiB, base + 4 * kMiB), StatusCode::kResourceExhausted);
}

TEST_F(ClientSegmentsTest, AddressesOutsideTheRangeAreRefused) {
  Make();
  Acquire(2 * kMiB);
  const uintptr_t base = range_->base(), end = base + range_->bytes();
  EXPECT_EQ(Acquire(2 * kMiB, base - 2 * kMiB), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Acquire(2 * kMiB, end + 2 * kMiB), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Acquire(4 * kMiB, end - 2 * kMiB), StatusCode::kFailedPrecondition);
  EXPECT_EQ(asked_.size(), 1u) << "the daemon is not asked";
  // What fits nowhere in the range may still go to another address.
  EXPECT_EQ(Acquire(end - base + 2 * kMiB), StatusCode::kResourceExhausted);
  EXPECT_EQ(asked_.back(), 0u);
  EXPECT_EQ(range_, nullptr);
}

TEST_F(ClientSegmentsTest, WithoutARangeTheAddressIsAny) {
  // This process has no CUDA driver, or none with such a device.
  Make(Kind::kVmm, Backend::kCuda);
  Acquire(2 * kMiB);
  if (range_ != nullptr) GTEST_SKIP() << "there is a CUDA driver";
  EXPECT_EQ(asked_.back(), 0u);
  EXPECT_EQ(Acquire(2 * kMiB, 2 * kMiB), StatusCode::kFailedPrecondition);
  EXPECT_EQ(segments_->Move({}, 2 * kMiB).code(), StatusCode::kFailedPrecondition);
  Make(Kind::kIpc);
  EXPECT_EQ(Acquire(4096), StatusCode::kResourceExhausted);
  EXPECT_EQ(Acquire(4096, 2 * kMiB), StatusCode::kFailedPrecondition);
}

TEST_F(ClientSegmentsTest, MovesStayInTheRange) {
  Make();
  Acquire(2 * kMiB);
  EXPECT_EQ(segments_->Move({}, range_->base()), absl::OkStatus());
  moved_ = absl::InternalError("the driver refuses");
  EXPECT_EQ(segments_->Move({}, range_->base()), moved_);
  EXPECT_EQ(segments_->Move({}, range_->base() - 2 * kMiB).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(segments_->Resume({}, {}), absl::OkStatus()) << "nothing is suspended";
}

TEST_F(ClientSegmentsTest, AMoveTakesItsAddressesUnlessItIsRefused) {
  FakeDaemon daemon;
  const auto client = Client::Connect({.runtime_dir = daemon.runtime_dir()}).value();
  Make();
  granted_ = client->AcquireMany({.bytes = 2 * kMiB, .kind = Kind::kVmm}, 2).value();
  const auto leased = segments_->Acquire(2 * kMiB, 2, /*at=*/0, /*wish=*/false);
  ASSERT_TRUE(leased.ok()) << leased.status();
  const std::vector<uint64_t> ids = {(*leased)[0].id, (*leased)[1].id};
  const uintptr_t to = range_->base() + 4 * kMiB;
  moved_ = absl::InternalError("the driver refuses");
  EXPECT_EQ(segments_->Move(ids, to), moved_);
  for (const uintptr_t at : {to, to + 2 * kMiB}) {
    EXPECT_EQ(Acquire(2 * kMiB, at), StatusCode::kResourceExhausted) << "the client is asked";
  }
  moved_ = absl::OkStatus();
  EXPECT_EQ(segments_->Move(ids, to), absl::OkStatus());
  for (const uintptr_t at : {to, to + 2 * kMiB}) {
    EXPECT_EQ(Acquire(2 * kMiB, at), StatusCode::kFailedPrecondition) << "a segment is there";
  }
  segments_.reset();
}

}  // namespace segments_test
}  // namespace gpumem::internal
