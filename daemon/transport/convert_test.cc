#include "daemon/transport/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpumemd {
namespace {

namespace v1 = gpumem::v1;
using ::testing::HasSubstr;

TEST(Convert, KindsGoThereAndBack) {
  EXPECT_EQ(*FromProto(ToProto(Kind::kVmm)), Kind::kVmm);
  EXPECT_EQ(*FromProto(v1::KIND_UNSPECIFIED), std::nullopt);
  EXPECT_EQ(FromProto(static_cast<v1::Kind>(77)).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(Convert, AbsentLimitsStayAbsent) {
  EXPECT_EQ(ToProto(Quota()).ByteSizeLong(), 0u);
  const v1::Quota proto = ToProto(Quota{.limit_bytes = 5, .device_limits = {{"GPU-1", 3}}});
  EXPECT_EQ(proto.limit_bytes(), 5u);
  EXPECT_FALSE(proto.has_total_limit_bytes());
  ASSERT_EQ(proto.devices_size(), 1);
  EXPECT_EQ(proto.devices(0).limit_bytes(), 3u);
}

TEST(ApplyChange, ChangesOnlyWhatIsNamed) {
  Quota quota{.limit_bytes = 1, .total_limit_bytes = 2, .max_segments = 3, .max_sessions = 4};
  v1::SetQuotaRequest change;
  change.mutable_quota()->set_limit_bytes(10);
  change.add_clear("max_segments");
  EXPECT_EQ(ApplyChange(change, quota), absl::OkStatus());
  EXPECT_EQ(quota, (Quota{.limit_bytes = 10, .total_limit_bytes = 2, .max_sessions = 4}));
}

TEST(ApplyChange, APlainLimitReplacesThoseOfDevices) {
  Quota quota{.device_limits = {{"GPU-1", 5}, {"GPU-2", 6}}};
  v1::SetQuotaRequest change;
  change.mutable_quota()->set_limit_bytes(10);
  v1::DeviceLimit& device = *change.mutable_quota()->add_devices();
  device.set_device_uuid("GPU-2");
  device.set_limit_bytes(7);
  EXPECT_EQ(ApplyChange(change, quota), absl::OkStatus());
  EXPECT_EQ(quota, (Quota{.limit_bytes = 10, .device_limits = {{"GPU-2", 7}}}));
}

TEST(ApplyChange, EveryFieldCanBeSetAndCleared) {
  Quota quota;
  v1::SetQuotaRequest change;
  v1::Quota& set = *change.mutable_quota();
  set.set_limit_bytes(1);
  set.set_total_limit_bytes(2);
  set.set_max_segments(3);
  set.set_max_sessions(4);
  set.set_max_in_flight(5);
  set.set_max_retained_bytes(6);
  EXPECT_EQ(ApplyChange(change, quota), absl::OkStatus());
  EXPECT_EQ(quota, (Quota{.limit_bytes = 1,
                          .total_limit_bytes = 2,
                          .max_segments = 3,
                          .max_sessions = 4,
                          .max_in_flight = 5,
                          .max_retained_bytes = 6}));
  v1::SetQuotaRequest clear;
  for (const char* name : {"limit_bytes", "total_limit_bytes", "max_segments", "max_sessions",
                           "max_in_flight", "max_retained_bytes", "devices"}) {
    clear.add_clear(name);
  }
  EXPECT_EQ(ApplyChange(clear, quota), absl::OkStatus());
  EXPECT_EQ(quota, Quota());
}

TEST(ApplyChange, RefusesWhatMakesNoSense) {
  Quota quota;
  EXPECT_EQ(ApplyChange({}, quota).code(), absl::StatusCode::kInvalidArgument);
  v1::SetQuotaRequest both;
  both.mutable_quota()->set_limit_bytes(1);
  both.add_clear("limit_bytes");
  EXPECT_THAT(std::string(ApplyChange(both, quota).message()), HasSubstr("both set and cleared"));
  v1::SetQuotaRequest unknown;
  unknown.add_clear("limits");
  EXPECT_THAT(std::string(ApplyChange(unknown, quota).message()), HasSubstr("\"limits\""));
  v1::SetQuotaRequest mute;
  mute.mutable_quota()->set_max_in_flight(0);
  EXPECT_THAT(std::string(ApplyChange(mute, quota).message()), HasSubstr("no call"));
}

}  // namespace
}  // namespace gpumemd
