// SPDX-License-Identifier: Apache-2.0
// "Load once" with a real daemon that is killed and goes on, and with processes that are killed: of
// those that ask for the same contents one loads them, and the others attach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/expect_status.h"
#include "tests/support/kept_daemon.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Eventually;
using testing::HasStamp;
using testing::Hear;
using testing::HearAtLast;
using testing::KeptDaemon;
using testing::kParentChannel;
using testing::PatientOptions;
using testing::Say;
using testing::Stamp;

constexpr uint64_t kBytes = uint64_t{2} << 20;
constexpr uint64_t kStamp = 4711;
const std::string kId("\0digest", 7);

std::unique_ptr<Client> Connect(const std::string& runtime_dir, const std::string& tenant = "") {
  ConnectOptions options = PatientOptions(runtime_dir);
  options.tenant = tenant;
  auto client = Client::Connect(options);
  EXPECT_OK(client);
  return client.ok() ? *std::move(client) : nullptr;
}

// Loads the contents and publishes them.
absl::Status Load(Client& client, const std::string& name, const std::string& id = kId,
                  PublicationAccess access = PublicationAccess::kTenant) {
  auto segment = client.Acquire({.bytes = kBytes});
  if (!segment.ok()) return segment.status();
  Stamp(segment->data(), segment->size(), kStamp);
  return client
      .Publish(name, absl::MakeConstSpan(&*segment, 1), {.content_id = id, .access = access})
      .status();
}

// A process that needs the contents. Says "attached" or "claimed". With the claim, it does what the
// parent says: "load", or "release".
int RunLoader(const std::string& runtime_dir) {
  const auto client = Client::Connect(PatientOptions(runtime_dir));
  if (!client.ok()) return 1;
  Say(kParentChannel, "connected");
  if (Hear(kParentChannel) != "go") return 1;
  auto found = (*client)->AttachOrClaim("weights", kId);
  if (!found.ok()) {
    Say(kParentChannel, found.status().ToString());
    return 1;
  }
  if (found->attachment.valid()) {
    const bool whole =
        HasStamp(found->attachment.data(), kBytes, kStamp) && found->attachment.content_id() == kId;
    Say(kParentChannel, whole ? "attached" : "attached to other contents");
  } else {
    Say(kParentChannel, "claimed");
    absl::Status done;
    if (Hear(kParentChannel) == "load") {
      done = Load(**client, found->claim.name());
    } else {
      done = found->claim.Release();
    }
    Say(kParentChannel, done.ToString());
  }
  HearAtLast();
  return 0;
}

class ClaimTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = KeptDaemon::Start({.config = R"(
[[tenant]]
name = "ml"
[[rule]]
tenant = "ml"
default = true
[[tenant]]
name = "web"
[[rule]]
tenant = "web"
default = true
)"});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    client_ = gpumem::Connect(daemon_->runtime_dir());
    ASSERT_NE(client_, nullptr);
  }
  std::unique_ptr<Client> Connect(const std::string& tenant = "") {
    return gpumem::Connect(daemon_->runtime_dir(), tenant);
  }
  std::vector<Child> Loaders(int count) {
    std::vector<Child> loaders;
    for (int i = 0; i < count; ++i) {
      loaders.push_back(Child::Self({"--role", daemon_->runtime_dir()}));
      EXPECT_EQ(Hear(loaders.back().channel()), "connected");
    }
    return loaders;
  }
  bool Waiting(uint32_t count) {
    return Eventually([&] {
      const auto usage = client_->GetUsage();
      return usage.ok() && usage->waiting == count;
    });
  }
  // Claims, and returns once the others wait.
  Claim ClaimFirst(std::vector<Child>& waiters) {
    auto claimed = client_->AttachOrClaim("weights", kId);
    EXPECT_OK(claimed);
    if (!claimed.ok() || !claimed->claim.valid()) return Claim();
    for (const Child& waiter : waiters) Say(waiter.channel(), "go");
    EXPECT_TRUE(Waiting(static_cast<uint32_t>(waiters.size())));
    return std::move(claimed->claim);
  }
  // True if a client gets the claim at once.
  bool IsFree(Client& client, const std::string& id = kId) {
    auto asked = client.AttachOrClaim("weights", id, {.wait = absl::ZeroDuration()});
    if (asked.ok()) return asked->claim.valid() && asked->claim.Release().ok();
    EXPECT_STATUS(asked, kDeadlineExceeded, "has the claim");
    return false;
  }

  std::unique_ptr<KeptDaemon> daemon_;
  std::unique_ptr<Client> client_;
};

TEST_F(ClaimTest, OneOfManyProcessesLoads) {
  std::vector<Child> loaders = Loaders(8);
  for (const Child& loader : loaders) Say(loader.channel(), "go");
  ASSERT_TRUE(Waiting(7));
  // One has answered, and seven wait.
  std::vector<std::future<std::string>> words;
  for (const Child& loader : loaders) {
    words.push_back(std::async(std::launch::async, [&loader] { return Hear(loader.channel()); }));
  }
  size_t claimant = loaders.size();
  ASSERT_TRUE(Eventually([&] {
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i].wait_for(std::chrono::seconds(0)) == std::future_status::ready) claimant = i;
    }
    return claimant < loaders.size();
  }));
  EXPECT_EQ(words[claimant].get(), "claimed");
  Say(loaders[claimant].channel(), "load");
  EXPECT_EQ(Hear(loaders[claimant].channel()), "OK");
  for (size_t i = 0; i < words.size(); ++i) {
    if (i == claimant) continue;
    EXPECT_EQ(words[i].get(), "attached");
  }
  const auto list = client_->ListPublications();
  ASSERT_OK(list);
  ASSERT_EQ(list->size(), 1u);
  EXPECT_EQ(list->front().version, 1u);
  EXPECT_EQ(list->front().content_id, kId);
  EXPECT_EQ(list->front().attached_sessions, 7u);
  auto late = client_->AttachOrClaim("weights", kId);
  ASSERT_OK(late);
  EXPECT_TRUE(late->attachment.valid());
}

TEST_F(ClaimTest, PassesOnWhenItsProcessIsKilled) {
  std::vector<Child> loaders = Loaders(2);
  Say(loaders[0].channel(), "go");
  ASSERT_EQ(Hear(loaders[0].channel()), "claimed");
  Say(loaders[1].channel(), "go");
  ASSERT_TRUE(Waiting(1));
  loaders[0].Signal(SIGKILL);
  loaders[0].Wait();
  ASSERT_EQ(Hear(loaders[1].channel()), "claimed");
  Say(loaders[1].channel(), "release");
  EXPECT_EQ(Hear(loaders[1].channel()), "OK");
  EXPECT_TRUE(IsFree(*client_));
}

TEST_F(ClaimTest, OutlivesTheDaemon) {
  std::vector<Child> waiters = Loaders(2);
  Claim claim = ClaimFirst(waiters);
  ASSERT_TRUE(claim.valid());
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(daemon_->Kill());
    ASSERT_TRUE(Waiting(2)) << "they ask the next daemon";
    EXPECT_FALSE(IsFree(*Connect()));
  }
  ASSERT_OK(Load(*client_, claim.name()));
  EXPECT_EQ(Hear(waiters[0].channel()), "attached");
  EXPECT_EQ(Hear(waiters[1].channel()), "attached");
  ASSERT_OK(daemon_->Kill());
  auto again = client_->AttachOrClaim("weights", kId);
  ASSERT_OK(again);
  EXPECT_TRUE(again->attachment.valid()) << "the publication has its content id";
}

TEST_F(ClaimTest, PassesOnWhenItsProcessDoesNotComeBack) {
  std::vector<Child> loaders = Loaders(2);
  Say(loaders[0].channel(), "go");
  ASSERT_EQ(Hear(loaders[0].channel()), "claimed");
  Say(loaders[1].channel(), "go");
  ASSERT_TRUE(Waiting(1));
  ASSERT_TRUE(daemon_->Freeze());  // it sees nothing of the other's death
  loaders[0].Signal(SIGKILL);
  loaders[0].Wait();
  ASSERT_OK(daemon_->Kill());
  EXPECT_EQ(Hear(loaders[1].channel()), "claimed");
  // A process that lives, and is away: its claim is not free.
  ASSERT_OK(daemon_->Kill());
  EXPECT_FALSE(IsFree(*client_));
  loaders[1].Signal(SIGKILL);
  loaders[1].Wait();
  EXPECT_TRUE(Eventually([&] { return IsFree(*client_); }));
}

TEST_F(ClaimTest, EndsWithTheClaimItsReleaseAndItsClient) {
  auto other = Connect();
  {
    auto claimed = client_->AttachOrClaim("weights", kId);
    ASSERT_OK(claimed);
    Claim claim = std::move(claimed->claim);
    EXPECT_FALSE(claimed->claim.valid());
    EXPECT_EQ(claim.name(), "weights");
    EXPECT_EQ(claim.content_id(), kId);
    EXPECT_FALSE(IsFree(*other));
    EXPECT_TRUE(IsFree(*other, "other contents"));
  }
  EXPECT_TRUE(IsFree(*other));
  auto claimed = other->AttachOrClaim("ml/weights", kId);
  ASSERT_OK(claimed);
  EXPECT_EQ(claimed->claim.name(), "weights");
  EXPECT_OK(claimed->claim.Release());
  EXPECT_STATUS(claimed->claim.Release(), kFailedPrecondition, "is empty");
  EXPECT_TRUE(IsFree(*client_));
  claimed = other->AttachOrClaim("weights", kId);
  ASSERT_OK(claimed);
  // The session lasts as long as the Claim, which keeps it.
  other.reset();
  EXPECT_FALSE(IsFree(*client_));
  claimed->claim = Claim();
  EXPECT_TRUE(IsFree(*client_));
  // After the publication it has no effect.
  claimed = client_->AttachOrClaim("weights", kId);
  ASSERT_OK(claimed);
  ASSERT_OK(Load(*client_, "weights"));
  ASSERT_OK(client_->Unpublish("weights"));
  auto next = client_->AttachOrClaim("weights", kId);
  ASSERT_OK(next);
  ASSERT_TRUE(next->claim.valid());
  EXPECT_OK(claimed->claim.Release());
  EXPECT_FALSE(IsFree(*Connect())) << "it released the later claim";
}

TEST_F(ClaimTest, OtherContentsAreNeverAttachedTo) {
  ASSERT_OK(Load(*client_, "weights", "old"));
  auto found = client_->AttachOrClaim("weights", kId);
  ASSERT_OK(found);
  EXPECT_TRUE(found->claim.valid());
  EXPECT_FALSE(found->attachment.valid());
  ASSERT_OK(Load(*client_, "weights", ""));
  EXPECT_FALSE(IsFree(*Connect()));
}

TEST_F(ClaimTest, StaysInsideItsTenant) {
  auto other = Connect("web");
  EXPECT_STATUS(other->AttachOrClaim("ml/weights", kId), kNotFound, "weights");
  ASSERT_OK(Load(*client_, "weights", kId, PublicationAccess::kAny));
  EXPECT_STATUS(other->AttachOrClaim("ml/weights", "new"), kNotFound, "weights");
  auto found = other->AttachOrClaim("ml/weights", kId);
  ASSERT_OK(found);
  EXPECT_TRUE(found->attachment.valid());
  EXPECT_TRUE(IsFree(*other));
}

TEST_F(ClaimTest, WaitsEndByTimeAndByCancel) {
  auto held = client_->AttachOrClaim("weights", kId);
  ASSERT_OK(held);
  auto other = Connect();
  EXPECT_STATUS(other->AttachOrClaim("weights", kId, {.wait = absl::Milliseconds(20)}),
                kDeadlineExceeded, "has the claim on these contents");
  CancelToken cancel;
  auto waits = std::async(std::launch::async, [&] {
    return other->AttachOrClaim("weights", kId, {.cancel = cancel}).status();
  });
  ASSERT_TRUE(Waiting(1));
  cancel.Cancel();
  EXPECT_EQ(waits.get().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Waiting(0));
  EXPECT_OK(held->claim.Release());
  EXPECT_TRUE(IsFree(*client_));
}

// Cancelled in the moment in which it gets the claim: it has it, or it holds up no other.
TEST_F(ClaimTest, ACancelledWaitKeepsNoClaim) {
  auto other = Connect();
  int claimed = 0;
  for (int round = 0; round < 60; ++round) {
    auto held = client_->AttachOrClaim("weights", kId, {.wait = absl::Seconds(30)});
    ASSERT_OK(held);
    ASSERT_TRUE(held->claim.valid());
    CancelToken cancel;
    auto waits = std::async(std::launch::async, [&] {
      return other->AttachOrClaim("weights", kId, {.cancel = cancel});
    });
    ASSERT_TRUE(Waiting(1));
    std::thread canceller([&] { cancel.Cancel(); });
    if (round % 2 == 0) canceller.join();
    EXPECT_OK(held->claim.Release());
    if (canceller.joinable()) canceller.join();
    auto answer = waits.get();
    if (answer.ok()) {
      ++claimed;
      EXPECT_FALSE(IsFree(*client_));
    } else {
      EXPECT_EQ(answer.status().code(), absl::StatusCode::kCancelled) << answer.status();
    }
  }
  std::cerr << claimed << " of 60 got it\n";
}

TEST_F(ClaimTest, ASessionHas64) {
  std::vector<Claim> claims;
  for (int i = 0; i < 64; ++i) {
    auto claimed = client_->AttachOrClaim("weights", absl::StrCat("id", i));
    ASSERT_OK(claimed);
    claims.push_back(std::move(claimed->claim));
  }
  const absl::Status refused = client_->AttachOrClaim("weights", kId).status();
  EXPECT_STATUS(refused, kResourceExhausted, "claims");
  EXPECT_TRUE(GetDenial(refused).has_value());
  EXPECT_TRUE(IsFree(*Connect()));
  claims.pop_back();
  EXPECT_TRUE(IsFree(*client_));
}

TEST_F(ClaimTest, RefusesWhatMakesNoSense) {
  EXPECT_STATUS(client_->AttachOrClaim("weights", kId, {.wait_for_version = 1}), kInvalidArgument,
                "wait_for_version");
  EXPECT_STATUS(client_->AttachOrClaim("weights", ""), kInvalidArgument, "1 to 64 bytes");
  EXPECT_STATUS(client_->AttachOrClaim("weights", std::string(65, 'x')), kInvalidArgument,
                "1 to 64 bytes");
  EXPECT_STATUS(client_->AttachOrClaim("two words", kId), kInvalidArgument, "letters");
  EXPECT_STATUS(Load(*client_, "weights", std::string(65, 'x')), kInvalidArgument,
                "at most 64 bytes");
}

// The daemon is killed before the answer is here.
TEST_F(ClaimTest, ALostAnswerLeavesOneClaim) {
  auto other = Connect();
  for (const char* failpoint : {"record-before", "record-after", "answer-before"}) {
    SCOPED_TRACE(failpoint);
    const int before = daemon_->generations();
    daemon_->ArmTarget(failpoint, 1, daemon_->daemon_pid());
    auto claimed = client_->AttachOrClaim("weights", kId);
    ASSERT_OK(claimed);
    ASSERT_TRUE(claimed->claim.valid());
    EXPECT_TRUE(daemon_->WaitForGeneration(before + 1));
    EXPECT_FALSE(IsFree(*other));
    daemon_->ArmTarget(failpoint, 1, daemon_->daemon_pid());
    EXPECT_OK(claimed->claim.Release());
    EXPECT_TRUE(daemon_->WaitForGeneration(before + 2));
    EXPECT_TRUE(IsFree(*other));
    // And of the publication that ends it.
    claimed = client_->AttachOrClaim("weights", kId);
    ASSERT_OK(claimed);
    auto segment = client_->Acquire({.bytes = kBytes});
    ASSERT_OK(segment);
    daemon_->ArmTarget(failpoint, 1, daemon_->daemon_pid());
    ASSERT_OK(client_->Publish("weights", absl::MakeConstSpan(&*segment, 1), {.content_id = kId}));
    EXPECT_TRUE(daemon_->WaitForGeneration(before + 3));
    ASSERT_OK(client_->Unpublish("weights"));
    EXPECT_TRUE(IsFree(*other));
  }
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--role") return gpumem::RunLoader(argv[2]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
