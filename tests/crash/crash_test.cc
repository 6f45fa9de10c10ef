// SPDX-License-Identifier: Apache-2.0
// The daemon is killed, and another goes on: a real gpumemd under gpumem-keeper on the host
// backend, clients that work all the while, and publications without a holder.
//
//   GPUMEM_CRASHES  how often it is killed at random (CI: 20; by hand: 1000)
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "gpumem/publication.h"
#include "tests/support/child.h"
#include "tests/support/crash_load.h"
#include "tests/support/kept_daemon.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::Eventually;
using testing::HasStamp;
using testing::Hear;
using testing::HearAtLast;
using testing::KeptDaemon;
using testing::kParentChannel;
using testing::PatientOptions;
using testing::RunCrashLoad;
using testing::Say;
using testing::Stamp;

class CrashTest : public ::testing::Test {
 protected:
  void Start(int max_fds = 16384, const std::string& more = "") {
    auto daemon =
        KeptDaemon::Start({.config = more + "[host]\ndevice_bytes = \"3GiB\"\n"
                                            // So that memory goes back to the device all the time.
                                            "[tenant_defaults]\nmax_retained = \"16MiB\"\n",
                           .max_fds = max_fds});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    auto client = Client::Connect(PatientOptions(daemon_->runtime_dir()));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  // Makes a publication whose publisher is dead.
  void PublishAndDie() {
    Child publisher = Child::Self({"--role", "publish", daemon_->runtime_dir()});
    ASSERT_EQ(Hear(publisher.channel()), "published");
    publisher.Signal(SIGKILL);
    publisher.Wait();
  }
  void ExpectPublication() {
    EXPECT_EQ(testing::CheckWeights(*client_), absl::OkStatus()) << daemon_->Log();
  }
  void StartWorkers(int processes, int clients) {
    for (int i = 0; i < processes; ++i) {
      workers_.push_back(
          Child::Self({"--role", "work", daemon_->runtime_dir(), absl::StrCat(clients)}));
      ASSERT_EQ(Hear(workers_.back().channel()), "working");
    }
  }
  void StopWorkers() {
    for (Child& worker : workers_) Say(worker.channel(), "stop");
    for (Child& worker : workers_) EXPECT_EQ(Hear(worker.channel()), "well done");
    workers_.clear();
  }
  // Only the publication is held, and no process has a descriptor too many.
  void ExpectNothingIsLeft() {
    EXPECT_TRUE(Eventually([&] {
      const auto usage = client_->GetUsage();
      return usage.ok() && usage->devices.at(0).leased_bytes == testing::kWeightsBytes &&
             usage->devices.at(0).lingering_bytes == 0 && usage->sessions == 1;
    })) <<
        [&] {
          const auto usage = client_->GetUsage();
          if (!usage.ok()) return usage.status().ToString();
          return absl::StrCat("leased ", usage->devices.at(0).leased_bytes, ", lingering ",
                              usage->devices.at(0).lingering_bytes, ", ", usage->sessions,
                              " sessions");
        }();
    const auto usage = client_->GetUsage();
    ASSERT_TRUE(usage.ok()) << usage.status();
    // The journal, the metadata, both sockets, the keeper's own, and its child's pidfd.
    EXPECT_LE(testing::CountFds(daemon_->keeper_pid()), static_cast<int>(usage->segments) + 18);
  }

  std::unique_ptr<KeptDaemon> daemon_;
  std::unique_ptr<Client> client_;
  std::vector<Child> workers_;
};

TEST_F(CrashTest, AHoldersMemoryAndItsTicketsGoOn) {
  Start();
  auto segment = client_->Acquire({.bytes = 4 * kMiB});
  ASSERT_TRUE(segment.ok()) << segment.status();
  Stamp(segment->data(), segment->size(), 4711);
  auto ticket = segment->Share();
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  void* const data = segment->data();
  ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
  EXPECT_EQ(segment->data(), data);
  EXPECT_TRUE(HasStamp(data, segment->size(), 4711));
  auto other = Client::Connect(PatientOptions(daemon_->runtime_dir()));
  ASSERT_TRUE(other.ok()) << other.status();
  auto opened = (*other)->Open(ticket->value);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(HasStamp(opened->data(), opened->size(), 4711));
  const auto usage = client_->GetUsage();
  ASSERT_TRUE(usage.ok()) << usage.status();
  EXPECT_EQ(usage->devices.at(0).leased_bytes, 4 * kMiB);
  EXPECT_EQ(segment->Release(), absl::OkStatus());
}

TEST_F(CrashTest, MemoryOfTheProcessesOwnDriverStaysCharged) {
  Start();
  auto segment = client_->Acquire({.bytes = 1024 * kMiB, .kind = Kind::kDriver});
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ(segment->data(), nullptr);
  EXPECT_EQ(segment->size(), 1024 * kMiB);
  EXPECT_EQ(segment->Share().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(segment->fd().status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(segment->Share().status().message().find("driver") != std::string::npos);
  Child holder = Child::Self({"--role", "hold-driver", daemon_->runtime_dir()});
  ASSERT_EQ(Hear(holder.channel()), "holding");
  ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
  auto usage = client_->GetUsage();
  ASSERT_TRUE(usage.ok()) << usage.status();
  EXPECT_EQ(usage->devices.at(0).leased_bytes, 1536 * kMiB);
  // A lost segment would be charged, too, and be refused as lost.
  EXPECT_TRUE(segment->Share().status().message().find("driver") != std::string::npos)
      << segment->Share().status();
  // The limit is of both kinds of memory together (3 GiB on the device).
  EXPECT_EQ(client_->Acquire({.bytes = 2048 * kMiB}).status().code(),
            absl::StatusCode::kResourceExhausted);
  holder.Signal(SIGKILL);
  holder.Wait();
  ASSERT_EQ(segment->Release(), absl::OkStatus());
  EXPECT_TRUE(Eventually([&] {
    usage = client_->GetUsage();
    return usage.ok() && usage->devices.at(0).charged_bytes == 0;
  }));
}

// What the driver takes for a process beyond its charges stays charged, although its client does
// not know of that when it reconnects, and the driver does not answer the next daemon.
TEST_F(CrashTest, WhatTheDriverTakesByItselfStaysCharged) {
  Start(16384, "[unbrokered]\ninterval = \"10ms\"\n");
  auto segment = client_->Acquire({.bytes = 10 * kMiB, .kind = Kind::kDriver});
  ASSERT_TRUE(segment.ok()) << segment.status();
  const auto answer = [&](const std::string& text) {
    const std::string path = daemon_->runtime_dir() + "/host-process-memory";
    std::ofstream(path + ".new") << text;
    ASSERT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
  };
  const auto charged = [&] {
    const auto usage = client_->GetUsage();
    return usage.ok() ? usage->devices.at(0).charged_bytes : 0;
  };
  answer(absl::StrCat(segment->device_uuid(), " ", getpid(), " ", 26 * kMiB, "\n"));
  ASSERT_TRUE(Eventually([&] { return charged() == 26 * kMiB; })) << charged();
  answer("no answer\n");
  ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
  EXPECT_EQ(charged(), 26 * kMiB);
  ASSERT_EQ(segment->Release(), absl::OkStatus());
  answer("");
  EXPECT_TRUE(Eventually([&] { return charged() == 0; })) << charged();
}

TEST_F(CrashTest, MemoryOfAProcessThatDiesWithTheDaemonIsReclaimed) {
  Start();
  Child holder = Child::Self({"--role", "hold", daemon_->runtime_dir()});
  ASSERT_EQ(Hear(holder.channel()), "holding");
  ASSERT_TRUE(daemon_->Freeze());  // it sees nothing of the other's death
  holder.Signal(SIGKILL);
  holder.Wait();
  ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
  const auto usage = client_->GetUsage();
  ASSERT_TRUE(usage.ok()) << usage.status();
  EXPECT_EQ(usage->devices.at(0).leased_bytes, 0u);
  EXPECT_EQ(usage->devices.at(0).lingering_bytes, 0u);
  EXPECT_EQ(usage->sessions, 1u);
}

TEST_F(CrashTest, APublicationOutlivesItsPublisherAndTheDaemon) {
  Start();
  PublishAndDie();
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
    ExpectPublication();
  }
  ExpectNothingIsLeft();
}

TEST_F(CrashTest, AThousandSegmentsAreTakenOver) {
  Start();
  std::vector<Segment> held;
  for (const uint64_t segments : {1, 100, 1000}) {
    while (held.size() < segments) {
      const auto more = static_cast<int>(std::min<uint64_t>(200, segments - held.size()));
      auto acquired = client_->AcquireMany({.bytes = 2 * kMiB}, more);
      ASSERT_TRUE(acquired.ok()) << acquired.status();
      for (Segment& segment : *acquired) {
        Stamp(segment.data(), segment.size(), segment.lease_id());
        held.push_back(std::move(segment));
      }
    }
    const absl::Time killed = absl::Now();
    ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
    const auto usage = client_->GetUsage();
    ASSERT_TRUE(usage.ok()) << usage.status();
    std::cout << segments << " segments: served again after " << absl::Now() - killed << "\n";
    EXPECT_EQ(usage->devices.at(0).leased_bytes, segments * 2 * kMiB);
  }
  for (const Segment& segment : held) {
    EXPECT_TRUE(HasStamp(segment.data(), segment.size(), segment.lease_id()));
  }
  // Another session can still open each, and their content is unchanged.
  auto other = Client::Connect(PatientOptions(daemon_->runtime_dir()));
  ASSERT_TRUE(other.ok()) << other.status();
  for (size_t i = 0; i < held.size(); i += 37) {
    auto opened = (*other)->Open(held[i].Share()->value);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE(HasStamp(opened->data(), opened->size(), held[i].lease_id()));
  }
  held.clear();
  EXPECT_TRUE(Eventually([&] {
    const auto usage = client_->GetUsage();
    return usage.ok() && usage->devices.at(0).leased_bytes == 0;
  }));
}

// Descriptors beyond the keeper's capacity lie in crates.
TEST_F(CrashTest, MoreSegmentsThanTheKeeperTakesDescriptors) {
  Start(/*max_fds=*/96);
  auto held = client_->AcquireMany({.bytes = 2 * kMiB}, 200);
  ASSERT_TRUE(held.ok()) << held.status();
  for (Segment& segment : *held) Stamp(segment.data(), segment.size(), segment.lease_id());
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
    auto other = Client::Connect(PatientOptions(daemon_->runtime_dir()));
    ASSERT_TRUE(other.ok()) << other.status();
    for (const Segment& segment : *held) {
      auto ticket = segment.Share();
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      auto opened = (*other)->Open(ticket->value);
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_TRUE(HasStamp(opened->data(), opened->size(), segment.lease_id()));
    }
  }
}

TEST_F(CrashTest, AConnectionWaitsInTheSocketForTheNextDaemon) {
  Start();
  ASSERT_TRUE(client_->GetUsage().ok());
  // Nothing starts a daemon until the keeper goes on.
  daemon_->keeper().Signal(SIGSTOP);
  const pid_t dead = daemon_->daemon_pid();
  daemon_->KillOnly();
  ASSERT_TRUE(Eventually([&] {
    std::ifstream state(absl::StrCat("/proc/", dead, "/stat"));
    std::string word;
    while (state >> word && word != "Z") continue;
    return word == "Z";
  }));
  std::atomic<bool> tried = false;
  absl::Status connected;
  std::thread connects([&] {
    ConnectOptions options = PatientOptions(daemon_->runtime_dir());
    options.wait = false;  // it need not try again
    connected = Client::Connect(options).status();
    tried = true;
  });
  // A socket that no process has any more would refuse at once.
  EXPECT_FALSE(Eventually([&] { return tried.load(); }, absl::Milliseconds(300)));
  daemon_->keeper().Signal(SIGCONT);
  connects.join();
  EXPECT_EQ(connected, absl::OkStatus()) << daemon_->Log();
}

TEST_F(CrashTest, AFullStoreRefusesSegmentsAndLosesNone) {
  Start(/*max_fds=*/12, "[daemon]\nwhen_store_full = \"refuse\"\n");
  std::vector<Segment> held;
  absl::Status refused;
  while (refused.ok() && held.size() < 12) {
    auto segment = client_->Acquire({.bytes = 2 * kMiB});
    refused = segment.status();
    if (segment.ok()) held.push_back(*std::move(segment));
  }
  EXPECT_EQ(held.size(), 6u);  // the others are the daemon's own
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("when_store_full"), std::string::npos) << refused;
  ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
  const auto usage = client_->GetUsage();
  ASSERT_TRUE(usage.ok()) << usage.status();
  EXPECT_EQ(usage->devices.at(0).leased_bytes, 6 * 2 * kMiB);
  for (const Segment& segment : held) EXPECT_TRUE(segment.Share().ok());
}

TEST_F(CrashTest, KilledAtEveryFailpoint) {
  Start();
  PublishAndDie();
  StartWorkers(2, 4);
  for (const char* name : {"record-before", "record-after", "keep-before", "keep-after",
                           "deliver-before", "deliver-after", "answer-before", "let-go-before",
                           "let-go-after", "publish-before", "publish-kept", "publish-after",
                           "begin-before", "begin-written", "begin-after", "welcome-before"}) {
    for (int passes : {1, 5}) {
      if (passes > 1 && std::strncmp(name, "begin", 5) == 0) continue;  // once in a life
      SCOPED_TRACE(absl::StrCat(name, " ", passes));
      daemon_->ArmFailpoint(name, passes);
      ASSERT_EQ(daemon_->Kill(), absl::OkStatus());  // the next one is armed
      const bool died = Eventually([&] { return !daemon_->IsFailpointArmed(); });
      EXPECT_TRUE(died) << "nobody passed it";
      daemon_->DisarmFailpoint();
      // It is served again.
      ASSERT_TRUE(client_->GetUsage().ok());
    }
  }
  ExpectPublication();
  StopWorkers();
  ExpectNothingIsLeft();
}

TEST_F(CrashTest, KilledAtRandomUnderLoad) {
  const char* wanted = std::getenv("GPUMEM_CRASHES");
  const int crashes = wanted == nullptr ? 20 : std::atoi(wanted);
  Start();
  PublishAndDie();
  StartWorkers(4, 8);
  std::mt19937_64 random(1);
  std::vector<absl::Duration> away;
  for (int i = 0; i < crashes; ++i) {
    // Work goes on for a while of random length: so many calls of ours.
    for (uint64_t calls = random() % 30; calls > 0; --calls) {
      ASSERT_TRUE(client_->GetUsage().ok());
    }
    const absl::Time killed = absl::Now();
    const pid_t pid = daemon_->daemon_pid();
    ASSERT_GT(pid, 0);
    kill(pid, SIGKILL);
    ASSERT_TRUE(Eventually([&] { return daemon_->daemon_pid() != pid; }));
    const auto usage = client_->GetUsage();
    ASSERT_TRUE(usage.ok()) << "crash " << i << ": " << usage.status() << "\n" << daemon_->Log();
    away.push_back(absl::Now() - killed);
    if (i % 10 == 9) ExpectPublication();
  }
  StopWorkers();
  ExpectNothingIsLeft();
  std::sort(away.begin(), away.end());
  std::cout << crashes << " crashes: served again after " << away[away.size() / 2] << " (median), "
            << away[away.size() * 99 / 100] << " (p99), " << away.back() << " at most\n";
}

int RunRole(const std::vector<std::string>& args) {
  const std::string& role = args.at(0);
  if (role == "work") return RunCrashLoad(args.at(1), std::atoi(args.at(2).c_str()));
  auto client = Client::Connect(PatientOptions(args.at(1)));
  if (!client.ok()) return 1;
  std::vector<Segment> segments;
  if (role == "publish") {
    if (!testing::PublishWeights(**client, segments).ok()) return 2;
  } else {
    const bool driver = role == "hold-driver";
    auto segment = (*client)->Acquire(
        {.bytes = driver ? 512 * kMiB : 2 * kMiB, .kind = driver ? Kind::kDriver : Kind::kDefault});
    if (!segment.ok()) return 2;
    segments.push_back(*std::move(segment));
  }
  Say(kParentChannel, role == "publish" ? "published" : "holding");
  HearAtLast();
  return 0;
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--role") {
    return gpumem::RunRole(std::vector<std::string>(argv + 2, argv + argc));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
