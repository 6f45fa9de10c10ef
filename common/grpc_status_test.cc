// SPDX-License-Identifier: Apache-2.0
#include "common/grpc_status.h"

#include <optional>
#include <string>

#include "common/denial.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace grpc_status_test {

v1::Denial SomeDenial() {
  v1::Denial denial;
  denial.set_cause(v1::Denial::CAUSE_MAX_SEGMENTS);
  denial.set_tenant("training");
  denial.set_asked(1);
  denial.set_used(8);
  denial.set_limit(8);
  return denial;
}

TEST(GrpcStatusTest, CodesAndMessagesGoThere) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    const grpc::Status sent = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(sent.error_code()), code);
    EXPECT_EQ(sent.error_message(), status.message());
    EXPECT_EQ(sent.error_details(), "");
    EXPECT_EQ(FromGrpcStatus(sent), status);
  }
}

TEST(GrpcStatusTest, ADenialGoesThereAndBack) {
  const absl::Status denied = DenialError(SomeDenial());
  const absl::Status received = FromGrpcStatus(ToGrpcStatus(denied));
  EXPECT_EQ(received, denied);
  ASSERT_TRUE(DenialOf(received).has_value());
  EXPECT_EQ(DenialOf(received)->used(), 8u);
}

TEST(GrpcStatusTest, DetailsAreWhatGrpcToolsRead) {
  v1::StatusDetails details;
  ASSERT_TRUE(details.ParseFromString(ToGrpcStatus(DenialError(SomeDenial())).error_details()));
  EXPECT_EQ(details.code(), 8);
  EXPECT_EQ(details.message(), DenialError(SomeDenial()).message());
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/gpumem.v1.Denial");
  v1::Denial denial;
  EXPECT_TRUE(details.details(0).UnpackTo(&denial));
}

TEST(GrpcStatusTest, HostileDetailsAreIgnored) {
  const auto received = [](const v1::StatusDetails& details) {
    return FromGrpcStatus(
        grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", details.SerializeAsString()));
  };
  EXPECT_EQ(FromGrpcStatus(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full",
                                        "\xff\xff not a message")),
            absl::ResourceExhaustedError("full"));

  v1::StatusDetails other;
  other.add_details()->PackFrom(v1::Usage());
  EXPECT_EQ(received(other), absl::ResourceExhaustedError("full"));

  v1::StatusDetails garbled;
  garbled.add_details()->set_type_url("type.googleapis.com/gpumem.v1.Denial");
  garbled.mutable_details(0)->set_value("\xff\xff");
  EXPECT_EQ(received(garbled), absl::ResourceExhaustedError("full"));

  v1::StatusDetails fine;
  fine.add_details()->PackFrom(SomeDenial());
  EXPECT_TRUE(DenialOf(received(fine)).has_value());
  EXPECT_EQ(
      FromGrpcStatus(grpc::Status(grpc::StatusCode::NOT_FOUND, "none", fine.SerializeAsString())),
      absl::NotFoundError("none"));
}

TEST(GrpcStatusTest, ACodeThatDoesNotExistIsUnknown) {
  EXPECT_EQ(FromGrpcStatus(grpc::Status(static_cast<grpc::StatusCode>(17), "odd")).code(),
            absl::StatusCode::kUnknown);
}

}  // namespace grpc_status_test
}  // namespace gpumem
