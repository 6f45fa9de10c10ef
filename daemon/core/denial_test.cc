// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/denial.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "daemon/core/denial_proto.h"

namespace gpumemd {
namespace {

TEST(DenialTest, IsWhatTheProtocolSays) {
  EXPECT_EQ(DenialCauses().size() + 1,
            static_cast<size_t>(gpumem::v1::Denial::Cause_descriptor()->value_count()));
  std::set<std::string> names;
  for (const Denial::Cause cause : DenialCauses()) names.insert(NameOf(cause));
  EXPECT_EQ(names.size(), DenialCauses().size());
  EXPECT_EQ(NameOf(Denial::Cause::kDeviceLimit), "device-limit");
  EXPECT_EQ(NameOf(Denial::Cause::kMaxPublications), "max-publications");
  EXPECT_EQ(gpumem::v1::Denial::CAUSE_MAX_PUBLICATIONS,
            static_cast<int>(Denial::Cause::kMaxPublications));
}

TEST(DenialTest, AStatusCarriesAllOfIt) {
  const Denial denial{.cause = Denial::Cause::kCapacity,
                      .tenant = "a",
                      .device_uuid = "GPU-0",
                      .asked = 3,
                      .used = 4,
                      .limit = 5,
                      .help = "wait",
                      .limited_tenant = "team",
                      .holders = {{"b", 2}, {"c", 1}},
                      .queued_at = Denial::Cause::kMaxSegments};
  const absl::Status status = DenialError(denial);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const auto read = DenialOf(status);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, denial);
  EXPECT_EQ(ToProto(*read).holders(1).tenant(), "c");
  EXPECT_EQ(ToProto(*read).limited_tenant(), "team");
}

TEST(DenialTest, OtherStatusesCarryNone) {
  EXPECT_FALSE(DenialOf(absl::OkStatus()).has_value());
  EXPECT_FALSE(DenialOf(absl::ResourceExhaustedError("no driver memory")).has_value());
}

}  // namespace
}  // namespace gpumemd
