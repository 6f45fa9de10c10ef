// SPDX-License-Identifier: Apache-2.0
// One makes memory, others open it: all see the same bytes, and it is charged once.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/contract/contract.h"

namespace gpumem::contract {
namespace {

TEST_P(SharingSegments, WhatOneWritesTheOthersRead) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const auto first = Opener(), second = Opener();
  ASSERT_OK(first->Open("first", ticket_));
  const auto held = second->Open("second", ticket_);
  ASSERT_OK(held);
  EXPECT_EQ(held->size, bytes_);
  EXPECT_OK(first->Expect("first", kSeed));
  EXPECT_OK(second->Expect("second", kSeed));
  EXPECT_OK(second->Write("second", kSeed + 1));
  EXPECT_OK(first->Expect("first", kSeed + 1));
  EXPECT_OK(maker_->Expect("made", kSeed + 1));
  EXPECT_EQ(Charged(), bytes_) << "shared bytes are charged once";
}

TEST_P(SharingSegments, LastsUntilItsLastHolderReleasesInAnyOrder) {
  maker_ = StartActor();
  const auto first = Opener(), second = Opener();
  std::vector<std::string> order = {"first", "made", "second"};  // sorted
  do {
    SCOPED_TRACE(absl::StrCat(order[0], ", ", order[1], ", ", order[2]));
    ASSERT_NO_FATAL_FAILURE(Make());
    ASSERT_OK(first->Open("first", ticket_));
    ASSERT_OK(second->Open("second", ticket_));
    const auto holder = [&](const std::string& name) {
      return name == "made" ? maker_ : name == "first" ? first : second;
    };
    for (size_t gone = 0; gone < order.size(); ++gone) {
      EXPECT_EQ(Charged(), bytes_);
      EXPECT_OK(holder(order[gone])->Release(order[gone]));
      for (size_t left = gone + 1; left < order.size(); ++left) {
        EXPECT_OK(holder(order[left])->Expect(order[left], kSeed));
      }
    }
    ExpectReleased();
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_P(SharingSegments, OneProcessMayOpenItTwice) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const auto opener = Opener();
  const auto first = opener->Open("first", ticket_);
  const auto second = opener->Open("second", ticket_);
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_NE(first->lease_id, second->lease_id);
  if (place().context_bound()) {
    EXPECT_EQ(first->address, second->address) << "as CUDA has it: counted";
  }
  EXPECT_OK(opener->Write("first", kSeed + 2));
  EXPECT_OK(opener->Expect("second", kSeed + 2));
  EXPECT_OK(opener->Release("first"));
  EXPECT_OK(opener->Expect("second", kSeed + 2));
  EXPECT_EQ(Charged(), bytes_);
  EXPECT_OK(opener->Release("second"));
  EXPECT_OK(maker_->Expect("made", kSeed + 2));
  // And once more, after it was gone from that process.
  EXPECT_OK(opener->Open("third", ticket_));
  EXPECT_OK(opener->Expect("third", kSeed + 2));
}

TEST_P(SharingSegments, ATicketEndsWithTheLeaseThatMintedIt) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const auto opener = Opener();
  ASSERT_OK(opener->Open("opened", ticket_));
  const auto own = opener->Share("opened");
  ASSERT_OK(own);
  EXPECT_NE(*own, ticket_);
  EXPECT_OK(maker_->Release("made"));
  EXPECT_STATUS(opener->Open("late", ticket_), kNotFound, "ticket");
  // The opener's own leads to the same memory still.
  EXPECT_OK(maker_->Open("again", *own));
  EXPECT_OK(maker_->Expect("again", kSeed));
  EXPECT_OK(opener->Release("opened"));
  EXPECT_STATUS(opener->Open("late", *own), kNotFound, "ticket");
  EXPECT_OK(maker_->Expect("again", kSeed));
  EXPECT_EQ(Charged(), bytes_);
}

TEST_P(SharingSegments, TheTicketOfAnotherTenantIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const auto stranger = StartActor(Identity::kSameUser, kOther);
  EXPECT_STATUS(stranger->Open("stolen", ticket_), kPermissionDenied, "tenant");
  const auto any = maker_->Share("made", TicketScope::kAny);
  if (kind() == Kind::kMempool) {
    // A process with the pool's descriptor could open all of the tenant's memory in it.
    EXPECT_STATUS(any, kFailedPrecondition, "pool");
    return;
  }
  ASSERT_OK(any);
  EXPECT_OK(stranger->Open("given", *any));
  EXPECT_OK(stranger->Expect("given", kSeed));
  EXPECT_EQ(Charged(kOther), 0u) << "shared bytes are charged to their owner";
  EXPECT_EQ(Charged(kOwner), bytes_);
}

// The other way round: the other one makes it, and this user opens it.
TEST_P(SharingWithOthers, MakerAndOpenerReadEachOthersWrites) {
  maker_ = StartActor(identity());
  ASSERT_OK(maker_->Acquire("made", {.kind = kind(), .bytes = bytes_}));
  EXPECT_OK(maker_->ExpectZero("made"));
  ASSERT_OK(maker_->Write("made", kSeed));
  const auto ticket = maker_->Share("made");
  ASSERT_OK(ticket);
  const auto opener = StartActor();
  ASSERT_OK(opener->Open("opened", *ticket));
  EXPECT_OK(opener->Expect("opened", kSeed));
  EXPECT_OK(opener->Write("opened", kSeed + 1));
  EXPECT_OK(maker_->Expect("made", kSeed + 1));
}

}  // namespace
}  // namespace gpumem::contract
