// SPDX-License-Identifier: Apache-2.0
// The broker with devices that fail and stall: every failure is undone, and no session waits for
// another session's driver call. calls/full_driver_test.cc has drivers without memory.
#include "daemon/core/broker/broker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/testing/broker_fixture.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/denial.h"

namespace gpumemd {
namespace broker_test {

using ::testing::HasSubstr;

using BrokerTest = BrokerFixture;

TEST_F(BrokerTest, AFailedCreateIsUndone) {
  plan_ = [this](const DeviceOp& op) {
    if (op.type == DeviceOp::Type::kCreate && ++creates_ == 3) {
      return absl::InternalError("CUDA_ERROR_ECC_UNCORRECTABLE");
    }
    return absl::OkStatus();
  };
  auto leases = Acquire(1, 5);
  EXPECT_EQ(leases.status(), absl::InternalError("CUDA_ERROR_ECC_UNCORRECTABLE"));
  EXPECT_EQ(Held(), 0u);
  EXPECT_TRUE(broker_->views().ListSegments("", "")->empty());
  EXPECT_TRUE(Acquire(10).ok());
}

TEST_F(BrokerTest, AFailedDeliveryIsUndone) {
  auto leases = Acquire(4, 2, absl::UnavailableError("socket closed"));
  EXPECT_EQ(leases.status(), absl::UnavailableError("socket closed"));
  EXPECT_EQ(Held(), 0u);
  EXPECT_TRUE(Acquire(10).ok());
}

TEST_F(BrokerTest, AFailedDeliveryOfRetainedMemoryKeepsIt) {
  Release(*Acquire(4));
  EXPECT_FALSE(Acquire(4, 1, absl::UnavailableError("socket closed")).ok());
  auto again = Acquire(4);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->front().reused);
}

TEST_F(BrokerTest, ASessionThatEndsWhileItsSegmentIsMadeGetsNothing) {
  plan_ = [this](const DeviceOp& op) {
    if (op.type == DeviceOp::Type::kCreate) gate_.Pass();
    return absl::OkStatus();
  };
  absl::Status status;
  std::thread acquiring([&] { status = Acquire(10).status(); });
  gate_.AwaitArrivals(1);
  // Charged while it is being made; no call waits for the driver.
  EXPECT_EQ(Charged(), 10 * kGranule);
  EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus());
  broker_->ProcessGone(session_.id);
  EXPECT_TRUE(observer_.forgotten.empty()) << "its call is still being answered";
  gate_.Open();
  acquiring.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(observer_.forgotten, ::testing::ElementsAre(session_.id));
  EXPECT_EQ(Held(), 0u);
}

TEST_F(BrokerTest, RequestWaitsForReturningMemory) {
  plan_ = [this](const DeviceOp& op) {
    if (op.type == DeviceOp::Type::kDestroy) gate_.Pass();
    return absl::OkStatus();
  };
  Release(*Acquire(6));  // retained
  // Six retained granules leave no room for ten: they are given up, and the request waits for them.
  absl::StatusOr<std::vector<LeaseView>> leases = absl::UnknownError("not yet");
  std::thread acquiring([&] { leases = Acquire(10); });
  gate_.AwaitArrivals(1);
  EXPECT_EQ(Charged(), 6 * kGranule) << "charged until the driver has it back";
  gate_.Open();
  acquiring.join();
  ASSERT_TRUE(leases.ok()) << leases.status();
  EXPECT_EQ(Charged(), 10 * kGranule);
}

TEST_F(BrokerTest, MemoryThatDoesNotReturnInTimeIsADenial) {
  plan_ = [this](const DeviceOp& op) {
    if (op.type == DeviceOp::Type::kDestroy) gate_.Pass();
    return absl::OkStatus();
  };
  Release(*Acquire(6));
  const auto denied = broker_->Acquire(CallOf(session_), {.bytes = 10 * kGranule},
                                       absl::Now() + absl::Milliseconds(20), kDelivered);
  EXPECT_EQ(denied.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(DenialOf(denied.status()).has_value());
  gate_.Open();
}

TEST_F(BrokerTest, ConcurrentRequestsStayWithinTheCapacity) {
  std::vector<std::thread> threads;
  std::atomic<int> granted = 0;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        auto leases = Acquire(1 + i % 4, 1 + i % 2);
        EXPECT_LE(Charged(), 10 * kGranule);
        if (!leases.ok()) {
          EXPECT_EQ(leases.status().code(), absl::StatusCode::kResourceExhausted);
          continue;
        }
        ++granted;
        Release(*leases);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(granted, 200);
  EXPECT_EQ(Held(), 0u);
}

TEST_F(BrokerTest, TokensAreChecked) {
  EXPECT_EQ(broker_->Authenticate("").status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(broker_->Authenticate("short").status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(broker_->Authenticate(std::string(32, 'x')).status().code(),
            absl::StatusCode::kUnauthenticated);
  broker_->SocketClosed(session_.id);
  EXPECT_EQ(broker_->Authenticate(TokenOf(session_)).status().code(),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(BrokerTest, ObserversAreTold) {
  EXPECT_TRUE(broker_->operators().OverrideQuota("a", {{.limit_bytes = kGranule}}).ok());
  EXPECT_THAT(observer_.quotas, ::testing::ElementsAre("a"));
  EXPECT_EQ(Acquire(2).status().code(), absl::StatusCode::kResourceExhausted);
  broker_->operators().SetDraining(true);
  broker_->operators().SetDraining(true);
  EXPECT_THAT(observer_.drained, ::testing::ElementsAre(true));
  EXPECT_EQ(Acquire(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(broker_->OpenSession("b", {}).status().code(), absl::StatusCode::kUnavailable);
  broker_->operators().SetDraining(false);
  EXPECT_TRUE(Acquire(1).ok());
}

TEST_F(BrokerTest, HoldersAreAskedWhenMemoryIsDenied) {
  now_ = absl::UnixEpoch();
  const auto later = [&] { now_ = *now_ + absl::Seconds(1); };
  const Broker::NewSession other = Open("b");
  EXPECT_TRUE(broker_->operators()
                  .OverrideQuota("b", {{.limit_bytes = 4 * kGranule, .max_segments = 2}})
                  .ok());
  const auto ask = [&](const Broker::NewSession& session, uint64_t granules) {
    return broker_
        ->Acquire(CallOf(session), {.bytes = granules * kGranule, .count = 1}, absl::InfinitePast(),
                  [](const auto&) { return absl::OkStatus(); })
        .status()
        .code();
  };
  using absl::StatusCode;
  EXPECT_EQ(ask(other, 3), StatusCode::kOk);
  EXPECT_EQ(ask(other, 5), StatusCode::kResourceExhausted);
  EXPECT_TRUE(observer_.pressures.empty()) << "nobody can help with more than the limit";
  // The limit of the tenant itself: its tenant's other sessions could help.
  EXPECT_EQ(ask(other, 3), StatusCode::kResourceExhausted);
  ASSERT_EQ(observer_.pressures.size(), 1u);
  EXPECT_EQ(observer_.pressures[0].tenant, "b");
  EXPECT_EQ(observer_.pressures[0].device_uuid, broker_->views().Devices(false)[0].info.uuid);
  EXPECT_EQ(observer_.pressures[0].bytes, 2 * kGranule);
  EXPECT_EQ(ask(other, 3), StatusCode::kResourceExhausted);
  EXPECT_EQ(observer_.pressures.size(), 1u) << "not over and over";
  // The device is full: all sessions could help.
  EXPECT_EQ(ask(session_, 9), StatusCode::kResourceExhausted);
  ASSERT_EQ(observer_.pressures.size(), 2u);
  EXPECT_EQ(observer_.pressures[1].tenant, "");
  EXPECT_EQ(observer_.pressures[1].bytes, 2 * kGranule);
  later();
  EXPECT_EQ(ask(other, 2), StatusCode::kResourceExhausted);
  EXPECT_EQ(observer_.pressures.size(), 3u) << "but again after a while";
  // A limit on counts asks no session to give back.
  later();
  EXPECT_EQ(ask(other, 1), StatusCode::kOk);
  EXPECT_EQ(ask(other, 0), StatusCode::kInvalidArgument);
  EXPECT_TRUE(broker_->operators().OverrideQuota("b", {{.max_segments = 2}}).ok());
  EXPECT_EQ(ask(other, 1), StatusCode::kResourceExhausted);
  EXPECT_EQ(observer_.pressures.size(), 3u);
  // The driver has no memory left: all sessions could help.
  plan_ = [](const DeviceOp& op) {
    const bool create = op.type == DeviceOp::Type::kCreate;
    return create ? absl::ResourceExhaustedError("full") : absl::OkStatus();
  };
  EXPECT_EQ(ask(session_, 1), StatusCode::kResourceExhausted);
  ASSERT_EQ(observer_.pressures.size(), 4u);
  EXPECT_EQ(observer_.pressures[3].tenant, "");
  EXPECT_EQ(observer_.pressures[3].bytes, kGranule);
  broker_->ProcessGone(other.id);
}

TEST_F(BrokerTest, RepeatedDenialsRaisePressureLessOften) {
  now_ = absl::UnixEpoch();
  const auto leases = Acquire(5);
  ASSERT_TRUE(leases.ok());
  const auto denied = [&] {
    EXPECT_EQ(Acquire(9).status().code(), absl::StatusCode::kResourceExhausted);
  };
  // After 0, 20, 60, 140, 300, 620 and 1260 ms.
  for (int i = 0; i < 100; ++i) {
    denied();
    now_ = *now_ + absl::Milliseconds(20);
  }
  EXPECT_EQ(observer_.pressures.size(), 7u);
  // At most a second passes between two requests, so there is one in each of these.
  for (int i = 0; i < 5; ++i) {
    now_ = *now_ + absl::Seconds(1);
    denied();
  }
  EXPECT_EQ(observer_.pressures.size(), 12u);
  // The back-off starts anew after a while without denials.
  now_ = *now_ + absl::Seconds(3);
  denied();
  now_ = *now_ + absl::Milliseconds(20);
  denied();
  EXPECT_EQ(observer_.pressures.size(), 14u);
  Release(*leases);
}

}  // namespace broker_test
}  // namespace gpumemd
