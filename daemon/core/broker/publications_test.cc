// SPDX-License-Identifier: Apache-2.0
// Publications in the broker: sending and undoing, waiting without a thread, ends by the clock, and
// the descriptors that stay open.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/testing/descriptors_left.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/core/broker/views.h"
#include "daemon/device/host_device.h"

namespace gpumemd {
namespace publications_test {

using ::testing::SizeIs;
using State = Broker::Progress::State;

constexpr uint64_t kGranule = 2 << 20;
constexpr absl::Duration kLong = absl::Seconds(30);

size_t OpenFds() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

class BrokerPublicationsTest : public ::testing::Test {
 protected:
  BrokerPublicationsTest() {
    BrokerOptions options;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = 600 * kGranule}));
    options.random = [this] {
      Secret secret{};
      secret[0] = static_cast<uint8_t>(++randoms_);
      return secret;
    };
    broker_ = std::make_unique<Broker>(std::move(options));
    session_ = Open();
  }
  void TearDown() override { EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus()); }

  Broker::NewSession Open() {
    SessionDetails details;
    details.peer = PeerOf(++pids_);
    auto session = broker_->OpenSession("a", details);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.value_or(Broker::NewSession{});
  }
  static PeerIdentity PeerOf(pid_t pid) { return {.pid = pid, .start_time = 1}; }
  Broker::Call CallOf(const Broker::NewSession& session) { return CallIn(*broker_, session); }
  std::vector<LeaseId> Acquire(uint32_t count) {
    std::vector<LeaseId> leases;
    while (count > 0) {
      const uint32_t some = std::min(count, kMaxSegmentsPerCall);
      const auto views = broker_->Acquire(CallOf(session_), {.bytes = kGranule, .count = some},
                                          absl::Now() + kLong,
                                          [](const Broker::Handover&) { return absl::OkStatus(); });
      EXPECT_TRUE(views.ok()) << views.status();
      if (!views.ok()) break;
      for (const LeaseView& view : *views) leases.push_back(view.lease);
      count -= some;
    }
    return leases;
  }
  uint64_t Publish(const PublishSpec& spec, const std::string& metadata = "") {
    const auto version = broker_->Publish(CallOf(session_), spec, metadata);
    EXPECT_TRUE(version.ok()) << version.status();
    return version.value_or(0);
  }

  // An Attach as the service makes it; `send` stands for the socket.
  struct Attaching {
    explicit Attaching(Broker::Call whose) : call(std::move(whose)) {}

    Broker::Call call;
    std::shared_ptr<Broker::Attachment> attachment;
    absl::Mutex mutex;
    int resumed ABSL_GUARDED_BY(mutex) = 0;

    void AwaitResumed(int times) {
      absl::MutexLock lock(&mutex);
      const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return resumed >= times; };
      EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&enough), kLong));
    }
    int Resumed() {
      absl::MutexLock lock(&mutex);
      return resumed;
    }
  };
  using Send = std::function<absl::Status(const Broker::Handover&, bool may_block)>;
  static absl::Status Sent(const Broker::Handover&, bool) { return absl::OkStatus(); }
  std::unique_ptr<Attaching> NewAttach(const AttachSpec& spec, Send send = Sent,
                                       absl::Duration wait = kLong) {
    auto it = std::make_unique<Attaching>(CallOf(session_));
    it->attachment = std::make_shared<Broker::Attachment>();
    it->attachment->session = session_.id;
    it->attachment->spec = spec;
    it->attachment->wait_until = absl::Now() + wait;
    it->attachment->deliver = std::move(send);
    it->attachment->resume = [raw = it.get()] {
      absl::MutexLock lock(&raw->mutex);
      ++raw->resumed;
    };
    return it;
  }
  Broker::AttachProgress Advance(const Attaching& it, bool may_block = true) {
    return broker_->Advance(it.attachment, may_block);
  }
  uint32_t LeasesOfSession() { return broker_->views().ListSessions("a")->at(0).leases; }

  int randoms_ = 0;
  pid_t pids_ = 0;
  std::unique_ptr<Broker> broker_;
  Broker::NewSession session_;
};

TEST_F(BrokerPublicationsTest, AttachingSendsAllDescriptorsInOrder) {
  const std::vector<LeaseId> leases = Acquire(300);
  Publish({.name = "w", .leases = leases}, "what it is");
  std::vector<int> fds;
  const auto it = NewAttach({.name = "w"}, [&](const Broker::Handover& handover, bool) {
    for (const auto& item : handover.items) fds.push_back(item.fd);
    return absl::OkStatus();
  });
  const auto progress = Advance(*it, /*may_block=*/false);
  ASSERT_EQ(progress.state, State::kAnswered);
  ASSERT_TRUE(progress.attached.ok()) << progress.attached.status();
  EXPECT_EQ(progress.attached->metadata, "what it is");
  EXPECT_EQ(progress.attached->publication.version, 1u);
  EXPECT_THAT(progress.attached->leases, SizeIs(300));
  EXPECT_THAT(fds, SizeIs(300));
  EXPECT_THAT(fds, ::testing::Each(::testing::Ge(0)));
  EXPECT_EQ(LeasesOfSession(), 600u);
}

TEST_F(BrokerPublicationsTest, FailedAttachmentLeavesNothing) {
  Publish({.name = "w", .leases = Acquire(2)});
  const auto it = NewAttach({.name = "w"}, [](const Broker::Handover&, bool) {
    return absl::UnavailableError("the socket is closed");
  });
  EXPECT_TRUE(absl::IsUnavailable(Advance(*it).attached.status()));
  EXPECT_EQ(LeasesOfSession(), 2u);
  EXPECT_EQ(broker_->views().ListPublications("")->at(0).attached, 0u);
}

// The session's process may map what it was sent: that stays charged until the process is gone.
TEST_F(BrokerPublicationsTest, PartlySentAttachmentLingers) {
  const std::vector<LeaseId> leases = Acquire(1);
  Publish({.name = "w", .leases = leases});
  const Broker::NewSession publisher = std::exchange(session_, Open());
  broker_->SocketClosed(publisher.id);
  broker_->ProcessGone(publisher.id);
  const auto it = NewAttach({.name = "w"}, [](const Broker::Handover& handover, bool) {
    handover.partly_sent = true;
    return absl::UnavailableError("the socket was closed in between");
  });
  EXPECT_TRUE(absl::IsUnavailable(Advance(*it).attached.status()));
  ASSERT_TRUE(broker_->operators().Unpublish("a/w").ok());
  EXPECT_EQ(broker_->views().GetTenant("a")->devices[0].lingering, kGranule);
}

TEST_F(BrokerPublicationsTest, AClientThatDoesNotReadAtOnceNeedsAThread) {
  Publish({.name = "w", .leases = Acquire(1)});
  const auto it = NewAttach({.name = "w"}, [](const Broker::Handover&, bool may_block) {
    return may_block ? absl::OkStatus() : absl::DeadlineExceededError("no room");
  });
  EXPECT_EQ(Advance(*it, /*may_block=*/false).state, State::kNeedsAThread);
  EXPECT_EQ(LeasesOfSession(), 1u);
  EXPECT_TRUE(Advance(*it).attached.ok());
}

// The answer was lost with the client's connection, and the repeated request is not sent at once.
TEST_F(BrokerPublicationsTest, ARepeatedAttachmentThatNeedsAThreadGetsTheSameLeases) {
  const std::vector<LeaseId> held = Acquire(1);
  Publish({.name = "w", .leases = held});
  const AttachSpec spec = {.name = "w", .request_id = 7};
  const auto attached = Advance(*NewAttach(spec)).attached;
  ASSERT_TRUE(attached.ok()) << attached.status();
  ASSERT_TRUE(broker_->Resume(TokenOf(session_), PeerOf(pids_)).ok());
  ASSERT_TRUE(broker_->Reconcile(TokenOf(session_), held, {7}).ok());

  const auto it = NewAttach(spec, [](const Broker::Handover&, bool may_block) {
    return may_block ? absl::OkStatus() : absl::DeadlineExceededError("no room");
  });
  EXPECT_EQ(Advance(*it, /*may_block=*/false).state, State::kNeedsAThread);
  const auto again = Advance(*it).attached;
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->leases.at(0).lease, attached->leases.at(0).lease);
  EXPECT_EQ(LeasesOfSession(), 2u);
}

TEST_F(BrokerPublicationsTest, WaitsWithoutAThreadUntilTheVersionIsThere) {
  const auto it = NewAttach({.name = "w", .version = 2});
  EXPECT_EQ(Advance(*it).state, State::kWaits);
  const std::vector<LeaseId> leases = Acquire(1);
  Publish({.name = "w", .leases = leases});
  EXPECT_EQ(it->Resumed(), 0);
  Publish({.name = "w", .leases = leases});
  EXPECT_EQ(it->Resumed(), 1);
  const auto progress = Advance(*it);
  ASSERT_TRUE(progress.attached.ok()) << progress.attached.status();
  EXPECT_EQ(progress.attached->publication.version, 2u);
}

TEST_F(BrokerPublicationsTest, TheClockEndsAWait) {
  const auto it = NewAttach({.name = "w", .version = 1}, Sent, absl::Milliseconds(20));
  EXPECT_EQ(Advance(*it).state, State::kWaits);
  it->AwaitResumed(1);
  const auto progress = Advance(*it);
  EXPECT_TRUE(absl::IsDeadlineExceeded(progress.attached.status())) << progress.attached.status();
}

TEST_F(BrokerPublicationsTest, CancelledAttachmentHoldsNothing) {
  const auto waits = NewAttach({.name = "w", .version = 1});
  EXPECT_EQ(Advance(*waits).state, State::kWaits);
  broker_->GiveUp(waits->attachment);
  EXPECT_EQ(waits->Resumed(), 1);
  EXPECT_TRUE(absl::IsCancelled(Advance(*waits).attached.status()));
  EXPECT_EQ(broker_->views().GetTenant("a")->waiting, 0u);

  Publish({.name = "w", .leases = Acquire(1)});
  std::shared_ptr<Broker::Attachment> attachment;
  const auto late = NewAttach({.name = "w"}, [&](const Broker::Handover&, bool) {
    broker_->GiveUp(attachment);  // while it is being sent
    return absl::OkStatus();
  });
  attachment = late->attachment;
  EXPECT_TRUE(absl::IsCancelled(Advance(*late).attached.status()));
  EXPECT_EQ(LeasesOfSession(), 1u);
}

AttachSpec Contents(uint64_t request) {
  return {.name = "w", .request_id = request, .waits = true, .claims = true, .content_id = "v1"};
}

TEST_F(BrokerPublicationsTest, AClaimPassesOnWithoutAThread) {
  const auto first = Advance(*NewAttach(Contents(1)));
  ASSERT_TRUE(first.attached.ok() && first.attached->claimed) << first.attached.status();
  const Broker::NewSession holder = std::exchange(session_, Open());
  const auto waits = NewAttach(Contents(1)), too = NewAttach(Contents(2));
  EXPECT_EQ(Advance(*waits).state, State::kWaits);
  EXPECT_EQ(Advance(*too).state, State::kWaits);
  broker_->SocketClosed(holder.id);
  EXPECT_EQ(waits->Resumed(), 1);
  EXPECT_EQ(too->Resumed(), 0);
  const auto next = Advance(*waits);
  ASSERT_TRUE(next.attached.ok() && next.attached->claimed) << next.attached.status();
  Publish({.name = "w", .content_id = "v1", .leases = Acquire(1)});
  EXPECT_EQ(too->Resumed(), 1);
  const auto attached = Advance(*too);
  ASSERT_TRUE(attached.attached.ok()) << attached.attached.status();
  EXPECT_FALSE(attached.attached->claimed);
  EXPECT_EQ(attached.attached->publication.content_id, "v1");
}

// A client that is gone when its call gets the claim does not keep it.
TEST_F(BrokerPublicationsTest, ARequestThatWasGivenUpLeavesItsClaim) {
  ASSERT_TRUE(Advance(*NewAttach(Contents(1))).attached.ok());
  const auto given_up = NewAttach(Contents(2)), next = NewAttach(Contents(3));
  EXPECT_EQ(Advance(*given_up).state, State::kWaits);
  EXPECT_EQ(Advance(*next).state, State::kWaits);
  broker_->ReleaseClaim(CallOf(session_), 1);
  EXPECT_EQ(given_up->Resumed(), 1);
  broker_->GiveUp(given_up->attachment);
  EXPECT_EQ(next->Resumed(), 0);
  EXPECT_TRUE(absl::IsCancelled(Advance(*given_up).attached.status()));
  EXPECT_EQ(next->Resumed(), 1);
  EXPECT_TRUE(Advance(*next).attached->claimed);
  // It may be repeated: only its connection was lost.
  broker_->ReleaseClaim(CallOf(session_), 3);
  EXPECT_TRUE(Advance(*NewAttach(Contents(2))).attached->claimed);
  EXPECT_TRUE(absl::IsCancelled(Advance(*NewAttach(Contents(3))).attached.status()));
}

TEST_F(BrokerPublicationsTest, TheClockEndsAWaitForContents) {
  ASSERT_TRUE(Advance(*NewAttach(Contents(1))).attached.ok());
  const auto it = NewAttach(Contents(2), Sent, absl::Milliseconds(20));
  EXPECT_EQ(Advance(*it).state, State::kWaits);
  it->AwaitResumed(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Advance(*it).attached.status()));
}

TEST_F(BrokerPublicationsTest, ASessionThatEndsEndsItsWaits) {
  const auto it = NewAttach({.name = "w", .version = 1});
  EXPECT_EQ(Advance(*it).state, State::kWaits);
  broker_->SocketClosed(session_.id);
  EXPECT_EQ(it->Resumed(), 1);
  EXPECT_TRUE(absl::IsAborted(Advance(*it).attached.status()));
}

TEST_F(BrokerPublicationsTest, TheClockEndsUnattachedPublications) {
  const std::vector<LeaseId> leases = Acquire(1);
  Publish({.name = "later", .leases = leases, .expire_after = absl::Hours(1)});
  Publish({.name = "soon", .leases = leases, .expire_after = absl::Milliseconds(20)});
  const absl::Time patience = absl::Now() + kLong;
  while (broker_->views().ListPublications("")->size() > 1 && absl::Now() < patience) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  const auto left = *broker_->views().ListPublications("");
  ASSERT_THAT(left, SizeIs(1));
  EXPECT_EQ(left[0].name, "later");
}

TEST_F(BrokerPublicationsTest, MetadataIsKeptForAsLongAsItsVersion) {
  const std::vector<LeaseId> leases = Acquire(1);
  const size_t before = OpenFds();
  const PublishSpec spec = {.name = "w", .leases = leases, .request = 7};
  Publish(spec, "one");
  EXPECT_EQ(OpenFds(), before + 1);
  Publish(spec, "one");  // the same request: nothing new
  Publish({.name = "w", .leases = leases}, std::string(kMaxMetadataBytes, 'x'));
  Publish({.name = "none", .leases = leases}, "");
  const auto too_much = broker_->Publish(CallOf(session_), {.name = "w", .leases = leases},
                                         std::string(kMaxMetadataBytes + 1, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(too_much.status())) << too_much.status();
  const absl::Time patience = absl::Now() + kLong;
  while (OpenFds() > before + 1 && absl::Now() < patience) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(OpenFds(), before + 1);
  {
    const auto progress = Advance(*NewAttach({.name = "w"}));
    ASSERT_TRUE(progress.attached.ok());
    EXPECT_EQ(progress.attached->publication.version, 2u);
    EXPECT_TRUE(progress.attached->metadata == std::string(kMaxMetadataBytes, 'x'));
  }
  ASSERT_TRUE(broker_->Unpublish(CallOf(session_), "w").ok());
  while (OpenFds() > before && absl::Now() < patience) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(OpenFds(), before);
}

TEST_F(BrokerPublicationsTest, WithoutDescriptorsMetadataIsRefused) {
  const std::vector<LeaseId> leases = Acquire(1);
  {
    const gpumem::testing::DescriptorsLeft none(0);
    const auto refused =
        broker_->Publish(CallOf(session_), {.name = "w", .leases = leases}, "what it is");
    EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  }
  EXPECT_TRUE(broker_->views().ListPublications("")->empty());
  EXPECT_EQ(Publish({.name = "w", .leases = leases}, "what it is"), 1u);
}

}  // namespace publications_test
}  // namespace gpumemd
