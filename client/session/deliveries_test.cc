// SPDX-License-Identifier: Apache-2.0
#include "client/session/deliveries.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "common/testing/descriptors_left.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::internal {
namespace deliveries_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DeliveriesTest : public ::testing::Test {
 protected:
  DeliveriesTest() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    daemon_.reset(pair[0]);
    deliveries_ = std::make_unique<Deliveries>(UniqueFd(pair[1]));
  }

  // A Delivery of one lease and one descriptor.
  void Deliver(uint64_t delivery_id, uint64_t lease_id) {
    v1::ServerMessage message;
    message.mutable_delivery()->set_delivery_id(delivery_id);
    message.mutable_delivery()->add_lease_ids(lease_id);
    message.mutable_delivery()->add_fd_lease_ids(lease_id);
    Send(message, 1);
  }

  // A Delivery with that many descriptors.
  void Deliver(uint64_t delivery_id, const std::vector<uint64_t>& leases,
               const std::vector<uint64_t>& fd_leases, const std::vector<uint64_t>& pools,
               size_t fds) {
    v1::ServerMessage message;
    v1::Delivery* const delivery = message.mutable_delivery();
    delivery->set_delivery_id(delivery_id);
    delivery->mutable_lease_ids()->Add(leases.begin(), leases.end());
    delivery->mutable_fd_lease_ids()->Add(fd_leases.begin(), fd_leases.end());
    delivery->mutable_pool_ids()->Add(pools.begin(), pools.end());
    Send(message, fds);
  }

  // One of several messages, with a descriptor for each lease.
  void DeliverPart(uint64_t delivery_id, const std::vector<uint64_t>& leases, uint32_t part,
                   uint32_t parts) {
    v1::ServerMessage message;
    v1::Delivery* const delivery = message.mutable_delivery();
    delivery->set_delivery_id(delivery_id);
    delivery->mutable_lease_ids()->Add(leases.begin(), leases.end());
    delivery->mutable_fd_lease_ids()->Add(leases.begin(), leases.end());
    delivery->set_part(part);
    delivery->set_parts(parts);
    Send(message, leases.size());
  }

  void Send(const v1::ServerMessage& message, size_t fds) {
    const std::vector<int> sent(fds, daemon_.get());
    ASSERT_TRUE(SendMessage(daemon_.get(), message.SerializeAsString(), sent, Soon()).ok());
  }

  static absl::Time Soon() { return absl::Now() + absl::Seconds(10); }

  UniqueFd daemon_;
  std::unique_ptr<Deliveries> deliveries_;
};

TEST_F(DeliveriesTest, CallsGetTheirOwnInAnyOrder) {
  Deliveries::Call first(deliveries_.get());
  Deliveries::Call second(deliveries_.get());
  Deliver(1, 11);
  Deliver(2, 12);
  EXPECT_EQ(second.Collect(2, Soon()).value().size(), 1u);
  EXPECT_EQ(first.Collect(1, Soon()).value().size(), 1u);
  EXPECT_THAT(deliveries_->TakeAbandoned(), IsEmpty());
}

TEST_F(DeliveriesTest, PartsAreCollectedAsOne) {
  Deliveries::Call call(deliveries_.get());
  DeliverPart(1, {11, 12}, 0, 3);
  DeliverPart(1, {13, 14}, 1, 3);
  Deliver(2, 99);  // of another call, in between
  EXPECT_TRUE(deliveries_->Poll().ok());
  EXPECT_TRUE(deliveries_->HasPart());
  DeliverPart(1, {15}, 2, 3);
  const auto fds = call.Collect(1, Soon());
  ASSERT_TRUE(fds.ok()) << fds.status();
  EXPECT_EQ(fds->size(), 5u);
  for (const UniqueFd& fd : *fds) EXPECT_TRUE(fd.valid());
  EXPECT_FALSE(deliveries_->HasPart());
}

TEST_F(DeliveriesTest, PartsThatNoCallCollectsAreAbandonedTogether) {
  const size_t before = OpenFds();
  {
    Deliveries::Call call(deliveries_.get());
    DeliverPart(1, {11, 12}, 0, 3);
    DeliverPart(1, {13}, 1, 3);
    EXPECT_TRUE(deliveries_->Poll().ok());
    EXPECT_EQ(OpenFds(), before + 3);
  }
  EXPECT_THAT(deliveries_->TakeAbandoned(), ElementsAre(ElementsAre(11, 12, 13)));
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(DeliveriesTest, WhatLacksAPartIsNeverCollected) {
  Deliveries::Call call(deliveries_.get());
  DeliverPart(1, {11}, 0, 3);
  DeliverPart(1, {13}, 2, 3);
  const auto fds = call.Collect(1, absl::Now());
  EXPECT_TRUE(absl::IsDeadlineExceeded(fds.status())) << fds.status();
  EXPECT_FALSE(deliveries_->HasPart());  // the caller gave up
}

TEST_F(DeliveriesTest, OneReaderServesAllWaitingCalls) {
  constexpr uint64_t kCalls = 16;
  std::vector<std::thread> threads;
  for (uint64_t id = 1; id <= kCalls; ++id) {
    threads.emplace_back([this, id] {
      Deliveries::Call call(deliveries_.get());
      EXPECT_EQ(call.Collect(id, Soon()).value().size(), 1u);
    });
  }
  // A call that never ends keeps Deliveries from being abandoned that arrive before their call.
  Deliveries::Call oldest(deliveries_.get());
  for (uint64_t id = kCalls; id >= 1; --id) Deliver(id, id);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(DeliveriesTest, DeliveriesWithoutACallAreAbandonedAndTheirDescriptorsClosed) {
  const size_t before = OpenFds();
  { Deliveries::Call gave_up(deliveries_.get()); }
  Deliver(1, 11);
  Deliver(2, 12);
  EXPECT_TRUE(deliveries_->Poll().ok());
  EXPECT_THAT(deliveries_->TakeAbandoned(), ElementsAre(ElementsAre(11), ElementsAre(12)));
  EXPECT_THAT(deliveries_->TakeAbandoned(), IsEmpty());
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(DeliveriesTest, ADeliveryWaitsForEveryCallThatBeganBeforeIt) {
  const size_t before = OpenFds();
  auto older = std::make_unique<Deliveries::Call>(deliveries_.get());
  auto younger = std::make_unique<Deliveries::Call>(deliveries_.get());
  Deliver(1, 11);
  EXPECT_TRUE(deliveries_->Poll().ok());
  Deliveries::Call began_later(deliveries_.get());
  older.reset();
  EXPECT_THAT(deliveries_->TakeAbandoned(), IsEmpty());
  EXPECT_EQ(OpenFds(), before + 1);
  younger.reset();
  EXPECT_THAT(deliveries_->TakeAbandoned(), ElementsAre(ElementsAre(11)));
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(DeliveriesTest, ACallThatWaitsForMemoryKeepsNoneFromBeingAbandonedForLong) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  daemon_.reset(pair[0]);
  deliveries_ = std::make_unique<Deliveries>(UniqueFd(pair[1]),
                                             /*answer_follows=*/absl::Milliseconds(100));
  const size_t before = OpenFds();
  Deliveries::Call waits(deliveries_.get(), /*waits=*/true);
  { Deliveries::Call gave_up(deliveries_.get()); }
  Deliver(1, 11);
  const absl::Time sent = absl::Now();
  // It may belong to the waiting call; but then the answer follows.
  EXPECT_TRUE(deliveries_->Poll().ok());
  std::vector<std::vector<uint64_t>> abandoned = deliveries_->TakeAbandoned();
  if (absl::Now() < sent + absl::Milliseconds(100)) {
    EXPECT_THAT(abandoned, IsEmpty());
    EXPECT_EQ(OpenFds(), before + 1);
  }
  for (const absl::Time end = Soon(); abandoned.empty() && absl::Now() < end;) {
    EXPECT_TRUE(deliveries_->Poll().ok());
    abandoned = deliveries_->TakeAbandoned();
  }
  EXPECT_GE(absl::Now(), sent + absl::Milliseconds(100));
  EXPECT_THAT(abandoned, ElementsAre(ElementsAre(11)));
  EXPECT_EQ(OpenFds(), before);
  // The call's Delivery comes later, and other calls take theirs meanwhile.
  Deliveries::Call other(deliveries_.get());
  Deliver(3, 13);
  Deliver(2, 12);
  EXPECT_EQ(waits.Collect(2, Soon()).value().size(), 1u);
  EXPECT_EQ(other.Collect(3, Soon()).value().size(), 1u);
}

TEST_F(DeliveriesTest, WhatACallThatWaitsGaveUpIsAbandonedAtItsEnd) {
  const size_t before = OpenFds();
  auto waits = std::make_unique<Deliveries::Call>(deliveries_.get(), /*waits=*/true);
  Deliver(1, 11);
  EXPECT_TRUE(deliveries_->Poll().ok());
  EXPECT_THAT(deliveries_->TakeAbandoned(), IsEmpty());
  waits.reset();
  EXPECT_THAT(deliveries_->TakeAbandoned(), ElementsAre(ElementsAre(11)));
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(DeliveriesTest, ACallThatCollectedLeavesNothing) {
  const size_t before = OpenFds();
  {
    Deliveries::Call call(deliveries_.get());
    Deliver(1, 11);
    EXPECT_TRUE(deliveries_->Poll().ok());
    EXPECT_TRUE(call.Collect(1, Soon()).ok());
  }
  EXPECT_THAT(deliveries_->TakeAbandoned(), IsEmpty());
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(DeliveriesTest, CollectHonoursItsDeadline) {
  Deliveries::Call call(deliveries_.get());
  EXPECT_EQ(call.Collect(1, absl::Now() + absl::Milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  // Also behind another reader that waits longer.
  std::thread reader([this] {
    Deliveries::Call other(deliveries_.get());
    EXPECT_TRUE(other.Collect(2, Soon()).ok());
  });
  EXPECT_EQ(call.Collect(1, absl::Now() + absl::Milliseconds(20)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  Deliver(2, 12);
  reader.join();
}

TEST_F(DeliveriesTest, GoodbyeEndsTheSessionWithItsReason) {
  Deliveries::Call call(deliveries_.get());
  Deliver(1, 11);
  v1::ServerMessage goodbye;
  goodbye.mutable_goodbye()->set_reason("an operator said so");
  ASSERT_TRUE(SendMessage(daemon_.get(), goodbye.SerializeAsString(), {}, Soon()).ok());
  const absl::Status end = deliveries_->Poll();
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(end.message()), HasSubstr("an operator said so"));
  // Earlier messages are still there; no more will come.
  EXPECT_TRUE(call.Collect(1, Soon()).ok());
  EXPECT_EQ(call.Collect(2, absl::InfiniteFuture()).status(), end);
  EXPECT_EQ(deliveries_->Poll(), end);
}

TEST_F(DeliveriesTest, AClosedSocketWakesAllWaitingCalls) {
  std::vector<std::thread> threads;
  for (uint64_t id = 1; id <= 4; ++id) {
    threads.emplace_back([this, id] {
      Deliveries::Call call(deliveries_.get());
      EXPECT_EQ(call.Collect(id, absl::InfiniteFuture()).status().code(),
                absl::StatusCode::kUnavailable);
    });
  }
  daemon_.reset();
  for (std::thread& thread : threads) thread.join();
}

TEST_F(DeliveriesTest, AMessageThatDoesNotParseEndsTheSession) {
  ASSERT_TRUE(SendMessage(daemon_.get(), "\xff\xff\xff", {}, Soon()).ok());
  EXPECT_EQ(deliveries_->Poll().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DeliveriesTest, MessagesOfAYoungerDaemonAreIgnored) {
  // Field 15, a message of no bytes.
  ASSERT_TRUE(SendMessage(daemon_.get(), std::string("\x7a\x00", 2), {}, Soon()).ok());
  Deliveries::Call call(deliveries_.get());
  Deliver(1, 11);
  EXPECT_TRUE(call.Collect(1, Soon()).ok());
}

TEST_F(DeliveriesTest, LeasesWithoutADescriptorGetNone) {
  Deliveries::Call call(deliveries_.get());
  Deliver(1, {11, 12, 13}, {12}, {}, 1);
  const auto fds = call.Collect(1, Soon());
  ASSERT_TRUE(fds.ok()) << fds.status();
  ASSERT_EQ(fds->size(), 3u);
  EXPECT_FALSE((*fds)[0].valid());
  EXPECT_TRUE((*fds)[1].valid());
  EXPECT_FALSE((*fds)[2].valid());
}

TEST_F(DeliveriesTest, APoolsDescriptorIsKeptWhoeverCallBroughtIt) {
  const size_t before = OpenFds();
  { Deliveries::Call gave_up(deliveries_.get()); }
  Deliver(1, {11}, {}, {7, 8}, 2);
  EXPECT_TRUE(deliveries_->Poll().ok());
  EXPECT_THAT(deliveries_->TakeAbandoned(), ElementsAre(ElementsAre(11)));
  Deliveries::Call call(deliveries_.get());
  Deliver(2, {12}, {}, {}, 0);
  EXPECT_TRUE(call.Collect(2, Soon()).ok());
  EXPECT_TRUE(deliveries_->TakePool(7).ok());
  EXPECT_EQ(deliveries_->TakePool(7).status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(deliveries_->TakePool(8)->valid());
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(DeliveriesTest, TheWrongNumberOfDescriptorsIsADefect) {
  const size_t before = OpenFds();
  Deliveries::Call call(deliveries_.get());
  Deliver(1, {11, 12}, {11, 12}, {}, 1);
  Deliver(2, {13}, {13}, {7}, 1);
  Deliver(3, {14}, {15}, {}, 1);  // no lease of this Delivery
  Deliver(4, {16}, {}, {}, 1);
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(call.Collect(id, Soon()).status().code(), absl::StatusCode::kInternal) << id;
  }
  EXPECT_EQ(deliveries_->TakePool(7).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(DeliveriesTest, APoolWhoseDescriptorWasLostStaysUnavailable) {
  {
    Deliveries::Call call(deliveries_.get());
    Deliver(1, {11}, {}, {7}, 1);
    const testing::DescriptorsLeft limit(0);
    EXPECT_EQ(call.Collect(1, absl::InfiniteFuture()).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  Deliveries::Call call(deliveries_.get());
  Deliver(2, {12}, {}, {}, 0);
  EXPECT_TRUE(call.Collect(2, Soon()).ok());
  EXPECT_EQ(deliveries_->TakePool(7).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(DeliveriesTest, RunningOutOfDescriptorsFailsTheCallAtOnce) {
  Deliveries::Call call(deliveries_.get());
  Deliver(1, 11);
  absl::Status status;
  {
    const testing::DescriptorsLeft limit(0);
    status = call.Collect(1, absl::InfiniteFuture()).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);

  // Later calls are unaffected.
  Deliveries::Call next(deliveries_.get());
  Deliver(2, 12);
  EXPECT_TRUE(next.Collect(2, Soon()).ok());
}

TEST_F(DeliveriesTest, DestructionEndsTheSessionThoughAForkedChildHasTheSocket) {
  int go[2];
  ASSERT_EQ(pipe2(go, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(go[1]);
    char byte;
    (void)!read(go[0], &byte, 1);  // until the parent is done
    _exit(0);
  }
  deliveries_.reset();
  EXPECT_EQ(ReceiveMessage(daemon_.get(), Soon()).status().code(), absl::StatusCode::kUnavailable);
  close(go[0]);
  close(go[1]);
}

}  // namespace deliveries_test
}  // namespace gpumem::internal
