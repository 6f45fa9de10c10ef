// SPDX-License-Identifier: Apache-2.0
#include "client/cli/views/describe_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "client/cli/text/printable.h"
#include "client/cli/text/table.h"
#include "client/cli/views/views_samples.h"

namespace gpumem::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Two sessions: one has published two segments and the other is attached to them.
Snapshot Sample() {
  Snapshot snapshot;
  for (const v1::Device& device : TwoDevices()) *snapshot.status.add_devices() = device;
  snapshot.tenants = TwoTenants();
  snapshot.sessions = TwoSessions();
  snapshot.sessions.mutable_sessions(0)->set_rule("rule 2 (uid = 1000)");
  snapshot.sessions.mutable_sessions(0)->set_cgroup("/train.slice/a.service");
  for (uint64_t id : {40u, 41u}) {
    v1::SegmentInfo* segment = snapshot.segments.add_segments();
    segment->set_segment_id(id);
    segment->set_tenant("training");
    segment->set_device_uuid(kUuid0);
    segment->set_kind(v1::KIND_VMM);
    segment->set_size_bytes(32 * kMiB);
    segment->set_state(v1::SegmentInfo::STATE_LEASED);
    segment->set_leases(1);
    segment->add_session_ids(7);
    segment->add_session_ids(12);
  }
  v1::LeaseInfo* lease = snapshot.holders.add_leases();
  lease->set_lease_id(33);
  lease->set_segment_id(40);
  lease->set_session_id(7);
  lease->set_tenant("training");
  lease->set_shared(true);
  lease = snapshot.holders.add_leases();
  lease->set_lease_id(34);
  lease->set_segment_id(40);
  lease->set_session_id(12);
  lease->set_tenant("user-1001");
  lease->set_attached(true);
  lease->set_publication("training/weights");
  lease->set_version(3);
  v1::PublishedSegments* published = snapshot.holders.add_publications();
  published->set_tenant("training");
  published->set_name("weights");
  published->set_version(3);
  published->add_segment_ids(41);
  published->add_segment_ids(40);
  v1::PublicationInfo* publication = snapshot.publications.add_publications();
  publication->set_tenant("training");
  publication->set_name("weights");
  publication->set_version(3);
  publication->set_segments(2);
  publication->set_bytes(64 * kMiB);
  publication->set_attached_sessions(1);
  publication->set_publisher_session_id(7);
  publication->set_publisher_pid(4242);
  publication->set_publisher_alive(true);
  publication->set_expire_after_ms(60'000);
  v1::WaitingInfo* waiting = snapshot.waiting.add_waiting();
  waiting->set_session_id(7);
  waiting->set_tenant("training");
  waiting->set_device_uuid(kUuid0);
  waiting->set_bytes(kGiB);
  waiting->set_count(2);
  waiting->set_position(1);
  waiting->set_age_ms(12'000);
  waiting->mutable_blocked_by()->set_cause(v1::Denial::CAUSE_QUEUE);
  return snapshot;
}

std::string Described(const Snapshot& snapshot, Subject subject, const std::string& name) {
  const absl::StatusOr<Thing> thing = Find(snapshot, subject, name);
  EXPECT_TRUE(thing.ok()) << thing.status();
  return thing.ok() ? DescribeView(snapshot, *thing, false, {}) : "";
}

TEST(FindTest, ByKindOrWithoutWhereThatSaysEnough) {
  const Snapshot snapshot = Sample();
  EXPECT_EQ(Find(snapshot, Subject::kAny, "33")->what, Subject::kLease);
  EXPECT_EQ(Find(snapshot, Subject::kAny, "33")->id, 33u);
  EXPECT_EQ(Find(snapshot, Subject::kAny, "41")->what, Subject::kSegment);
  EXPECT_EQ(Find(snapshot, Subject::kAny, "12")->what, Subject::kSession);
  EXPECT_EQ(Find(snapshot, Subject::kAny, "training")->what, Subject::kTenant);
  EXPECT_EQ(Find(snapshot, Subject::kAny, "weights")->name, "training/weights");
  EXPECT_EQ(Find(snapshot, Subject::kPublication, "training/weights")->name, "training/weights");
  EXPECT_EQ(Find(snapshot, Subject::kAny, "HOST-00000001")->name, kUuid1);
  EXPECT_EQ(Find(snapshot, Subject::kDevice, "0")->name, kUuid0);
}

TEST(FindTest, SaysWhatItMayBe) {
  Snapshot snapshot = Sample();
  snapshot.segments.mutable_segments(0)->set_segment_id(33);
  const absl::Status several = Find(snapshot, Subject::kAny, "33").status();
  EXPECT_TRUE(absl::IsInvalidArgument(several));
  EXPECT_EQ(several.message(),
            "\"33\" is ambiguous: use describe lease 33, or describe segment 33");
  EXPECT_TRUE(Find(snapshot, Subject::kSegment, "33").ok());
  const absl::Status none = Find(snapshot, Subject::kSegment, "99").status();
  EXPECT_TRUE(absl::IsNotFound(none));
  EXPECT_THAT(std::string(none.message()), HasSubstr("there is no segment \"99\""));
  EXPECT_TRUE(absl::IsNotFound(Find(snapshot, Subject::kAny, "nobody").status()));
  EXPECT_TRUE(absl::IsNotFound(Find(snapshot, Subject::kDevice, "9").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Find(snapshot, Subject::kAny, "HOST-0").status()));
  *snapshot.publications.add_publications() = snapshot.publications.publications(0);
  snapshot.publications.mutable_publications(1)->set_tenant("b");
  EXPECT_EQ(Find(snapshot, Subject::kPublication, "weights").status().message(),
            "\"weights\" is ambiguous: use describe publication training/weights, or "
            "describe publication b/weights");
}

TEST(DescribeTest, Segment) {
  EXPECT_EQ(Described(Sample(), Subject::kSegment, "40"),
            "Segment 40: 32.00 MiB of kind vmm on device 0 HOST-00000000, there for 0ms\n"
            "\n"
            "It belongs to tenant training, which is charged for it. It is leased.\n"
            "\n"
            "Held by:\n"
            "  lease 33, session 7 of tenant training (trainer-3, python3, pid 4242), with a "
            "ticket for its tenant\n"
            "  lease 34, session 12 of tenant user-1001 (pid 7), lingering, attached through "
            "publication training/weights, version 3\n"
            "  publication training/weights, version 3, in which it is segment 2 of 2\n");
  // Both sessions may map the other segment, and hold no lease of it.
  EXPECT_THAT(Described(Sample(), Subject::kSegment, "41"),
              HasSubstr("May still be mapped, without a lease, by:\n  session 7 of tenant"));
  Snapshot snapshot = Sample();
  v1::SegmentInfo* segment = snapshot.segments.mutable_segments(1);
  segment->set_state(v1::SegmentInfo::STATE_RETAINED);
  segment->set_lost(true);
  segment->set_revocable(true);
  EXPECT_THAT(Described(snapshot, Subject::kSegment, "41"),
              AllOf(HasSubstr("gpumemctl trim --tenant training"), HasSubstr("It is lost"),
                    HasSubstr("It is revocable")));
}

TEST(DescribeTest, DemotedMemory) {
  Snapshot snapshot = Sample();
  v1::SegmentInfo* segment = snapshot.segments.mutable_segments(0);
  segment->set_kind(v1::KIND_HOST);
  segment->set_home_uuid(kUuid0);
  snapshot.holders.mutable_leases(0)->set_demoted(true);
  snapshot.sessions.mutable_sessions(0)->set_demoted_bytes(32 * kMiB);
  EXPECT_THAT(Described(snapshot, Subject::kSegment, "40"),
              AllOf(HasSubstr("It is demoted: it has the contents of memory on device 0"),
                    HasSubstr("pid 4242), demoted, with a ticket")));
  EXPECT_THAT(Described(snapshot, Subject::kSession, "7"),
              HasSubstr("of which it has demoted 32.00 MiB"));
}

TEST(DescribeTest, SuspendedMemory) {
  Snapshot snapshot = Sample();
  v1::SegmentInfo* segment = snapshot.segments.mutable_segments(0);
  segment->set_suspended(1);
  snapshot.holders.mutable_leases(0)->set_suspended(true);
  snapshot.sessions.mutable_sessions(0)->set_suspended_bytes(32 * kMiB);
  EXPECT_THAT(Described(snapshot, Subject::kSegment, "40"),
              AllOf(HasSubstr("1 lease of 1 is suspended. It moves into the host tier when"),
                    HasSubstr("pid 4242), suspended, with a ticket")));
  segment->set_home_uuid(kUuid0);
  EXPECT_THAT(Described(snapshot, Subject::kSegment, "40"),
              HasSubstr("It is suspended: its contents were moved from device 0"));
  EXPECT_THAT(Described(snapshot, Subject::kSession, "7"),
              HasSubstr("of which it has suspended 32.00 MiB"));
  segment->set_scratch(true);
  segment->set_dropped_bytes(32 * kMiB);
  snapshot.holders.mutable_leases(0)->set_tag("kv");
  EXPECT_THAT(Described(snapshot, Subject::kSegment, "40"),
              AllOf(HasSubstr("It is suspended scratch memory: its 32.00 MiB"),
                    HasSubstr("pid 4242), with tag kv, suspended, with a ticket")));
}

TEST(DescribeTest, Lease) {
  EXPECT_EQ(Described(Sample(), Subject::kLease, "34"),
            "Lease 34: a session's right to segment 40\n"
            "\n"
            "It is held by session 12 of tenant user-1001 (pid 7), lingering, attached through "
            "publication training/weights, version 3.\n"
            "\n"
            "It is for segment 40 (32.00 MiB, vmm, device 0 HOST-00000000), which belongs to "
            "tenant training and is charged to that one.\n"
            "\n"
            "Others that lease the same segment:\n"
            "  lease 33, session 7 of tenant training (trainer-3, python3, pid 4242), with a "
            "ticket for its tenant\n");
}

TEST(DescribeTest, Session) {
  EXPECT_EQ(Described(Sample(), Subject::kSession, "7"),
            "Session 7: python3 (pid 4242) of tenant training, there for 3m05s\n"
            "\n"
            "Its process runs as uid 1000 and gid 0, calls itself trainer-3, and is in cgroup "
            "/train.slice/a.service. Its tenant was named by rule 2 (uid = 1000).\n"
            "\n"
            "It has 1 lease, 64.00 MiB:\n"
            "  lease 33 on segment 40 (32.00 MiB, vmm, device 0 HOST-00000000), with a ticket for "
            "its tenant\n"
            "\n"
            "It waits for memory:\n"
            "  session 7 of tenant training (trainer-3, python3, pid 4242): 2 x 1.00 GiB on "
            "device 0 HOST-00000000 since 12s, at place 1; in its way: those before it\n"
            "\n"
            "It has published:\n"
            "  training/weights, version 3\n");
  EXPECT_THAT(Described(Sample(), Subject::kSession, "12"), HasSubstr("It lingers: it has ended"));
}

TEST(DescribeTest, Tenant) {
  Snapshot snapshot = Sample();
  snapshot.tenants.mutable_tenants(1)->mutable_quota()->set_parent("training");
  const std::string text = Described(snapshot, Subject::kTenant, "training");
  EXPECT_THAT(text, AllOf(HasSubstr("Tenant training: holds 64.00 MiB in 2 segments, with 1 "
                                    "session\n"),
                          HasSubstr("what those under it hold: user-1001."),
                          HasSubstr("Its sessions:\n  session 7 of tenant training (trainer-3, "
                                    "python3, pid 4242): 2 leases, 64.00 MiB\n"),
                          HasSubstr("Its own segments:\n  leased, vmm, device 0 HOST-00000000: 2 "
                                    "segments, 64.00 MiB\n"),
                          HasSubstr("Its publications:\n  weights, version 3: 2 segments, 64.00 "
                                    "MiB, attached by 1 session\n")));
  EXPECT_THAT(text, Not(HasSubstr("refused")));
  EXPECT_THAT(Described(snapshot, Subject::kTenant, "user-1001"),
              HasSubstr("It is under tenant training, whose quota counts what it has, too."));
}

TEST(DescribeTest, PublicationAndDevice) {
  EXPECT_EQ(Described(Sample(), Subject::kPublication, "weights"),
            "Publication training/weights, version 3: 2 segments, 64.00 MiB, there for 0ms\n"
            "\n"
            "Sessions of its tenant alone may attach to it. It stays while a session is attached, "
            "and 1m00s longer. Its metadata has 0 B.\n"
            "\n"
            "It was published by session 7 of tenant training (trainer-3, python3, pid 4242).\n"
            "\n"
            "It holds, in this order:\n"
            "  segment 41 (32.00 MiB, vmm, device 0 HOST-00000000)\n"
            "  segment 40 (32.00 MiB, vmm, device 0 HOST-00000000)\n"
            "\n"
            "Attached:\n"
            "  session 12 of tenant user-1001 (pid 7), lingering, 1 lease\n");
  const std::string device = Described(Sample(), Subject::kDevice, "0");
  EXPECT_THAT(device, AllOf(HasSubstr("Device 0: host memory, HOST-00000000-"),
                            HasSubstr("Waiting for memory of it:\n  session 7")));
  EXPECT_THAT(Described(Sample(), Subject::kDevice, "1"),
              HasSubstr("No tenant holds memory on it."));
}

TEST(DescribeTest, NamesOfOthersCannotDriveTheTerminal) {
  Snapshot snapshot = Sample();
  snapshot.sessions.mutable_sessions(0)->set_command("\x1b[2J\nfake");
  snapshot.sessions.mutable_sessions(0)->set_client_name("\x1b]0;x\x07");
  snapshot.status.mutable_devices(0)->set_name("\x9b");
  for (const auto& [subject, name] :
       {std::pair(Subject::kSession, "7"), std::pair(Subject::kTenant, "training"),
        std::pair(Subject::kLease, "33"), std::pair(Subject::kSegment, "40"),
        std::pair(Subject::kPublication, "training/weights"), std::pair(Subject::kDevice, "0")}) {
    const std::string text = Described(snapshot, subject, name);
    EXPECT_EQ(PrintableLines(text), text);
  }
  EXPECT_THAT(Described(snapshot, Subject::kSession, "7"),
              ::testing::StartsWith("Session 7: ?[2J?fake (pid 4242)"));
}

TEST(DescribeTest, LinesAreBrokenToFit) {
  const Snapshot snapshot = Sample();
  const std::string text =
      DescribeView(snapshot, *Find(snapshot, Subject::kSegment, "40"), false, 60);
  EXPECT_THAT(text, HasSubstr("It belongs to tenant training, which is charged for it. It\n"
                              "is leased.\n"
                              "\n"
                              "Held by:\n"
                              "  lease 33, session 7 of tenant training (trainer-3,\n"
                              "    python3, pid 4242), with a ticket for its tenant\n"));
}

TEST(DescribeTest, LongListsAreCut) {
  Snapshot snapshot = Sample();
  for (uint64_t id = 100; id < 150; ++id) {
    v1::LeaseInfo lease = snapshot.holders.leases(0);
    lease.set_lease_id(id);
    *snapshot.holders.add_leases() = lease;
  }
  EXPECT_THAT(Described(snapshot, Subject::kSession, "7"),
              AllOf(HasSubstr("  and 31 more\n"), Not(HasSubstr("lease 149"))));
}

TEST(DescribeTest, TheTablesOfATenantObeyTheLayout) {
  const Snapshot snapshot = Sample();
  const Thing tenant = *Find(snapshot, Subject::kTenant, "training");
  EXPECT_THAT(DescribeView(snapshot, tenant, false, {}), HasSubstr("\nSETTING"));
  const std::string bare = DescribeView(snapshot, tenant, false, {kAnyWidth, false});
  EXPECT_THAT(bare, Not(HasSubstr("\nSETTING")));
  EXPECT_THAT(bare, Not(HasSubstr("\nDEVICE")));
}

}  // namespace
}  // namespace gpumem::cli
