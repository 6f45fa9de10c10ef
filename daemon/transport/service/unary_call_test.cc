// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/service/unary_call.h"

#include <gtest/gtest.h>

#include <string>

#include "proto/gpumem/v1/broker.pb.h"

namespace gpumemd {
namespace {

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

TEST(ParseRequest, GivesTheMessageAndLeavesTheBytes) {
  gpumem::v1::AcquireRequest request;
  request.set_bytes(5);
  const grpc::ByteBuffer bytes = BufferOf(request.SerializeAsString());
  for (int i = 0; i < 2; ++i) {
    auto parsed = ParseRequest<gpumem::v1::AcquireRequest>(bytes);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->bytes(), 5u);
  }
}

TEST(ParseRequest, NamesTheMessageThatBytesAreNot) {
  for (const grpc::ByteBuffer& bytes : {BufferOf("\xff"), grpc::ByteBuffer()}) {
    const absl::Status status = ParseRequest<gpumem::v1::AcquireRequest>(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "the request does not parse as a gpumem.v1.AcquireRequest");
  }
}

TEST(ToAnswer, CutsWhatNoTrailerHolds) {
  EXPECT_TRUE(ToAnswer(absl::OkStatus()).ok());
  EXPECT_EQ(ToAnswer(absl::NotFoundError("short")).error_message(), "short");
  const grpc::Status cut = ToAnswer(absl::NotFoundError(std::string(60000, 'x')));
  EXPECT_EQ(cut.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(cut.error_message(), std::string(1000, 'x') + " …");
}

}  // namespace
}  // namespace gpumemd
