// SPDX-License-Identifier: Apache-2.0
// Drivers that have no memory where the charges leave room: others allocate past the broker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "daemon/core/broker/testing/broker_fixture.h"
#include "daemon/core/denial.h"

namespace gpumemd {
namespace broker_test {

using ::testing::HasSubstr;
using FullDriverTest = BrokerFixture;

TEST_F(FullDriverTest, ADriverThatIsFullGetsRetainedMemoryFirst) {
  auto kept = Acquire(3);
  Release(*Acquire(2));
  plan_ = [this](const DeviceOp& op) {
    if (op.type == DeviceOp::Type::kDestroy) ++destroyed_;
    // The driver has room only once memory was given back to it.
    if (op.type == DeviceOp::Type::kCreate && destroyed_ == 0) {
      ++refused_;
      return absl::ResourceExhaustedError("CUDA_ERROR_OUT_OF_MEMORY");
    }
    return absl::OkStatus();
  };
  EXPECT_TRUE(Acquire(4).ok());
  EXPECT_EQ(refused_, 1);
  EXPECT_EQ(destroyed_, 1);
}

// Each time memory was given back to it, and it has none all the same.
TEST_F(FullDriverTest, AFullDriverIsAskedFourTimesAtMost) {
  std::vector<decltype(Acquire(1))> held;
  for (int i = 0; i < 6; ++i) held.push_back(Acquire(1));
  plan_ = [&](const DeviceOp& op) {
    if (op.type != DeviceOp::Type::kCreate) return absl::OkStatus();
    ++creates_;
    Release(*held.back());
    held.pop_back();
    return absl::ResourceExhaustedError("CUDA_ERROR_OUT_OF_MEMORY");
  };
  const absl::Status status = Acquire(2).status();
  const auto denial = DenialOf(status);
  ASSERT_TRUE(denial.has_value()) << status;
  EXPECT_EQ(denial->cause, Denial::Cause::kDriver);
  EXPECT_EQ(creates_, 4);
}

// The charges leave room for 4 granules. The driver has 3.
TEST_F(FullDriverTest, ARequestThatWaitsWaitsForAFullDriverToo) {
  const auto held = Acquire(6);
  plan_ = [this](const DeviceOp& op) {
    if (op.type == DeviceOp::Type::kDestroy) ++destroyed_;
    if (op.type == DeviceOp::Type::kCreate && op.bytes > 3 * kGranule && destroyed_ == 0) {
      ++refused_;
      return absl::ResourceExhaustedError("CUDA_ERROR_OUT_OF_MEMORY");
    }
    return absl::OkStatus();
  };
  const Broker::NewSession other = Open("b");
  absl::StatusOr<std::vector<LeaseView>> granted;
  std::thread asks([&] {
    granted = broker_->Acquire(CallOf(other), {.bytes = 4 * kGranule, .waits = true},
                               absl::Now() + absl::Seconds(60), kDelivered);
  });
  while (broker_->views().ListWaiting("", "")->empty()) std::this_thread::yield();
  // The driver is asked again now and then.
  while (refused_ < 2) std::this_thread::yield();
  Release(*held);
  asks.join();
  EXPECT_TRUE(granted.ok()) << granted.status();
  broker_->ProcessGone(other.id);
}

TEST_F(FullDriverTest, ADriverThatStaysFullIsADenialThatSaysSo) {
  plan_ = [this](const DeviceOp& op) {
    if (op.type != DeviceOp::Type::kCreate) return absl::OkStatus();
    ++creates_;
    return absl::ResourceExhaustedError("CUDA_ERROR_OUT_OF_MEMORY");
  };
  const absl::Status status = Acquire(4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const auto denial = DenialOf(status);
  ASSERT_TRUE(denial.has_value());
  EXPECT_EQ(denial->cause, Denial::Cause::kDriver);
  EXPECT_EQ(denial->asked, 4 * kGranule);
  EXPECT_THAT(denial->help, HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
  EXPECT_EQ(creates_, 1) << "nothing could have come back";
  EXPECT_EQ(broker_->views().GetTenant("a")->denials, 1u);
  EXPECT_EQ(Held(), 0u);
  const auto waited = broker_->Acquire(CallOf(session_), {.bytes = kGranule, .waits = true},
                                       absl::Now() + absl::Milliseconds(20), kDelivered);
  EXPECT_EQ(waited.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace broker_test
}  // namespace gpumemd
