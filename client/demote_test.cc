// SPDX-License-Identifier: Apache-2.0
// Demoting and promoting segments.
#include "gpumem/demote.h"

#include <string.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/demote_fixture.h"
#include "client/testing/fake_daemon.h"
#include "gmock/gmock.h"
#include "gpumem/client.h"
#include "gtest/gtest.h"

namespace gpumem {
namespace demote_test {

using absl::StatusCode;
using internal::OpenFds;
using ::testing::ElementsAre;
using ::testing::Pair;

TEST_F(DemoteTest, BytesAndAddressesStay) {
  Start();
  std::vector<Segment> segments = Acquire(4);
  char* const base = Bytes(segments[0]);
  const uint64_t lease = segments[2].lease_id();
  const std::string ticket = segments[2].Share()->value;
  const size_t fds = OpenFds();
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(client_->Demote(All(segments)), absl::OkStatus());
    Expect(segments, base, /*demoted=*/true);
    EXPECT_EQ(daemon_->live_leases(), 4u);
    EXPECT_EQ(OpenFds(), fds);
    strcpy(base + kBytes + 100, "written while demoted");
    ASSERT_EQ(client_->Promote(All(segments)), absl::OkStatus());
    Expect(segments, base, /*demoted=*/false);
    EXPECT_STREQ(base + kBytes + 100, "written while demoted");
    EXPECT_EQ(daemon_->live_leases(), 4u);
    EXPECT_EQ(OpenFds(), fds);
  }
  EXPECT_EQ(segments[2].lease_id(), lease);
  EXPECT_EQ(segments[2].Share()->value, ticket);
  segments.clear();
  EXPECT_EQ(daemon_->live_leases(/*awaited=*/0), 0u);
}

TEST_F(DemoteTest, SomeOfARange) {
  Start();
  std::vector<Segment> segments = Acquire(4);
  char* const base = Bytes(segments[0]);
  Segment* const some[] = {&segments[3], &segments[1]};
  ASSERT_EQ(client_->Demote(some), absl::OkStatus());
  EXPECT_TRUE(segments[1].demoted());
  EXPECT_FALSE(segments[2].demoted());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(base + i * kBytes, absl::StrCat("segment ", i));
  EXPECT_EQ(segments[3].Release(), absl::OkStatus());
  Segment* const one[] = {&segments[1]};
  ASSERT_EQ(client_->Promote(one), absl::OkStatus());
  segments.pop_back();
  Expect(segments, base, /*demoted=*/false);
}

TEST_F(DemoteTest, ReadsGoOnBetweenTheSwitches) {
  Start();
  std::vector<Segment> segments = Acquire(8);
  char* const base = Bytes(segments[0]);
  absl::Mutex reading;
  std::atomic<bool> done = false;
  std::atomic<uint64_t> wrong = 0, reads = 0;
  std::thread reader([&] {
    while (!done) {
      absl::MutexLock lock(&reading);
      for (size_t i = 0; i < 8; ++i) {
        wrong += base[i * kBytes + 8] != static_cast<char>('0' + i);
      }
      ++reads;
    }
  });
  const DemoteOptions options = {.pause =
                                     [&] {
                                       reading.Lock();
                                       return absl::OkStatus();
                                     },
                                 .proceed = [&] { reading.Unlock(); }};
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(client_->Demote(All(segments), options), absl::OkStatus());
    ASSERT_EQ(client_->Promote(All(segments), options), absl::OkStatus());
  }
  done = true;
  reader.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(reads, 0u);
}

TEST_F(DemoteTest, PiecesHaveAtLeastOneSegment) {
  Start();
  std::vector<Segment> segments = Acquire(5);
  DemoteOptions options = Counting();
  ASSERT_EQ(client_->Demote(All(segments), options), absl::OkStatus());
  EXPECT_EQ(pauses_, 5);
  EXPECT_EQ(proceeds_, 5);
  options.longest_pause = absl::Hours(1);
  ASSERT_EQ(client_->Promote(All(segments), options), absl::OkStatus());
  EXPECT_EQ(pauses_, 5 + 3) << "1, 2 and the other 2";
}

TEST_F(DemoteTest, ManySegmentsOfSeveralSizes) {
  std::vector<uint32_t> counts;
  Start({.exchange = [&](const IsCancelled&, const v1::ExchangeLeasesRequest& request) {
    if (!request.check_only()) counts.push_back(static_cast<uint32_t>(request.pairs_size()));
    return grpc::Status::OK;
  }});
  std::vector<Segment> segments = Acquire(200);
  std::vector<Segment> others = Acquire(100);
  std::vector<Segment> large = Acquire(3, 4 * kBytes);
  char* const bases[] = {Bytes(segments[0]), Bytes(others[0]), Bytes(large[0])};
  std::vector<Segment*> all = All(segments);
  for (Segment* one : All(large)) all.push_back(one);
  for (Segment* one : All(others)) all.push_back(one);
  for (const bool demoted : {true, false}) {
    ASSERT_EQ(demoted ? client_->Demote(all) : client_->Promote(all), absl::OkStatus());
    EXPECT_THAT(counts, ElementsAre(253, 47, 3));
    counts.clear();
    Expect(segments, bases[0], demoted);
    Expect(others, bases[1], demoted);
    Expect(large, bases[2], demoted);
    EXPECT_EQ(daemon_->live_leases(), 303u);
  }
}

TEST_F(DemoteTest, ReadOnlyMemoryStaysReadOnly) {
  Start();
  auto mine = std::make_unique<Segment>(client_->Acquire({.bytes = kBytes}).value());
  strcpy(Bytes(*mine), "shared");
  Segment segment = client_->Open(mine->Share()->value, {.read_only = true}).value();
  mine.reset();
  Segment* const one[] = {&segment};
  ASSERT_EQ(client_->Demote(one), absl::OkStatus());
  EXPECT_STREQ(Bytes(segment), "shared");
  EXPECT_DEATH(Bytes(segment)[0] = 'x', "");
  ASSERT_EQ(client_->Promote(one), absl::OkStatus());
  EXPECT_STREQ(Bytes(segment), "shared");
  EXPECT_DEATH(Bytes(segment)[0] = 'x', "");
}

TEST_F(DemoteTest, AWaitIsCancelled) {
  absl::Notification waits;
  std::atomic<bool> blocks = true;
  Start({.acquire_waiting = [&](const IsCancelled& is_cancelled, uint64_t session,
                                const v1::AcquireRequest& request, v1::AcquireResponse* response) {
    if (request.wait_ms() == 0 || !blocks) return daemon_->Grant(session, request, response);
    EXPECT_EQ(request.device_uuid(), FakeDaemon::kDevice);
    waits.Notify();
    while (!is_cancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  }});
  std::vector<Segment> segments = Acquire(2);
  char* const base = Bytes(segments[0]);
  ASSERT_EQ(client_->Demote(All(segments)), absl::OkStatus());
  DemoteOptions options = Counting();
  options.wait = absl::InfiniteDuration();
  options.cancel.emplace();
  std::thread other([&] {
    waits.WaitForNotification();
    options.cancel->Cancel();
  });
  EXPECT_EQ(client_->Promote(All(segments), options).code(), StatusCode::kCancelled);
  other.join();
  EXPECT_EQ(pauses_, 0);
  Expect(segments, base, /*demoted=*/true);
  EXPECT_EQ(daemon_->live_leases(), 2u);
  blocks = false;
  ASSERT_EQ(client_->Promote(All(segments), {.wait = absl::InfiniteDuration()}), absl::OkStatus());
  Expect(segments, base, /*demoted=*/false);
}

TEST_F(DemoteTest, EachGoesBackToItsDevice) {
  std::vector<std::pair<std::string, uint32_t>> asked;
  Start({.acquire = [&](uint64_t session, const v1::AcquireRequest& request,
                        v1::AcquireResponse* response) {
    if (!request.device_uuid().empty()) asked.emplace_back(request.device_uuid(), request.count());
    return daemon_->Grant(session, request, response);
  }});
  std::vector<Segment> first = Acquire(2);
  daemon_->GrantOn(FakeDaemon::kPinnedDevice);  // stands for another device
  std::vector<Segment> second = Acquire(1);
  daemon_->GrantOn("");
  std::vector<Segment*> all = All(second);
  for (Segment* one : All(first)) all.push_back(one);
  ASSERT_EQ(client_->Demote(all), absl::OkStatus());
  asked.clear();
  ASSERT_EQ(client_->Promote(all), absl::OkStatus());
  EXPECT_THAT(asked, ElementsAre(Pair(FakeDaemon::kDevice, 2), Pair(FakeDaemon::kPinnedDevice, 1)));
}

}  // namespace demote_test
}  // namespace gpumem
