// SPDX-License-Identifier: Apache-2.0
// The tenant's memory from the daemon's page: own changes at once, those of others soon, and over a
// daemon that dies.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "gpumem/client.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem {
namespace {

using testing::DaemonProcess;
using testing::Eventually;

constexpr uint64_t kMiB = 1 << 20;

class MemoryPage : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start({.config = "[host]\ndevice_bytes = \"1GiB\"\n"
                                                  "[tenant_defaults]\nlimit = \"512MiB\"\n"
                                                  "max_retained = 0\n"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    client_ = *daemon_->Connect();
    uuid_ = client_->GetUsage()->devices.at(0).device_uuid;
    if (!Memory().from_page) GTEST_SKIP() << "this kernel cannot seal such a page";
  }
  DeviceMemory Memory(Client* client = nullptr) {
    auto memory = (client == nullptr ? *client_ : *client).GetMemory(uuid_);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.value_or(DeviceMemory());
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<Client> client_;
  std::string uuid_;
};

TEST_F(MemoryPage, ShowsOwnChangesAtOnceAndThoseOfOthersSoon) {
  auto other = *daemon_->Connect();
  EXPECT_EQ(Memory().limit_bytes, 512 * kMiB);
  for (int i = 0; i < 200; ++i) {
    auto segment = client_->Acquire({.bytes = 4 * kMiB, .kind = Kind::kDriver});
    ASSERT_TRUE(segment.ok()) << segment.status();
    ASSERT_EQ(Memory().free_bytes, 508 * kMiB) << i;
    ASSERT_TRUE(Memory().from_page);
    ASSERT_TRUE(segment->Release().ok());
    ASSERT_EQ(Memory().free_bytes, 512 * kMiB) << i;
  }
  auto segment = other->Acquire({.bytes = 8 * kMiB, .kind = Kind::kDriver});
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_TRUE(Eventually([&] { return Memory().free_bytes == 504 * kMiB; }));
  EXPECT_EQ(Memory(other.get()).free_bytes, 504 * kMiB);
  EXPECT_EQ(client_->GetMemory("HOST-7").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MemoryPage, OfADeadDaemonIsNotUsed) {
  daemon_->child().Signal(SIGKILL);
  daemon_->child().Wait();
  absl::SleepFor(absl::Milliseconds(5));  // for less than this the connection counts as alive
  ASSERT_TRUE(daemon_->RunAgain().ok());
  auto next = *daemon_->Connect();
  auto held = next->Acquire({.bytes = 8 * kMiB, .kind = Kind::kDriver});
  ASSERT_TRUE(held.ok()) << held.status();
  const auto memory = client_->GetMemory(uuid_);
  // Without a keeper the session is over; with one it would have the next daemon's page.
  if (memory.ok()) {
    EXPECT_EQ(memory->free_bytes, 504 * kMiB);
  }
}

TEST_F(MemoryPage, OfTheNextDaemonAfterARestart) {
  auto held = client_->Acquire({.bytes = 8 * kMiB, .kind = Kind::kDriver});
  ASSERT_TRUE(held.ok()) << held.status();
  ASSERT_TRUE(daemon_->Restart().ok());
  const auto memory = client_->GetMemory(uuid_);
  if (!memory.ok()) GTEST_SKIP() << "the session has ended: " << memory.status();
  EXPECT_TRUE(memory->from_page);
  EXPECT_EQ(memory->free_bytes, 504 * kMiB);
}

}  // namespace
}  // namespace gpumem
