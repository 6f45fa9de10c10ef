// SPDX-License-Identifier: Apache-2.0
// Contents of GPU memory that go to the host tier and come back.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/bytes.h"
#include "common/cuda/device_copy.h"
#include "common/cuda/driver.h"
#include "common/mapping/mapping.h"
#include "daemon/device/devices.h"
#include "daemon/device/testing/tier_memory.h"
#include "tests/support/expect_status.h"
#include "tests/support/pattern.h"

namespace gpumem {
namespace tier_copy_test {

using gpumemd::Allocation;
using gpumemd::CopyItem;
using gpumemd::TierExtent;
using gpumemd::TierMemory;

class TierCopy : public ::testing::Test {
 protected:
  void SetUp() override {
#if GPUMEM_WITH_CUDA
    const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
    if (!driver.ok()) GTEST_SKIP() << driver.status();
    uuid_ = (*driver)->devices().front().uuid;
#else
    GTEST_SKIP() << "built without CUDA";
#endif
    auto device = gpumemd::OpenCudaDevice(uuid_);
    ASSERT_OK(device);
    device_ = *std::move(device);
    // The contents are written and read in one context, not in one for each segment.
    auto context = DeviceCopier::ForCuda(uuid_);
    ASSERT_OK(context);
    context_ = *std::move(context);
  }

  std::unique_ptr<Allocation> Segment(uint64_t bytes) {
    auto made = device_->Create({.kind = gpumemd::Kind::kVmm, .bytes = bytes});
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }

  // Applies Fill or Check to a segment.
  template <typename Work>
  absl::Status WithMapped(const Allocation& segment, uint64_t bytes, Work work) {
    const MapRequest request{.fd = segment.fd(), .bytes = bytes};
    auto mappings = MapCuda({request}, {.device_uuids = {uuid_}});
    if (!mappings.ok()) return mappings.status();
    return work(testing::Memory{.backend = Backend::kCuda,
                                .device_uuid = uuid_,
                                .data = mappings->front()->data(),
                                .size = bytes});
  }
  absl::Status Fill(const Allocation& segment, uint64_t bytes, uint64_t seed) {
    return WithMapped(segment, bytes, [seed](const testing::Memory& memory) {
      return testing::Fill(memory, seed);
    });
  }
  absl::Status Check(const Allocation& segment, uint64_t bytes, uint64_t seed) {
    return WithMapped(segment, bytes, [seed](const testing::Memory& memory) {
      return testing::Check(memory, seed);
    });
  }

  std::string uuid_;
  std::unique_ptr<gpumemd::Device> device_;
  std::unique_ptr<DeviceCopier> context_;
};

// Segments, their contents by number, and their places.
struct Suspended {
  std::vector<uint64_t> sizes;
  std::vector<std::unique_ptr<Allocation>> segments, places;

  std::vector<CopyItem> Items(bool out) const {
    std::vector<CopyItem> items;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Allocation* const segment = segments[i].get();
      const Allocation* const place = places[i].get();
      items.push_back(
          {.from = out ? segment : place, .to = out ? place : segment, .bytes = sizes[i]});
    }
    return items;
  }
};

// One larger than a batch, one that crosses windows of the tier, many small ones.
std::vector<uint64_t> MixedSizes() {
  std::vector<uint64_t> sizes = {1536 * kMiB, 66 * kMiB, 200 * kMiB};
  for (int i = 0; i < 150; ++i) sizes.push_back(i % 10 == 0 ? 32 * kMiB : 2 * kMiB);
  return sizes;
}

TEST_F(TierCopy, ContentsComeBackBitForBit) {
  Suspended all{.sizes = MixedSizes()};
  uint64_t total = 0;
  for (const uint64_t bytes : all.sizes) total += bytes;
  const auto tier = TierMemory::Make(total + 2 * kMiB);
  ASSERT_OK(tier);
  // From the end of the tier to its beginning; the large ones in two extents, the second half
  // first.
  uint64_t end = total + 2 * kMiB;
  for (size_t i = 0; i < all.sizes.size(); ++i) {
    const uint64_t bytes = all.sizes[i];
    all.segments.push_back(Segment(bytes));
    ASSERT_NE(all.segments.back(), nullptr);
    ASSERT_EQ(Fill(*all.segments.back(), bytes, i + 1), absl::OkStatus());
    end -= bytes;
    const uint64_t half = bytes / (4 * kMiB) * (2 * kMiB);
    std::vector<TierExtent> extents = {{.offset = end, .bytes = bytes}};
    if (half > 0) {
      extents = {{.offset = end + half, .bytes = bytes - half}, {.offset = end, .bytes = half}};
    }
    all.places.push_back((*tier)->Place(extents));
  }
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(device_->Copy(all.Items(/*out=*/true)), absl::OkStatus());
    for (size_t i = 0; i < all.sizes.size(); ++i) {
      all.segments[i].reset();
    }
    for (size_t i = 0; i < all.sizes.size(); ++i) {
      all.segments[i] = Segment(all.sizes[i]);
      ASSERT_NE(all.segments[i], nullptr);
    }
    ASSERT_EQ(device_->Copy(all.Items(/*out=*/false)), absl::OkStatus());
    for (size_t i = 0; i < all.sizes.size(); ++i) {
      EXPECT_EQ(Check(*all.segments[i], all.sizes[i], i + 1), absl::OkStatus()) << "segment " << i;
    }
  }
}

TEST_F(TierCopy, AKilledCopierIsReplaced) {
  const auto tier = TierMemory::Make(8 * kMiB);
  ASSERT_OK(tier);
  const auto segment = Segment(8 * kMiB);
  ASSERT_NE(segment, nullptr);
  ASSERT_EQ(Fill(*segment, 8 * kMiB, 1), absl::OkStatus());
  const auto place = (*tier)->Place({{.offset = 0, .bytes = 8 * kMiB}});
  const CopyItem out{.from = segment.get(), .to = place.get(), .bytes = 8 * kMiB};
  const CopyItem in{.from = place.get(), .to = segment.get(), .bytes = 8 * kMiB};
  ASSERT_EQ(device_->Copy({out}), absl::OkStatus());
  ASSERT_EQ(kill(device_->copier_pid(), SIGKILL), 0);
  ASSERT_EQ(Fill(*segment, 8 * kMiB, 2), absl::OkStatus());
  absl::Status status = device_->Copy({in});
  if (absl::IsUnavailable(status)) status = device_->Copy({in});  // its death was not yet seen
  ASSERT_EQ(status, absl::OkStatus());
  EXPECT_EQ(Check(*segment, 8 * kMiB, 1), absl::OkStatus());
}

TEST_F(TierCopy, AWrongDescriptorIsRefusedAndNothingElse) {
  const auto tier = TierMemory::Make(8 * kMiB);
  ASSERT_OK(tier);
  const auto large = Segment(8 * kMiB);
  const auto small = Segment(2 * kMiB);
  ASSERT_TRUE(large != nullptr && small != nullptr);
  const auto place = (*tier)->Place({{.offset = 0, .bytes = 2 * kMiB}});
  ASSERT_EQ(device_->Copy({}), absl::OkStatus());
  const pid_t pid = device_->copier_pid();
  const CopyItem wrong_size{.from = large.get(), .to = place.get(), .bytes = 2 * kMiB};
  EXPECT_EQ(device_->Copy({wrong_size}).code(), absl::StatusCode::kInternal);
  auto host = gpumemd::OpenHostDevice({.capacity_bytes = 8 * kMiB}, "");
  ASSERT_OK(host);
  const auto foreign = (*host)->Create({.kind = gpumemd::Kind::kVmm, .bytes = 2 * kMiB});
  ASSERT_OK(foreign);
  const CopyItem wrong_memory{.from = foreign->get(), .to = place.get(), .bytes = 2 * kMiB};
  EXPECT_EQ(device_->Copy({wrong_memory}).code(), absl::StatusCode::kInternal);
  const CopyItem right{.from = small.get(), .to = place.get(), .bytes = 2 * kMiB};
  EXPECT_EQ(device_->Copy({right}), absl::OkStatus());
  EXPECT_EQ(device_->copier_pid(), pid) << "the process goes on";
}

}  // namespace tier_copy_test
}  // namespace gpumem
