// SPDX-License-Identifier: Apache-2.0
// Kinds that live in a context: its end, its loss, its pools.
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "daemon/device/testing/context_fault.h"
#include "daemon/device/testing/contract.h"

namespace gpumemd {
namespace {

using absl::StatusCode;
using testing::IsEmpty;
using testing::SizeIs;

constexpr absl::Duration kTimeout = absl::Seconds(120);

// Counts the reports of a device.
class Reports {
 public:
  explicit Reports(Device& device) : device_(device) {
    device_.OnContextLost([this] {
      if (++count_ == 1) first_.Notify();
    });
  }
  ~Reports() { device_.OnContextLost(nullptr); }
  bool Await() { return first_.WaitForNotificationWithTimeout(kTimeout); }
  int count() const { return count_; }

 private:
  Device& device_;
  std::atomic<int> count_{0};
  absl::Notification first_;
};

}  // namespace

TEST_P(ContextContract, ThereIsNoContextBeforeNorAfter) {
  Reports reports(device());
  EXPECT_EQ(device().context_pid(), 0);
  std::unique_ptr<Allocation> first = Create(1);
  const pid_t pid = device().context_pid();
  ASSERT_GT(pid, 0);
  EXPECT_EQ(kill(pid, 0), 0);
  std::unique_ptr<Allocation> second = Create(1, "another");
  EXPECT_EQ(device().context_pid(), pid);
  first.reset();
  EXPECT_EQ(device().context_pid(), pid);
  second.reset();
  EXPECT_EQ(device().context_pid(), 0);
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_EQ(reports.count(), 0);
}

TEST_P(ContextContract, AKilledContextIsReportedOnceAndReplaced) {
  std::unique_ptr<Allocation> first = Create(1);
  std::unique_ptr<Allocation> second = Create(1, "another");
  ASSERT_TRUE(first != nullptr && second != nullptr);
  Reports reports(device());
  const pid_t pid = device().context_pid();
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  ASSERT_TRUE(reports.Await());
  EXPECT_TRUE(first->lost());
  EXPECT_TRUE(second->lost());
  EXPECT_THAT(*device().Pools(), IsEmpty());
  std::unique_ptr<Allocation> next = Create(1);
  ASSERT_NE(next, nullptr);
  EXPECT_NE(device().context_pid(), pid);
  EXPECT_FALSE(next->lost());
  const auto peer = StartPeer();
  ASSERT_EQ(peer->Map(Share(*next, 1)), absl::OkStatus());
  EXPECT_EQ(peer->ExpectZeros(), absl::OkStatus());
  first.reset();
  second.reset();
  EXPECT_FALSE(next->lost());
  EXPECT_NE(device().context_pid(), 0);
  EXPECT_EQ(reports.count(), 1);
}

TEST_P(ContextContract, ABrokenContextLosesItsMemoryAndNoOther) {
  ASSERT_EQ(setenv(kContextFaultVariable, "3", 1), 0);
  const absl::Cleanup unset = [] { unsetenv(kContextFaultVariable); };
  CreateSpec other = Spec(info().granularity_bytes);
  other.kind = Kind::kVmm;
  const absl::StatusOr<std::unique_ptr<Allocation>> unbound = device().Create(other);
  ASSERT_TRUE(unbound.ok() || absl::IsUnimplemented(unbound.status())) << unbound.status();
  const auto first = Create(1);
  const auto second = Create(1);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  Reports reports(device());
  const absl::Status broken = device().Create(Spec(granule())).status();
  EXPECT_EQ(broken.code(), StatusCode::kUnavailable) << broken;
  EXPECT_TRUE(first->lost());
  EXPECT_TRUE(second->lost());
  ASSERT_TRUE(reports.Await());
  if (unbound.ok()) {
    EXPECT_FALSE((*unbound)->lost());
  }
  const auto next = Create(1);
  ASSERT_NE(next, nullptr);
  EXPECT_FALSE(next->lost());
  EXPECT_EQ(reports.count(), 1);
}

// The rest of the context is cleared away before its process's death is reported.
TEST_P(ContextContract, ALossIsReportedThoughTheNextCreateComesAtOnce) {
  ASSERT_EQ(setenv(kContextFaultVariable, "2", 1), 0);
  const absl::Cleanup unset = [] { unsetenv(kContextFaultVariable); };
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const absl::Cleanup restore = [&limit] { setrlimit(RLIMIT_NOFILE, &limit); };
  for (int round = 0; round < (exact() ? 20 : 3); ++round) {
    const auto memory = Create(1);
    ASSERT_NE(memory, nullptr);
    Reports reports(device());
    const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const absl::Status broken = device().Create(Spec(granule())).status();
    const absl::Status refused = device().Create(Spec(granule())).status();  // soon
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_EQ(broken.code(), StatusCode::kUnavailable) << broken;
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused;
    ASSERT_TRUE(reports.Await());
    EXPECT_TRUE(memory->lost());
    EXPECT_EQ(reports.count(), 1);
    EXPECT_NE(Create(1), nullptr);
  }
}

TEST_P(ContextContract, ItsEndLosesItsMemoryAndReportsNothing) {
  std::unique_ptr<Allocation> memory = Create(1);
  ASSERT_NE(memory, nullptr);
  const auto peer = StartPeer();
  ASSERT_EQ(peer->Map(Share(*memory, 1)), absl::OkStatus());
  ASSERT_EQ(peer->WritePattern(1), absl::OkStatus());
  Reports reports(device());
  device().EndContext();
  EXPECT_TRUE(memory->lost());
  EXPECT_FALSE(memory->pool().has_value());
  EXPECT_EQ(device().context_pid(), 0);
  EXPECT_EQ(peer->ExpectPattern(1), absl::OkStatus());
  memory.reset();
  EXPECT_EQ(peer->ExpectPattern(1), absl::OkStatus());
  EXPECT_EQ(peer->Unmap(), absl::OkStatus());
  EXPECT_EQ(reports.count(), 0);
  device().EndContext();  // there is none now
  EXPECT_NE(Create(1), nullptr);
}

TEST_P(ContextContract, APoolIsOneTenantsAndGoesWithItsLastSegment) {
  if (kind() != Kind::kMempool) GTEST_SKIP() << "there are no pools";
  EXPECT_EQ(device().SetPool("tenant", {}).status().code(), StatusCode::kNotFound);
  auto first = Create(2);
  auto second = Create(1);
  const auto other = Create(1, "another");
  ASSERT_TRUE(first != nullptr && second != nullptr && other != nullptr);
  EXPECT_EQ(first->pool()->id, second->pool()->id);
  EXPECT_NE(first->pool()->id, other->pool()->id);
  const std::vector<PoolStatus> pools = *device().Pools();
  ASSERT_THAT(pools, SizeIs(2));
  EXPECT_EQ(pools[0].tenant, "tenant");
  EXPECT_EQ(pools[0].segments, 2u);
  EXPECT_EQ(pools[0].max_bytes, info().capacity_bytes);
  EXPECT_EQ(pools[0].used_bytes, 3 * granule());
  EXPECT_GE(pools[0].reserved_bytes, pools[0].used_bytes);
  EXPECT_EQ(pools[1].tenant, "another");
  first.reset();
  second.reset();
  EXPECT_THAT(*device().Pools(), SizeIs(1));
}

TEST_P(ContextContract, PoolAttributesAreSetAndKeptForTheTenant) {
  if (kind() != Kind::kMempool) GTEST_SKIP() << "there are no pools";
  const uint64_t granule = this->granule();
  auto memory = Create(4);
  const auto spare = Create(2);
  ASSERT_TRUE(memory != nullptr && spare != nullptr);
  absl::StatusOr<PoolStatus> status =
      device().SetPool("tenant", {.release_threshold_bytes = 64 * granule,
                                  .reuse_follow_event_dependencies = false,
                                  .reuse_allow_internal_dependencies = false});
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->release_threshold_bytes, 64 * granule);
  EXPECT_FALSE(status->reuse_follow_event_dependencies);
  EXPECT_TRUE(status->reuse_allow_opportunistic);
  EXPECT_FALSE(status->reuse_allow_internal_dependencies);
  EXPECT_EQ(status->used_bytes, 6 * granule);
  memory.reset();
  status = device().SetPool("tenant", {});
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->used_bytes, 2 * granule);
  EXPECT_EQ(status->used_peak_bytes, 6 * granule);
  status = device().SetPool("tenant", {.reset_peaks = true});
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->used_peak_bytes, 2 * granule);
  status = device().TrimPool("tenant", 0);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_GE(status->reserved_bytes, status->used_bytes);
  if (exact()) {  // CUDA's pools give nothing back while they are shared
    EXPECT_EQ(status->reserved_bytes, 2 * granule);
  }
}

TEST_P(ContextContract, PoolSettingsOutliveThePool) {
  if (kind() != Kind::kMempool) GTEST_SKIP() << "there are no pools";
  auto memory = Create(1);
  ASSERT_NE(memory, nullptr);
  ASSERT_TRUE(device().SetPool("tenant", {.release_threshold_bytes = 12345}).ok());
  memory.reset();
  memory = Create(1);
  ASSERT_THAT(*device().Pools(), SizeIs(1));
  EXPECT_EQ(device().Pools()->front().release_threshold_bytes, 12345u);
}

TEST_P(ContextContract, APoolStaysBelowItsTenantsLimit) {
  if (kind() != Kind::kMempool) GTEST_SKIP() << "there are no pools";
  const uint64_t limit = exact() ? uint64_t{16} << 20 : uint64_t{1} << 30;
  CreateSpec spec = Spec(limit / 4);
  spec.limit_bytes = limit;
  std::vector<std::unique_ptr<Allocation>> allocations;
  for (int i = 0; i < 4; ++i) {
    absl::StatusOr<std::unique_ptr<Allocation>> made = device().Create(spec);
    ASSERT_TRUE(made.ok()) << made.status();
    allocations.push_back(*std::move(made));
  }
  EXPECT_EQ(device().Create(spec).status().code(), StatusCode::kResourceExhausted);
  // A larger limit gets a larger pool beside it.
  spec.limit_bytes = 2 * limit;
  absl::StatusOr<std::unique_ptr<Allocation>> more = device().Create(spec);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_NE((*more)->pool()->id, allocations.front()->pool()->id);
  EXPECT_THAT(*device().Pools(), SizeIs(2));
}

// A pool reserves in steps; they must not take from a small limit.
TEST_P(ContextContract, ASmallLimitCanBeUsedUp) {
  if (kind() != Kind::kMempool) GTEST_SKIP() << "there are no pools";
  CreateSpec spec = Spec(granule());
  spec.limit_bytes = 2 * granule();
  const absl::StatusOr<std::unique_ptr<Allocation>> first = device().Create(spec);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::StatusOr<std::unique_ptr<Allocation>> second = device().Create(spec);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*first)->pool()->id, (*second)->pool()->id);
}

}  // namespace gpumemd
