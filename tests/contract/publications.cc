// SPDX-License-Identifier: Apache-2.0
// A publication outlives its maker, and is found by its name.
#include <string>

#include "tests/contract/contract.h"

namespace gpumem::contract {
namespace {

TEST_P(SharingWithOthers, WhatIsPublishedOutlivesItsMaker) {
  ASSERT_NO_FATAL_FAILURE(Make());
  const auto published = maker_->Publish("made", "contract");
  if (place().context_bound()) {
    EXPECT_STATUS(published, kFailedPrecondition, "kind vmm");
    return;
  }
  ASSERT_OK(published);
  const auto opener = Opener();
  maker_->Kill();
  maker_ = nullptr;

  const auto attached = opener->Attach("first", "contract");
  ASSERT_OK(attached);
  EXPECT_EQ(*attached, *published);
  EXPECT_OK(opener->Expect("first", kSeed));
  EXPECT_EQ(Charged(), bytes_) << "it is charged once";
  EXPECT_STATUS(opener->TryWrite("first"), kPermissionDenied, "read-only");
  ASSERT_OK(opener->Attach("second", "contract", /*read_only=*/false));
  EXPECT_OK(opener->Write("second", kSeed + 1));
  EXPECT_OK(opener->Expect("first", kSeed + 1));
  EXPECT_OK(opener->Release("second"));
  EXPECT_OK(opener->Unpublish("contract"));
  EXPECT_OK(opener->Expect("first", kSeed + 1));
  EXPECT_EQ(Charged(), bytes_);
  EXPECT_OK(opener->Release("first"));
  EXPECT_TRUE(EventuallyCharged(0));
}

}  // namespace
}  // namespace gpumem::contract
