// SPDX-License-Identifier: Apache-2.0
// Memory of processes that have ended, with and without a word: it comes back, and stays with
// others who share it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/system/testing/end_to_end_fixture.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::EndToEnd;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::Hear;
using testing::Say;

TEST_F(EndToEnd, AKilledHoldersMemoryComesBack) {
  auto client = Connect();
  Child holder = Child::Self({"--role", "hold", daemon_->runtime_dir(), "a", "64", "1"});
  ASSERT_THAT(Hear(holder.channel()), HasSubstr("gmt_"));
  ASSERT_EQ(client->Acquire({.bytes = kMiB}).status().code(), absl::StatusCode::kResourceExhausted);
  holder.Signal(SIGKILL);
  EXPECT_EQ(holder.Wait(), 128 + SIGKILL);
  EXPECT_TRUE(Eventually([&] { return client->Acquire({.bytes = 64 * kMiB}).ok(); }));
}

TEST_F(EndToEnd, WhatADeadHolderSharedStaysWithItsOtherHolders) {
  auto client = Connect();
  Child holder = Child::Self({"--role", "hold", daemon_->runtime_dir(), "a", "16", "33"});
  auto segment = client->Open(Hear(holder.channel()));
  ASSERT_OK(segment);
  holder.Signal(SIGKILL);
  holder.Wait();
  auto other = Connect("b");
  ASSERT_TRUE(Eventually([&] { return client->GetUsage()->sessions == 1; }));
  EXPECT_EQ(UsageOf(*client).leased_bytes, 16 * kMiB);
  EXPECT_EQ(static_cast<char*>(segment->data())[16 * kMiB - 1], 33);
}

TEST_F(EndToEnd, AThousandKilledHoldersLeaveNothing) {
  auto client = Connect();
  // One of everything first: gRPC keeps some descriptors once it has needed them.
  for (int i = 0; i < 20; ++i) {
    Child holder = Child::Self({"--role", "hold", daemon_->runtime_dir(), "a", "2", "1"});
    ASSERT_THAT(Hear(holder.channel()), HasSubstr("gmt_"));
  }
  const auto settled = [&] {
    auto usage = client->GetUsage();
    return usage.ok() && usage->sessions == 1 && usage->devices[0].leased_bytes == 0 &&
           usage->devices[0].lingering_bytes == 0;
  };
  ASSERT_TRUE(Eventually(settled));
  int before = 0;
  ASSERT_TRUE(Eventually([&] { return std::exchange(before, daemon_->fds()) == before; }));
  const char* count = std::getenv("GPUMEM_KILLS");
  const int kills = count != nullptr ? std::atoi(count) : 200;
  for (int i = 0; i < kills; ++i) {
    Child holder = Child::Self({"--role", "hold", daemon_->runtime_dir(), "a", "2", "1"});
    // Killed at every stage: some before they said anything.
    if (i % 4 != 0) Hear(holder.channel());
  }
  EXPECT_TRUE(Eventually(settled));
  EXPECT_TRUE(Eventually([&] { return daemon_->fds() <= before; }))
      << before << " descriptors before, " << daemon_->fds() << " after";
}

TEST_F(EndToEnd, AClosedSessionsMemoryLingersUntilItsProcessIsGone) {
  auto client = Connect();
  {
    // This process closes a session and keeps the mapping: its segment outlives it.
    auto closing = Connect("b");
    auto segment = closing->Acquire({.bytes = 8 * kMiB});
    ASSERT_OK(segment);
  }
  // Segment and client ended in order, so nothing lingers: a release is believed.
  auto b = Connect("b");
  EXPECT_EQ(UsageOf(*b).lingering_bytes, 0u);
  // A process that goes without a word leaves nothing either, once it is gone.
  Child holder = Child::Self({"--role", "hold", daemon_->runtime_dir(), "b", "8", "1"});
  Hear(holder.channel());
  Say(holder.channel(), "exit without release");
  EXPECT_EQ(holder.Wait(), 0);
  EXPECT_TRUE(Eventually([&] {
    const DeviceUsage usage = UsageOf(*b);
    return usage.leased_bytes == 0 && usage.lingering_bytes == 0;
  }));
}

TEST_F(EndToEnd, OnExitPolicyChargesUntilTheProcessIsGone) {
  Start(R"(
[tenant_defaults]
limit = "64MiB"
release = "on-exit"
)");
  auto client = daemon_->Connect();
  ASSERT_OK(client);
  auto segment = (*client)->Acquire({.bytes = 8 * kMiB});
  ASSERT_OK(segment);
  ASSERT_OK(segment->Release());
  EXPECT_EQ(UsageOf(**client).lingering_bytes, 8 * kMiB);
  Child holder = Child::Self({"--role", "hold", daemon_->runtime_dir(), "", "8", "1"});
  Hear(holder.channel());
  Say(holder.channel(), "release");
  EXPECT_EQ(holder.Wait(), 0);
  EXPECT_TRUE(Eventually([&] {
    return UsageOf(**client).charged_bytes <= 16 * kMiB &&
           UsageOf(**client).lingering_bytes == 8 * kMiB;
  }));
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 7 && std::string(argv[1]) == "--role" && std::string(argv[2]) == "hold") {
    return gpumem::testing::Hold(argv[3], argv[4], std::stoull(argv[5]), std::stoi(argv[6]));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
