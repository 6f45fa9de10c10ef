// SPDX-License-Identifier: Apache-2.0
// Moves to the host tier that no session asks for, end to end on the host backend: of segments that
// their last user lets go of, and of publications.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "gpumem/suspend.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/kept_daemon.h"
#include "tests/support/pattern.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Eventually;
using testing::KeptDaemon;
using testing::MemoryOf;
using testing::PatientOptions;
using testing::ProgramPath;

constexpr char kConfig[] = R"([host]
device_bytes = "64MiB"
[tier]
capacity = "64MiB"
)";
constexpr int kSegments = 3;  // of 4 MiB
constexpr uint64_t kBytes = kSegments * 4 * kMiB;

class DaemonMovesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = KeptDaemon::Start({.config = kConfig});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    client_ = Connect();
    ASSERT_NE(client_, nullptr);
  }
  std::unique_ptr<Client> Connect() {
    auto client = Client::Connect(PatientOptions(daemon_->runtime_dir()));
    EXPECT_OK(client);
    return client.ok() ? *std::move(client) : nullptr;
  }
  // Returns true once the tenant has these bytes on the device, and in the tier.
  bool Becomes(uint64_t on_device, uint64_t in_tier) {
    return Eventually([&] {
      const auto usage = client_->GetUsage();
      EXPECT_OK(usage);
      uint64_t device = 0, tier = 0;
      if (!usage.ok()) return true;
      for (const DeviceUsage& each : usage->devices) {
        (each.device_uuid.starts_with("TIER-") ? tier : device) +=
            each.charged_bytes - each.retained_bytes;
      }
      return device == on_device && tier == in_tier;
    });
  }
  // Publishes segments with a pattern each, and releases them.
  void PublishWeights() {
    auto segments = client_->AcquireMany({.bytes = 4 * kMiB}, kSegments);
    ASSERT_OK(segments);
    for (uint64_t i = 0; i < kSegments; ++i) {
      ASSERT_OK(testing::Fill(MemoryOf((*segments)[i]), i + 1));
    }
    ASSERT_OK(client_->Publish("weights", *segments, PublishOptions()));
    for (Segment& segment : *segments) ASSERT_OK(segment.Release());
  }
  std::string FullName() { return absl::StrCat(client_->tenant(), "/weights"); }
  int Ctl(std::vector<std::string> args) {
    args.insert(args.begin(), {ProgramPath("gpumemctl"), "--runtime-dir", daemon_->runtime_dir()});
    return Child(args).Wait();
  }
  int Suspend() { return Ctl({"suspend", "--publication", FullName(), "--yes"}); }
  int Resume() { return Ctl({"resume", "--publication", FullName()}); }
  static void ExpectPatterns(Attachment& attachment) {
    ASSERT_EQ(attachment.segments().size(), static_cast<size_t>(kSegments));
    for (uint64_t i = 0; i < kSegments; ++i) {
      EXPECT_OK(testing::Check(MemoryOf(attachment.segments()[i]), i + 1)) << "of segment " << i;
    }
  }

  std::unique_ptr<KeptDaemon> daemon_;
  std::unique_ptr<Client> client_;
};

TEST_F(DaemonMovesTest, TheLastUserThatLetsGo) {
  auto segment = client_->Acquire({.bytes = 4 * kMiB});
  ASSERT_OK(segment);
  ASSERT_OK(testing::Fill(MemoryOf(*segment), 7));
  for (const bool releases : {true, false}) {
    std::unique_ptr<Client> other = Connect();
    const auto ticket = segment->Share();
    ASSERT_OK(ticket);
    auto opened = other->Open(ticket->value);
    ASSERT_OK(opened);
    ASSERT_OK(client_->Suspend({&*segment}));
    EXPECT_TRUE(Becomes(4 * kMiB, 0));
    if (releases) {
      ASSERT_OK(opened->Release());
    } else {
      ASSERT_OK(other->Suspend({&*opened}));
      ASSERT_OK(other->Resume({&*opened}));
      ASSERT_OK(daemon_->Kill());
      ASSERT_OK(opened->Release());
    }
    EXPECT_TRUE(Becomes(0, 4 * kMiB)) << releases;
    ASSERT_OK(client_->Resume({&*segment}));
    EXPECT_OK(testing::Check(MemoryOf(*segment), 7));
    EXPECT_TRUE(Becomes(4 * kMiB, 0));
  }
}

TEST_F(DaemonMovesTest, AKillDuringALaterMoveLosesNothing) {
  auto segment = client_->Acquire({.bytes = 4 * kMiB});
  ASSERT_OK(segment);
  ASSERT_OK(testing::Fill(MemoryOf(*segment), 7));
  for (const char* step : {"suspend-made", "suspend-copied", "let-go-before"}) {
    SCOPED_TRACE(step);
    std::unique_ptr<Client> other = Connect();
    const auto ticket = segment->Share();
    ASSERT_OK(ticket);
    auto opened = other->Open(ticket->value);
    ASSERT_OK(opened);
    ASSERT_OK(client_->Suspend({&*segment}));
    daemon_->ArmFailpoint(step, 1);
    ASSERT_OK(daemon_->Kill());  // the next one is armed
    ASSERT_OK(opened->Release());
    EXPECT_TRUE(Becomes(0, 4 * kMiB));
    EXPECT_TRUE(Eventually([&] { return !daemon_->IsFailpointArmed(); }));
    ASSERT_OK(client_->Resume({&*segment}));
    EXPECT_OK(testing::Check(MemoryOf(*segment), 7));
    EXPECT_TRUE(Becomes(4 * kMiB, 0));
  }
}

TEST_F(DaemonMovesTest, AttachBringsASuspendedPublicationBack) {
  PublishWeights();
  EXPECT_EQ(Suspend(), 0);
  EXPECT_TRUE(Becomes(0, kBytes));
  // It needs room on the device.
  auto whole = client_->Acquire({.bytes = 64 * kMiB});
  ASSERT_OK(whole);
  const auto refused = client_->Attach("weights");
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  std::vector<std::thread> readers;
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] {
      std::unique_ptr<Client> reader = Connect();
      auto attachment = reader->Attach("weights", {.wait = absl::Seconds(60)});
      ASSERT_OK(attachment);
      ExpectPatterns(*attachment);
    });
  }
  ASSERT_OK(whole->Release());
  for (std::thread& reader : readers) reader.join();
  EXPECT_TRUE(Becomes(kBytes, 0));

  EXPECT_EQ(Suspend(), 0);
  EXPECT_EQ(Suspend(), 0) << "nothing to do";
  EXPECT_EQ(Resume(), 0);
  EXPECT_TRUE(Becomes(kBytes, 0));
  {
    auto attachment = client_->Attach("weights");
    ASSERT_OK(attachment);
    ExpectPatterns(*attachment);
    EXPECT_EQ(Suspend(), 1) << "a session is attached";
    ASSERT_OK(attachment->Release());
  }
  EXPECT_EQ(Suspend(), 0);
  ASSERT_OK(client_->Unpublish("weights"));
  EXPECT_TRUE(Becomes(0, 0));
}

TEST_F(DaemonMovesTest, AKillAtAnyStepLeavesThePublicationInOnePlace) {
  PublishWeights();
  for (const char* step : {"suspend-made", "suspend-copied", "let-go-before", "let-go-after"}) {
    SCOPED_TRACE(step);
    daemon_->ArmFailpoint(step, 1);
    ASSERT_OK(daemon_->Kill());  // the next one is armed
    Suspend();                   // the operator's call ends with the daemon
    EXPECT_TRUE(Eventually([&] { return !daemon_->IsFailpointArmed(); }));
    EXPECT_TRUE(Eventually([&] { return Suspend() == 0; }));
    EXPECT_TRUE(Becomes(0, kBytes));
    auto attachment = client_->Attach("weights");
    ASSERT_OK(attachment);
    ExpectPatterns(*attachment);
    ASSERT_OK(attachment->Release());
  }
  for (const char* step : {"resume-made", "resume-copied", "keep-after", "deliver-before"}) {
    SCOPED_TRACE(step);
    EXPECT_TRUE(Eventually([&] { return Suspend() == 0; }));
    daemon_->ArmFailpoint(step, 1);
    ASSERT_OK(daemon_->Kill());  // the next one is armed
    auto attachment = client_->Attach("weights", {.wait = absl::Seconds(60)});
    ASSERT_OK(attachment);
    ExpectPatterns(*attachment);
    ASSERT_OK(attachment->Release());
    EXPECT_TRUE(Becomes(kBytes, 0));
    EXPECT_TRUE(Eventually([&] { return !daemon_->IsFailpointArmed(); })) << "no daemon died there";
  }
}

TEST_F(DaemonMovesTest, AttachersThatComeAndGoWhileAnOperatorSuspends) {
  PublishWeights();
  constexpr int kRounds = 40;
  std::atomic<int> attaching = 2;
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      std::unique_ptr<Client> reader = Connect();
      for (int round = 0; round < kRounds; ++round) {
        auto attachment = reader->Attach("weights", {.wait = absl::Seconds(60)});
        EXPECT_OK(attachment);
        if (attachment.ok()) ExpectPatterns(*attachment);
      }
      --attaching;
    });
  }
  while (attaching > 0) Suspend();  // refused while a session is attached
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(Suspend(), 0);
  EXPECT_TRUE(Becomes(0, kBytes));
  auto attachment = client_->Attach("weights");
  ASSERT_OK(attachment);
  ExpectPatterns(*attachment);
}

}  // namespace
}  // namespace gpumem
