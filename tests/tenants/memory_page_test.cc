// SPDX-License-Identifier: Apache-2.0
// The tenant's memory from the daemon's page: own changes at once, those of others soon, and over a
// daemon that dies.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>

#include "gpumem/client.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/kept_daemon.h"

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

// Without a keeper the session ends with its daemon.
TEST_F(MemoryPage, OfADeadDaemonIsNotUsed) {
  ASSERT_TRUE(Memory().from_page);
  daemon_->child().Signal(SIGKILL);
  daemon_->child().Wait();
  ASSERT_TRUE(daemon_->RunAgain().ok());
  // The connection may count as alive for a millisecond more.
  EXPECT_TRUE(Eventually([&] { return !client_->GetMemory(uuid_).ok(); }));
}

// With one it goes on, and has the next daemon's page.
TEST(KeptMemoryPage, IsThatOfTheNextDaemon) {
  auto daemon = testing::KeptDaemon::Start({.config = "[host]\ndevice_bytes = \"1GiB\"\n"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  auto client = Client::Connect({.runtime_dir = (*daemon)->runtime_dir()});
  ASSERT_TRUE(client.ok()) << client.status();
  auto held = (*client)->Acquire({.bytes = 512 * kMiB, .kind = Kind::kDriver});
  ASSERT_TRUE(held.ok()) << held.status();
  const std::string uuid = (*client)->GetUsage()->devices.at(0).device_uuid;
  const auto before = (*client)->GetMemory(uuid);
  ASSERT_TRUE(before.ok()) << before.status();
  if (!before->from_page) GTEST_SKIP() << "this kernel cannot seal such a page";
  ASSERT_EQ((*daemon)->Kill(), absl::OkStatus());
  auto other = Client::Connect({.runtime_dir = (*daemon)->runtime_dir()});
  ASSERT_TRUE(other.ok()) << other.status();
  auto more = (*other)->Acquire({.bytes = 256 * kMiB, .kind = Kind::kDriver});
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_TRUE(Eventually([&] {
    const auto after = (*client)->GetMemory(uuid);
    return after.ok() && after->from_page && after->limit_bytes == before->limit_bytes &&
           after->free_bytes + 256 * kMiB == before->free_bytes;
  }));
}

}  // namespace
}  // namespace gpumem
