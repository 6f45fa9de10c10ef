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

TEST(DenialTest, SaysWhatStoodInTheWayOfMemory) {
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_DEVICE_LIMIT, 4 * kGiB, 62 * kGiB, 64 * kGiB)),
            "tenant training asked for 4.00 GiB on GPU-1; it holds 62.00 GiB of its 64.00 GiB "
            "limit there: release 2.00 GiB or ask for a higher limit (gpumemctl quota set)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_DEVICE_LIMIT, 65 * kGiB, 0, 64 * kGiB)),
            "tenant training asked for 65.00 GiB on GPU-1; its limit there is 64.00 GiB: ask for "
            "less, or ask for a higher limit (gpumemctl quota set)");
  v1::Denial total = Make(v1::Denial::CAUSE_TOTAL_LIMIT, kGiB, 8 * kGiB, 8 * kGiB);
  total.clear_device_uuid();
  EXPECT_EQ(Text(total),
            "tenant training asked for 1.00 GiB; it holds 8.00 GiB of its 8.00 GiB limit over all "
            "devices: release 1.00 GiB or ask for a higher limit (gpumemctl quota set)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_CAPACITY, 4 * kGiB, 138 * kGiB, 140 * kGiB)),
            "tenant training asked for 4.00 GiB on GPU-1; 138.00 GiB of the device's 140.00 GiB "
            "are taken: wait until 2.00 GiB are released (gpumemctl segments shows by whom they "
            "are held) or use another device");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_DRIVER, kGiB, 0, 0)),
            "tenant training asked for 1.00 GiB on GPU-1; the driver has too little memory left, "
            "since programs use the device without asking gpumemd: stop them (nvidia-smi shows "
            "them) or use another device");
}

TEST(DenialTest, SaysWhichCountIsReached) {
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_MAX_SEGMENTS, 1, 1024, 1024)),
            "tenant training asked for 1 segment; it has 1024 of the 1024 that it may have: "
            "release some, ask for fewer and larger ones, or ask for a higher limit (gpumemctl "
            "quota set)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_MAX_SESSIONS, 1, 8, 8)),
            "tenant training asked for 1 session; it has 8 of the 8 that it may have: end some of "
            "its processes (gpumemctl ps lists them) or ask for a higher limit (gpumemctl quota "
            "set)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_MAX_IN_FLIGHT, 1, 64, 64)),
            "tenant training has 64 calls waiting for an answer, of the 64 that it may have: call "
            "again when one has been answered, or make fewer calls at a time");
}

TEST(DenialTest, SaysWhoHoldsWhatIsUsed) {
  v1::Denial denial = Make(v1::Denial::CAUSE_CAPACITY, 4 * kGiB, 138 * kGiB, 140 * kGiB);
  const auto hold = [&](const char* tenant, uint64_t used) {
    denial.add_holders()->set_tenant(tenant);
    denial.mutable_holders()->rbegin()->set_used(used);
  };
  hold("a", 100 * kGiB);
  hold("b", 38 * kGiB);
  EXPECT_EQ(Text(denial),
            "tenant training asked for 4.00 GiB on GPU-1; 138.00 GiB of the device's 140.00 GiB "
            "are taken (a 100.00 GiB, b 38.00 GiB): wait until 2.00 GiB are released (gpumemctl "
            "segments shows by whom they are held) or use another device");
  // That it holds itself what it holds is said already.
  denial = Make(v1::Denial::CAUSE_DEVICE_LIMIT, 4 * kGiB, 62 * kGiB, 64 * kGiB);
  hold("training", 62 * kGiB);
  EXPECT_EQ(Text(denial),
            "tenant training asked for 4.00 GiB on GPU-1; it holds 62.00 GiB of its 64.00 GiB "
            "limit there: release 2.00 GiB or ask for a higher limit (gpumemctl quota set)");
}

TEST(DenialTest, SaysWhoseLimitItIs) {
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
            "tenant training asked for 4.00 GiB on GPU-1; tenant ml, which it is under, holds "
            "38.00 GiB of its 40.00 GiB limit there (a 30.00 GiB, b 8.00 GiB): release 2.00 GiB or "
            "ask for a higher limit of ml (gpumemctl quota set)");
  EXPECT_EQ(Text(under_ml(Make(v1::Denial::CAUSE_TOTAL_LIMIT, 50 * kGiB, 38 * kGiB, 40 * kGiB),
                          30 * kGiB, 8 * kGiB)),
            "tenant training asked for 50.00 GiB on GPU-1; tenant ml, which it is under, has a "
            "limit over all devices of 40.00 GiB: ask for less, or ask for a higher limit of ml "
            "(gpumemctl quota set)");
  EXPECT_EQ(Text(under_ml(Make(v1::Denial::CAUSE_MAX_SEGMENTS, 2, 9, 10), 5, 4)),
            "tenant training asked for 2 segments; tenant ml, which it is under, has 9 of the 10 "
            "that it may have (a 5, b 4): release some, ask for fewer and larger ones, or ask for "
            "a higher limit of ml (gpumemctl quota set)");
  EXPECT_EQ(Text(under_ml(Make(v1::Denial::CAUSE_MAX_WAITING, 1, 8, 8), 5, 3)),
            "tenant ml, which tenant training is under, has 8 requests waiting for memory, of the "
            "8 that it may have (a 5, b 3): ask again when one of them is over, or ask for a "
            "higher limit of ml (gpumemctl quota set)");
}

TEST(DenialTest, SaysWhyItMayNotHaveWhatIsFree) {
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_MAX_WAITING, 1, 16, 16)),
            "tenant training has 16 requests waiting for memory, of the 16 that it may have: ask "
            "again when one of them is over, or ask for a higher limit (gpumemctl quota set)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_GUARANTEES, 4 * kGiB, 138 * kGiB, 140 * kGiB)),
            "tenant training asked for 4.00 GiB on GPU-1; 138.00 GiB of the device's 140.00 GiB "
            "are taken or guaranteed to others: wait until 2.00 GiB are released, take the memory "
            "as revocable, which may be what is guaranteed and idle, or ask for a guarantee "
            "(gpumemctl quota set)");
  EXPECT_EQ(Text(Make(v1::Denial::CAUSE_QUEUE, 4 * kGiB, 100 * kGiB, 140 * kGiB)),
            "tenant training asked for 4.00 GiB on GPU-1; what is free there is waited for by "
            "requests that go first: wait in the queue, too, or longer (gpumemctl hold --wait; "
            "AcquireOptions::wait), or use another device");
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
