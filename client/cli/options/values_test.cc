// SPDX-License-Identifier: Apache-2.0
#include "client/cli/options/values.h"

#include "absl/status/status.h"
#include "common/kind.h"
#include "gtest/gtest.h"

namespace gpumem::cli {
namespace {

TEST(Values, EachKindHasItsNumber) {
  for (const KindTraits& row : kKindTable) {
    if (!IsAcquirable(row)) {
      EXPECT_FALSE(ParseKind(row.name).ok()) << row.name;
      continue;
    }
    absl::StatusOr<Kind> kind = ParseKind(row.name);
    ASSERT_TRUE(kind.ok()) << row.name;
    EXPECT_EQ(static_cast<int>(*kind), static_cast<int>(row.kind)) << row.name;
    absl::StatusOr<v1::Kind> wire = ParseWireKind(row.name);
    ASSERT_TRUE(wire.ok()) << row.name;
    EXPECT_EQ(static_cast<int>(*wire), static_cast<int>(row.kind)) << row.name;
  }
}

TEST(Values, HelpListsTheKinds) { EXPECT_EQ(KindWords(), "vmm|mempool|ipc|pinned|host"); }

TEST(Values, OtherWordsAreNoKind) {
  for (const char* const word : {"", "default", "unknown", "shm", "VMM"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseKind(word).status())) << word;
    EXPECT_TRUE(absl::IsInvalidArgument(ParseWireKind(word).status())) << word;
  }
}

}  // namespace
}  // namespace gpumem::cli
