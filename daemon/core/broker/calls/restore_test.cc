// SPDX-License-Identifier: Apache-2.0
// A broker that goes on from what an earlier one has left, and clients that return to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/unique_fd.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/testing/calls.h"
#include "daemon/core/broker/views.h"
#include "daemon/device/host_device.h"
#include "daemon/device/metadata.h"

namespace gpumemd {
namespace restore_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using absl::StatusCode;

constexpr uint64_t kGranule = 2 << 20;
constexpr SessionId kSession{1};

// Counts the calls of Write.
class FakeContinuity : public Continuity {
 public:
  absl::Status Begin(const JournalImage&) override { return begins; }
  absl::Status Keep(SegmentId, int) override { return absl::OkStatus(); }
  void Keep(PublicationId, int) override {}
  void LetGo(absl::Span<const SegmentId>) override {}
  void LetGo(PublicationId) override {}
  void Write(absl::Span<const journal::Change>) override { ++written; }

  absl::Status begins;
  int written = 0;
};

class BrokerRestoreTest : public testing::Test {
 protected:
  BrokerRestoreTest() { token_[0] = 9; }

  void Start(Continuity* continuity = nullptr, Bounds bounds = {}) {
    BrokerOptions options;
    options.bounds = bounds;
    options.devices.push_back(*MakeHostDevice({.capacity_bytes = 10 * kGranule}));
    uuid_ = options.devices[0]->info().uuid;
    options.random = CountedSecrets();
    options.continuity = continuity;
    broker_ = std::make_unique<Broker>(std::move(options));
  }
  // A session with a segment for each of the leases.
  Inheritance Left(uint64_t leases) {
    Inheritance left;
    JournalImage& image = left.image;
    image.sessions[kSession] = {.id = kSession,
                                .token = token_,
                                .pid = peer_.pid,
                                .start_time = peer_.start_time,
                                .tenant = "a"};
    left.sessions[kSession] = {.peer = peer_};
    for (uint64_t id = 1; id <= leases; ++id) {
      AddSegment(left, SegmentId{id});
      image.leases[LeaseId{id}] = {
          .id = LeaseId{id}, .session = kSession, .segment = SegmentId{id}};
      image.exposures[{kSession, SegmentId{id}}] = {
          .session = kSession, .segment = SegmentId{id}, .count = 1};
    }
    image.counters = {.session = 1, .segment = 10, .lease = leases};
    return left;
  }
  // A segment whose memory has outlived the earlier daemon.
  void AddSegment(Inheritance& left, SegmentId id) {
    left.image.segments[id] = {.id = id,
                               .bytes = kGranule,
                               .kind = Kind::kVmm,
                               .made = true,
                               .tenant = "a",
                               .device_uuid = uuid_};
    Memory(left, id);
  }
  void Memory(Inheritance& left, SegmentId id) {
    const auto made = earlier_->Create({.kind = Kind::kVmm, .bytes = kGranule});
    ASSERT_TRUE(made.ok()) << made.status();
    left.memory[id] = gpumem::UniqueFd(dup((*made)->fd()));
  }
  absl::string_view Token() const {
    return {reinterpret_cast<const char*>(token_.data()), token_.size()};
  }

  const PeerIdentity peer_ = {.pid = 7, .start_time = 5};
  Secret token_{};
  std::string uuid_;
  std::unique_ptr<HostDevice> earlier_ = *MakeHostDevice({.capacity_bytes = 100 * kGranule});
  std::unique_ptr<Broker> broker_;
};

TEST_F(BrokerRestoreTest, AClientResumesAndStatesItsLeasesBeforeItCalls) {
  Start();
  const auto restored = broker_->Restore(Left(2));
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->leases, 2u);
  EXPECT_TRUE(broker_->IsLive(Token()));
  EXPECT_EQ(broker_->SessionOf(Token()).value(), kSession);
  const auto refused = [&](const absl::Status& status, absl::string_view words) {
    EXPECT_EQ(status.code(), StatusCode::kUnauthenticated) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  };
  refused(broker_->Authenticate(Token()).status(), "must resume it first");
  refused(broker_->Reconcile(Token(), {}, {}).status(), "must resume it first");
  refused(broker_->Reconcile("unknown", {}, {}).status(), "session token");
  EXPECT_EQ(broker_->Resume(Token(), {.pid = 8, .start_time = 5}).status().code(),
            StatusCode::kNotFound)
      << "another process";
  EXPECT_EQ(broker_->Resume("unknown", peer_).status().code(), StatusCode::kNotFound);
  const auto resumed = broker_->Resume(Token(), peer_);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->tenant, "a");
  refused(broker_->Authenticate(Token()).status(), "must resume it first");
  // Of what it does not state the daemon lets go, and it is told what the daemon does not know.
  const auto unknown = broker_->Reconcile(Token(), {LeaseId{1}, LeaseId{9}}, {});
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_THAT(*unknown, ElementsAre(LeaseId{9}));
  const auto call = broker_->Authenticate(Token());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(broker_->TenantOf(*call).value(), "a");
  EXPECT_THAT(broker_->views().ListHolders(std::nullopt).leases, SizeIs(1));
  EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus());
}

TEST_F(BrokerRestoreTest, WhatNobodyKnowsIsLetGoOf) {
  Start();
  Inheritance left = Left(1);
  Memory(left, SegmentId{5});  // it was never granted
  AddSegment(left, SegmentId{6});
  left.image.segments[SegmentId{6}].device_uuid = "GPU-gone";
  const auto restored = broker_->Restore(std::move(left));
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_THAT(restored->refused, IsEmpty());
  EXPECT_EQ(restored->leases, 1u);
  EXPECT_THAT(*broker_->views().ListSegments("", ""), SizeIs(1));
  EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus());
}

TEST_F(BrokerRestoreTest, MemoryThatADeviceRefusesIsTold) {
  Start();
  Inheritance left = Left(1);
  left.memory[SegmentId{1}] = gpumem::UniqueFd();
  const auto restored = broker_->Restore(std::move(left));
  ASSERT_TRUE(restored.ok()) << restored.status();
  ASSERT_THAT(restored->refused, SizeIs(1));
  EXPECT_EQ(restored->refused[0].first, SegmentId{1});
  EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus());
}

TEST_F(BrokerRestoreTest, AJournalThatCannotBeginIsAnError) {
  FakeContinuity continuity;
  continuity.begins = absl::InternalError("disk full");
  Start(&continuity);
  EXPECT_EQ(broker_->Restore(Left(1)).status(), absl::InternalError("disk full"));
}

// A segment of kind driver has no memory that could outlive the earlier daemon.
TEST_F(BrokerRestoreTest, SegmentsWithoutMemoryAreRestoredForTheirLeases) {
  Start();
  Inheritance left = Left(2);
  left.image.segments[SegmentId{2}].kind = Kind::kDriver;
  left.memory.erase(SegmentId{2});
  left.image.leases[LeaseId{3}] = {
      .id = LeaseId{3}, .session = kSession, .segment = SegmentId{9}};  // it is not there
  left.image.counters.lease = 3;
  const auto restored = broker_->Restore(std::move(left));
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_THAT(restored->refused, IsEmpty());
  EXPECT_EQ(restored->leases, 2u);
  EXPECT_EQ(broker_->views().Devices(false)[0].charged, 2 * kGranule);
  EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus());
}

// The store that keeps metadata over a restart is not trusted.
TEST_F(BrokerRestoreTest, MetadataThatIsTooShortIsAnErrorOfEachReader) {
  Start();
  Inheritance left = Left(1);
  const PublicationId id{1};
  left.image.publications[id] = {.id = id,
                                 .version = 1,
                                 .persistent = true,
                                 .metadata_bytes = 100,
                                 .tenant = "a",
                                 .name = "w"};
  left.image.publication_items[{id, 0}] = {.publication = id, .index = 0, .segment = SegmentId{1}};
  left.image.counters.publication = 1;
  const auto metadata = Metadata::Make("short");
  ASSERT_TRUE(metadata.ok()) << metadata.status();
  left.metadata[id] = gpumem::UniqueFd(dup(metadata->fd()));
  ASSERT_TRUE(broker_->Restore(std::move(left)).ok());
  ASSERT_TRUE(broker_->Resume(Token(), peer_).ok());
  ASSERT_TRUE(broker_->Reconcile(Token(), {LeaseId{1}}, {}).ok());
  EXPECT_EQ(broker_->views().GetPublication("a/w").status().code(), StatusCode::kInternal);
  const auto call = broker_->Authenticate(Token());
  ASSERT_TRUE(call.ok()) << call.status();
  auto attachment = std::make_shared<Broker::Attachment>();
  attachment->session = kSession;
  attachment->spec = {.name = "w"};
  const auto attached = broker_->Advance(attachment, /*may_block=*/true).attached;
  EXPECT_EQ(attached.status().code(), StatusCode::kInternal) << attached.status();
  EXPECT_THAT(broker_->views().ListHolders(std::nullopt).leases, SizeIs(1));
  EXPECT_EQ(broker_->views().ListPublications("")->at(0).attached, 0u);
  EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus());
}

// Its leases are for the next daemon to end.
TEST_F(BrokerRestoreTest, ASessionThatEndsAfterTheFreezeIsLeftAsItIs) {
  FakeContinuity continuity;
  Start(&continuity, {.leases_at_once = 2});
  ASSERT_TRUE(broker_->Restore(Left(6)).ok());
  broker_->Freeze();
  const int written = continuity.written;
  broker_->SocketClosed(kSession);
  EXPECT_THAT(broker_->views().ListHolders(std::nullopt).leases, SizeIs(4));
  EXPECT_EQ(broker_->views().CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(continuity.written, written);
  broker_.reset();
}

}  // namespace restore_test
}  // namespace gpumemd
