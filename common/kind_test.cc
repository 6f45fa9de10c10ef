// SPDX-License-Identifier: Apache-2.0
#include "common/kind.h"

#include <cctype>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "common/kind_proto.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace kind_test {

// Returns "KIND_VMM" for "vmm".
std::string WireName(const KindTraits& row) {
  std::string name = "KIND_";
  for (const char* c = row.name; *c != '\0'; ++c) {
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  }
  return name;
}

TEST(Kind, EachKindOfTheProtocolHasARow) {
  for (int number = v1::Kind_MIN; number <= v1::Kind_MAX; ++number) {
    if (!v1::Kind_IsValid(number) || number == v1::KIND_UNSPECIFIED) continue;
    const KindTraits* const row = FindKind(number);
    ASSERT_NE(row, nullptr) << number;
    EXPECT_EQ(WireName(*row), v1::Kind_Name(static_cast<v1::Kind>(number)));
  }
}

TEST(Kind, EachRowIsAtItsNumber) {
  for (size_t i = 0; i < std::size(kKindTable); ++i) {
    const KindTraits& row = kKindTable[i];
    EXPECT_EQ(static_cast<size_t>(row.kind), i + 1);
    EXPECT_EQ(IndexOf(row.kind), i);
    EXPECT_EQ(&TraitsOf(row.kind), &row);
  }
}

TEST(Kind, NamesAreUniqueAndFindTheirRows) {
  std::set<std::string> names;
  for (const KindTraits& row : kKindTable) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(FindKind(row.name), &row);
  }
  for (const char* const name : {"", "default", "unknown", "VMM", "vmm "}) {
    EXPECT_EQ(FindKind(name), nullptr) << name;
  }
}

TEST(Kind, GoesToTheProtocolAndBack) {
  for (const KindTraits& row : kKindTable) {
    EXPECT_TRUE(v1::Kind_IsValid(ToProto(row.kind))) << row.name;
    EXPECT_EQ(v1::Kind_Name(ToProto(row.kind)), WireName(row));
    EXPECT_EQ(FromProto(ToProto(row.kind)), row.kind) << row.name;
  }
}

TEST(Kind, OtherNumbersAreNoKind) {
  for (const int number : {-1, 0, static_cast<int>(std::size(kKindTable)) + 1, 77}) {
    EXPECT_EQ(FindKind(number), nullptr) << number;
    EXPECT_EQ(FromProto(static_cast<v1::Kind>(number)), std::nullopt) << number;
    EXPECT_EQ(&TraitsOf(static_cast<SegmentKind>(number)), &kNoKind) << number;
  }
  EXPECT_EQ(kNoKind.sharing, Sharing::kNone);
  EXPECT_FALSE(kNoKind.revocable || kNoKind.any_tenant || kNoKind.publishable);
}

TEST(Kind, PropertiesAgree) {
  for (const KindTraits& row : kKindTable) {
    SCOPED_TRACE(row.name);
    if (!IsAcquirable(row)) {
      EXPECT_FALSE(row.revocable || row.suspendable || row.any_tenant || row.publishable ||
                   row.contiguous || row.movable || row.context_bound || row.pooled);
      continue;
    }
    EXPECT_EQ(row.pooled, row.sharing == Sharing::kPool);
    EXPECT_FALSE(row.pooled && (row.revocable || row.any_tenant)) << "a pool is opened as a whole";
    EXPECT_FALSE(row.host_memory && row.context_bound);
    EXPECT_FALSE(row.registered && (!row.host_memory || row.movable)) << "by its address";
    EXPECT_TRUE(!row.publishable || row.sharing == Sharing::kDescriptor);
    EXPECT_TRUE(!row.movable || row.contiguous);
    EXPECT_TRUE(!row.suspendable || row.movable);
    EXPECT_EQ(row.charge_only, row.sharing == Sharing::kUnshared);
    if (row.charge_only) {
      EXPECT_FALSE(row.suspendable || row.any_tenant || row.publishable || row.contiguous ||
                   row.movable || row.many_devices || row.host_memory || row.context_bound)
          << "its memory is of the process alone";
      continue;
    }
    EXPECT_EQ(row.context_bound, row.sharing != Sharing::kDescriptor) << "it outlives the daemon";
  }
}

TEST(Kind, AllButTheContentsOfSuspendedMemoryCanBeAcquired) {
  for (const KindTraits& row : kKindTable) {
    EXPECT_EQ(IsAcquirable(row), row.kind != SegmentKind::kTier) << row.name;
  }
  EXPECT_FALSE(IsAcquirable(kNoKind));
}

TEST(Kind, AllThatCanBeAcquiredGiveMemoryButTheProcessesOwn) {
  for (const KindTraits& row : kKindTable) {
    EXPECT_EQ(GivesMemory(row), IsAcquirable(row) && row.kind != SegmentKind::kDriver) << row.name;
  }
}

TEST(Kind, ListsItsNames) {
  EXPECT_EQ(ListKinds("|", "|"), "vmm|mempool|ipc|pinned|host");
  EXPECT_EQ(ListKinds(", ", " or "), "vmm, mempool, ipc, pinned or host");
  EXPECT_EQ(ListKinds(", ", " and ", &KindTraits::revocable), "vmm, ipc, pinned and host");
  EXPECT_EQ(ListKinds(", ", " and ", &KindTraits::contiguous), "vmm, pinned and host");
  EXPECT_EQ(ListKinds(", ", " and ", &KindTraits::pooled), "mempool");
}

}  // namespace kind_test
}  // namespace gpumem
