// SPDX-License-Identifier: Apache-2.0
// The pages of tenants' memory, through the broker.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/testing/descriptors_left.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/tenants.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace {

using gpumem::MemoryFigures;
using gpumem::MemoryPageReader;
using gpumem::UniqueFd;

constexpr uint64_t kGranule = 2 << 20;
constexpr uint64_t kCapacity = 64 * kGranule;

class MemoryPagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto page = gpumem::MemoryPageWriter::Make();
    if (absl::IsUnimplemented(page.status())) GTEST_SKIP() << page.status();
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = kCapacity}));
    options.random = [this] {
      Secret secret{};
      const uint64_t number = ++secrets_;
      std::memcpy(secret.data(), &number, sizeof number);
      return secret;
    };
    broker_ = std::make_unique<Broker>(std::move(options));
  }

  Broker::NewSession Open(const std::string& tenant, uid_t uid = 5) {
    return *broker_->OpenSession(tenant, {.peer = {.pid = ++pids_, .start_time = 1, .uid = uid}});
  }
  Broker::Call CallOf(const Broker::NewSession& session) { return CallIn(*broker_, session); }
  absl::StatusOr<std::unique_ptr<MemoryPageReader>> PageOf(const Broker::NewSession& session) {
    UniqueFd fd;
    const Broker::Call call = CallOf(session);
    const auto devices =
        broker_->tenants().OpenMemoryPage(call, [&](const Broker::Handover& handover) {
          EXPECT_TRUE(handover.items.empty());
          fd.reset(::fcntl(handover.memory_page, F_DUPFD_CLOEXEC, 0));
          return absl::OkStatus();
        });
    if (!devices.ok()) return devices.status();
    EXPECT_EQ(devices->size(), 1u);
    return MemoryPageReader::Open(fd);
  }
  LeaseId Acquire(const Broker::NewSession& session, uint64_t bytes) {
    const Broker::Call call = CallOf(session);
    const auto leases = broker_->Acquire(call, {.bytes = bytes}, absl::InfiniteFuture(),
                                         [](const Broker::Handover&) { return absl::OkStatus(); });
    EXPECT_TRUE(leases.ok()) << leases.status();
    return leases->front().lease;
  }
  void Release(const Broker::NewSession& session, LeaseId lease) {
    const Broker::Call call = CallOf(session);
    EXPECT_TRUE(broker_->Release(call, {lease}).ok());
  }
  MemoryFigures Usage(const Broker::NewSession& session) {
    const Broker::Call call = CallOf(session);
    const auto usage = broker_->Usage(call);
    return {usage->devices[0].limit, usage->devices[0].obtainable};
  }
  // Waits for the thread that closes pages that are no longer used.
  static bool Closes(const MemoryPageReader& page) {
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (page.Read(0) && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
    return !page.Read(0);
  }
  // Waits for the thread that refreshes the pages.
  static bool Shows(const MemoryPageReader& page, const MemoryFigures& figures) {
    const absl::Time give_up = absl::Now() + absl::Seconds(30);
    while (page.Read(0) != figures && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
    return page.Read(0) == figures;
  }

  uint64_t secrets_ = 0;
  int32_t pids_ = 0;
  std::unique_ptr<Broker> broker_;
};

TEST_F(MemoryPagesTest, HasTheFiguresOfGetUsageAfterEachOwnCall) {
  const auto session = Open("a");
  const auto page = *PageOf(session);
  EXPECT_EQ(page->Read(0), (MemoryFigures{kCapacity, kCapacity}));
  for (int i = 0; i < 100; ++i) {
    const LeaseId lease = Acquire(session, 3 * kGranule);
    EXPECT_EQ(page->Read(0)->free_bytes, kCapacity - 3 * kGranule) << "at once";
    EXPECT_EQ(page->Read(0), Usage(session));
    Release(session, lease);
    EXPECT_EQ(page->Read(0)->free_bytes, kCapacity);
  }
}

TEST_F(MemoryPagesTest, ShowsWhatOthersTakeAndNewLimitsSoon) {
  const auto one = Open("a"), other = Open("b");
  const auto page = *PageOf(one);
  const LeaseId lease = Acquire(other, 5 * kGranule);
  EXPECT_TRUE(Shows(*page, {kCapacity, kCapacity - 5 * kGranule}));
  Release(other, lease);
  EXPECT_TRUE(Shows(*page, {kCapacity, kCapacity}));
  EXPECT_TRUE(broker_->operators().OverrideQuota("a", {{.limit_bytes = 9 * kGranule}}).ok());
  EXPECT_TRUE(Shows(*page, {9 * kGranule, 9 * kGranule}));
}

TEST_F(MemoryPagesTest, IsOneForATenantAndEndsWithItsLastSession) {
  const auto one = Open("a"), other = Open("a"), third = Open("b");
  const auto first = *PageOf(one), second = *PageOf(other), foreign = *PageOf(third);
  EXPECT_TRUE((*PageOf(one))->Read(0)) << "once more";
  Acquire(one, kGranule);
  EXPECT_EQ(first->Read(0), second->Read(0));
  broker_->ProcessGone(one.id);
  EXPECT_TRUE(second->Read(0));
  broker_->ProcessGone(other.id);
  EXPECT_TRUE(Closes(*first));
  EXPECT_TRUE(foreign->Read(0));
  broker_.reset();
  EXPECT_EQ(foreign->Read(0), std::nullopt);
}

TEST_F(MemoryPagesTest, AUserHasSoManyAndOthersHaveTheirs) {
  std::vector<Broker::NewSession> sessions;
  for (size_t i = 0; i < MemoryPages::kMostOfUid; ++i) {
    sessions.push_back(Open(absl::StrCat("t", i)));
    ASSERT_TRUE(PageOf(sessions.back()).ok()) << i;
  }
  const auto more = Open("more"), other = Open("other", 6);
  EXPECT_TRUE(absl::IsResourceExhausted(PageOf(more).status()));
  EXPECT_TRUE(PageOf(sessions[0]).ok()) << "it is there already";
  EXPECT_TRUE(PageOf(other).ok());
  broker_->ProcessGone(sessions[0].id);
  EXPECT_TRUE(PageOf(more).ok());
}

// More than are refreshed while the mutex is held.
TEST_F(MemoryPagesTest, AllOfManyAreRefreshed) {
  std::vector<std::unique_ptr<MemoryPageReader>> pages;
  for (int i = 0; i < 20; ++i) pages.push_back(*PageOf(Open(absl::StrCat("t", i))));
  Acquire(Open("other"), 5 * kGranule);
  for (const auto& page : pages) {
    EXPECT_TRUE(Shows(*page, {kCapacity, kCapacity - 5 * kGranule}));
  }
}

// No account changes with it.
TEST_F(MemoryPagesTest, EndsWithASessionWithoutMemoryAfterItsLastCall) {
  const auto stays = *PageOf(Open("stays"));
  for (const char* tenant : {"a", "b"}) {
    const auto session = Open(tenant, 6);
    const auto page = *PageOf(session);
    {
      const Broker::Call call = CallOf(session);
      broker_->ProcessGone(session.id);
      EXPECT_TRUE(page->Read(0));
    }
    EXPECT_TRUE(Closes(*page));
  }
  EXPECT_EQ(stays->Read(0), (MemoryFigures{kCapacity, kCapacity}));
}

TEST_F(MemoryPagesTest, CannotBeMadeWithoutDescriptors) {
  const auto session = Open("a");
  {
    const gpumem::testing::DescriptorsLeft none(0);
    const absl::Status refused = PageOf(session).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  }
  EXPECT_TRUE(PageOf(session).ok());
}

TEST_F(MemoryPagesTest, ThatIsNotSentIsAnErrorAndCanBeAskedForAgain) {
  const auto session = Open("a");
  const auto gone = [](const Broker::Handover&) { return absl::UnavailableError("gone"); };
  EXPECT_EQ(broker_->tenants().OpenMemoryPage(CallOf(session), gone).status(),
            absl::UnavailableError("gone"));
  EXPECT_TRUE((*PageOf(session))->Read(0));
}

TEST_F(MemoryPagesTest, TheDaemonHasSoMany) {
  const MemoryPages::Page page = *gpumem::MemoryPageWriter::Make();
  MemoryPages pages;
  for (size_t i = 0; i < MemoryPages::kMost; ++i) {
    const auto uid = static_cast<uid_t>(i / MemoryPages::kMostOfUid);
    ASSERT_EQ(pages.CheckRoom(uid), absl::OkStatus()) << i;
    pages.Add(absl::StrCat("t", i), uid, page);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(pages.CheckRoom(9999)));
  pages.Use(SessionId{1}, "t7");
  pages.Forget(SessionId{1});
  EXPECT_EQ(pages.CheckRoom(9999), absl::OkStatus());
}

TEST_F(MemoryPagesTest, WithoutPagesNoneIsStale) {
  LedgerState state({}, {}, absl::Now);
  MemoryPages pages;
  pages.Add("a", 5, *gpumem::MemoryPageWriter::Make());
  pages.Use(SessionId{1}, "a");
  ++state.quotas_version;
  pages.Settle(state);
  EXPECT_TRUE(pages.stale());
  pages.Forget(SessionId{1});
  EXPECT_FALSE(pages.stale());
}

}  // namespace
}  // namespace gpumemd
