// SPDX-License-Identifier: Apache-2.0
// Suspended memory, end to end on the host backend: the memory that others get meanwhile, and
// daemons and clients that are killed at each step.
//
//   GPUMEM_SUSPEND_KILLS  how often the daemon is killed at random passes (CI: 24)
#include "gpumem/suspend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/expect_status.h"
#include "tests/support/pattern.h"
#include "tests/suspension/suspend_fixture.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Hear;
using testing::kParentChannel;
using testing::MemoryOf;
using testing::PatientOptions;
using testing::Say;

using SuspendTest = testing::SuspendFixture;

TEST_F(SuspendTest, AnotherTenantUsesTheDeviceMeanwhile) {
  Start();
  std::vector<Segment> segments = AcquireFilled(16 * kMiB, 3);
  std::vector<void*> addresses;
  for (const Segment& segment : segments) addresses.push_back(segment.data());
  std::unique_ptr<Client> other = Connect();
  EXPECT_FALSE(other->Acquire({.bytes = 64 * kMiB}).ok());

  ASSERT_OK(client_->Suspend(Pointers(segments)));
  EXPECT_EQ(Look(), (Charges{0, 48 * kMiB}));
  auto whole = other->Acquire({.bytes = 64 * kMiB});
  ASSERT_OK(whole);
  EXPECT_OK(testing::Fill(MemoryOf(*whole), 99));
  const absl::Status refused = client_->Resume(Pointers(segments));
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_TRUE(segments[0].suspended());
  EXPECT_EQ(Look().tier, 48 * kMiB);

  // It waits for its turn.
  std::thread resumes(
      [&] { EXPECT_OK(client_->Resume(Pointers(segments), {.wait = absl::Seconds(60)})); });
  EXPECT_OK(whole->Release());
  resumes.join();
  for (size_t i = 0; i < segments.size(); ++i) {
    EXPECT_EQ(segments[i].data(), addresses[i]);
    EXPECT_FALSE(segments[i].suspended());
  }
  ExpectPatterns(segments);
  EXPECT_TRUE(Becomes({48 * kMiB, 0}));
}

// Their descriptors come in two messages: one message has 253 at most.
TEST_F(SuspendTest, ManySegmentsComeBackInOneCall) {
  constexpr uint32_t kCount = 300;
  Start("", /*mib=*/640);
  std::vector<Segment> segments;
  for (const uint32_t count : {kCount - 200, 200u}) {
    auto some = client_->AcquireMany({.bytes = 2 * kMiB}, count);
    ASSERT_OK(some);
    for (Segment& segment : *some) segments.push_back(std::move(segment));
  }
  const auto last = [](const Segment& segment) {
    return static_cast<uint64_t*>(segment.data()) + segment.size() / sizeof(uint64_t) - 1;
  };
  for (size_t i = 0; i < kCount; ++i) *last(segments[i]) = i + 1;
  ASSERT_OK(client_->Suspend(Pointers(segments)));
  EXPECT_EQ(Look(), (Charges{0, kCount * 2 * kMiB}));
  ASSERT_OK(client_->Resume(Pointers(segments)));
  for (size_t i = 0; i < kCount; ++i) EXPECT_EQ(*last(segments[i]), i + 1);
  EXPECT_TRUE(Becomes({kCount * 2 * kMiB, 0}));
}

TEST_F(SuspendTest, AFullTierRefusesBeforeAnythingMoves) {
  Start("[tenant_defaults]\ntier_limit = \"16MiB\"\n");
  std::vector<Segment> segments = AcquireFilled(16 * kMiB, 2);
  bool asked = false;
  const absl::Status refused = client_->Suspend(Pointers(segments), {.quiesce = [&] {
                                                  asked = true;
                                                  return absl::OkStatus();
                                                }});
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_FALSE(asked);
  EXPECT_FALSE(segments[0].suspended());
  ExpectPatterns(segments);
  EXPECT_EQ(Look(), (Charges{32 * kMiB, 0}));
  // A program that does not want to stop keeps all, and the room is free again.
  EXPECT_EQ(
      client_->Suspend({&segments[0]}, {.quiesce = [] { return absl::UnavailableError("busy"); }}),
      absl::UnavailableError("busy"));
  EXPECT_OK(client_->Suspend({&segments[1]}));
  EXPECT_OK(client_->Resume({&segments[1]}));
  ExpectPatterns(segments);
}

TEST_F(SuspendTest, ScratchMemoryComesBackZeroed) {
  Start("[tenant_defaults]\ntier_limit = \"16MiB\"\n");
  std::vector<Segment> weights = AcquireFilled(16 * kMiB, 1);
  auto cache = client_->Acquire({.bytes = 32 * kMiB, .tag = "kv", .scratch = true});
  ASSERT_OK(cache);
  EXPECT_EQ(cache->tag(), "kv");
  EXPECT_TRUE(cache->scratch());
  EXPECT_FALSE(weights[0].scratch());
  EXPECT_OK(testing::Fill(MemoryOf(*cache), 7));
  void* const address = cache->data();
  const auto published = client_->Publish("cache", {&*cache}, {});
  EXPECT_EQ(published.status().code(), absl::StatusCode::kFailedPrecondition) << published.status();

  ASSERT_OK(client_->Suspend({&weights[0], &*cache}));
  EXPECT_EQ(Look(), (Charges{0, 16 * kMiB}));
  ASSERT_OK(daemon_->Kill());
  ASSERT_OK(client_->Resume({&*cache}));
  EXPECT_EQ(cache->data(), address);
  EXPECT_OK(testing::CheckZero(MemoryOf(*cache)));
  EXPECT_EQ(Look(), (Charges{32 * kMiB, 16 * kMiB}));
  ASSERT_OK(client_->Resume(Pointers(weights)));
  ExpectPatterns(weights);
  EXPECT_TRUE(Becomes({48 * kMiB, 0}));

  // With nothing but scratch memory, and to the end of the session.
  EXPECT_OK(testing::Fill(MemoryOf(*cache), 7));
  ASSERT_OK(client_->Suspend({&*cache}));
  EXPECT_EQ(Look(), (Charges{16 * kMiB, 0}));
  EXPECT_OK(cache->Release());
  EXPECT_TRUE(Becomes({16 * kMiB, 0}));
}

TEST_F(SuspendTest, SharersSuspendEachOnItsOwn) {
  Start();
  std::vector<Segment> segments = AcquireFilled(8 * kMiB, 1);
  const auto ticket = segments[0].Share();
  ASSERT_OK(ticket);
  std::unique_ptr<Client> other = Connect();
  auto opened = other->Open(ticket->value);
  ASSERT_OK(opened);
  ASSERT_OK(client_->Suspend(Pointers(segments)));
  EXPECT_EQ(Look(), (Charges{8 * kMiB, 0})) << "the other one still uses it";
  EXPECT_OK(testing::Check(MemoryOf(*opened), 1));
  ASSERT_OK(other->Suspend({&*opened}));
  EXPECT_EQ(Look(), (Charges{0, 8 * kMiB}));
  const auto closed = Connect()->Open(ticket->value);
  EXPECT_EQ(closed.status().code(), absl::StatusCode::kFailedPrecondition) << closed.status();
  ASSERT_OK(other->Resume({&*opened}));
  EXPECT_OK(testing::Fill(MemoryOf(*opened), 1));
  ASSERT_OK(client_->Resume(Pointers(segments)));
  ExpectPatterns(segments);
  EXPECT_TRUE(Becomes({8 * kMiB, 0}));
}

TEST_F(SuspendTest, AKilledDaemonLosesNothing) {
  Start();
  std::vector<Segment> segments = AcquireFilled(4 * kMiB, 4);
  ASSERT_OK(client_->Suspend(Pointers(segments)));
  ASSERT_OK(daemon_->Kill());
  EXPECT_EQ(Look(), (Charges{0, 16 * kMiB}));
  ASSERT_OK(client_->Resume(Pointers(segments)));
  ExpectPatterns(segments);
  ASSERT_OK(client_->Suspend(Pointers(segments)));
  ASSERT_OK(daemon_->Restart());
  ASSERT_OK(client_->Resume(Pointers(segments)));
  ExpectPatterns(segments);
  EXPECT_TRUE(Becomes({16 * kMiB, 0}));
}

// Each step of a suspension and of a resumption has a failpoint, or is a write of the journal.
TEST_F(SuspendTest, AKillAtAnyStepLeavesTheBytesInOnePlace) {
  Start();
  std::vector<Segment> segments = AcquireFilled(4 * kMiB, 3);
  auto scratch = client_->Acquire({.bytes = 4 * kMiB, .scratch = true});
  ASSERT_OK(scratch);
  std::vector<Segment*> all = Pointers(segments);
  all.push_back(&*scratch);
  const char* const named[] = {"suspend-made",   "suspend-copied", "resume-made",  "resume-copied",
                               "deliver-before", "deliver-after",  "keep-before",  "keep-after",
                               "let-go-before",  "let-go-after",   "answer-before"};
  const char* const env = std::getenv("GPUMEM_SUSPEND_KILLS");
  const int random_kills = env == nullptr ? 24 : std::atoi(env);
  std::mt19937 random(7);
  int died = 0;
  for (int i = 0; i < static_cast<int>(std::size(named)) + random_kills; ++i) {
    const bool by_name = i < static_cast<int>(std::size(named));
    const std::string name = by_name             ? named[i]
                             : random() % 2 == 0 ? "record-before"
                                                 : "record-after";
    const int passes = by_name ? 1 : 1 + static_cast<int>(random() % 16);
    SCOPED_TRACE(absl::StrCat(name, " ", passes));
    daemon_->ArmFailpoint(name, passes);
    ASSERT_OK(daemon_->Kill());  // the next one is armed
    ASSERT_OK(testing::Fill(MemoryOf(*scratch), 7));
    ASSERT_OK(client_->Suspend(all));
    ASSERT_TRUE(Becomes({0, 12 * kMiB})) << ::testing::PrintToString(Look());
    ASSERT_OK(client_->Resume(all));
    ExpectPatterns(segments);
    EXPECT_OK(testing::CheckZero(MemoryOf(*scratch)));
    ASSERT_TRUE(Becomes({16 * kMiB, 0})) << ::testing::PrintToString(Look());
    const bool passed = !daemon_->IsFailpointArmed();
    if (by_name) {
      EXPECT_TRUE(passed) << "nobody passed it";
    }
    died += passed ? 1 : 0;
    daemon_->DisarmFailpoint();
    ASSERT_FALSE(HasFailure()) << daemon_->Log();
  }
  std::cout << died << " daemons died at a failpoint\n";
  EXPECT_GT(died, static_cast<int>(std::size(named)) + random_kills / 2);
}

TEST_F(SuspendTest, AClientThatIsKilledLeavesNothing) {
  Start();
  for (const char* step : {"suspended", "suspending"}) {
    Child child = Child::Self({"--role", step, daemon_->runtime_dir()});
    ASSERT_EQ(Hear(child.channel()), "ready");
    if (std::string(step) == "suspending") {
      Say(child.channel(), "go");
    }
    child.Signal(SIGKILL);
    child.Wait();
    EXPECT_TRUE(Becomes({0, 0})) << step;
  }
}

// The worker that is killed: with suspended memory, or somewhere in a suspension.
int Work(const std::string& role, const std::string& runtime_dir) {
  auto client = Client::Connect(PatientOptions(runtime_dir));
  if (!client.ok()) return 1;
  auto segments = (*client)->AcquireMany({.bytes = 4 * kMiB}, 4);
  if (!segments.ok()) return 2;
  std::vector<Segment*> pointers;
  for (Segment& segment : *segments) pointers.push_back(&segment);
  if (role == "suspended" && !(*client)->Suspend(pointers).ok()) return 3;
  Say(kParentChannel, "ready");
  if (role == "suspending") {
    Hear(kParentChannel);
    while (true) {
      if (!(*client)->Suspend(pointers).ok() || !(*client)->Resume(pointers).ok()) return 4;
    }
  }
  Hear(kParentChannel);
  return 0;
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--role") return gpumem::Work(argv[2], argv[3]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
