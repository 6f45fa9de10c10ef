// SPDX-License-Identifier: Apache-2.0
// The callback threads while they spin; what they are told lasts as long as the process.
#include "absl/time/clock.h"
#include "daemon/transport/polling/callback_queue.h"
#include "daemon/transport/polling/testing/echo_server.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

class SpinningQueueTest : public EchoServer {
 protected:
  static void SetUpTestSuite() {
    StartCallbackThreads({.most = absl::Microseconds(200), .always = true});
  }
};

TEST_F(SpinningQueueTest, ServesOneClientAndMany) {
  const absl::Time start = absl::Now();
  CallAtOnce(1, 500);
  CallAtOnce(8, 200);
  CallAtOnce(1, 500);
  EXPECT_EQ(service_->answered, 500 + 8 * 200 + 500);
  const absl::Duration took = absl::Now() - start;
  EXPECT_LE(GetCallbackThreadsStats().spun, took / 2 + absl::Milliseconds(101));
}

TEST_F(SpinningQueueTest, KeepsAThreadWithoutServers) {
  server_->Shutdown();
  server_.reset();
  EXPECT_GE(GetCallbackThreadsStats().polling, 1);
}

// A second server in a process calls it again, while threads spin as the first one has asked.
TEST_F(SpinningQueueTest, SpinsAsTheFirstCallHasAsked) {
  const auto spins_more_than = [this](absl::Duration spun) {
    // Beside a busy machine a thread does not spin at each call.
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (GetCallbackThreadsStats().spun <= spun && absl::Now() < end) CallAtOnce(1, 50);
    return GetCallbackThreadsStats().spun > spun;
  };
  EXPECT_TRUE(spins_more_than(absl::ZeroDuration()));
  const absl::Duration spun = GetCallbackThreadsStats().spun;
  StartCallbackThreads({.most = absl::ZeroDuration()});
  EXPECT_TRUE(spins_more_than(spun));
}

}  // namespace
}  // namespace gpumemd
