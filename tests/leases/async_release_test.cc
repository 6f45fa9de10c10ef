// SPDX-License-Identifier: Apache-2.0
// Segments that end without a wait for the daemon: what they held is free for the process's next
// call, soon for others, and also if the process or the daemon is killed meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"
#include "tests/support/kept_daemon.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;
using testing::Hear;
using testing::KeptDaemon;
using testing::Say;

constexpr uint64_t kBytes = 2 * kMiB;
constexpr int kCount = 1000;

std::string Config() {
  return absl::StrCat("[host]\ndevice_bytes = \"4GiB\"\n[tenant_defaults]\nlimit = \"",
                      kCount * kBytes / kMiB, "MiB\"\nmax_retained = \"0\"\n");
}

// Takes all that the tenant may have.
std::vector<Segment> Fill(Client& client) {
  std::vector<Segment> segments;
  while (segments.size() < kCount) {
    auto some = client.AcquireMany({.bytes = kBytes}, 250);
    EXPECT_OK(some);
    if (!some.ok()) break;
    for (Segment& segment : *some) segments.push_back(std::move(segment));
  }
  EXPECT_EQ(segments.size(), size_t{kCount});
  return segments;
}

class AsyncReleaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start({.config = Config()});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    for (std::unique_ptr<Client>* client : {&client_, &other_}) {
      auto connected = daemon_->Connect();
      ASSERT_OK(connected);
      *client = *std::move(connected);
    }
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_, other_;
};

TEST_F(AsyncReleaseTest, TheNextAcquireIsNotRefused) {
  for (int round = 0; round < 4; ++round) {
    std::vector<Segment> segments = Fill(*client_);
    ASSERT_EQ(other_->Acquire({.bytes = kBytes}).status().code(),
              absl::StatusCode::kResourceExhausted);
    segments.clear();
    // On another thread, and by another session of the process.
    std::thread([&] {
      Client& client = round % 2 == 0 ? *client_ : *other_;
      EXPECT_OK(client.Acquire({.bytes = kCount * kBytes}));
    }).join();
  }
}

TEST_F(AsyncReleaseTest, NoAnswerKnowsTheReleased) {
  const std::string device = client_->Devices()->front().uuid;
  std::vector<Segment> held = Fill(*client_);
  const std::string ticket = held.back().Share()->value;
  EXPECT_EQ(client_->GetMemory(device)->free_bytes, 0u);
  held.clear();
  EXPECT_EQ(client_->GetMemory(device)->free_bytes, kCount * kBytes);
  EXPECT_EQ(client_->GetUsage()->devices[0].leased_bytes, 0u);
  Fill(*client_).clear();
  EXPECT_EQ(other_->GetMemory(device)->free_bytes, kCount * kBytes);
  Fill(*client_).clear();
  EXPECT_EQ(other_->GetUsage()->devices[0].leased_bytes, 0u);
  Segment shared = client_->Acquire({.bytes = kBytes}).value();
  const std::string other_ticket = shared.Share()->value;
  shared = Segment();
  EXPECT_EQ(other_->Open(other_ticket).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client_->Open(ticket).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(AsyncReleaseTest, APublicationOutlivesTheSegmentsThatWereReleased) {
  Segment segment = client_->Acquire({.bytes = kBytes}).value();
  *static_cast<char*>(segment.data()) = 7;
  ASSERT_OK(client_->Publish("x", {&segment, 1}, {}));
  segment = Segment();
  auto attached = other_->Attach("x");
  ASSERT_OK(attached);
  EXPECT_EQ(*static_cast<char*>(attached->data()), 7);
  attached = absl::UnknownError("");
  ASSERT_OK(client_->Unpublish("x"));
  EXPECT_EQ(other_->GetUsage()->devices[0].leased_bytes, 0u);
}

TEST_F(AsyncReleaseTest, AWaitingAcquireIsServedByThem) {
  std::vector<Segment> segments = Fill(*client_);
  std::thread waiter(
      [&] { EXPECT_OK(client_->Acquire({.bytes = kCount * kBytes, .wait = absl::Seconds(60)})); });
  EXPECT_TRUE(Eventually([&] { return other_->GetUsage()->devices[0].waiting > 0; }));
  segments.clear();
  waiter.join();
}

TEST_F(AsyncReleaseTest, OtherProcessesGetItSoon) {
  Child holder = Child::Self({"--role", "hold", daemon_->runtime_dir()});
  ASSERT_EQ(Hear(holder.channel()), "held");
  ASSERT_EQ(client_->Acquire({.bytes = kBytes}).status().code(),
            absl::StatusCode::kResourceExhausted);
  Say(holder.channel(), "drop");
  EXPECT_TRUE(Eventually([&] { return client_->Acquire({.bytes = kCount * kBytes}).ok(); }));
  Say(holder.channel(), "exit");
  EXPECT_EQ(holder.Wait(), 0);
}

TEST_F(AsyncReleaseTest, AProcessThatIsKilledLeavesNothing) {
  for (int round = 0; round < 10; ++round) {
    Child holder = Child::Self({"--role", "hold", daemon_->runtime_dir()});
    ASSERT_EQ(Hear(holder.channel()), "held");
    Say(holder.channel(), round % 2 == 0 ? "drop and die" : "drop and exit");
    EXPECT_EQ(holder.Wait(), round % 2 == 0 ? 128 + SIGKILL : 0);
    EXPECT_TRUE(Eventually([&] {
      const DeviceUsage usage = client_->GetUsage()->devices[0];
      return usage.charged_bytes == 0 && usage.lingering_bytes == 0;
    }));
  }
}

TEST_F(AsyncReleaseTest, ADaemonThatStandsStillKeepsNoDestructor) {
  std::vector<Segment> segments = Fill(*client_);
  daemon_->child().Signal(SIGSTOP);
  const absl::Time start = absl::Now();
  segments.clear();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5)) << "a thousand waits of a second";
  daemon_->child().Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return client_->GetUsage()->devices[0].charged_bytes == 0; }));
}

TEST(AsyncReleaseCrashTest, ADaemonThatIsKilledIsFollowedByOneThatKnows) {
  auto daemon = KeptDaemon::Start({.config = Config()});
  ASSERT_OK(daemon);
  auto client =
      Client::Connect({.runtime_dir = (*daemon)->runtime_dir(), .timeout = absl::Seconds(60)});
  ASSERT_OK(client);
  for (int round = 0; round < 4; ++round) {
    std::vector<Segment> segments = Fill(**client);
    const Segment stays = std::move(segments.back());
    segments.pop_back();
    if (round % 2 == 0) {
      segments.clear();
      ASSERT_OK((*daemon)->Kill());
    } else {
      segments.resize(segments.size() / 2);
      (*daemon)->KillOnly();
      segments.clear();
    }
    auto usage = (*client)->GetUsage();
    ASSERT_OK(usage);
    EXPECT_EQ(usage->devices[0].leased_bytes, kBytes);
    EXPECT_OK((*client)->Acquire({.bytes = (kCount - 1) * kBytes}));
  }
}

// The process that holds all of the tenant's memory.
int Hold(const std::string& dir) {
  auto client = Client::Connect({.runtime_dir = dir});
  if (!client.ok()) return 2;
  std::vector<Segment> segments = Fill(**client);
  Say(testing::kParentChannel, "held");
  while (true) {
    const std::string word = Hear(testing::kParentChannel);
    if (word != "exit") segments.clear();
    if (word == "drop and die") kill(getpid(), SIGKILL);
    if (word == "drop and exit") _exit(0);
    if (word != "drop") return 0;
  }
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--role") return gpumem::Hold(argv[3]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
