// SPDX-License-Identifier: Apache-2.0
// Memory of dead processes: sharers keep it unchanged; after the last, the tenant gets it back.
#include <string>

#include "tests/contract/contract.h"

namespace gpumem::contract {
namespace {

using testing::Eventually;

TEST_P(SharingWithOthers, AKilledMakersMemoryStaysWithThoseWhoOpenedIt) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const auto opener = Opener();
  ASSERT_OK(opener->Open("opened", ticket_));
  const auto own = opener->Share("opened");
  ASSERT_OK(own);
  maker_->Kill();
  // Its lease ends, and its ticket with it.
  EXPECT_TRUE(Eventually([&] {
    const auto late = opener->Open("late", ticket_);
    if (!late.ok()) return late.status().code() == absl::StatusCode::kNotFound;
    EXPECT_OK(opener->Release("late"));  // the daemon does not know yet
    return false;
  }));
  EXPECT_EQ(Charged(), bytes_);
  EXPECT_OK(opener->Expect("opened", kSeed));
  EXPECT_OK(opener->Write("opened", kSeed + 1));
  // A third may still come, by the ticket of a living holder.
  const auto third = StartActor();
  ASSERT_OK(third->Open("third", *own));
  EXPECT_OK(third->Expect("third", kSeed + 1));
  EXPECT_OK(third->Release("third"));
  EXPECT_EQ(Charged(), bytes_);
  EXPECT_OK(opener->Release("opened"));
  ExpectReleased();
}

TEST_P(SharingWithOthers, AKilledOpenerTakesNothingWithIt) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const auto opener = Opener();
  ASSERT_OK(opener->Open("opened", ticket_));
  ASSERT_OK(opener->Write("opened", kSeed + 1));
  opener->Kill();
  EXPECT_OK(maker_->Expect("made", kSeed + 1));
  EXPECT_EQ(Charged(), bytes_);
  // Nor does its death keep anybody from opening.
  const auto next = Opener();
  ASSERT_OK(next->Open("opened", ticket_));
  EXPECT_OK(next->Expect("opened", kSeed + 1));
  EXPECT_OK(next->Release("opened"));
  EXPECT_OK(maker_->Release("made"));
  ExpectReleased();
}

TEST_P(SharingWithOthers, WhenAllAreKilledNothingIsCharged) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const auto first = Opener(), second = Opener();
  ASSERT_OK(first->Open("first", ticket_));
  ASSERT_OK(second->Open("second", ticket_));
  first->Kill();
  maker_->Kill();
  EXPECT_OK(second->Expect("second", kSeed));
  EXPECT_EQ(Charged(), bytes_);
  second->Kill();
  EXPECT_TRUE(EventuallyCharged(0)) << Charged();
}

TEST_P(SharingWithOthers, AnOpenerKilledBeforeItsMakerReleasesLeavesNoTrace) {
  // Over and over: what an importer's death leaves behind in the daemon would add up.
  ASSERT_NO_FATAL_FAILURE(Make());
  int before = 0;
  for (int i = 0; i < 6; ++i) {
    const auto opener = Opener();
    ASSERT_OK(opener->Open("opened", ticket_));
    opener->Kill();
    if (i == 2) {  // gRPC keeps some descriptors once it has needed them
      ASSERT_TRUE(Eventually([&] { return std::exchange(before, daemon().fds()) == before; }));
    }
  }
  EXPECT_TRUE(Eventually([&] { return daemon().fds() <= before; }))
      << before << " descriptors before, " << daemon().fds() << " after";
  EXPECT_OK(maker_->Expect("made", kSeed));
}

}  // namespace
}  // namespace gpumem::contract
