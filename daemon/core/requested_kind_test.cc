// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/requested_kind.h"

#include <optional>

#include "absl/status/status.h"
#include "common/kind.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

TEST(RequestedKind, IsOfTheTable) {
  for (const gpumem::KindTraits& row : gpumem::kKindTable) {
    if (!gpumem::IsAcquirable(row)) continue;
    absl::StatusOr<std::optional<Kind>> kind = RequestedKind(static_cast<int>(row.kind));
    ASSERT_TRUE(kind.ok()) << row.name;
    EXPECT_EQ(*kind, row.kind) << row.name;
    EXPECT_EQ(KindName(row.kind), row.name);
  }
}

TEST(RequestedKind, ZeroLeavesTheChoice) {
  absl::StatusOr<std::optional<Kind>> kind = RequestedKind(0);
  ASSERT_TRUE(kind.ok());
  EXPECT_EQ(*kind, std::nullopt);
}

TEST(RequestedKind, OthersAreRefused) {
  for (const int number : {-1, 5, 8, 77}) {
    EXPECT_TRUE(absl::IsUnimplemented(RequestedKind(number).status())) << number;
  }
  EXPECT_EQ(
      RequestedKind(77).status().message(),
      "this daemon does not know segments of kind 77; it knows VMM, MEMPOOL, IPC, PINNED and HOST");
  EXPECT_EQ(RequestedKind(static_cast<int>(Kind::kTier)).status().message(),
            "segments of kind tier cannot be acquired: they are the contents of suspended memory");
}

}  // namespace
}  // namespace gpumemd
