// SPDX-License-Identifier: Apache-2.0
// Tenants that share one device: waiting, guarantees, revocation. A real gpumemd on the host
// backend, and processes that come, wait and die.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;
using testing::Hear;
using testing::kParentChannel;
using testing::Say;

constexpr absl::Duration kLong = absl::Seconds(60);

// Returns a tenant that any process may name.
std::string Tenant(const std::string& name, const std::string& keys = "") {
  return absl::StrCat("[[tenant]]\nname = \"", name, "\"\n", keys, "[[rule]]\ntenant = \"", name,
                      "\"\ndefault = true\n");
}

class SharingTest : public ::testing::Test {
 protected:
  void Start(const std::string& tenants, const std::string& device_bytes = "64MiB") {
    auto daemon = DaemonProcess::Start(
        {.config = absl::StrCat("[daemon]\nrevocation_grace = \"500ms\"\nrevocation_kill_after = "
                                "\"500ms\"\n[host]\ndevice_bytes = \"",
                                device_bytes, "\"\n", tenants)});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  std::unique_ptr<Client> Connect(const std::string& tenant) {
    auto client = daemon_->Connect(tenant);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  static DeviceUsage UsageOf(Client& client) {
    auto usage = client.GetUsage();
    EXPECT_TRUE(usage.ok()) << usage.status();
    return usage.ok() ? usage->devices.at(0) : DeviceUsage{};
  }
  // A process that holds so much.
  Child Holder(const std::string& role, const std::string& tenant, uint64_t mib) {
    Child child = Child::Self({"--role", role, daemon_->runtime_dir(), tenant, absl::StrCat(mib)});
    EXPECT_EQ(Hear(child.channel()), "holding");
    return child;
  }
  static bool AwaitsItsTurn(Client& client) {
    return Eventually([&] { return UsageOf(client).waiting > 0; });
  }

  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(SharingTest, MemoryOfADeadProcessGoesToAWaiter) {
  Start(Tenant("a") + Tenant("b"));
  Child holder = Holder("hold", "a", 64);
  auto b = Connect("b");
  absl::StatusOr<Segment> got = absl::UnknownError("not yet");
  std::thread waiter([&] { got = b->Acquire({.bytes = 64 * kMiB, .wait = kLong}); });
  EXPECT_TRUE(AwaitsItsTurn(*b));
  EXPECT_EQ(UsageOf(*b).waiting_bytes, 64 * kMiB);
  holder.Signal(SIGKILL);
  waiter.join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(*static_cast<char*>(got->data()), 0);
  EXPECT_EQ(UsageOf(*b).waiting, 0u);
}

TEST_F(SharingTest, AWaiterThatDiesOrGivesUpLeavesNoTrace) {
  Start(Tenant("a") + Tenant("b"));
  Child holder = Holder("hold", "a", 64);
  auto b = Connect("b");
  Child dies = Child::Self({"--role", "wait", daemon_->runtime_dir(), "b", "64"});
  EXPECT_TRUE(AwaitsItsTurn(*b));
  CancelToken cancel;
  std::thread gives_up([&] {
    EXPECT_EQ(b->Acquire({.bytes = kMiB, .wait = kLong, .cancel = cancel}).status().code(),
              absl::StatusCode::kCancelled);
  });
  EXPECT_TRUE(Eventually([&] { return UsageOf(*b).waiting == 2; }));
  const auto expired = b->Acquire({.bytes = kMiB, .wait = absl::Milliseconds(20)});
  EXPECT_EQ(expired.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetDenial(expired.status())->cause, Denial::Cause::kCapacity) << expired.status();
  cancel.Cancel();
  gives_up.join();
  dies.Signal(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return UsageOf(*b).waiting == 0; }));
  holder.Signal(SIGKILL);
  auto all = b->Acquire({.bytes = 64 * kMiB, .wait = kLong});
  EXPECT_TRUE(all.ok()) << all.status();
}

TEST_F(SharingTest, AGuaranteeIsObtainedThoughARevocableHolderDoesNotListen) {
  Start(Tenant("owner", "guarantee = \"48MiB\"\n") + Tenant("b"));
  Child deaf = Holder("deaf", "b", 64);
  auto owner = Connect("owner");
  const absl::Time begin = absl::Now();
  auto segment = owner->Acquire({.bytes = 48 * kMiB});  // it need not ask to wait
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_GE(absl::Now() - begin, absl::Seconds(1)) << "it was ended before its time";
  EXPECT_EQ(deaf.Wait(), 128 + SIGKILL);
}

TEST_F(SharingTest, AGuaranteeIsObtainedFromAHolderThatReleasesInTime) {
  Start(Tenant("owner", "guarantee = \"48MiB\"\n") + Tenant("b"));
  Child polite = Holder("polite", "b", 16);
  auto owner = Connect("owner"), b = Connect("b");
  EXPECT_EQ(UsageOf(*b).revocable_bytes, 64 * kMiB);
  auto got = owner->Acquire({.bytes = 32 * kMiB});
  EXPECT_TRUE(got.ok()) << got.status();
  // The newest two were enough. It keeps the rest, and was left alone.
  EXPECT_EQ(Hear(polite.channel()), "gave segments 2 3");
  EXPECT_EQ(UsageOf(*b).leased_bytes, 32 * kMiB);
  got = absl::UnknownError("released");
  polite.Signal(SIGTERM);
  EXPECT_EQ(polite.Wait(), 128 + SIGTERM) << "it was ended before";
}

TEST_F(SharingTest, FirmMemoryIsNotRevoked) {
  Start(Tenant("owner", "guarantee = \"48MiB\"\n") + Tenant("b"));
  Child firm = Holder("hold", "b", 16);
  auto owner = Connect("owner"), b = Connect("b");
  const auto more = b->Acquire({.bytes = kMiB});
  EXPECT_EQ(GetDenial(more.status())->cause, Denial::Cause::kGuarantees) << more.status();
  EXPECT_TRUE(owner->Acquire({.bytes = 48 * kMiB}).ok());
  EXPECT_EQ(UsageOf(*b).leased_bytes, 16 * kMiB);
}

// Two tenants that always want more than half of the capacity. The order of grants is left to
// chance.
TEST_F(SharingTest, EqualBorrowersGetEqualShares) {
  Start(Tenant("a") + Tenant("b"));
  constexpr int kGrants = 4000;
  std::atomic<int> all{0}, of[2] = {0, 0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, tenant = t % 2] {
      auto client = Connect(tenant == 0 ? "a" : "b");
      while (all < kGrants) {
        // Two of these fit, of eight that ask.
        auto segment = client->Acquire({.bytes = 24 * kMiB, .wait = kLong});
        ASSERT_TRUE(segment.ok()) << segment.status();
        ++all;
        ++of[tenant];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(std::abs(of[0] - of[1]), all / 20) << of[0] << " and " << of[1];
}

// Waits, releases, gives up and dies. In every case no tenant exceeds the limit, and in the end
// nothing is left.
TEST_F(SharingTest, SixtyFourProcessesRaceForOneLimit) {
  Start(Tenant("team", "limit = \"40MiB\"\nmax_waiting = 48\n") +
            Tenant("x", "parent = \"team\"\n") +
            Tenant("y", "parent = \"team\"\nlimit = \"24MiB\"\n"),
        "256MiB");
  std::vector<Child> racers;
  for (int i = 0; i < 64; ++i) {
    racers.push_back(Child::Self(
        {"--role", "race", daemon_->runtime_dir(), i % 2 == 0 ? "x" : "y", absl::StrCat(i)}));
  }
  int killed = 0;
  for (size_t i = 0; i < racers.size(); ++i) {
    if (i % 8 == 7) {
      Hear(racers[i].channel());  // in the middle of it
      racers[i].Signal(SIGKILL);
      racers[i].Wait();
      ++killed;
    }
  }
  for (size_t i = 0; i < racers.size(); ++i) {
    if (i % 8 != 7) {
      while (Hear(racers[i].channel()) == "racing") {
      }
      EXPECT_EQ(racers[i].Wait(), 0) << "racer " << i;
    }
  }
  EXPECT_EQ(killed, 8);
  auto team = Connect("team"), y = Connect("y");
  EXPECT_TRUE(Eventually([&] { return UsageOf(*team).charged_bytes == 0; }));
  EXPECT_GT(UsageOf(*team).peak_bytes, 32 * kMiB);
  EXPECT_LE(UsageOf(*team).peak_bytes, 40 * kMiB);
  EXPECT_LE(UsageOf(*y).peak_bytes, 24 * kMiB);
  EXPECT_EQ(UsageOf(*team).waiting, 0u);
  EXPECT_TRUE(team->Acquire({.bytes = 40 * kMiB}).ok());
}

int Race(Client& client, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<Segment> held;
  for (int i = 0; i < 60; ++i) {
    if (i == 20) Say(kParentChannel, "racing");
    if (!held.empty() && random() % 3 == 0) held.pop_back();
    const absl::Duration wait = absl::Milliseconds(static_cast<int>(random() % 3) * 5);
    auto segment = client.Acquire({.bytes = (1 + random() % 8) * kMiB, .wait = wait});
    if (segment.ok()) {
      char* const data = static_cast<char*>(segment->data());
      const char mark = static_cast<char>(1 + seed);
      std::memset(data, mark, 4096);
      held.push_back(*std::move(segment));
      for (const Segment& each : held) {
        if (*static_cast<const char*>(each.data()) != mark) return 3;
      }
    } else if (!absl::IsResourceExhausted(segment.status())) {
      return 4;
    }
    if (held.size() > 3) held.clear();
  }
  held.clear();
  Say(kParentChannel, "done");
  return 0;
}

// Holds four segments as long as it may keep them.
int BePolite(Client& client, uint64_t bytes) {
  std::vector<Segment> segments;
  for (int i = 0; i < 4; ++i) {
    auto segment = client.Acquire({.bytes = bytes, .revocable = true});
    if (!segment.ok() || !segment->revocable()) return 2;
    segments.push_back(*std::move(segment));
  }
  auto watch = client.StartWatch({.revocation = [&](const Revocation& revocation) {
    std::string gave = "gave segments";
    for (size_t i = 0; i < segments.size(); ++i) {
      for (uint64_t lease : revocation.lease_ids) {
        if (!segments[i].valid() || segments[i].lease_id() != lease) continue;
        absl::StrAppend(&gave, " ", i);
        segments[i] = Segment();
      }
    }
    Say(kParentChannel, gave);
  }});
  if (!watch.ok()) return 2;
  Say(kParentChannel, "holding");
  while (true) pause();
}

int RunRole(const std::vector<std::string>& args) {
  const std::string& role = args.at(0);
  int number = 0;
  if (!absl::SimpleAtoi(args.at(3), &number)) return 2;
  if (role == "deaf") {
    signal(SIGTERM, SIG_IGN);
  }
  auto client = Client::Connect({.runtime_dir = args.at(1), .tenant = args.at(2)});
  if (!client.ok()) return 2;
  if (role == "race") return Race(**client, number);
  const auto bytes = static_cast<uint64_t>(number) * kMiB;
  if (role == "polite") return BePolite(**client, bytes);
  auto segment = (*client)->Acquire({.bytes = bytes,
                                     .wait = role == "wait" ? kLong : absl::ZeroDuration(),
                                     .revocable = role == "deaf"});
  if (!segment.ok()) return 2;
  Say(kParentChannel, "holding");
  while (true) pause();
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--role") {
    return gpumem::RunRole(std::vector<std::string>(argv + 2, argv + argc));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
