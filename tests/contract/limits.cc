// SPDX-License-Identifier: Apache-2.0
// Limits hold to the byte, for every kind; host memory has a separate limit.
#include <string>
#include <utility>
#include <vector>

#include "tests/contract/contract.h"

namespace gpumem::contract {
namespace {

uint64_t LimitOf(Kind kind, const std::string& backend) {
  return kind == Kind::kPinned ? kSmallPinnedLimit : SmallLimit(backend);
}

TEST_P(KindContract, TheLastByteFitsAndOneMoreDoesNot) {
  const v1::Device device = DeviceFor(kind());
  const auto client = Connect(kSmall);
  const uint64_t limit = LimitOf(kind(), backend());
  std::vector<Segment> held;
  for (uint64_t used = 0; used < limit; used += granule_) {
    auto segment = client->Acquire({.bytes = granule_, .kind = kind()});
    ASSERT_OK(segment);
    held.push_back(*std::move(segment));
    EXPECT_EQ(Charged(kSmall), used + granule_);
  }
  const auto refused = client->Acquire({.bytes = 1, .kind = kind()});
  EXPECT_DENIED(refused, kDeviceLimit);
  const auto denial = GetDenial(refused.status());
  ASSERT_TRUE(denial.has_value());
  EXPECT_EQ(denial->tenant, kSmall);
  EXPECT_EQ(denial->device_uuid, device.device_uuid());
  EXPECT_EQ(denial->asked, granule_);
  EXPECT_EQ(denial->used, limit);
  EXPECT_EQ(denial->limit, limit);
  // No other tenant suffers from it, and the denial is temporary.
  EXPECT_OK(Connect(kOther)->Acquire({.bytes = granule_, .kind = kind()}));
  held.pop_back();
  EXPECT_OK(client->Acquire({.bytes = granule_, .kind = kind()}));
  // Shared memory counts as long as other holders have it.
  const auto opener = StartActor(Identity::kSameUser, kSmall);
  ASSERT_OK(opener->Open("opened", held[0].Share()->value));
  held.clear();
  if (kept_by_pool()) {
    // Released, and the tenant's for the next of that size: nothing goes back while these live.
    EXPECT_EQ(Charged(kSmall), limit);
    const auto larger = client->Acquire({.bytes = 2 * granule_, .kind = kind()});
    EXPECT_STATUS(larger, kResourceExhausted, "mempool");
    for (uint64_t used = granule_; used < limit; used += granule_) {
      auto segment = client->Acquire({.bytes = granule_, .kind = kind()});
      ASSERT_OK(segment);
      EXPECT_TRUE(segment->reused());
      held.push_back(*std::move(segment));
    }
    EXPECT_DENIED(client->Acquire({.bytes = 1, .kind = kind()}), kDeviceLimit);
    return;
  }
  EXPECT_TRUE(EventuallyCharged(granule_, kSmall));
  EXPECT_DENIED(client->Acquire({.bytes = limit, .kind = kind()}), kDeviceLimit);
  ASSERT_OK(opener->Release("opened"));
  EXPECT_OK(client->Acquire({.bytes = limit, .kind = kind()}));
}

TEST_P(KindContract, HostMemoryAndDeviceMemoryAreLimitedApart) {
  const auto client = Connect(kSmall);
  auto all = client->Acquire({.bytes = LimitOf(kind(), backend()), .kind = kind()});
  ASSERT_OK(all);
  const bool pinned = kind() == Kind::kPinned;
  const Kind apart = pinned ? Kind::kVmm : Kind::kPinned;
  auto other = client->Acquire({.bytes = LimitOf(apart, backend()), .kind = apart});
  EXPECT_OK(other);
  // Kinds of device memory share one limit.
  for (const Kind same : {Kind::kVmm, Kind::kMempool, Kind::kIpc, Kind::kPinned}) {
    const bool made = !DeviceFor(same).device_uuid().empty();
    const bool on_one_device = DeviceFor(same).device_uuid() == all->device_uuid();
    if (!made || !on_one_device) continue;
    EXPECT_DENIED(client->Acquire({.bytes = 1, .kind = same}), kDeviceLimit);
  }
  const auto usage = client->GetUsage();
  ASSERT_OK(usage);
  EXPECT_EQ(usage->charged_bytes, SmallLimit(backend())) << "of devices alone";
  EXPECT_EQ(Charged(kSmall), SmallLimit(backend()) + kSmallPinnedLimit);
}

TEST_P(KindContract, MoreThanADeviceHasIsRefusedBeforeItIsTried) {
  const v1::Device device = DeviceFor(kind());
  const auto client = Connect();
  EXPECT_STATUS(client->Acquire({.bytes = device.capacity_bytes() + 1, .kind = kind()}),
                kInvalidArgument, "");
  EXPECT_TRUE(EventuallyCharged(0));
}

}  // namespace
}  // namespace gpumem::contract
