// SPDX-License-Identifier: Apache-2.0
// Watches on a session's gRPC connection: how many there may be, how they end, and one that is
// never read. Nothing leaks (the fixture checks, tests/support/attack.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/grpc_status.h"
#include "tests/support/attack.h"
#include "tests/support/child.h"
#include "tests/support/expect_denial.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"
#include "tests/system/testing/api_fixture.h"

namespace gpumem {
namespace {

using testing::Api;
using testing::Eventually;
using testing::WireSession;

// max_in_flight of the tenant is 8.
TEST_F(Api, WatchesAreBoundedAndDoNotCountAsCallsInFlight) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::Event>>> watches;
  v1::Event event;
  for (int i = 0; i < 64; ++i) {
    contexts.push_back(testing::ContextWith(token(), absl::Minutes(2)));
    watches.push_back(broker_->Watch(contexts.back().get(), v1::WatchRequest()));
    ASSERT_TRUE(watches.back()->Read(&event));
    EXPECT_EQ(event.quota_changed().quota().max_in_flight(), 8u);
  }
  const auto one_more = [&](const std::string& token) {
    const auto context = testing::ContextWith(token, absl::Minutes(2));
    auto watch = broker_->Watch(context.get(), v1::WatchRequest());
    const bool heard = watch->Read(&event);
    if (heard) context->TryCancel();
    return std::pair(heard, FromGrpcStatus(watch->Finish()));
  };
  const absl::Status denied = one_more(token()).second;
  EXPECT_DENIED(denied, kDaemonLimit);
  EXPECT_EQ(testing::DenialIn(denied).limit, watches.size());
  EXPECT_TRUE(one_more(Session("bad").token()).first) << "of the session, not of the tenant";
  EXPECT_OK(Acquire(AcquireOf(1)));
  contexts[0]->TryCancel();
  EXPECT_TRUE(Eventually([&] { return one_more(token()).first; }));
  for (auto& context : contexts) context->TryCancel();
  for (auto& watch : watches) {
    EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(Eventually([&] { return Usage().in_flight() == 1; }));  // the question itself
}

TEST_F(Api, AWatchEndsWithItsSession) {
  auto session = std::make_unique<WireSession>(Session("bad"));
  const auto context = testing::ContextWith(session->token(), absl::Minutes(2));
  auto watch = broker_->Watch(context.get(), v1::WatchRequest());
  v1::Event event;
  ASSERT_TRUE(watch->Read(&event));
  ASSERT_TRUE(watch->Read(&event));
  EXPECT_TRUE(event.has_draining()) << "with the quota all that there is to tell";
  session.reset();
  EXPECT_FALSE(watch->Read(&event));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(Api, AWatchRacingTheEndOfItsSessionEndsToo) {
  for (int i = 0; i < 100; ++i) {
    auto session = std::make_unique<WireSession>(Session("bad"));
    const auto context = testing::ContextWith(session->token(), absl::Minutes(2));
    auto watch = broker_->Watch(context.get(), v1::WatchRequest());
    session.reset();
    v1::Event event;
    while (watch->Read(&event)) {
    }
    EXPECT_THAT(watch->Finish().error_code(),
                ::testing::AnyOf(grpc::StatusCode::CANCELLED, grpc::StatusCode::UNAUTHENTICATED));
  }
}

TEST_F(Api, AWatcherThatNeverReadsBlocksNoOtherClient) {
  const auto context = testing::ContextWith(token(), absl::Minutes(2));
  auto watch = broker_->Watch(context.get(), v1::WatchRequest());
  auto admin = v1::Admin::NewStub(admin_channel_);
  v1::SetQuotaRequest change;
  change.set_tenant("bad");
  constexpr uint32_t kLast = 3000;
  for (uint32_t i = 0; i <= kLast; ++i) {
    change.mutable_quota()->set_max_segments(i);
    v1::GetQuotaResponse response;
    ASSERT_TRUE(admin->SetQuota(testing::ContextWith().get(), change, &response).ok());
  }
  ExpectBystanderWorks();
  // It can still catch up: first the queued events, and in the end the present state.
  v1::Event event;
  while (event.quota_changed().quota().max_segments() != kLast && watch->Read(&event)) {
  }
  EXPECT_EQ(event.quota_changed().quota().max_segments(), kLast);
  context->TryCancel();
  watch->Finish();
}

}  // namespace
}  // namespace gpumem
