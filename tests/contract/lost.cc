// SPDX-License-Identifier: Apache-2.0
// Kinds ipc and mempool live in a CUDA context, in a process that the daemon starts for them. These
// test its end: by itself when it is not needed, or too early.
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/contract/contract.h"

namespace gpumem::contract {
namespace {

using testing::Eventually;

TEST_P(ContextSegments, TheContextProcessRunsWhileItHasMemory) {
  EXPECT_EQ(ContextPid(), 0);
  const auto holder = StartActor(Identity::kSameUser, kKeeper);
  const Wish wish = {.kind = kind(), .bytes = bytes_};
  ASSERT_OK(holder->Acquire("untouched", {.kind = OtherKinds().front(), .bytes = bytes_}));
  EXPECT_EQ(ContextPid(), 0) << "kind " << KindName(OtherKinds().front()) << " needs none";
  ASSERT_OK(holder->Acquire("first", wish));
  const pid_t pid = ContextPid();
  EXPECT_GT(pid, 0);
  EXPECT_NE(pid, daemon().pid()) << "never in the daemon itself";
  ASSERT_OK(holder->Acquire("second", wish));
  EXPECT_EQ(ContextPid(), pid) << "one for all of a device";
  ASSERT_OK(holder->Release("first"));
  ASSERT_OK(holder->Release("second"));
  // Memory kept for the tenant's reuse is memory still, and so is memory of a process that has its
  // pool open.
  EXPECT_EQ(ContextPid(), pid);
  Trim(kKeeper);
  if (kept_by_pool()) {
    EXPECT_EQ(ContextPid(), pid);
    holder->Kill();
  }
  EXPECT_TRUE(Eventually([this] { return ContextPid() == 0; }));
  EXPECT_TRUE(Eventually([pid] { return kill(pid, 0) != 0; })) << "it is given back, not kept";
  EXPECT_OK(StartActor(Identity::kSameUser, kKeeper)->Acquire("again", wish));
}

TEST_P(ContextSegments, WhatWasInItIsLostAndNothingElse) {
  const auto maker = StartActor(), opener = StartActor();
  const auto made = maker->Acquire("made", {.kind = kind(), .bytes = bytes_});
  ASSERT_OK(made);
  ASSERT_OK(maker->Write("made", 21));
  const auto ticket = maker->Share("made");
  ASSERT_OK(ticket);
  const auto opened = opener->Open("opened", *ticket);
  ASSERT_OK(opened);
  uint64_t charged = bytes_;
  for (Kind other : OtherKinds()) {
    const std::string name(KindName(other));
    ASSERT_OK(maker->Acquire(name, {.kind = other, .bytes = bytes_}));
    ASSERT_OK(maker->Write(name, 22));
    charged += bytes_;
  }
  ASSERT_OK(maker->Watch());
  ASSERT_OK(opener->Watch());
  const pid_t pid = ContextPid();
  ASSERT_GT(pid, 0);
  ASSERT_EQ(kill(pid, SIGKILL), 0);

  // The holders are told, each by the id of its lease.
  const auto makers = maker->AwaitLost(), openers = opener->AwaitLost();
  ASSERT_OK(makers);
  ASSERT_OK(openers);
  EXPECT_THAT(*makers, ::testing::ElementsAre(made->lease_id));
  EXPECT_THAT(*openers, ::testing::ElementsAre(opened->lease_id));
  // A later watch is told as well.
  ASSERT_OK(opener->Watch());
  const auto again = opener->AwaitLost();
  ASSERT_OK(again);
  EXPECT_EQ(*again, *openers);
  const auto late = StartActor();
  EXPECT_STATUS(late->Open("late", *ticket), kFailedPrecondition, "lost");
  EXPECT_STATUS(maker->Share("made"), kFailedPrecondition, "lost");
  // Open memory stays readable and writable.
  EXPECT_OK(maker->Expect("made", 21));
  EXPECT_OK(opener->Expect("opened", 21));
  EXPECT_OK(opener->Write("opened", 23));
  EXPECT_OK(maker->Expect("made", 23));
  // Others notice nothing.
  for (Kind other : OtherKinds()) {
    const std::string name(KindName(other));
    EXPECT_OK(maker->Expect(name, 22));
    const auto others_ticket = maker->Share(name);
    ASSERT_OK(others_ticket);
    EXPECT_OK(late->Open(name, *others_ticket));
    EXPECT_OK(late->Expect(name, 22));
    EXPECT_OK(late->Release(name));
  }
  // The next acquire works at once, in a new context.
  EXPECT_EQ(Charged(), charged);
  ASSERT_OK(maker->Acquire("next", {.kind = kind(), .bytes = bytes_}));
  EXPECT_OK(maker->ExpectZero("next"));
  EXPECT_NE(ContextPid(), pid);
  const auto next_ticket = maker->Share("next");
  ASSERT_OK(next_ticket);
  EXPECT_OK(late->Open("next", *next_ticket));
  EXPECT_EQ(Charged(), charged + bytes_);
  // Lost memory is memory: charged until its last holder releases it.
  EXPECT_OK(maker->Release("made"));
  EXPECT_EQ(Charged(), charged + bytes_);
  EXPECT_OK(opener->Release("opened"));
  if (kept_by_pool()) {
    EXPECT_EQ(Charged(), charged + bytes_) << "by those who have its pool open";
    opener->Kill();
    late->Kill();
    maker->Kill();
    charged = 0;
  }
  EXPECT_TRUE(EventuallyCharged(charged)) << Charged();
}

TEST_P(ContextSegments, LostMemoryIsNeverReused) {
  const auto client = Connect(kKeeper);
  auto retained = client->Acquire({.bytes = bytes_, .kind = kind()});
  ASSERT_OK(retained);
  ASSERT_OK(retained->Release());
  const pid_t pid = ContextPid();
  ASSERT_GT(pid, 0);
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  if (kept_by_pool()) {
    EXPECT_TRUE(Eventually([&] { return ContextPid() != pid; }));
    EXPECT_EQ(Charged(kKeeper), bytes_) << "this process has its pool open";
  } else {
    EXPECT_TRUE(EventuallyCharged(0, kKeeper)) << "nobody can use what is retained there";
  }
  auto next = client->Acquire({.bytes = bytes_, .kind = kind()});
  ASSERT_OK(next);
  EXPECT_FALSE(next->reused());
}

TEST_P(ContextSegments, TheContextProcessEndsWithAKilledDaemon) {
  // A separate daemon, which is killed.
  auto mortal = testing::DaemonProcess::Start({.backend = GetParam().backend});
  ASSERT_OK(mortal);
  auto client = (*mortal)->Connect();
  ASSERT_OK(client);
  auto segment = (*client)->Acquire({.bytes = bytes_, .kind = kind()});
  ASSERT_OK(segment);
  const auto broker =
      v1::Broker::NewStub(testing::ChannelOfSession((*mortal)->Socket("session.sock")));
  v1::ListDevicesResponse list;
  ASSERT_TRUE(
      broker->ListDevices(testing::ContextWith().get(), v1::ListDevicesRequest(), &list).ok());
  pid_t pid = 0;
  for (const v1::Device& device : list.devices()) {
    if (device.device_uuid() == segment->device_uuid()) pid = device.context_pid();
  }
  ASSERT_GT(pid, 0);
  (*mortal)->child().Signal(SIGKILL);
  (*mortal)->child().Wait();
  // This process cannot reap it: an init does, or it stays as a zombie.
  EXPECT_TRUE(Eventually([pid] { return testing::ResidentBytes(pid) == 0; }));
}

}  // namespace
}  // namespace gpumem::contract
