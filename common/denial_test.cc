// SPDX-License-Identifier: Apache-2.0
#include "common/denial.h"

#include <string>

#include "absl/strings/cord.h"
#include "common/bytes.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace denial_test {

v1::Denial Make(v1::Denial::Cause cause, uint64_t asked, uint64_t used, uint64_t limit) {
  v1::Denial denial;
  denial.set_cause(cause);
  denial.set_tenant("training");
  denial.set_device_uuid("GPU-1");
  denial.set_asked(asked);
  denial.set_used(used);
  denial.set_limit(limit);
  return denial;
}

std::string Text(const v1::Denial& denial) {
  const absl::Status status = DenialError(denial);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  return std::string(status.message());
}

TEST(DenialTest, NamesTheLimitOnMemory) {
  EXPECT_EQ(
      Text(Make(v1::Denial::CAUSE_DEVICE_LIMIT, 4 * kGiB, 62 * kGiB, 64 * kGiB)),
      "tenant training asked for 4.00 GiB on GPU-1; it holds 62.00 GiB of its 64.00 GiB "
      "limit there: release 2.00 GiB, or ask an operator for a higher limit (gpumemctl quota set)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_DEVICE_LIMIT, 65 * kGiB, 0, 64 * kGiB)),
            "tenant training asked for 65.00 GiB on GPU-1; its limit there is 64.00 GiB: ask for "
            "less, or ask an operator for a higher limit (gpumemctl quota set)");
  v1::Denial total = Make(v1::Denial::CAUSE_TOTAL_LIMIT, kGiB, 8 * kGiB, 8 * kGiB);
  total.clear_device_uuid();
  EXPECT_EQ(
      Text(total),
      "tenant training asked for 1.00 GiB; it holds 8.00 GiB of its 8.00 GiB limit over all "
      "devices: release 1.00 GiB, or ask an operator for a higher limit (gpumemctl quota set)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_CAPACITY, 4 * kGiB, 138 * kGiB, 140 * kGiB)),
            "tenant training asked for 4.00 GiB on GPU-1; 138.00 GiB of the device's 140.00 GiB "
            "are in use: wait until 2.00 GiB are released (gpumemctl segments shows the holders), "
            "or use another device");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_CAPACITY, 141 * kGiB, 0, 140 * kGiB)),
            "tenant training asked for 141.00 GiB on GPU-1; the device has 140.00 GiB for all "
            "tenants together: ask for less, or use several devices");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_DRIVER, kGiB, 0, 0)),
            "tenant training asked for 1.00 GiB on GPU-1; the driver has too little free memory "
            "there: end programs that use the device without gpumemd (nvidia-smi shows them), or "
            "use another device");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_UNBROKERED, kGiB, 3 * kGiB, 0)),
            "tenant training asked for 1.00 GiB; its processes use 3.00 GiB on GPU-1 that they "
            "allocated without gpumemd: free that memory first, or end the processes (gpumemctl ps "
            "shows them)");
}

TEST(DenialTest, NamesTheLimitOnACount) {
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_MAX_SEGMENTS, 1, 1024, 1024)),
            "tenant training asked for 1 segment; it has 1024 of at most 1024: use fewer and "
            "larger segments, or ask an operator for a higher limit (gpumemctl quota set)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_MAX_SESSIONS, 1, 8, 8)),
            "tenant training asked for 1 session; it has 8 of at most 8: close sessions that are "
            "not needed (gpumemctl ps lists them), or ask an operator for a higher limit "
            "(gpumemctl quota set)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_MAX_IN_FLIGHT, 1, 64, 64)),
            "tenant training has 64 calls in flight; the limit is 64: wait for an answer before "
            "the next call, or make fewer calls at once");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_DAEMON_LIMIT, 1, 64, 64)),
            "tenant training asked for 1 more; 64 of the 64 that the daemon allows are in use: "
            "release those that are not needed, or try again later");
}

TEST(DenialTest, NamesTheHolders) {
  v1::Denial denial = Make(v1::Denial::CAUSE_CAPACITY, 4 * kGiB, 138 * kGiB, 140 * kGiB);
  const auto hold = [&](const char* tenant, uint64_t used) {
    denial.add_holders()->set_tenant(tenant);
    denial.mutable_holders()->rbegin()->set_used(used);
  };
  hold("a", 100 * kGiB);
  hold("b", 38 * kGiB);
  EXPECT_EQ(Text(denial),
            "tenant training asked for 4.00 GiB on GPU-1; 138.00 GiB of the device's 140.00 GiB "
            "are in use (a 100.00 GiB, b 38.00 GiB): wait until 2.00 GiB are released (gpumemctl "
            "segments shows the holders), or use another device");
  // The requester as the only holder is not named twice.
  denial = Make(v1::Denial::CAUSE_DEVICE_LIMIT, 4 * kGiB, 62 * kGiB, 64 * kGiB);
  hold("training", 62 * kGiB);
  EXPECT_EQ(
      Text(denial),
      "tenant training asked for 4.00 GiB on GPU-1; it holds 62.00 GiB of its 64.00 GiB "
      "limit there: release 2.00 GiB, or ask an operator for a higher limit (gpumemctl quota set)");
}

TEST(DenialTest, NamesTheParentWithTheLimit) {
  const auto under_ml = [](v1::Denial denial, uint64_t a, uint64_t b) {
    denial.set_limited_tenant("ml");
    for (const auto& [tenant, used] : {std::pair("a", a), std::pair("b", b)}) {
      v1::Denial::Holder* const holder = denial.add_holders();
      holder->set_tenant(tenant);
      holder->set_used(used);
    }
    return denial;
  };
  EXPECT_EQ(Text(under_ml(Make(v1::Denial::CAUSE_DEVICE_LIMIT, 4 * kGiB, 38 * kGiB, 40 * kGiB),
                          30 * kGiB, 8 * kGiB)),
            "tenant training asked for 4.00 GiB on GPU-1; its parent tenant ml holds 38.00 GiB of "
            "its 40.00 GiB limit there (a 30.00 GiB, b 8.00 GiB): release 2.00 GiB, or ask an "
            "operator for a higher limit of ml (gpumemctl quota set)");
  EXPECT_EQ(Text(under_ml(Make(v1::Denial::CAUSE_TOTAL_LIMIT, 50 * kGiB, 38 * kGiB, 40 * kGiB),
                          30 * kGiB, 8 * kGiB)),
            "tenant training asked for 50.00 GiB on GPU-1; the limit of its parent tenant ml "
            "over all devices is 40.00 GiB: ask for less, or ask an operator for a higher limit of "
            "ml (gpumemctl quota set)");
  EXPECT_EQ(Text(under_ml(Make(v1::Denial::CAUSE_MAX_SEGMENTS, 2, 9, 10), 5, 4)),
            "tenant training asked for 2 segments; its parent tenant ml has 9 of at most 10 (a 5, "
            "b 4): use fewer and larger segments, or ask an operator for a higher limit of ml "
            "(gpumemctl quota set)");
  EXPECT_EQ(Text(under_ml(Make(v1::Denial::CAUSE_MAX_WAITING, 1, 8, 8), 5, 3)),
            "tenant ml, a parent of tenant training, has 8 waiting requests; the limit "
            "is 8 (a 5, b 3): ask again when one of them has been answered, or ask an operator for "
            "a higher limit of ml (gpumemctl quota set)");
  EXPECT_EQ(
      Text(under_ml(Make(v1::Denial::CAUSE_GUARANTEES, 4 * kGiB, 38 * kGiB, 40 * kGiB), 30 * kGiB,
                    4 * kGiB)),
      "tenant training asked for 4.00 GiB on GPU-1; 38.00 GiB of the 40.00 GiB that its parent "
      "tenant ml may hold there are in use or guaranteed to other tenants (a 30.00 GiB, b "
      "4.00 GiB): wait until other tenants release memory, request a revocable lease, which may "
      "use idle memory that is guaranteed to other tenants, or ask an operator for a "
      "guarantee (gpumemctl quota set --guarantee)");
}

TEST(DenialTest, SaysWhyFreeMemoryIsDenied) {
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_MAX_WAITING, 1, 16, 16)),
            "tenant training has 16 waiting requests; the limit is 16: ask again when "
            "one of them has been answered, or ask an operator for a higher limit (gpumemctl quota "
            "set)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_GUARANTEES, 4 * kGiB, 138 * kGiB, 140 * kGiB)),
            "tenant training asked for 4.00 GiB on GPU-1; 138.00 GiB of the 140.00 GiB there are "
            "in use or guaranteed to other tenants: wait until other tenants release memory, "
            "request a revocable lease, which may use idle memory that is guaranteed to other "
            "tenants, or ask an operator for a guarantee (gpumemctl quota set --guarantee)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_QUEUE, 4 * kGiB, 100 * kGiB, 140 * kGiB)),
            "tenant training asked for 4.00 GiB on GPU-1; requests ahead of it in the queue wait "
            "for the free memory: wait, too (AcquireOptions::wait; gpumemctl hold --wait), or use "
            "another device");
  // An older daemon does not say what the numbers are without a device.
  v1::Denial segments = Make(v1::Denial::CAUSE_QUEUE, 1, 11, 10);
  segments.clear_device_uuid();
  EXPECT_EQ(Text(segments),
            "tenant training asked for memory; requests ahead of it in the queue wait for the free "
            "memory: wait, too (AcquireOptions::wait; gpumemctl hold --wait), or use another "
            "device");
  segments.set_queued_at(v1::Denial::CAUSE_MAX_SEGMENTS);
  EXPECT_EQ(Text(segments),
            "tenant training asked for 1 segment; with the requests ahead of it in the queue it "
            "has 11 of at most 10: wait, too (AcquireOptions::wait; gpumemctl hold --wait), or use "
            "fewer and larger segments");
  segments.set_limited_tenant("ml");
  EXPECT_NE(Text(segments).find("in the queue its parent tenant ml has 11 of at most 10"),
            std::string::npos);
  segments.set_queued_at(v1::Denial::CAUSE_DAEMON_LIMIT);
  segments.clear_limited_tenant();
  EXPECT_NE(Text(segments).find("in the queue all tenants have 11 of at most 10"),
            std::string::npos);
  v1::Denial total = Make(v1::Denial::CAUSE_QUEUE, kGiB, 9 * kGiB, 8 * kGiB);
  total.clear_device_uuid();
  total.set_queued_at(v1::Denial::CAUSE_TOTAL_LIMIT);
  EXPECT_NE(Text(total).find("tenant training asked for 1.00 GiB; requests ahead of it"),
            std::string::npos);
}

TEST(DenialTest, HasASentenceForEveryCause) {
  for (int cause = v1::Denial::Cause_MIN; cause <= v1::Denial::Cause_MAX; ++cause) {
    const absl::Status status =
        DenialError(Make(static_cast<v1::Denial::Cause>(cause), ~uint64_t{0}, ~uint64_t{0}, 0));
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_FALSE(DenialOf(status)->help().empty());
  }
}

TEST(DenialTest, CarriesTheDenialAsData) {
  const v1::Denial denial = Make(v1::Denial::CAUSE_CAPACITY, 3, 2, 4);
  const std::optional<v1::Denial> carried = DenialOf(DenialError(denial));
  ASSERT_TRUE(carried.has_value());
  EXPECT_EQ(carried->cause(), v1::Denial::CAUSE_CAPACITY);
  EXPECT_EQ(carried->tenant(), "training");
  EXPECT_EQ(carried->device_uuid(), "GPU-1");
  EXPECT_EQ(carried->asked(), 3u);
  EXPECT_EQ(carried->used(), 2u);
  EXPECT_EQ(carried->limit(), 4u);
}

TEST(DenialTest, HelpThatWasGivenIsKept) {
  v1::Denial denial = Make(v1::Denial::CAUSE_DEVICE_LIMIT, 1, 1, 1);
  denial.set_help("ask Ada");
  const absl::Status status = DenialError(denial);
  EXPECT_EQ(status.message(),
            "tenant training asked for 1 B on GPU-1; it holds 1 B of its 1 B limit there: ask Ada");
  EXPECT_EQ(DenialOf(status)->help(), "ask Ada");
}

TEST(DenialTest, OtherStatusesCarryNone) {
  EXPECT_FALSE(DenialOf(absl::OkStatus()).has_value());
  EXPECT_FALSE(DenialOf(absl::ResourceExhaustedError("full")).has_value());
  absl::Status garbled = absl::ResourceExhaustedError("full");
  garbled.SetPayload("type.googleapis.com/gpumem.v1.Denial", absl::Cord("\xff\xff"));
  EXPECT_FALSE(DenialOf(garbled).has_value());
}

}  // namespace denial_test
}  // namespace gpumem
