// SPDX-License-Identifier: Apache-2.0
// The daemon is killed after it has written down a call's effect, and before the caller gets the
// answer. The call is repeated with the next daemon, does nothing twice, and is answered as if it
// had arrived the first time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/expect_status.h"
#include "tests/support/kept_daemon.h"

namespace gpumem {
namespace {

using testing::Eventually;
using testing::KeptDaemon;

constexpr uint64_t kBytes = uint64_t{2} << 20;

class LostAnswerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = KeptDaemon::Start({.config = "[tenant_defaults]\nmax_retained = \"0\"\n"});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    client_ = Connect();
    ASSERT_NE(client_, nullptr);
  }
  std::unique_ptr<Client> Connect() {
    auto client =
        Client::Connect({.runtime_dir = daemon_->runtime_dir(), .timeout = absl::Seconds(60)});
    EXPECT_OK(client) << daemon_->Log();
    return client.ok() ? *std::move(client) : nullptr;
  }
  // The daemon dies when it passes the failpoint so often from now on.
  void Arm(const std::string& name, int passes) {
    before_ = daemon_->generations();
    daemon_->ArmTarget(name, passes, daemon_->daemon_pid());
  }
  void ExpectDied() {
    EXPECT_FALSE(daemon_->IsTargetArmed()) << "nobody passed the failpoint";
    EXPECT_TRUE(daemon_->WaitForGeneration(before_ + 1));  // it says so a moment after it serves
    EXPECT_EQ(daemon_->generations(), before_ + 1);
  }
  uint32_t Sessions() {
    const auto usage = client_->GetUsage();
    EXPECT_OK(usage);
    return usage.ok() ? usage->sessions : 0;
  }
  uint64_t Leased() {
    const auto usage = client_->GetUsage();
    EXPECT_OK(usage);
    return usage.ok() ? usage->devices.at(0).leased_bytes : 0;
  }

  std::unique_ptr<KeptDaemon> daemon_;
  std::unique_ptr<Client> client_;
  int before_ = 0;
};

TEST_F(LostAnswerTest, Unpublish) {
  auto segment = client_->Acquire({.bytes = kBytes});
  ASSERT_OK(segment);
  for (const char* failpoint : {"record-before", "record-after", "answer-before"}) {
    SCOPED_TRACE(failpoint);
    auto version = client_->Publish("x", absl::MakeConstSpan(&*segment, 1), {});
    ASSERT_OK(version);
    Arm(failpoint, 1);
    const auto ended = client_->Unpublish("x");
    ASSERT_OK(ended);
    EXPECT_EQ(*ended, *version);
    ExpectDied();
    EXPECT_EQ(client_->Unpublish("x").status().code(), absl::StatusCode::kNotFound);
  }
}

TEST_F(LostAnswerTest, Publish) {
  auto segment = client_->Acquire({.bytes = kBytes});
  ASSERT_OK(segment);
  uint64_t versions = 0;
  for (const char* failpoint : {"publish-before", "publish-kept", "record-before", "record-after",
                                "publish-after", "answer-before"}) {
    SCOPED_TRACE(failpoint);
    Arm(failpoint, 1);
    auto version = client_->Publish("x", absl::MakeConstSpan(&*segment, 1), {.metadata = "m"});
    ASSERT_OK(version);
    ExpectDied();
    EXPECT_EQ(*version, ++versions);
    const auto list = client_->ListPublications();
    ASSERT_OK(list);
    ASSERT_EQ(list->size(), 1u);
    EXPECT_EQ(list->front().version, versions);
  }
}

TEST_F(LostAnswerTest, CreateEvent) {
  auto other = Connect();
  ASSERT_NE(other, nullptr);
  // On the host backend an event is a segment, a ticket of it, and its registration.
  for (int answers : {1, 2, 3}) {
    SCOPED_TRACE(answers);
    Arm("answer-before", answers);
    auto event = client_->CreateEvent({.name = "batch"});
    ASSERT_OK(event);
    ExpectDied();
    EXPECT_EQ(client_->CreateEvent({.name = "batch"}).status().code(),
              absl::StatusCode::kAlreadyExists);
    ASSERT_OK(event->Record(nullptr));
    {
      auto opened = other->OpenEvent("batch");
      ASSERT_OK(opened);
      EXPECT_OK(opened->Synchronize());
    }
    *event = Event();
    EXPECT_EQ(other->OpenEvent("batch").status().code(), absl::StatusCode::kNotFound);
  }
  auto segment = client_->Acquire({.bytes = kBytes});
  ASSERT_OK(segment);
  auto ticket = segment->Share();
  ASSERT_OK(ticket);
  auto theirs = other->Open(ticket->value);
  ASSERT_OK(theirs);
  Arm("answer-before", 3);
  auto event = client_->CreateEvent({.segment = &*segment});
  ASSERT_OK(event);
  ExpectDied();
  const auto opened = other->OpenEvents(*theirs);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->size(), 1u) << "it was registered twice";
}

TEST_F(LostAnswerTest, TheEndOfAnEvent) {
  for (const char* failpoint : {"record-before", "record-after", "answer-before"}) {
    SCOPED_TRACE(failpoint);
    auto event = client_->CreateEvent({.name = "batch"});
    ASSERT_OK(event);
    Arm(failpoint, 1);
    *event = Event();
    ExpectDied();
    auto again = client_->CreateEvent({.name = "batch"});
    ASSERT_OK(again) << "the daemon was not told of the end";
  }
}

TEST_F(LostAnswerTest, Connect) {
  for (const char* failpoint : {"record-before", "record-after", "welcome-before"}) {
    SCOPED_TRACE(failpoint);
    ASSERT_EQ(Sessions(), 1u);
    Arm(failpoint, 1);
    auto client = Connect();
    ASSERT_NE(client, nullptr);
    ExpectDied();
    EXPECT_EQ(Sessions(), 2u) << "one was begun that nobody will ever come for";
    auto segment = client->Acquire({.bytes = kBytes});
    EXPECT_OK(segment);
    // It is a session like any other.
    ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
    EXPECT_OK(client->GetUsage());
    EXPECT_EQ(Leased(), kBytes);
    segment = absl::CancelledError();
    client.reset();
    EXPECT_TRUE(Eventually([&] { return Sessions() == 1; }));
    EXPECT_EQ(Leased(), 0u);
  }
}

}  // namespace
}  // namespace gpumem
