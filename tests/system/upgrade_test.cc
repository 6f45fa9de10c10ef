// SPDX-License-Identifier: Apache-2.0
// One version of the daemon after another, and back, under gpumem-keeper on the host backend: with
// a client that lives, a lease, and a publication whose publisher is gone. The newer version is
// gpumemd_next (tests/support/next_journal.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/kept_daemon.h"

namespace gpumem {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;
using testing::KeptDaemon;
using ::testing::Not;

constexpr absl::Duration kTimeout = absl::Seconds(60);

std::string SomeBytes(uint64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (uint64_t at = 0; at + 8 <= size; at += 8) {
    const uint64_t word = random();
    std::memcpy(&bytes[at], &word, 8);
  }
  return bytes;
}

absl::string_view BytesOf(const Segment& segment) {
  return {static_cast<const char*>(segment.data()), segment.size()};
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

class UpgradeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = KeptDaemon::Start({.program = "gpumemd", .healthy_after = 3600});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    client_ = Connect();
    ASSERT_NE(client_, nullptr);
    segment_ = Acquire(*client_, 1);
    const std::unique_ptr<Client> publisher = Connect();
    ASSERT_NE(publisher, nullptr);
    const Segment published = Acquire(*publisher, 2);
    auto version = publisher->Publish("weights", absl::MakeConstSpan(&published, 1),
                                      {.metadata = "as they were"});
    ASSERT_TRUE(version.ok()) << version.status();
    // A version that nothing else remembers but a number in the journal.
    for (uint64_t expected = 1; expected <= 3; ++expected) {
      ASSERT_EQ(*publisher->Publish("ended", absl::MakeConstSpan(&published, 1), {}), expected);
    }
    ASSERT_TRUE(publisher->Unpublish("ended").ok());
  }

  std::unique_ptr<Client> Connect() {
    auto client = Client::Connect({.runtime_dir = daemon_->runtime_dir(), .timeout = kTimeout});
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  static Segment Acquire(Client& client, uint64_t seed) {
    auto segment = client.Acquire({.bytes = 2 * kMiB});
    EXPECT_TRUE(segment.ok()) << segment.status();
    if (!segment.ok()) return Segment();
    const std::string bytes = SomeBytes(segment->size(), seed);
    std::memcpy(segment->data(), bytes.data(), bytes.size());
    return *std::move(segment);
  }

  // The daemon dies, and this one comes after it.
  void Become(const std::string& program) {
    SCOPED_TRACE(program);
    ASSERT_EQ(daemon_->Replace(program), absl::OkStatus());
    ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
    ExpectAllIsThere();
  }
  void ExpectAllIsThere() {
    // The client's own memory, also for others: the daemon still has it.
    ASSERT_TRUE(BytesOf(segment_) == SomeBytes(2 * kMiB, 1));
    auto ticket = segment_.Share();
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    const std::unique_ptr<Client> other = Connect();
    ASSERT_NE(other, nullptr);
    auto opened = other->Open(ticket->value);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(BytesOf(*opened) == BytesOf(segment_));
    auto attached = other->Attach("weights");
    ASSERT_TRUE(attached.ok()) << attached.status();
    EXPECT_EQ(attached->version(), 1u);
    EXPECT_EQ(attached->metadata(), "as they were");
    EXPECT_TRUE(BytesOf(attached->segments().at(0)) == SomeBytes(2 * kMiB, 2));
    // And it goes on.
    Segment next = Acquire(*client_, 3);
    EXPECT_EQ(next.Release(), absl::OkStatus());
  }

  // Counts the memory and journals that the keeper has. Leaves out a socket that comes and goes, by
  // which a daemon finds out whether it is kept.
  int KeptFiles() {
    int files = 0;
    const std::string fds = absl::StrCat("/proc/", daemon_->keeper_pid(), "/fd");
    for (const auto& entry : std::filesystem::directory_iterator(fds)) {
      std::error_code gone;
      files += absl::StrContains(std::filesystem::read_symlink(entry, gone).string(), "memfd:");
    }
    return files;
  }

  // Returns the journal, as the keeper has it.
  std::string JournalBytes() {
    const std::string fds = absl::StrCat("/proc/", daemon_->keeper_pid(), "/fd");
    for (const auto& entry : std::filesystem::directory_iterator(fds)) {
      std::error_code gone;
      const std::string what = std::filesystem::read_symlink(entry, gone).string();
      if (!absl::StrContains(what, "gpumem-journal")) continue;
      std::stringstream bytes;
      bytes << std::ifstream(entry.path()).rdbuf();
      return bytes.str();
    }
    return "";
  }

  // The newer daemon dies, this version cannot go on, again and again; then the newer one is back.
  void ExpectRefusedUntilTheNewerOneIsBack(const std::string& why) {
    ASSERT_EQ(daemon_->Replace("gpumemd"), absl::OkStatus());
    const int generation = daemon_->generations();
    const int files = KeptFiles();
    EXPECT_GT(files, 1);
    daemon_->KillOnly();
    const auto refusals = [&] { return Count(daemon_->Log(), "cannot be used"); };
    ASSERT_TRUE(Eventually([&] { return refusals() >= 1; }, kTimeout)) << daemon_->Log();
    const std::string journal = JournalBytes();
    EXPECT_GT(journal.size(), 4096u);
    // Not at full speed: each pause is twice as long as the last.
    ASSERT_TRUE(Eventually(
        [&] { return absl::StrContains(daemon_->Log(), "starting it again in 0.8 s"); }, kTimeout))
        << daemon_->Log();
    EXPECT_LE(refusals(), 8u);
    const std::string log = daemon_->Log();
    EXPECT_THAT(log, HasSubstr(why));
    EXPECT_THAT(log, HasSubstr("Nothing was changed. Start the gpumemd that wrote it"));
    EXPECT_EQ(daemon_->generations(), generation);
    EXPECT_TRUE(JournalBytes() == journal) << "it was touched";
    EXPECT_EQ(KeptFiles(), files) << "memory was let go";

    ASSERT_EQ(daemon_->Replace("gpumemd_next"), absl::OkStatus());
    ASSERT_TRUE(daemon_->WaitForGeneration(generation + 1)) << daemon_->Log();
    ExpectAllIsThere();
  }

  std::unique_ptr<KeptDaemon> daemon_;
  std::unique_ptr<Client> client_;
  Segment segment_;
};

TEST_F(UpgradeTest, TenantsMadeAtRunTimeGoForwardAndBack) {
  const auto made = client_->CreateTenant({.name = "part", .limits = {.limit_bytes = 4 * kMiB}});
  ASSERT_TRUE(made.ok()) << made.status();
  auto part = Client::Connect(
      {.runtime_dir = daemon_->runtime_dir(), .tenant = *made, .timeout = kTimeout});
  ASSERT_TRUE(part.ok()) << part.status();
  const Segment held = Acquire(**part, 4);
  const auto expect_limit = [&] {
    auto most = (*part)->Acquire({.bytes = 2 * kMiB});
    EXPECT_TRUE(most.ok()) << most.status();
    EXPECT_TRUE(absl::IsResourceExhausted((*part)->Acquire({.bytes = 2 * kMiB}).status()));
  };
  daemon_->SetNextJournal("optional");
  for (const char* program : {"gpumemd_next", "gpumemd", "gpumemd_next"}) {
    Become(program);
    SCOPED_TRACE(program);
    expect_limit();
  }
  // It ends with its maker's session, of which a segment is a part.
  segment_ = Segment();
  client_.reset();
  absl::Status refused;
  EXPECT_TRUE(Eventually(
      [&] {
        refused = (*part)->Acquire({.bytes = 2 * kMiB}).status();
        return absl::IsFailedPrecondition(refused);
      },
      kTimeout))
      << refused;
}

constexpr char kPassed[] = "records of which this gpumemd does not understand all";

TEST_F(UpgradeTest, ADowngradeKeepsAJournalWithoutNewRecords) {
  daemon_->SetNextJournal("nothing");
  Become("gpumemd_next");
  Become("gpumemd");
  EXPECT_THAT(daemon_->Log(), Not(HasSubstr(kPassed)));
  EXPECT_EQ(*client_->Publish("ended", absl::MakeConstSpan(&segment_, 1), {}), 4u);
}

TEST_F(UpgradeTest, OptionalRecordsOfANewerDaemonAreSkipped) {
  daemon_->SetNextJournal("optional");
  Become("gpumemd_next");
  EXPECT_THAT(daemon_->Log(), Not(HasSubstr(kPassed)));
  Become("gpumemd");
  EXPECT_THAT(daemon_->Log(), HasSubstr(kPassed));
  // It knows nothing of the newer daemon's state any more, nor does the next daemon.
  Become("gpumemd");
  EXPECT_EQ(Count(daemon_->Log(), kPassed), 1u);
  Become("gpumemd_next");
  Become("gpumemd");
  EXPECT_EQ(Count(daemon_->Log(), kPassed), 2u);
}

TEST_F(UpgradeTest, RequiredRecordsOfANewerDaemonAreRefusedAndKept) {
  daemon_->SetNextJournal("needed");
  Become("gpumemd_next");
  ExpectRefusedUntilTheNewerOneIsBack("only version 9 has, which gpumemd ");
}

TEST_F(UpgradeTest, AJournalOfANewerFormIsRefusedAndKept) {
  daemon_->SetNextJournal("form");
  Become("gpumemd_next");
  ExpectRefusedUntilTheNewerOneIsBack("the journal is of form 3, which gpumemd ");
  Become("gpumemd_next");
}

// Whenever the newer one is killed as it takes over, there is one file with all of it.
TEST_F(UpgradeTest, KilledAsItWritesTheNewFile) {
  for (const char* failpoint : {"begin-before", "begin-written", "begin-after"}) {
    SCOPED_TRACE(failpoint);
    if (daemon_ == nullptr) SetUp();
    daemon_->SetNextJournal("form");
    daemon_->ArmFailpoint(failpoint, 1);
    Become("gpumemd_next");
    EXPECT_FALSE(daemon_->IsFailpointArmed());
    Become("gpumemd_next");
    segment_ = Segment();
    client_.reset();
    daemon_.reset();
  }
}

}  // namespace
}  // namespace gpumem
