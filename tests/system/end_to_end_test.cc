// SPDX-License-Identifier: Apache-2.0
// The main job against a real gpumemd on the host backend: several processes share memory, quotas
// hold. process_end_test.cc has processes that end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/unix_channel.h"
#include "gpumem/client.h"
#include "gpumem/pool.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/system/testing/end_to_end_fixture.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Config;
using testing::EndToEnd;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::Hear;
using testing::kParentChannel;
using testing::Say;
using testing::Tenant;

// --- Roles of other processes --------------------------------------------------------
// This program runs itself as `--role NAME DIR`; channel 3 leads to the test.

// Races for memory until told to stop; says how many it got and how often it was over.
int Race(const std::string& dir, int seed) {
  auto client = Client::Connect({.runtime_dir = dir, .tenant = seed % 2 == 0 ? "a" : "b"});
  if (!client.ok()) return Say(kParentChannel, client.status().ToString()), 1;
  Hear(kParentChannel);
  std::vector<Segment> held;
  uint64_t granted = 0, random = static_cast<uint64_t>(seed) * 7919 + 1;
  for (int i = 0; i < 60; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    if (held.size() > 2 || (!held.empty() && (random >> 40) % 3 == 0)) {
      held.erase(held.begin());
      continue;
    }
    auto segment = (*client)->Acquire({.bytes = (1 + (random >> 33) % 8) * 2 * kMiB});
    if (segment.ok()) {
      ++granted;
      std::memset(segment->data(), seed, 4096);
      held.push_back(*std::move(segment));
    } else if (!absl::IsResourceExhausted(segment.status())) {
      return Say(kParentChannel, segment.status().ToString()), 1;
    }
  }
  held.clear();
  Say(kParentChannel, absl::StrCat("granted ", granted));
  return 0;
}

// --- Tests ---------------------------------------------------------------------------

TEST_F(EndToEnd, AnotherProcessOpensTheSameMemory) {
  Child holder = Child::Self({"--role", "hold", daemon_->runtime_dir(), "a", "8", "90"});
  const std::string ticket = Hear(holder.channel());
  auto client = Connect();
  auto segment = client->Open(ticket);
  ASSERT_OK(segment);
  ASSERT_EQ(segment->size(), 8 * kMiB);
  const auto* bytes = static_cast<const unsigned char*>(segment->data());
  EXPECT_TRUE(std::all_of(bytes, bytes + segment->size(), [](auto b) { return b == 90; }));
  // Shared bytes are charged once.
  EXPECT_EQ(UsageOf(*client).leased_bytes, 8 * kMiB);
  Say(holder.channel(), "release");
  EXPECT_EQ(holder.Wait(), 0);
  // The holder's release takes nothing from us.
  EXPECT_EQ(UsageOf(*client).leased_bytes, 8 * kMiB);
  EXPECT_EQ(bytes[5], 90);
  // But its ticket is gone with its lease.
  EXPECT_EQ(client->Open(ticket).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(EndToEnd, TicketsOfOneTenantAreNotForAnother) {
  auto a = Connect("a"), b = Connect("b");
  auto segment = a->Acquire({.bytes = 2 * kMiB});
  ASSERT_OK(segment);
  auto own = segment->Share(), any = segment->Share(TicketScope::kAny);
  ASSERT_OK(own);
  ASSERT_OK(any);
  EXPECT_NE(own->value, any->value);
  EXPECT_EQ(segment->Share()->value, own->value);
  EXPECT_EQ(b->Open(own->value).status().code(), absl::StatusCode::kPermissionDenied);
  auto opened = b->Open(any->value);
  ASSERT_OK(opened);
  std::memset(segment->data(), 7, 100);
  EXPECT_EQ(static_cast<char*>(opened->data())[99], 7);
  EXPECT_EQ(UsageOf(*b).charged_bytes, 0u) << "shared bytes are charged to their owner";
}

TEST_F(EndToEnd, TheLastByteFitsAndOneMoreDoesNot) {
  auto client = Connect();
  auto all = client->Acquire({.bytes = 64 * kMiB});
  ASSERT_OK(all);
  auto more = client->Acquire({.bytes = 1});
  ASSERT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  const auto denial = GetDenial(more.status());
  ASSERT_TRUE(denial.has_value());
  EXPECT_EQ(denial->cause, Denial::Cause::kDeviceLimit);
  EXPECT_EQ(denial->tenant, "a");
  EXPECT_EQ(denial->asked, 2 * kMiB);
  EXPECT_EQ(denial->used, 64 * kMiB);
  EXPECT_EQ(denial->limit, 64 * kMiB);
  EXPECT_THAT(denial->help, HasSubstr("gpumemctl quota set a --limit"));
  // The other device and the other tenant are untouched by it.
  auto devices = client->Devices();
  ASSERT_OK(devices);
  ASSERT_EQ(devices->size(), 3u);  // the last is pinned memory
  EXPECT_OK(client->Acquire({.bytes = kMiB, .device = (*devices)[1].uuid}));
  EXPECT_OK(Connect("b")->Acquire({.bytes = 64 * kMiB}));
  // And it is a matter of the moment.
  ASSERT_OK(all->Release());
  EXPECT_OK(client->Acquire({.bytes = 64 * kMiB}));
}

TEST_F(EndToEnd, ManySegmentsLieInOneRange) {
  auto client = Connect();
  auto segments = client->AcquireMany({.bytes = 2 * kMiB}, 30);
  ASSERT_OK(segments);
  char* base = static_cast<char*>(segments->front().data());
  for (size_t i = 0; i < segments->size(); ++i) {
    EXPECT_EQ((*segments)[i].data(), base + i * 2 * kMiB);
  }
  std::memset(base, 1, 60 * kMiB);  // across all of them
  // All or nothing: 3 more would not fit, so none is given.
  EXPECT_EQ(client->AcquireMany({.bytes = 2 * kMiB}, 3).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(UsageOf(*client).leased_bytes, 60 * kMiB);
  std::vector<std::string> tickets;
  for (const Segment& segment : *segments) tickets.push_back(segment.Share()->value);
  auto opened = Connect()->OpenMany(tickets);
  ASSERT_OK(opened);
  EXPECT_EQ(static_cast<char*>(opened->back().data())[2 * kMiB - 1], 1);
}

TEST_F(EndToEnd, ASegmentIsZeroUnlessItSaysThatItIsReused) {
  auto client = Connect();
  auto first = client->Acquire({.bytes = 4 * kMiB});
  ASSERT_OK(first);
  EXPECT_FALSE(first->reused());
  std::memset(first->data(), 0xff, first->size());
  ASSERT_OK(first->Release());
  auto again = client->Acquire({.bytes = 4 * kMiB});
  ASSERT_OK(again);
  EXPECT_TRUE(again->reused());
  ASSERT_OK(again->Release());
  // Another tenant never sees it.
  auto other = Connect("b")->Acquire({.bytes = 4 * kMiB});
  ASSERT_OK(other);
  EXPECT_FALSE(other->reused());
  const auto* bytes = static_cast<const char*>(other->data());
  EXPECT_TRUE(std::all_of(bytes, bytes + other->size(), [](char b) { return b == 0; }));
}

TEST_F(EndToEnd, RetainedMemoryIsEvictedForAnotherTenant) {
  Start(absl::StrCat("[host]\ndevice_bytes = \"64MiB\"\n", Tenant("a"), Tenant("b")));
  auto a = Connect("a"), b = Connect("b");
  ASSERT_OK(a->Acquire({.bytes = 40 * kMiB}));  // released at once: retained
  EXPECT_EQ(UsageOf(*a).retained_bytes, 40 * kMiB);
  EXPECT_OK(b->Acquire({.bytes = 64 * kMiB}));
  EXPECT_EQ(UsageOf(*a).charged_bytes, 0u);
}

TEST_F(EndToEnd, UnderPressureOnlyPoolsWhoseReleaseFreesMemoryGive) {
  Start(absl::StrCat("[host]\ndevice_bytes = \"64MiB\"\n[tenant_defaults]\nmax_retained = 0\n",
                     Tenant("a"), Tenant("b", "release = \"on-exit\"\n"), Tenant("c")));
  // Two pools fill the device, and need nothing of it.
  std::vector<std::unique_ptr<Pool>> pools;
  for (const char* tenant : {"a", "b"}) {
    auto pool = Pool::Create(Connect(tenant), {.grow_bytes = 8 * kMiB});
    ASSERT_OK(pool);
    const auto block = (*pool)->Allocate(32 * kMiB, nullptr);
    ASSERT_OK(block);
    ASSERT_OK((*pool)->Free(*block, nullptr));
    EXPECT_EQ((*pool)->Stats().reserved_bytes, 32 * kMiB);
    pools.push_back(*std::move(pool));
  }
  auto wants = Pool::Create(Connect("c"), {.grow_bytes = 8 * kMiB, .wait = absl::Seconds(30)});
  ASSERT_OK(wants);
  EXPECT_OK((*wants)->Allocate(16 * kMiB, nullptr));
  EXPECT_GE(pools[0]->Stats().given_under_pressure_bytes, 16 * kMiB);
  EXPECT_EQ(pools[1]->Stats().given_under_pressure_bytes, 0u) << "it would stay charged";
  EXPECT_EQ(UsageOf(*Connect("b")).lingering_bytes, 0u);
}

TEST_F(EndToEnd, SixtyFourProcessesRaceForOneLimit) {
  std::vector<Child> racers;
  for (int i = 0; i < 64; ++i) {
    racers.push_back(Child::Self({"--role", "race", daemon_->runtime_dir(), std::to_string(i)}));
  }
  auto a = Connect("a"), b = Connect("b");
  std::atomic<bool> done = false;
  std::atomic<int> looks = 0;
  std::thread watcher([&] {
    while (!done) {
      for (Client* client : {a.get(), b.get()}) {
        auto usage = client->GetUsage();
        if (!usage.ok()) continue;
        EXPECT_LE(usage->devices[0].charged_bytes, 64 * kMiB);
        ++looks;
      }
    }
  });
  for (const Child& racer : racers) Say(racer.channel(), "go");
  for (const Child& racer : racers) EXPECT_THAT(Hear(racer.channel()), HasSubstr("granted "));
  for (Child& racer : racers) EXPECT_EQ(racer.Wait(), 0);
  done = true;
  watcher.join();
  EXPECT_GT(looks, 10);
  for (Client* client : {a.get(), b.get()}) {
    EXPECT_TRUE(Eventually([&] {
      const DeviceUsage usage = UsageOf(*client);
      return usage.leased_bytes == 0 && usage.lingering_bytes == 0;
    }));
    EXPECT_OK(client->Acquire({.bytes = 64 * kMiB}));
  }
}

TEST_F(EndToEnd, MappingsSurviveTheDaemon) {
  auto client =
      Client::Connect(
          {.runtime_dir = daemon_->runtime_dir(), .tenant = "a", .timeout = absl::Seconds(1)})
          .value();
  auto segment = client->Acquire({.bytes = 2 * kMiB});
  ASSERT_OK(segment);
  std::memset(segment->data(), 5, segment->size());
  daemon_->child().Signal(SIGKILL);
  daemon_->child().Wait();
  EXPECT_EQ(client->Acquire({.bytes = 1}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->GetUsage().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(static_cast<char*>(segment->data())[segment->size() - 1], 5);
  EXPECT_EQ(segment->Release().code(), absl::StatusCode::kUnavailable);
}

TEST_F(EndToEnd, SigtermStopsCleanlyWhileClientsAreConnected) {
  auto client =
      Client::Connect({.runtime_dir = daemon_->runtime_dir(), .tenant = "a", .reconnect = false})
          .value();
  auto segment = client->Acquire({.bytes = 2 * kMiB});
  ASSERT_OK(segment);
  const absl::Time begin = absl::Now();
  daemon_->child().Signal(SIGTERM);
  EXPECT_EQ(daemon_->child().Wait(), 0);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  const auto after = client->Acquire({.bytes = 1}).status();
  EXPECT_EQ(after.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(after.message()), HasSubstr("stopping"));
  static_cast<char*>(segment->data())[0] = 1;
  // Nothing is left in its folder.
  EXPECT_EQ(ConnectUnix(daemon_->Socket("session.sock"), SOCK_SEQPACKET).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_NE(access(daemon_->Socket("admin.sock").c_str(), F_OK), 0);
}

TEST_F(EndToEnd, ReloadAppliesAtOnceAndABadFileChangesNothing) {
  auto client = Connect("a");
  auto held = client->Acquire({.bytes = 32 * kMiB});
  ASSERT_OK(held);
  const auto limit = [&] { return UsageOf(*client).limit_bytes; };
  std::string config = Config();
  config.replace(config.find("64MiB"), 5, "16MiB");
  daemon_->Reconfigure(config);
  ASSERT_TRUE(Eventually([&] { return limit() == 16 * kMiB; }));
  // A limit below the usage: the holder keeps its memory, and gets nothing more.
  static_cast<char*>(held->data())[0] = 1;
  EXPECT_EQ(client->Acquire({.bytes = 1}).status().code(), absl::StatusCode::kResourceExhausted);

  daemon_->Reconfigure("[tenant_defaults]\nlimit = \"lots\"\n");
  ASSERT_TRUE(Eventually([&] { return daemon_->Log().find("stays") != std::string::npos; }));
  EXPECT_THAT(daemon_->Log(), HasSubstr("gpumemd.toml:2"));
  EXPECT_EQ(limit(), 16 * kMiB);
  // Users whom the rules no longer name are refused after that; sessions stay.
  daemon_->Reconfigure("[[tenant]]\nname = \"z\"\n[[rule]]\ntenant = \"z\"\nuid = 4000000\n");
  ASSERT_TRUE(Eventually(
      [&] { return daemon_->Connect().status().code() == absl::StatusCode::kPermissionDenied; }));
  EXPECT_OK(client->GetUsage());
}

}  // namespace

int RunRole(const std::vector<std::string>& args) {
  if (args[0] == "hold")
    return testing::Hold(args[1], args[2], std::stoull(args[3]), std::stoi(args[4]));
  if (args[0] == "race") return Race(args[1], std::stoi(args[2]));
  return 2;
}

}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--role") {
    return gpumem::RunRole(std::vector<std::string>(argv + 2, argv + argc));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
