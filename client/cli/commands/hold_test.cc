// SPDX-License-Identifier: Apache-2.0
// gpumemctl hold while it waits, and when its memory is revoked.
#include <signal.h>

#include <functional>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/exit_code.h"
#include "client/testing/fake_daemon.h"
#include "common/denial.h"
#include "common/grpc_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gpumem::cli {
namespace {

using internal::FakeDaemon;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The signals must not reach any thread of the daemon.
class HoldTest : public ::testing::Test {
 protected:
  HoldTest() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  }

  absl::Status RunHold(const FakeDaemon& daemon, HoldCommand command) {
    command.bytes = 4096;
    GlobalOptions options;
    options.runtime_dir = daemon.runtime_dir();
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    absl::Status status = cli::Run(command, options);
    out_ = ::testing::internal::GetCapturedStdout();
    err_ = ::testing::internal::GetCapturedStderr();
    return status;
  }

  std::string out_, err_;
};

TEST_F(HoldTest, ASignalEndsTheWait) {
  absl::Notification asked;
  FakeDaemon daemon(
      {.acquire_waiting = [&](const std::function<bool()>& is_cancelled, uint64_t,
                              const v1::AcquireRequest& request, v1::AcquireResponse*) {
        EXPECT_GT(request.wait_ms(), 1000u * 3600 * 1000);
        asked.Notify();
        while (!is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
        return grpc::Status::CANCELLED;
      }});
  std::thread user([&] {
    asked.WaitForNotification();
    kill(getpid(), SIGTERM);
  });
  const absl::Status status = RunHold(daemon, {.wait = absl::InfiniteDuration()});
  user.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("nothing is held"));
  EXPECT_EQ(ExitCodeOf(status), kExitRefused);
  EXPECT_EQ(daemon.live_leases(), 0u);
  EXPECT_THAT(out_, IsEmpty());
}

TEST_F(HoldTest, SaysThatItWaits) {
  FakeDaemon* fake = nullptr;
  FakeDaemon daemon(
      {.acquire_waiting = [&](const std::function<bool()>&, uint64_t session,
                              const v1::AcquireRequest& request, v1::AcquireResponse* response) {
        absl::SleepFor(absl::Milliseconds(500));  // more than a moment
        return fake->Grant(session, request, response);
      }});
  fake = &daemon;
  const absl::Status status =
      RunHold(daemon, {.duration = absl::Milliseconds(1), .wait = absl::Minutes(90)});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(err_, HasSubstr("waiting for 4.00 KiB, for 1h30m at most"));
  EXPECT_THAT(out_, HasSubstr("Released"));
}

TEST_F(HoldTest, AWaitThatIsOverIsNoRoom) {
  FakeDaemon daemon({.acquire = [&](uint64_t, const v1::AcquireRequest&, v1::AcquireResponse*) {
    v1::Denial denial;
    denial.set_cause(v1::Denial::CAUSE_QUEUE);
    return ToGrpcStatus(DenialError(denial));
  }});
  const absl::Status status = RunHold(daemon, {.wait = absl::Seconds(1)});
  EXPECT_EQ(ExitCodeOf(status), kExitNoRoom) << status;
}

TEST_F(HoldTest, WhatIsTakenBackIsReleased) {
  FakeDaemon daemon;
  v1::Event event;
  event.mutable_revocation()->add_lease_ids(1);
  event.mutable_revocation()->set_deadline_ms(60000);
  daemon.Tell(event);
  const absl::Status status = RunHold(daemon, {.revocable = true});
  EXPECT_EQ(ExitCodeOf(status), kExitRevoked) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("revoked the memory"));
  EXPECT_THAT(out_, HasSubstr("Released"));
  EXPECT_EQ(daemon.live_leases(), 0u);
}

}  // namespace
}  // namespace gpumem::cli
