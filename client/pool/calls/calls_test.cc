// SPDX-License-Identifier: Apache-2.0
// Each call of a pool, and what a pool cannot be made of; against a scripted daemon.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/testing/fake_daemon.h"
#include "common/bytes.h"
#include "gmock/gmock.h"
#include "gpumem/pool.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace pool_calls_test {

using internal::FakeDaemon;

class PoolCallsTest : public testing::Test {
 protected:
  explicit PoolCallsTest(FakeDaemon::Script script = {}) : daemon_(std::move(script)) {
    auto client =
        Client::Connect({.runtime_dir = daemon_.runtime_dir(), .timeout = absl::Seconds(20)});
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  std::unique_ptr<Pool> Make(const PoolOptions& options = {}) {
    auto pool = Pool::Create(client_, options);
    EXPECT_TRUE(pool.ok()) << pool.status();
    return *std::move(pool);
  }
  absl::StatusCode Refused(const PoolOptions& options) {
    return Pool::Create(client_, options).status().code();
  }

  FakeDaemon daemon_;
  std::shared_ptr<Client> client_;
};

TEST_F(PoolCallsTest, BlocksAreFoundUntilTheyAreFreed) {
  auto pool = Make();
  EXPECT_EQ(pool->kind(), Kind::kVmm);
  EXPECT_EQ(pool->backend(), Backend::kHost);
  const Block block = pool->AllocateSynchronized(kMiB).value();
  EXPECT_EQ(pool->Find(block.data)->bytes, block.bytes);
  EXPECT_TRUE(pool->FreeSynchronized(block.data).ok());
  EXPECT_EQ(pool->Find(block.data).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(pool->FreeSynchronized(block.data).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->Free(block, nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->Share(block).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->AllocateSynchronized(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool->Allocate(0, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(PoolCallsTest, TryingServesFromThisThreadsCacheAlone) {
  auto pool = Make();
  EXPECT_EQ(pool->TryAllocate(kMiB, nullptr).data, nullptr);
  EXPECT_FALSE(pool->TryFree(pool.get(), nullptr));
  const Block block = pool->Allocate(kMiB, nullptr).value();
  EXPECT_TRUE(pool->Free(block.data, nullptr).ok());
  const Block again = pool->TryAllocate(kMiB, nullptr);
  EXPECT_EQ(again.data, block.data);
  EXPECT_EQ(pool->TryAllocate(0, nullptr).data, nullptr);
  EXPECT_TRUE(pool->TryFree(again.data, nullptr));
  EXPECT_FALSE(pool->TryFree(again.data, nullptr));
  // A hook sees each block: caches are off.
  pool->SetHook([](const PoolEvent&) {});
  EXPECT_EQ(pool->TryAllocate(kMiB, nullptr).data, nullptr);
  EXPECT_FALSE(pool->TryFree(again.data, nullptr));
}

TEST_F(PoolCallsTest, StreamsAreOrderedAndForgotten) {
  auto pool = Make();
  int names[2] = {};
  EXPECT_TRUE(pool->StreamWaits(&names[0], &names[1]).ok());
  EXPECT_TRUE(pool->StreamWaits(&names[0], &names[0]).ok());
  const Block block = pool->Allocate(kMiB, &names[0]).value();
  EXPECT_TRUE(pool->Free(block, &names[0]).ok());
  EXPECT_TRUE(pool->ForgetStream(&names[0]).ok());
  EXPECT_TRUE(pool->ForgetStream(&names[0]).ok());
  EXPECT_GT(pool->FreeAllBlocks().value(), 0u);
  EXPECT_EQ(pool->FreeAllBlocks(&names[1]).value(), 0u);
  EXPECT_EQ(pool->Stats().segments, 0u);
}

TEST_F(PoolCallsTest, PerThreadDefaultStreamIsAnother) {
  auto pool = Make({.per_thread_default_stream = true});
  const Block block = pool->Allocate(kMiB, nullptr).value();
  EXPECT_TRUE(pool->Free(block, nullptr).ok());
  EXPECT_EQ(pool->TryAllocate(kMiB, nullptr).data, block.data);
}

TEST_F(PoolCallsTest, LimitIsOfReservedMemory) {
  auto pool = Make({.grow_bytes = 2 * kMiB});
  for (const double fraction : {0.0, -1.0, 1.5}) {
    EXPECT_EQ(pool->SetLimitFraction(fraction).code(), absl::StatusCode::kInvalidArgument);
  }
  const uint64_t total = pool->MemGetInfo()->total_bytes;
  EXPECT_TRUE(pool->SetLimitFraction(0.5).ok());
  EXPECT_EQ(pool->limit(), total / 2);
  EXPECT_TRUE(pool->SetLimit(2 * kMiB).ok());
  EXPECT_EQ(pool->limit(), 2 * kMiB);
  int asked = 0;
  pool->SetOutOfMemoryCallback([&](uint64_t) { return ++asked, false; });
  EXPECT_EQ(pool->Allocate(4 * kMiB, nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(pool->Stats().out_of_memory, 1u);
}

TEST_F(PoolCallsTest, HookSeesEachCall) {
  auto pool = Make();
  std::vector<PoolEvent::What> seen;
  pool->SetHook([&](const PoolEvent& event) { seen.push_back(event.what); });
  const Block block = pool->Allocate(kMiB, nullptr).value();
  EXPECT_TRUE(pool->Free(block, nullptr).ok());
  EXPECT_TRUE(pool->Trim(0).ok());
  EXPECT_THAT(seen, testing::ElementsAre(PoolEvent::What::kGrow, PoolEvent::What::kAllocate,
                                         PoolEvent::What::kFree, PoolEvent::What::kShrink));
  pool->SetHook(nullptr);
  EXPECT_TRUE(pool->Allocate(kMiB, nullptr).ok());
  EXPECT_EQ(seen.size(), 4u);
}

TEST_F(PoolCallsTest, FreesNoAddressThatTheTableOfBlocksUsesItself) {
  auto pool = Make();
  for (uintptr_t at : {0, 1}) {
    EXPECT_EQ(pool->Free(reinterpret_cast<void*>(at), nullptr).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(PoolCallsTest, ThresholdReleasesFreeMemory) {
  auto pool = Make({.grow_bytes = 2 * kMiB});
  pool->SetReusePolicy({.allow_internal_dependencies = false});
  pool->SetReleaseThreshold(0);
  const Block block = pool->Allocate(4 * kMiB, nullptr).value();
  EXPECT_TRUE(pool->Free(block, nullptr).ok());
  EXPECT_GT(pool->Stats().reserved_peak_bytes, pool->Stats().reserved_bytes);
  pool->ResetPeaks();
  EXPECT_EQ(pool->Stats().reserved_peak_bytes, pool->Stats().reserved_bytes);
}

TEST_F(PoolCallsTest, IsNotMadeOfWhatIsNotThere) {
  EXPECT_EQ(Pool::Create(nullptr, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Refused({.wait = -absl::Seconds(1)}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Refused({.device = "GPU-1"}), absl::StatusCode::kNotFound);
  EXPECT_EQ(Refused({.device = FakeDaemon::kPinnedDevice, .kind = Kind::kVmm}),
            absl::StatusCode::kUnimplemented);
  for (const char* const device : {"", "most-free"}) {
    EXPECT_EQ(Refused({.device = device, .kind = Kind::kDriver}), absl::StatusCode::kUnimplemented)
        << "no device makes it";
  }
}

TEST_F(PoolCallsTest, ATicketOfABlockBeyondAllAddressesIsRefused) {
  auto pool = Make();
  const std::string ticket = pool->Share(pool->Allocate(kMiB, nullptr).value()).value().value;
  EXPECT_TRUE(OpenBlock(*client_, ticket).ok());
  const auto opened =
      OpenBlock(*client_, absl::StrCat("gmb_", UINT64_MAX, "_1", ticket.substr(ticket.find('.'))));
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(opened.status().message()), testing::HasSubstr("not a block ticket"));
}

TEST_F(PoolCallsTest, BlocksOfASegmentShareItsMapping) {
  auto pool = Make();
  const std::string ticket = pool->Share(pool->Allocate(kMiB, nullptr).value()).value().value;
  const SharedBlock one = OpenBlock(*client_, ticket).value();
  const SharedBlock other = OpenBlock(*client_, ticket).value();
  EXPECT_EQ(one.data(), other.data());
  EXPECT_NE(OpenBlock(*client_, ticket, {.read_only = true}).value().data(), one.data());
  EXPECT_NE(OpenBlock(*client_, ticket, {.revocable = true}).value().data(), one.data());
}

TEST_F(PoolCallsTest, BlocksThatAreNotThereAreNotOpened) {
  auto pool = Make();
  const std::string ticket = pool->Share(pool->Allocate(kMiB, nullptr).value()).value().value;
  const std::string segments = ticket.substr(ticket.find('.'));
  EXPECT_EQ(
      OpenBlock(*client_, absl::StrCat("gmb_0_", uint64_t{1} << 40, segments)).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenBlock(*client_, "gmb_0_1.segment").status().code(),
            absl::StatusCode::kInvalidArgument);
  int here = 0;
  EXPECT_EQ(OpenBlock(*client_, ticket, {.address = &here}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The daemon ends the Watch of a client that reads it too slowly.
TEST_F(PoolCallsTest, AWatchThatTheDaemonHasEndedIsStartedAgainWhenThePoolGrows) {
  std::atomic<int> told = 0;
  auto pool =
      Make({.grow_bytes = 2 * kMiB, .revocable = true, .on_revocation = [&](const Revocation&) {
              ++told;
            }});
  const Block used = pool->Allocate(2 * kMiB, nullptr).value();
  daemon_.AwaitWatches(1);
  daemon_.EndWatches({grpc::StatusCode::RESOURCE_EXHAUSTED, "you read too slowly"});
  daemon_.AwaitWatches(0);
  daemon_.KeepWatches();
  v1::Event event;
  event.mutable_revocation()->add_lease_ids(1);  // of `used`
  event.mutable_revocation()->set_deadline_ms(60000);
  daemon_.Tell(event);
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (told == 0 && absl::Now() < end) {  // it tries once a second
    EXPECT_TRUE(pool->Free(pool->Allocate(2 * kMiB, nullptr).value(), nullptr).ok());
    EXPECT_TRUE(pool->Trim(0).ok());
  }
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(pool->Free(used, nullptr).ok());
}

TEST(PoolWithoutDaemonTest, IsNotMadeAndDoesNotGrow) {
  FakeDaemon daemon;
  const std::shared_ptr<Client> client =
      Client::Connect({.runtime_dir = daemon.runtime_dir(), .reconnect = false}).value();
  auto pool = Pool::Create(client, {}).value();
  daemon.Crash();
  EXPECT_EQ(Pool::Create(client, {}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pool->Allocate(kMiB, nullptr).status().code(), absl::StatusCode::kUnavailable);
}

// Two devices with 64 MiB each. The first has kinds that this library does not know, and one that
// pools cannot be of if `driver`.
class KindsTest : public PoolCallsTest {
 protected:
  static FakeDaemon::Script Script(bool driver) {
    FakeDaemon::Script script;
    for (const char* const uuid : {"HOST-0", "HOST-1"}) {
      v1::Device& device = script.devices.emplace_back();
      device.set_device_uuid(uuid);
      device.set_backend(v1::BACKEND_HOST);
      device.set_capacity_bytes(64 * kMiB);
      device.set_granularity_bytes(FakeDaemon::kGranularity);
      v1::DeviceUsage& usage = script.device_usages.emplace_back();
      usage.set_device_uuid(uuid);
      usage.set_limit_bytes(64 * kMiB);
    }
    script.devices[0].add_kinds(static_cast<v1::Kind>(1000));
    if (driver) script.devices[0].add_kinds(v1::KIND_DRIVER);
    script.devices[1].add_kinds(v1::KIND_VMM);
    script.device_usages[0].set_obtainable_bytes(16 * kMiB);
    script.device_usages[1].set_obtainable_bytes(24 * kMiB);
    return script;
  }
  explicit KindsTest(bool driver = false) : PoolCallsTest(Script(driver)) {}
};

TEST_F(KindsTest, AFirstDeviceOfUnknownKindsLeavesTheOthersEligible) {
  auto pool = Make({.device = "most-free"});
  EXPECT_EQ(pool->device_uuid(), "HOST-1");
  EXPECT_EQ(pool->kind(), Kind::kVmm);
}

class DriverKindTest : public KindsTest {
 protected:
  DriverKindTest() : KindsTest(/*driver=*/true) {}
};

TEST_F(DriverKindTest, APoolIsNotOfMemoryThatIsOnlyCharged) {
  EXPECT_EQ(Refused({.kind = Kind::kDriver}), absl::StatusCode::kInvalidArgument);
}

// The daemon has no memory of kind mempool left.
class MempoolTest : public PoolCallsTest {
 protected:
  MempoolTest()
      : PoolCallsTest({.acquire = [this](uint64_t session, const v1::AcquireRequest& request,
                                         v1::AcquireResponse* response) {
          if (request.kind() != v1::KIND_MEMPOOL) {
            return daemon_.Grant(session, request, response);
          }
          return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "there is no more");
        }}) {}
};

TEST_F(MempoolTest, ItDoesNotListenForPressure) {
  auto pool = Make({.kind = Kind::kMempool});
  EXPECT_EQ(pool->Allocate(kMiB, nullptr).status().code(), absl::StatusCode::kResourceExhausted);
  auto other = Make();
  EXPECT_TRUE(other->Allocate(kMiB, nullptr).ok());
  daemon_.AwaitWatches(1);
  other->SetGivesUnderPressure(false);
  daemon_.AwaitWatches(0);
}

class NoUsageTest : public PoolCallsTest {
 protected:
  NoUsageTest()
      : PoolCallsTest({.usage = [] { return grpc::Status(grpc::StatusCode::INTERNAL, "no"); }}) {}
};

TEST_F(NoUsageTest, ErrorsOfTheDaemonAreReturned) {
  EXPECT_EQ(Refused({.device = "most-free"}), absl::StatusCode::kInternal);
  auto pool = Make();
  EXPECT_EQ(pool->MemGetInfo().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(pool->SetLimitFraction(0.5).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Make({.revocable = true})->MemGetInfo().status().code(), absl::StatusCode::kInternal);
}

class NoShareTest : public PoolCallsTest {
 protected:
  NoShareTest()
      : PoolCallsTest({.share = [](const v1::ShareRequest&) {
          return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no");
        }}) {}
};

TEST_F(NoShareTest, ErrorsOfTheDaemonAreReturned) {
  auto pool = Make();
  const Block block = pool->Allocate(kMiB, nullptr).value();
  EXPECT_EQ(pool->Share(block).status().code(), absl::StatusCode::kPermissionDenied);
}

}  // namespace pool_calls_test
}  // namespace gpumem
