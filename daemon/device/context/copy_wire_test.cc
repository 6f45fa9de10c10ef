// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/copy_wire.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "daemon/device/context/copy_plan.h"
#include "daemon/device/context/wire.h"

namespace gpumemd {
namespace {

// Returns a message as it arrives: with other descriptors.
gpumem::UnixMessage Arrive(const CopyMessage& sent) {
  gpumem::UnixMessage message{.bytes = sent.bytes};
  for (size_t i = 0; i < sent.fds.size(); ++i) {
    message.fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  return message;
}

ContextRequest RequestOf(const gpumem::UnixMessage& message) {
  return *Unpack<ContextRequest>(message.bytes.substr(0, sizeof(ContextRequest)));
}

CopyBatch TwoParts() {
  return {.direction = CopyDirection::kIn,
          .tier_fd = 40,
          .parts = {{.fd = 41,
                     .segment_bytes = 100,
                     .offset = 20,
                     .extents = {{.offset = 7, .bytes = 30}, {.offset = 90, .bytes = 50}}},
                    {.fd = 42, .segment_bytes = 60, .extents = {{.offset = 1000, .bytes = 60}}}}};
}

TEST(CopyWire, ABatchArrivesAsItWasSent) {
  const CopyBatch batch = TwoParts();
  const absl::StatusOr<CopyMessage> sent = EncodeCopy(batch);
  ASSERT_TRUE(sent.ok()) << sent.status();
  EXPECT_EQ(sent->fds, (std::vector<int>{40, 41, 42}));
  const gpumem::UnixMessage message = Arrive(*sent);
  EXPECT_EQ(RequestOf(message).op, ContextOp::kStartCopy);
  const absl::StatusOr<CopyBatch> received = DecodeCopy(RequestOf(message), message);
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->direction, CopyDirection::kIn);
  EXPECT_EQ(received->tier_fd, message.fds[0].get());
  ASSERT_EQ(received->parts.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(received->parts[i].fd, message.fds[i + 1].get());
    EXPECT_EQ(received->parts[i].segment_bytes, batch.parts[i].segment_bytes);
    EXPECT_EQ(received->parts[i].offset, batch.parts[i].offset);
    EXPECT_EQ(received->parts[i].extents, batch.parts[i].extents);
  }
}

TEST(CopyWire, TheLargestBatchFitsIntoAMessage) {
  const CopyLimits limits;
  CopyBatch batch;
  batch.parts.resize(limits.parts);
  batch.parts.back().extents.resize(limits.extents);
  EXPECT_TRUE(EncodeCopy(batch).ok());
  batch.parts.back().extents.resize(2 * limits.extents);
  EXPECT_EQ(EncodeCopy(batch).status().code(), absl::StatusCode::kInternal);
}

TEST(CopyWire, MalformedMessagesAreRefused) {
  const absl::StatusOr<CopyMessage> sent = EncodeCopy(TwoParts());
  ASSERT_TRUE(sent.ok()) << sent.status();
  const auto refused = [](const gpumem::UnixMessage& message, const ContextRequest& request) {
    return DecodeCopy(request, message).status().code() == absl::StatusCode::kInternal;
  };
  const gpumem::UnixMessage good = Arrive(*sent);
  gpumem::UnixMessage message = Arrive(*sent);
  message.bytes.pop_back();
  EXPECT_TRUE(refused(message, RequestOf(message)));
  message = Arrive(*sent);
  message.fds.pop_back();
  EXPECT_TRUE(refused(message, RequestOf(message)));
  ContextRequest request = RequestOf(good);
  request.parts = UINT32_MAX;
  EXPECT_TRUE(refused(good, request));
  request = RequestOf(good);
  request.extents += 1;
  EXPECT_TRUE(refused(good, request));
  // A part that claims more extents than there are: the last eight bytes of its head.
  message = Arrive(*sent);
  message.bytes[sizeof(ContextRequest) + 16] = 100;
  EXPECT_TRUE(refused(message, RequestOf(message)));
}

TEST(ContextWireTest, AnswersHaveAnyStatus) {
  ContextAnswer answer;
  answer.set_status(absl::NotFoundError("no such pool"));
  EXPECT_EQ(answer.status(), absl::NotFoundError("no such pool"));
  answer.set_status(absl::OkStatus());
  EXPECT_EQ(answer.status(), absl::OkStatus());
  const std::string most(sizeof(answer.words) - 1, 'x');
  answer.set_status(absl::InternalError(most + "y"));
  EXPECT_EQ(answer.status(), absl::InternalError(most));
}

}  // namespace
}  // namespace gpumemd
