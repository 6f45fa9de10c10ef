// SPDX-License-Identifier: Apache-2.0
// Publications: a real gpumemd on the host backend, and sessions that publish and attach.
// publication_process_test.cc has processes that are killed.
#include "gpumem/publication.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/wire.h"
#include "tests/system/testing/publication_fixture.h"

namespace gpumem {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kGranule;
using testing::Mark;
using testing::Marked;
using testing::MarkOf;
using testing::PublicationTest;
using ::testing::SizeIs;

// As many as go into one message, one more, and several messages' worth; and so many that they do
// not fit into the socket's buffer at once.
TEST_F(PublicationTest, SegmentsOfOneMessageAndOfMany) {
  for (const int count : {1, 253, 254, 600, 2100}) {
    SCOPED_TRACE(count);
    {
      const std::vector<Segment> segments = Marked(*client_, count);
      ASSERT_THAT(segments, SizeIs(count));
      Publish(*client_, "many", segments, {.metadata = absl::StrCat(count)});
    }
    auto reader = Connect("ml");
    auto attached = reader->Attach("many", {});
    ASSERT_TRUE(attached.ok()) << attached.status();
    EXPECT_EQ(attached->metadata(), absl::StrCat(count));
    EXPECT_EQ(attached->size(), static_cast<uint64_t>(count) * kGranule);
    ASSERT_THAT(attached->segments(), SizeIs(count));
    for (size_t i = 0; i < attached->segments().size(); ++i) {
      const Segment& segment = attached->segments()[i];
      ASSERT_EQ(MarkOf(segment), i);
      ASSERT_EQ(segment.data(), static_cast<char*>(attached->data()) + i * kGranule);
    }
    EXPECT_EQ(Charged(*client_), attached->size());  // once
    EXPECT_TRUE(attached->Release().ok());
    EXPECT_TRUE(client_->Unpublish("many").ok());
  }
  client_.reset();
  EXPECT_TRUE(Eventually([&] { return daemon_->fds() <= fds_; })) << daemon_->fds();
}

TEST_F(PublicationTest, ExpiresOnceNobodyIsAttached) {
  {
    const auto segments = Marked(*client_, 1);
    Publish(*client_, "short", segments, {.expire_after = absl::Milliseconds(300)});
  }
  auto attached = client_->Attach("short", {});
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(List(*client_)[0].expires_in, absl::InfiniteDuration());
  const absl::Time released = absl::Now();
  ASSERT_TRUE(attached->Release().ok());
  EXPECT_LE(List(*client_)[0].expires_in, absl::Milliseconds(300));
  EXPECT_TRUE(Eventually([&] { return List(*client_).empty(); }));
  EXPECT_GE(absl::Now() - released, absl::Milliseconds(300));
}

TEST_F(PublicationTest, MetadataUpToOneMiB) {
  const auto segments = Marked(*client_, 1);
  std::string metadata(kMiB, '\0');
  for (size_t i = 0; i < metadata.size(); ++i) metadata[i] = static_cast<char>(i * 31 >> 3);
  Publish(*client_, "a", segments, {.metadata = metadata});
  auto attached = client_->Attach("a", {});
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_TRUE(attached->metadata() == metadata);
  metadata.push_back('x');
  const auto refused = client_->Publish("a", segments, {.metadata = metadata});
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
  EXPECT_EQ(List(*client_)[0].version, 1u);
}

TEST_F(PublicationTest, ReadOnlyUnlessAskedFor) {
  const auto segments = Marked(*client_, 1);
  Publish(*client_, "a", segments);
  auto writer = client_->Attach("a", {.read_only = false});
  ASSERT_TRUE(writer.ok()) << writer.status();
  Mark(writer->segments()[0], 77);
  EXPECT_EQ(MarkOf(segments[0]), 77u);
  auto reader = client_->Attach("a", {});
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(MarkOf(reader->segments()[0]), 77u);
  EXPECT_DEATH(Mark(reader->segments()[0], 78), "");
}

TEST_F(PublicationTest, AccessAndNames) {
  const auto segments = Marked(*client_, 1);
  auto web = Connect("web");
  Publish(*client_, "open", segments, {.access = PublicationAccess::kAny});
  Publish(*client_, "closed", segments);
  auto attached = web->Attach("ml/open", {});
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ(attached->tenant(), "ml");
  EXPECT_EQ(Charged(*web), 0u);  // its owner is charged
  const absl::Status closed = web->Attach("ml/closed", {}).status();
  const absl::Status unknown = web->Attach("ml/opened", {}).status();
  EXPECT_TRUE(absl::IsNotFound(closed)) << closed;
  EXPECT_TRUE(absl::IsNotFound(unknown)) << unknown;
  EXPECT_TRUE(absl::IsNotFound(web->Attach("open", {}).status()));  // web has none
  EXPECT_TRUE(absl::IsPermissionDenied(web->Unpublish("ml/open").status()));
  EXPECT_TRUE(absl::IsNotFound(web->Unpublish("ml/closed").status()));
  const auto seen = List(*web);
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(seen[0].name, "open");
  EXPECT_EQ(seen[0].publisher_pid, 0);
  EXPECT_EQ(List(*client_)[1].publisher_pid, getpid());
  const absl::Status bad = client_->Publish("two words", segments, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(bad)) << bad;
  auto stranger = web->Publish("mine", segments, {});
  EXPECT_TRUE(absl::IsInvalidArgument(stranger.status())) << stranger.status();
}

TEST_F(PublicationTest, SeveralDevicesAndHostMemory) {
  auto devices = *client_->Devices();
  std::vector<Segment> segments = Marked(*client_, 1, 0, devices[0].uuid);
  for (Segment& more : Marked(*client_, 2, 1, devices[1].uuid)) segments.push_back(std::move(more));
  auto pinned = client_->Acquire({.bytes = kGranule, .kind = Kind::kPinned});
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  Mark(*pinned, 3);
  segments.push_back(*std::move(pinned));
  Publish(*client_, "mixed", segments);
  auto attached = client_->Attach("mixed", {});
  ASSERT_TRUE(attached.ok()) << attached.status();
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(MarkOf(attached->segments()[i]), i);
  EXPECT_EQ(attached->segments()[1].device_uuid(), devices[1].uuid);
  EXPECT_EQ(attached->segments()[3].kind(), Kind::kPinned);

  auto ipc = client_->Acquire({.bytes = kGranule, .kind = Kind::kIpc});
  ASSERT_TRUE(ipc.ok()) << ipc.status();
  const auto refused = client_->Publish("ipc", {&*ipc}, {});
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
}

TEST_F(PublicationTest, WaitsForAVersion) {
  std::atomic<uint64_t> got{0};
  std::thread waiter([&] {
    auto reader = Connect("ml");
    auto first = reader->Attach("later", {.wait_for_version = 1});
    EXPECT_TRUE(first.ok()) << first.status();
    got = first.ok() ? first->version() : 99;
    auto second = reader->Attach("later", {.wait_for_version = 2});
    EXPECT_TRUE(second.ok()) << second.status();
    got = second.ok() ? MarkOf(second->segments()[0]) : 99;
  });
  const auto waiting = [&] { return client_->GetUsage()->waiting == 1; };
  EXPECT_TRUE(Eventually(waiting));
  Publish(*client_, "later", Marked(*client_, 1, 10));
  EXPECT_TRUE(Eventually([&] { return got == 1; }));
  EXPECT_TRUE(Eventually(waiting));
  Publish(*client_, "later", Marked(*client_, 1, 20));
  waiter.join();
  EXPECT_EQ(got, 20u);

  const auto late =
      client_->Attach("later", {.wait_for_version = 3, .wait = absl::Milliseconds(50)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  EXPECT_THAT(late.status().ToString(), HasSubstr("the newest is 2"));
  AttachOptions cancelled = {.wait_for_version = 3};
  cancelled.cancel.emplace();
  std::thread canceller([&] {
    EXPECT_TRUE(Eventually(waiting));
    cancelled.cancel->Cancel();
  });
  const auto given_up = client_->Attach("later", cancelled);
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(given_up.status())) << given_up.status();
  EXPECT_TRUE(Eventually([&] { return client_->GetUsage()->waiting == 0; }));
}

TEST_F(PublicationTest, OperatorsSeeAllAndEndThem) {
  auto web = Connect("web");
  Publish(*web, "w", Marked(*web, 2), {.metadata = "abc", .expire_after = absl::Hours(1)});
  auto attached = web->Attach("w", {});
  ASSERT_TRUE(attached.ok()) << attached.status();
  v1::Admin::Stub admin(testing::ChannelTo(daemon_->Socket("admin.sock")));
  v1::ListPublicationsResponse list;
  ASSERT_TRUE(admin.ListPublications(testing::ContextWith().get(), {}, &list).ok());
  ASSERT_EQ(list.publications_size(), 1);
  const v1::PublicationInfo& info = list.publications(0);
  EXPECT_EQ(absl::StrCat(info.tenant(), "/", info.name(), " ", info.version()), "web/w 1");
  EXPECT_EQ(info.segments(), 2u);
  EXPECT_EQ(info.bytes(), 2 * kGranule);
  EXPECT_EQ(info.metadata_bytes(), 3u);
  EXPECT_EQ(info.access(), v1::PUBLICATION_ACCESS_TENANT);
  EXPECT_EQ(info.attached_sessions(), 1u);
  EXPECT_EQ(info.expire_after_ms(), 3600000u);
  EXPECT_EQ(info.expires_in_ms(), 0u);  // a session is attached
  EXPECT_EQ(info.publisher_session_id(), web->session_id());
  EXPECT_EQ(info.publisher_pid(), getpid());
  EXPECT_TRUE(info.publisher_alive());

  v1::ListSegmentsRequest of_web;
  of_web.set_tenant("web");
  v1::ListSegmentsResponse segments;
  ASSERT_TRUE(admin.ListSegments(testing::ContextWith().get(), of_web, &segments).ok());
  ASSERT_EQ(segments.segments_size(), 2);
  EXPECT_EQ(segments.segments(0).publications(), 1u);
  EXPECT_EQ(segments.segments(0).leases(), 1u);

  v1::UnpublishRequest request;
  v1::UnpublishResponse response;
  request.set_name("w");  // whose?
  EXPECT_EQ(admin.Unpublish(testing::ContextWith().get(), request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  request.set_name("ml/w");
  EXPECT_EQ(admin.Unpublish(testing::ContextWith().get(), request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  request.set_name("web/w");
  ASSERT_TRUE(admin.Unpublish(testing::ContextWith().get(), request, &response).ok());
  EXPECT_EQ(response.version(), 1u);
  EXPECT_THAT(List(*web), IsEmpty());
  EXPECT_EQ(MarkOf(attached->segments()[1]), 1u);  // an attached session keeps it
}

TEST_F(PublicationTest, ATenantHasSoMany) {
  daemon_->Reconfigure(
      absl::StrReplaceAll(kConfig, {{"name = \"ml\"", "name = \"ml\"\nmax_publications = 1"}}));
  const auto segments = Marked(*client_, 1);
  Publish(*client_, "a", segments);
  absl::Status denied;
  EXPECT_TRUE(Eventually([&] {
    denied = client_->Publish("b", segments, {}).status();
    if (denied.ok()) client_->Unpublish("b").status().IgnoreError();
    return !denied.ok();
  }));
  const auto why = GetDenial(denied);
  ASSERT_TRUE(why.has_value()) << denied;
  EXPECT_EQ(why->cause, Denial::Cause::kMaxPublications);
  EXPECT_EQ(why->limit, 1u);
  Publish(*client_, "a", segments);  // another version of it is no more than before
  EXPECT_EQ(client_->GetUsage()->publications, 1u);
}

// Segments of one version are never mixed with another's, also during concurrent publishing.
TEST_F(PublicationTest, VersionsAreNeverMixed) {
  constexpr int kVersions = 60, kSegments = 5;
  Publish(*client_, "w", Marked(*client_, kSegments, 1000), {.metadata = "1"});
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  std::atomic<int> seen{0};
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&] {
      auto reader = Connect("ml");
      uint64_t newest = 0;
      while (!done) {
        auto attached = reader->Attach("w", {});
        if (!attached.ok()) {
          ADD_FAILURE() << attached.status();
          return;
        }
        EXPECT_GE(attached->version(), newest);
        newest = attached->version();
        EXPECT_EQ(attached->metadata(), absl::StrCat(newest));
        for (size_t i = 0; i < kSegments; ++i) {
          EXPECT_EQ(MarkOf(attached->segments()[i]), newest * 1000 + i);
        }
        ++seen;
      }
    });
  }
  for (uint64_t version = 2; version <= kVersions; ++version) {
    const auto segments = Marked(*client_, kSegments, version * 1000);
    EXPECT_EQ(Publish(*client_, "w", segments, {.metadata = absl::StrCat(version)}), version);
  }
  EXPECT_TRUE(Eventually([&] { return seen > 20; }));
  done = true;
  for (std::thread& reader : readers) reader.join();
  ASSERT_TRUE(client_->Unpublish("w").ok());
  client_.reset();
  EXPECT_TRUE(Eventually([&] { return daemon_->fds() <= fds_; })) << daemon_->fds();
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  // An attachment takes a descriptor for each segment while it is mapped.
  rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
