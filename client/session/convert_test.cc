// SPDX-License-Identifier: Apache-2.0
#include "client/session/convert.h"

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/mapping/kind.h"
#include "common/kind.h"
#include "gtest/gtest.h"

namespace gpumem::internal {
namespace convert_test {

TEST(Convert, EachKindGoesThereAndBack) {
  for (const KindTraits& row : kKindTable) {
    const Kind kind = static_cast<Kind>(row.kind);
    EXPECT_EQ(KindName(kind), row.name);
    EXPECT_EQ(&TraitsOf(kind), &row);
    EXPECT_EQ(ToProto(kind), static_cast<v1::Kind>(row.kind)) << row.name;
    absl::StatusOr<Kind> back = FromProto(ToProto(kind));
    ASSERT_TRUE(back.ok()) << row.name;
    EXPECT_EQ(*back, kind) << row.name;
  }
}

TEST(Convert, TheDefaultKindHasNoRow) {
  EXPECT_EQ(KindName(Kind::kDefault), "default");
  EXPECT_EQ(ToProto(Kind::kDefault), v1::KIND_UNSPECIFIED);
  EXPECT_EQ(&TraitsOf(Kind::kDefault), &kNoKind);
}

// The daemon refuses it, and names the number.
TEST(Convert, AnUnknownKindIsNotTheDefault) {
  EXPECT_EQ(ToProto(static_cast<Kind>(99)), static_cast<v1::Kind>(99));
  EXPECT_EQ(KindName(static_cast<Kind>(99)), "unknown");
}

TEST(Convert, AKindThatTheLibraryDoesNotKnowIsRefused) {
  for (const v1::Kind kind : {v1::KIND_UNSPECIFIED, static_cast<v1::Kind>(99)}) {
    EXPECT_EQ(FromProto(kind).status(),
              absl::UnimplementedError("this library cannot map segments of kind " +
                                       std::to_string(kind) + "; use the daemon's release of it"));
  }
}

TEST(Convert, ByteSecondsOfAnOlderDaemonAreNone) {
  v1::Usage usage;
  usage.add_devices();
  usage.add_devices()->set_byte_seconds(7);
  const Usage result = FromProto(usage);
  ASSERT_EQ(result.devices.size(), 2u);
  EXPECT_EQ(result.devices[0].byte_seconds, 0u);
  EXPECT_EQ(result.devices[1].byte_seconds, 7u);
}

TEST(Convert, ObtainableBytesOfAnOlderDaemonStayUnset) {
  v1::Usage usage;
  usage.add_devices();
  usage.add_devices()->set_obtainable_bytes(0);
  const Usage result = FromProto(usage);
  ASSERT_EQ(result.devices.size(), 2u);
  EXPECT_EQ(result.devices[0].obtainable_bytes, std::nullopt);
  EXPECT_EQ(result.devices[1].obtainable_bytes, 0u);
}

}  // namespace convert_test
}  // namespace gpumem::internal
