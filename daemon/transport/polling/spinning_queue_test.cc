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
  CallAtOnce(1, 500);
  const absl::Duration spun = GetCallbackThreadsStats().spun;
  EXPECT_GT(spun, absl::ZeroDuration());
  StartCallbackThreads({.most = absl::ZeroDuration()});
  CallAtOnce(1, 500);
  EXPECT_GT(GetCallbackThreadsStats().spun, spun);
}

}  // namespace
}  // namespace gpumemd
