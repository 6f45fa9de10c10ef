// SPDX-License-Identifier: Apache-2.0
// Demoted memory, end to end on the host backend: contents and addresses under readers, what others
// get meanwhile, refusals, and daemons and clients that are killed at each step.
//
//   GPUMEM_DEMOTE_KILLS  how often the daemon is killed at random passes (CI: 16)
#include "gpumem/demote.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/bytes.h"
#include "common/failpoint.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "gpumem/suspend.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/expect_status.h"
#include "tests/support/pattern.h"
#include "tests/suspension/suspend_fixture.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Eventually;
using testing::MemoryOf;
using testing::PatientOptions;

constexpr uint64_t kBytes = 4 * kMiB;

// The steps of the library.
constexpr const char* kSteps[] = {"client-demote-acquired", "client-demote-copied",
                                  "client-demote-unmapped", "client-demote-switched",
                                  "client-exchange-asks",   "client-exchange-heard",
                                  "client-demote-exchanged"};

// Device, tier and pinned memory have 64 MiB each.
class DemoteTest : public testing::SuspendFixture {
 protected:
  void Start(const std::string& more = "") {
    SuspendFixture::Start("[pinned]\ncapacity = \"64MiB\"\n" + more);
  }
  // Returns the bytes of the tenant on the device, and in host memory.
  struct Books {
    uint64_t device = 0, pinned = 0;
    bool operator==(const Books&) const = default;
    friend void PrintTo(const Books& books, std::ostream* out) {
      *out << books.device << " on the device, " << books.pinned << " in host memory";
    }
  };
  Books Read() {
    const auto usage = client_->GetUsage();
    EXPECT_OK(usage);
    Books books;
    if (!usage.ok()) return books;
    for (const DeviceUsage& device : usage->devices) {
      if (device.device_uuid.starts_with("TIER-")) continue;
      (device.device_uuid.starts_with("PINNED-") ? books.pinned : books.device) +=
          device.charged_bytes - device.retained_bytes;
    }
    return books;
  }
  void ExpectBooks(const Books& books) {
    EXPECT_TRUE(Eventually([&] { return Read() == books; }))
        << ::testing::PrintToString(Read()) << ", wanted " << ::testing::PrintToString(books);
  }
  static void ExpectDemoted(const std::vector<Segment>& segments, bool demoted) {
    for (const Segment& segment : segments) {
      EXPECT_EQ(segment.demoted(), demoted);
      EXPECT_EQ(segment.kind(), demoted ? Kind::kHost : Kind::kVmm);
    }
  }
};

// Reads segments of AcquireFilled() again and again, except while it is paused.
class Reader {
 public:
  explicit Reader(const std::vector<Segment>& segments) {
    for (const Segment& segment : segments) {
      const auto* words = static_cast<const uint64_t*>(segment.data());
      const size_t count = segment.size() / sizeof(uint64_t);
      expected_.emplace_back(words, std::vector<uint64_t>(words, words + count));
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~Reader() {
    ends_ = true;
    thread_.join();
  }
  DemoteOptions Options() {
    return {.pause =
                [this] {
                  reading_.Lock();
                  ++pauses_;
                  return absl::OkStatus();
                },
            .proceed = [this] { reading_.Unlock(); }};
  }
  uint64_t wrong() const { return wrong_; }
  uint64_t passes() const { return passes_; }
  int pauses() const { return pauses_; }

 private:
  void Run() {
    while (!ends_) {
      for (const auto& [words, expected] : expected_) {
        absl::MutexLock lock(&reading_);
        if (std::memcmp(words, expected.data(), expected.size() * sizeof(uint64_t)) != 0) ++wrong_;
      }
      ++passes_;
    }
  }

  std::vector<std::pair<const uint64_t*, std::vector<uint64_t>>> expected_;
  absl::Mutex reading_;
  std::atomic<bool> ends_ = false;
  std::atomic<uint64_t> wrong_ = 0, passes_ = 0;
  std::atomic<int> pauses_ = 0;
  std::thread thread_;
};

TEST_F(DemoteTest, ReadersSeeTheSameBytesAndOthersGetTheDevice) {
  Start();
  std::vector<Segment> segments = AcquireFilled(kBytes, 12);
  std::vector<void*> addresses;
  for (const Segment& segment : segments) addresses.push_back(segment.data());
  const std::string ticket = segments[5].Share()->value;
  std::unique_ptr<Client> other = Connect();
  Reader reader(segments);
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(other->Acquire({.bytes = 64 * kMiB}).ok());
    ASSERT_OK(client_->Demote(Pointers(segments), reader.Options()));
    ExpectDemoted(segments, true);
    ExpectBooks({0, 48 * kMiB});
    auto whole = other->Acquire({.bytes = 64 * kMiB});
    ASSERT_OK(whole);
    EXPECT_OK(testing::Fill(MemoryOf(*whole), 99));
    const absl::Status refused = client_->Promote(Pointers(segments), reader.Options());
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    ExpectDemoted(segments, true);

    // It waits for its turn.
    std::thread promotes([&] {
      DemoteOptions options = reader.Options();
      options.wait = absl::Seconds(60);
      EXPECT_OK(client_->Promote(Pointers(segments), options));
    });
    const uint64_t passes = reader.passes();
    EXPECT_TRUE(Eventually([&] { return reader.passes() > passes + 1; }));
    EXPECT_OK(whole->Release());
    promotes.join();
    ExpectDemoted(segments, false);
    ExpectBooks({48 * kMiB, 0});
  }
  EXPECT_EQ(reader.wrong(), 0u);
  EXPECT_GE(reader.pauses(), 6);
  for (size_t i = 0; i < segments.size(); ++i) EXPECT_EQ(segments[i].data(), addresses[i]);
  EXPECT_EQ(segments[5].Share()->value, ticket);
  EXPECT_OK(other->Open(ticket));
}

TEST_F(DemoteTest, WritesGoOnWhileItIsDemoted) {
  Start();
  std::vector<Segment> segments = AcquireFilled(kBytes, 2);
  ASSERT_OK(client_->Demote(Pointers(segments)));
  ASSERT_OK(testing::Fill(MemoryOf(segments[1]), 77));
  std::unique_ptr<Client> other = Connect();
  auto opened = other->Open(segments[1].Share()->value);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->kind(), Kind::kHost);
  EXPECT_OK(testing::Check(MemoryOf(*opened), 77));
  const absl::Status shared = client_->Promote(Pointers(segments));
  EXPECT_EQ(shared.code(), absl::StatusCode::kFailedPrecondition) << shared;
  EXPECT_OK(opened->Release());
  EXPECT_TRUE(Eventually([&] { return client_->Promote(Pointers(segments)).ok(); }));
  EXPECT_OK(testing::Check(MemoryOf(segments[0]), 1));
  EXPECT_OK(testing::Check(MemoryOf(segments[1]), 77));
  ExpectBooks({2 * kBytes, 0});
}

TEST_F(DemoteTest, MemoryThatOthersUseIsRefused) {
  Start();
  std::vector<Segment> segments = AcquireFilled(kBytes, 4);
  std::unique_ptr<Client> other = Connect();
  auto opened = other->Open(segments[0].Share()->value);
  ASSERT_OK(opened);
  ASSERT_OK(client_->Publish("weights", {&segments[1]}, {}));
  ASSERT_OK(client_->Suspend({&segments[2]}));
  bool paused = false;
  const DemoteOptions options = {.pause =
                                     [&paused] {
                                       paused = true;
                                       return absl::OkStatus();
                                     },
                                 .proceed = [] {}};
  for (size_t i = 0; i < 3; ++i) {
    const absl::Status refused = client_->Demote({&segments[3], &segments[i]}, options);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << i << ": " << refused;
    EXPECT_FALSE(segments[3].demoted());
  }
  EXPECT_FALSE(paused);
  ExpectBooks({3 * kBytes, 0});
  ASSERT_OK(client_->Resume({&segments[2]}));
  ASSERT_OK(client_->Demote({&segments[2], &segments[3]}, options));
  const absl::Status suspended = client_->Suspend({&segments[2]});
  EXPECT_EQ(suspended.code(), absl::StatusCode::kUnimplemented) << suspended;
  EXPECT_FALSE(client_->Publish("more", {&segments[2]}, {}).ok());
  ExpectPatterns(segments);
}

TEST_F(DemoteTest, RevocableMemoryIsRefused) {
  Start();
  auto revocable = client_->Acquire({.bytes = kBytes, .revocable = true});
  ASSERT_OK(revocable);
  EXPECT_EQ(client_->Demote({&*revocable}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DemoteTest, WithoutRoomNothingMoves) {
  Start("[tenant_defaults]\npinned_limit = \"8MiB\"\n");
  std::vector<Segment> segments = AcquireFilled(kBytes, 3);
  bool paused = false;
  const absl::Status refused = client_->Demote(Pointers(segments), {.pause =
                                                                        [&paused] {
                                                                          paused = true;
                                                                          return absl::OkStatus();
                                                                        },
                                                                    .proceed = [] {}});
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_TRUE(GetDenial(refused).has_value());
  EXPECT_FALSE(paused);
  ExpectDemoted(segments, false);
  ExpectPatterns(segments);
  ExpectBooks({3 * kBytes, 0});
  segments.pop_back();
  EXPECT_OK(client_->Demote(Pointers(segments)));
  ExpectPatterns(segments);
}

TEST_F(DemoteTest, AReplacedDaemonHasTheBytes) {
  Start();
  std::vector<Segment> segments = AcquireFilled(kBytes, 3);
  ASSERT_OK(client_->Demote(Pointers(segments)));
  ASSERT_OK(daemon_->Restart());
  ExpectBooks({0, 3 * kBytes});
  ExpectPatterns(segments);
  ASSERT_OK(client_->Promote(Pointers(segments)));
  ASSERT_OK(daemon_->Kill());
  ExpectPatterns(segments);
  ExpectBooks({3 * kBytes, 0});
}

// Where this process kills something: at the pass of a step that brings `passes` to zero.
struct Kill {
  std::string step;
  std::atomic<int> passes{0};
  testing::KeptDaemon* daemon = nullptr;  // null: this process
};
Kill at;

void KillAtStep(const char* name) {
  if (at.step != name || --at.passes != 0) return;
  if (at.daemon == nullptr) kill(getpid(), SIGKILL);
  EXPECT_OK(at.daemon->Kill());
}

class DemoteKillTest : public DemoteTest {
 protected:
  void TearDown() override { failpoint_hook = nullptr; }

  // Demotes and promotes; the daemon may die meanwhile.
  void Move(std::vector<Segment>& segments, Reader& reader) {
    for (const bool demotes : {true, false}) {
      const DemoteOptions options = reader.Options();
      ASSERT_OK(demotes ? client_->Demote(Pointers(segments), options)
                        : client_->Promote(Pointers(segments), options));
      ExpectDemoted(segments, demotes);
      const uint64_t bytes = segments.size() * kBytes;
      ExpectBooks({demotes ? 0 : bytes, demotes ? bytes : 0});
    }
    EXPECT_EQ(reader.wrong(), 0u);
    ASSERT_FALSE(HasFailure()) << daemon_->Log();
  }
};

TEST_F(DemoteKillTest, TheDaemonAtEachStepOfTheLibrary) {
  Start();
  std::vector<Segment> segments = AcquireFilled(kBytes, 3);
  Reader reader(segments);
  at.daemon = daemon_.get();
  for (const char* step : kSteps) {
    for (int passes = 1; passes <= 2; ++passes) {
      SCOPED_TRACE(absl::StrCat(step, " ", passes));
      at.step = step;
      at.passes = passes;
      failpoint_hook = KillAtStep;
      ASSERT_NO_FATAL_FAILURE(Move(segments, reader));
      failpoint_hook = nullptr;
      EXPECT_LE(at.passes, 0) << "nobody passed it";
    }
  }
}

TEST_F(DemoteKillTest, TheDaemonAtItsOwnSteps) {
  Start("[tenant_defaults]\nmax_retained = \"0\"\n");  // else it makes nothing anew
  std::vector<Segment> segments = AcquireFilled(kBytes, 3);
  Reader reader(segments);
  const char* const named[] = {"deliver-before", "deliver-after", "keep-before",  "keep-after",
                               "let-go-before",  "let-go-after",  "answer-before"};
  const char* const env = std::getenv("GPUMEM_DEMOTE_KILLS");
  const int random_kills = env == nullptr ? 16 : std::atoi(env);
  std::mt19937 random(13);
  int died = 0;
  for (int i = 0; i < static_cast<int>(std::size(named)) + random_kills; ++i) {
    const bool by_name = i < static_cast<int>(std::size(named));
    const std::string name = by_name             ? named[i]
                             : random() % 2 == 0 ? "record-before"
                                                 : "record-after";
    const int passes = by_name ? 1 : 1 + static_cast<int>(random() % 12);
    SCOPED_TRACE(absl::StrCat(name, " ", passes));
    daemon_->ArmFailpoint(name, passes);
    ASSERT_OK(daemon_->Kill());  // the next one is armed
    ASSERT_NO_FATAL_FAILURE(Move(segments, reader));
    const bool passed = !daemon_->IsFailpointArmed();
    if (by_name) {
      EXPECT_TRUE(passed) << "nobody passed it";
    }
    died += passed ? 1 : 0;
    daemon_->DisarmFailpoint();
  }
  EXPECT_GT(died, static_cast<int>(std::size(named)) + random_kills / 2);
}

TEST_F(DemoteKillTest, AClientAtEachStepLeavesNothing) {
  Start();
  for (const char* step : kSteps) {
    // The second half of the passes are those of promotions.
    for (const int passes : {1, 2, 5, 8}) {
      SCOPED_TRACE(absl::StrCat(step, " ", passes));
      Child worker = Child::Self({"--role", daemon_->runtime_dir(), step, absl::StrCat(passes)});
      EXPECT_EQ(worker.Wait(), 128 + SIGKILL);
      ExpectBooks({0, 0});
    }
  }
  EXPECT_EQ(daemon_->generations(), 1);
}

// Demotes and promotes again and again, until it kills itself.
int Work(const std::string& runtime_dir, const std::string& step, int passes) {
  auto client = Client::Connect(PatientOptions(runtime_dir));
  if (!client.ok()) return 1;
  auto segments = (*client)->AcquireMany({.bytes = kBytes}, 3);
  if (!segments.ok()) return 2;
  std::vector<Segment*> all;
  for (Segment& segment : *segments) {
    if (!testing::Fill(MemoryOf(segment), 1 + all.size()).ok()) return 3;
    all.push_back(&segment);
  }
  at.step = step;
  at.passes = passes;
  failpoint_hook = KillAtStep;
  while (true) {
    if (!(*client)->Demote(all).ok()) return 4;
    if (!(*client)->Promote(all).ok()) return 5;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!testing::Check(MemoryOf(*all[i]), 1 + i).ok()) return 6;
    }
  }
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--role") {
    return gpumem::Work(argv[2], argv[3], std::atoi(argv[4]));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
