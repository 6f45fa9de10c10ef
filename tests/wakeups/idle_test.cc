// SPDX-License-Identifier: Apache-2.0
// An idle daemon hardly wakes: processors in deep sleep save power, and jitter other work less.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gpumem/client.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_status.h"

namespace gpumem::testing {
namespace {

// How often each thread of the process has gone to sleep so far. Each such time it has woken.
std::map<std::string, int64_t> Sleeps(pid_t pid) {
  std::map<std::string, int64_t> sleeps;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      absl::string_view value = line;
      int64_t count = 0;
      if (absl::ConsumePrefix(&value, "voluntary_ctxt_switches:") &&
          absl::SimpleAtoi(value, &count))
        sleeps[task.path().filename()] = count;
    }
  }
  return sleeps;
}

// The least wake-ups a second of several windows: a loaded machine may add some to one of them.
double WakesPerSecond(pid_t pid) {
  constexpr absl::Duration kWindow = absl::Seconds(10);
  double least = 1e9;
  for (int i = 0; i < 3 && least > 1; ++i) {
    std::map<std::string, int64_t> before = Sleeps(pid);
    absl::SleepFor(kWindow);
    int64_t wakes = 0;  // of threads that have not ended meanwhile
    for (const auto& [thread, count] : Sleeps(pid)) wakes += count - before[thread];
    least = std::min(least, static_cast<double>(wakes) / absl::ToDoubleSeconds(kWindow));
  }
  return least;
}

TEST(IdleTest, WakesAtMostOnceASecondWithoutClients) {
  auto daemon = DaemonProcess::Start({});
  ASSERT_OK(daemon);
  EXPECT_LE(WakesPerSecond((*daemon)->pid()), 1);
}

TEST(IdleTest, WakesAtMostOnceASecondWithIdleClients) {
  auto daemon = DaemonProcess::Start({});
  ASSERT_OK(daemon);
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<Segment> segments;
  for (int i = 0; i < 3; ++i) {
    auto client = (*daemon)->Connect();
    ASSERT_OK(client);
    auto segment = (*client)->Acquire({.bytes = 4096});
    ASSERT_OK(segment);
    clients.push_back(*std::move(client));
    segments.push_back(*std::move(segment));
  }
  EXPECT_LE(WakesPerSecond((*daemon)->pid()), 1);
  // It is as quick as ever after that.
  EXPECT_OK(clients[0]->GetUsage());
}

}  // namespace
}  // namespace gpumem::testing
