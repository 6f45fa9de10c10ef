// SPDX-License-Identifier: Apache-2.0
// Publications of processes that are killed: what outlives its publisher, and what ends with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/system/testing/publication_fixture.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Eventually;
using testing::Hear;
using testing::kGranule;
using testing::kParentChannel;
using testing::Marked;
using testing::MarkOf;
using testing::Say;
using ::testing::SizeIs;

class PublicationTest : public testing::PublicationTest {
 protected:
  Child Role(const std::string& role, const std::string& name) {
    return Child::Self({"--role", role, daemon_->runtime_dir(), name});
  }
};

TEST_F(PublicationTest, OutlivesItsPublisherAndCountsUp) {
  for (uint64_t version = 1; version <= 3; ++version) {
    Child publisher = Role("publish", "weights");
    ASSERT_EQ(Hear(publisher.channel()), absl::StrCat("published ", version));
    publisher.Signal(SIGKILL);
    publisher.Wait();
    auto attached = client_->Attach("weights", {});
    ASSERT_TRUE(attached.ok()) << attached.status();
    EXPECT_EQ(attached->version(), version);
    EXPECT_EQ(attached->tenant(), "ml");
    EXPECT_EQ(MarkOf(attached->segments()[1]), 1u);
  }
  const auto list = List(*client_);
  ASSERT_THAT(list, SizeIs(1));
  EXPECT_EQ(list[0].segments, 3u);
  EXPECT_EQ(list[0].bytes, 3 * kGranule);
  EXPECT_TRUE(Eventually([&] { return !List(*client_)[0].publisher_alive; }));
}

TEST_F(PublicationTest, EphemeralEndsWithItsPublishersProcess) {
  Child publisher = Role("publish-ephemeral", "scratch");
  ASSERT_EQ(Hear(publisher.channel()), "published 1");
  auto attached = client_->Attach("scratch", {});
  ASSERT_TRUE(attached.ok()) << attached.status();
  publisher.Signal(SIGKILL);
  publisher.Wait();
  EXPECT_TRUE(Eventually([&] { return List(*client_).empty(); }));
  EXPECT_EQ(MarkOf(attached->segments()[2]), 2u);  // an attached session keeps it
  EXPECT_EQ(Charged(*client_), 3 * kGranule);
  EXPECT_TRUE(absl::IsNotFound(client_->Attach("scratch", {}).status()));
}

// Publishers and attachers killed at any time leave nothing.
TEST_F(PublicationTest, WorkersKilledAtAnyStepLeaveNothing) {
  const int seed =
      std::getenv("GPUMEM_SEED") != nullptr ? std::atoi(std::getenv("GPUMEM_SEED")) : 20260101;
  std::mt19937 random(static_cast<uint32_t>(seed));
  SCOPED_TRACE(seed);
  for (int round = 0; round < 40; ++round) {
    Child worker = Role("busy", absl::StrCat("n", round % 3));
    ASSERT_EQ(Hear(worker.channel()), "busy");
    usleep(random() % 30000);  // anywhere in its work
    worker.Signal(SIGKILL);
    worker.Wait();
  }
  for (const PublicationInfo& left : List(*client_)) {
    EXPECT_TRUE(client_->Unpublish(left.name).ok());
  }
  EXPECT_TRUE(Eventually([&] {
    const auto usage = client_->GetUsage();
    return usage.ok() && usage->devices[0].leased_bytes + usage->devices[0].lingering_bytes == 0;
  }));
  EXPECT_TRUE(Eventually([&] { return client_->GetUsage()->sessions == 1; }));
  EXPECT_EQ(client_->GetUsage()->publications, 0u);
  client_.reset();  // memory kept for reuse goes with the last session
  EXPECT_TRUE(Eventually([&] { return Charged(*Connect("ml")) == 0; }));
  EXPECT_TRUE(Eventually([&] { return daemon_->fds() <= fds_; })) << daemon_->fds();
}

// --- The other processes -----------------------------------------------------------------

int RunPublisher(Client& client, const std::string& name, bool ephemeral) {
  const std::vector<Segment> segments = Marked(client, 3);
  const auto version = client.Publish(name, segments, {.ephemeral = ephemeral});
  Say(kParentChannel,
      version.ok() ? absl::StrCat("published ", *version) : version.status().ToString());
  pause();
  return 0;
}

// Publishes and attaches for as long as it lives.
int RunBusy(Client& client, const std::string& name) {
  Say(kParentChannel, "busy");
  for (uint64_t round = 0;; ++round) {
    const std::vector<Segment> segments = Marked(client, round % 2 == 0 ? 3 : 300);
    client.Publish(name, segments, {.metadata = "m", .ephemeral = round % 3 == 0})
        .status()
        .IgnoreError();
    client.Attach(name, {}).status().IgnoreError();
    if (round % 4 == 0) client.Unpublish(name).status().IgnoreError();
  }
}

int Run(const std::string& role, const std::string& runtime_dir, const std::string& name) {
  auto client = Client::Connect({.runtime_dir = runtime_dir, .tenant = "ml"});
  if (!client.ok()) {
    Say(kParentChannel, client.status().ToString());
    return 1;
  }
  if (role == "busy") return RunBusy(**client, name);
  return RunPublisher(**client, name, role == "publish-ephemeral");
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--role") {
    return gpumem::Run(argv[2], argv[3], argv[4]);
  }
  // An attachment takes a descriptor for each segment while it is mapped.
  rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
