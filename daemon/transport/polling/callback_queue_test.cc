// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/polling/callback_queue.h"

#include <memory>
#include <thread>

#include "daemon/transport/polling/testing/echo_server.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

using CallbackQueueTest = EchoServer;

TEST_F(CallbackQueueTest, OneThreadServesOneClient) {
  for (int i = 0; i < 200; ++i) Call("/echo");
  EXPECT_EQ(service_->answered, 200);
  EXPECT_GE(GetCallbackThreadsStats().polling, 1);
}

TEST_F(CallbackQueueTest, AnotherThreadServesWhileOneIsHeldUp) {
  std::thread slow([&] { Call("/slow"); });
  service_->slow_came.WaitForNotification();
  for (int i = 0; i < 20; ++i) Call("/echo");
  EXPECT_EQ(service_->answered, 20);
  EXPECT_GE(GetCallbackThreadsStats().polling, 2);
  EXPECT_GE(GetCallbackThreadsStats().rescued, 1u);
  service_->slow_may_go.Notify();
  slow.join();
  EXPECT_EQ(service_->answered, 21);
}

// Where the processors allow two threads, only the watch over the long work has a third one called.
TEST_F(CallbackQueueTest, OneMoreThreadServesWhileALongWorkHoldsUpAll) {
  std::thread slow([&] { Call("/slow"); });
  service_->slow_came.WaitForNotification();
  std::thread long_work([&] { Call("/long"); });
  service_->long_came.WaitForNotification();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Call("/echo").ok());
  EXPECT_GE(GetCallbackThreadsStats().rescued, 2u);
  service_->long_may_go.Notify();
  service_->slow_may_go.Notify();
  slow.join();
  long_work.join();
  EXPECT_EQ(service_->answered, 22);
}

TEST_F(CallbackQueueTest, ServesManyClients) {
  CallAtOnce(8, 200);
  EXPECT_EQ(service_->answered, 8 * 200);
}

TEST_F(CallbackQueueTest, StartsAnewAfterTheLastServer) {
  Call("/echo");
  server_->Shutdown();
  server_.reset();
  EXPECT_EQ(GetCallbackThreadsStats().polling, 0);
  service_ = std::make_unique<EchoService>();
  Start();
  EXPECT_TRUE(Call("/echo").ok());
  EXPECT_EQ(service_->answered, 1);
}

}  // namespace
}  // namespace gpumemd
