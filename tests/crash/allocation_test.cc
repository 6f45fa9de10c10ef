// SPDX-License-Identifier: Apache-2.0
// An allocation of a real gpumemd fails: in the core, the transport, gRPC or any other library, in
// any thread. The daemon may die of it or refuse the call; nothing that clients hold is lost, and
// the same call succeeds when it is repeated.
//
//   GPUMEM_ALLOCATIONS       N: each Nth allocation of the calls and of a start fails once; 1 takes
//                            more than two hours. By default, every 97th and every 997th
//   GPUMEM_FIRST_ALLOCATION  begin at this one, to go on with an earlier run; by default 1
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/daemon_process.h"
#include "tests/support/kept_daemon.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::Eventually;
using testing::HasStamp;
using testing::KeptDaemon;
using testing::PatientOptions;
using testing::Stamp;

constexpr char kConfig[] = R"([host]
device_bytes = "1GiB"
[tier]
capacity = "64MiB"
)";
constexpr uint64_t kHeldStamp = 4711;
constexpr absl::Duration kPatience = absl::Seconds(60);  // of conditions that a next daemon meets

// Returns a number from the environment.
int64_t Asked(const char* variable, int64_t by_default) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::max(1, std::atoi(text)) : by_default;
}

// Returns the distance of the allocations that fail.
int64_t Stride(int64_t by_default) { return Asked("GPUMEM_ALLOCATIONS", by_default); }

// Returns the number of the first allocation that fails.
int64_t First() { return Asked("GPUMEM_FIRST_ALLOCATION", 1); }

class AllocationTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer has a malloc() of its own";
#endif
    auto daemon = KeptDaemon::Start({.config = kConfig});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    holder_ = Connect();
    ASSERT_NE(holder_, nullptr);
    auto held = holder_->Acquire({.bytes = 4 * kMiB});
    ASSERT_TRUE(held.ok()) << held.status();
    held_ = *std::move(held);
    Stamp(held_.data(), held_.size(), kHeldStamp);
  }
  std::unique_ptr<Client> Connect() {
    auto client = Client::Connect(PatientOptions(daemon_->runtime_dir()));
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  // Does it again if it fails. It may fail where the allocation did, but not twice.
  template <typename Call>
  auto Twice(Call call) {
    auto result = call();
    if (result.ok()) return result;
    ++refused_;
    EXPECT_EQ(daemon_->AllocationsLeft(), 0) << "refused without a failure: " << StatusOf(result);
    return call();
  }
  static absl::Status StatusOf(const absl::Status& status) { return status; }
  template <typename Value>
  static absl::Status StatusOf(const absl::StatusOr<Value>& result) {
    return result.status();
  }

  // A client comes, uses each kind of call, and goes. All must end well.
  void UseEachCall() {
    auto client = Twice([&] { return Client::Connect(PatientOptions(daemon_->runtime_dir())); });
    ASSERT_TRUE(client.ok()) << client.status();
    Client& guest = **client;
    auto segment = Twice([&] { return guest.Acquire({.bytes = kMiB}); });
    ASSERT_TRUE(segment.ok()) << segment.status();
    Stamp(segment->data(), segment->size(), 1);
    auto ticket = Twice([&] { return held_.Share(); });
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    auto opened = Twice([&] { return guest.Open(ticket->value); });
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(HasStamp(opened->data(), opened->size(), kHeldStamp));
    auto version =
        Twice([&] { return guest.Publish("one", absl::MakeConstSpan(&*segment, 1), {}); });
    ASSERT_TRUE(version.ok()) << version.status();
    auto attached = Twice([&] { return holder_->Attach("one"); });
    ASSERT_TRUE(attached.ok()) << attached.status();
    const Segment& copy = attached->segments().at(0);
    EXPECT_TRUE(HasStamp(copy.data(), copy.size(), 1));
    auto taken = Twice([&] { return guest.AcquireMany({.bytes = kMiB}, 2); });
    ASSERT_TRUE(taken.ok()) << taken.status();
    Segment* const both[] = {&taken->at(0), &taken->at(1)};
    Stamp(both[0]->data(), both[0]->size(), 2);
    const absl::Status suspended = Twice([&] { return guest.Suspend(both); });
    ASSERT_TRUE(suspended.ok()) << suspended;
    const absl::Status resumed = Twice([&] { return guest.Resume(both); });
    ASSERT_TRUE(resumed.ok()) << resumed;
    EXPECT_TRUE(HasStamp(both[0]->data(), both[0]->size(), 2));
    // An operator looks, too.
    auto admin = v1::Admin::NewStub(testing::ChannelTo(daemon_->runtime_dir() + "/admin.sock"));
    v1::ListHoldersResponse holders;
    EXPECT_TRUE(Eventually(
        [&] {
          return admin->ListHolders(testing::ContextWith({}, absl::Seconds(5)).get(), {}, &holders)
              .ok();
        },
        kPatience));
    EXPECT_GE(holders.leases_size(), 1);
    auto gone = Twice([&] { return guest.Unpublish("one"); });
    EXPECT_TRUE(gone.ok()) << gone.status();
    const absl::Status released = Twice([&] { return opened->Release(); });
    EXPECT_TRUE(released.ok()) << released;
  }

  // Another client opens the held memory, which no daemon may have lost.
  void OpenHeld() {
    const auto guest = Connect();
    ASSERT_NE(guest, nullptr);
    const auto ticket = held_.Share();
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    const auto opened = guest->Open(ticket->value);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(HasStamp(opened->data(), opened->size(), kHeldStamp));
  }

  // The guest has gone; what the holder has is as it was. A guest that goes while no daemon serves
  // leaves a session without leases, which ends with this process.
  void ExpectOnlyTheHolder(int64_t n) {
    absl::StatusOr<Usage> usage;
    EXPECT_TRUE(Eventually(
        [&] {
          usage = holder_->GetUsage();
          return usage.ok() && usage->devices.at(0).leased_bytes == 4 * kMiB &&
                 usage->devices.at(0).lingering_bytes == 0;
        },
        kPatience))
        << "allocation " << n << ": " << usage.status() << ", "
        << (usage.ok() ? usage->devices.at(0).leased_bytes : 0) << " bytes\n"
        << daemon_->Log();
    EXPECT_TRUE(HasStamp(held_.data(), held_.size(), kHeldStamp));
  }

  std::unique_ptr<KeptDaemon> daemon_;
  std::unique_ptr<Client> holder_;
  Segment held_;
  int refused_ = 0;
};

TEST_F(AllocationTest, OneOfTheCallsFails) {
  UseEachCall();  // makes the allocations that are made once only
  ExpectOnlyTheHolder(0);
  const int64_t stride = Stride(97);
  int64_t n = First();
  int failed = 0;
  for (; !HasFailure(); n += stride) {
    daemon_->FailAllocation(n);
    UseEachCall();
    const bool has_failed = daemon_->AllocationsLeft() == 0;
    daemon_->FailAllocation(0);
    ExpectOnlyTheHolder(n);
    if (!has_failed) break;  // the calls make no more
    ++failed;
  }
  const int deaths = daemon_->generations() - 1;
  std::cout << failed << " allocations of some " << n << " failed: the daemon died of " << deaths
            << ", and refused " << refused_ << " calls\n";
  EXPECT_GT(failed, First() == 1 ? 10 : 0);
  EXPECT_GT(deaths, failed / 2);
}

TEST_F(AllocationTest, OneOfAStartFails) {
  const int64_t stride = Stride(997);
  int64_t n = First();
  int failed = 0;
  for (; !HasFailure(); n += stride) {
    const int before = daemon_->generations();
    daemon_->FailAllocation(n);
    daemon_->KillOnly();
    // The daemon that starts next may die, and another one comes.
    ASSERT_TRUE(daemon_->WaitForGeneration(before + 1)) << daemon_->Log();
    const bool has_failed = daemon_->AllocationsLeft() == 0;
    daemon_->FailAllocation(0);
    OpenHeld();
    ExpectOnlyTheHolder(n);
    if (!has_failed) break;
    ++failed;
  }
  std::cout << failed << " allocations of some " << n << " of a start failed\n";
  EXPECT_GT(failed, First() == 1 ? 5 : 0);
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
