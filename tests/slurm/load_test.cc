// SPDX-License-Identifier: Apache-2.0
// Many jobs of several users on a real Slurm, while jobs and daemons are killed at random.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/slurm/cluster.h"
#include "tests/support/child.h"
#include "tests/support/expect_status.h"

namespace gpumem {
namespace {

using nlohmann::json;
using testing::Cluster;
using testing::Eventually;
using ::testing::IsEmpty;
using testing::kNodes;
using testing::kUsers;

constexpr int kJobs = 200;
constexpr uint64_t kCapacity = uint64_t{4} << 30;  // of a node

// Looks at a node's tenants. Returns what must not be; empty: all is well. A daemon that is just
// being replaced is looked at the next time.
std::string Wrong(const Cluster& cluster, int node) {
  const json tenants = cluster.Gpumemctl(node, {"quota", "list"});
  if (!tenants.is_object()) return "";
  uint64_t guaranteed = 0, charged = 0;
  for (const json& tenant : tenants["tenants"]) {
    for (const json& device : tenant["usage"]["devices"]) {
      if (!absl::StartsWith(device["device_uuid"].get<std::string>(), "HOST-")) continue;
      guaranteed += device["guarantee_bytes"].get<uint64_t>();
      charged += device["charged_bytes"].get<uint64_t>();
      if (device["charged_bytes"] > device["limit_bytes"]) {
        return absl::StrCat("above its limit: ", tenant.dump());
      }
    }
  }
  if (guaranteed > kCapacity || charged > kCapacity) {
    return absl::StrCat("node ", node, ": guaranteed ", guaranteed, ", charged ", charged);
  }
  return "";
}

// Looks at all nodes, again and again, until it is destroyed.
class Watch {
 public:
  explicit Watch(const Cluster& cluster)
      : thread_([this, &cluster] {
          for (int node = 1; !end_.HasBeenNotified(); node = node % kNodes + 1, ++looks_) {
            if (wrong_.empty()) wrong_ = Wrong(cluster, node);
          }
        }) {}
  ~Watch() { (void)End(); }

  // Returns the first that was wrong.
  std::string End() {
    if (thread_.joinable()) {
      end_.Notify();
      thread_.join();
    }
    return wrong_;
  }
  int looks() const { return looks_; }

 private:
  absl::Notification end_;
  std::string wrong_;
  int looks_ = 0;
  std::thread thread_;
};

// The times that epilogs took, in milliseconds and in order, by slurmd's logs.
std::vector<int> EpilogTimes(const Cluster& cluster) {
  std::vector<int> times;
  for (int node = 1; node <= kNodes; ++node) {
    const std::string log =
        testing::ReadText(absl::StrCat(cluster.folder(), "/node", node, "/slurmd.log"));
    for (absl::string_view line : absl::StrSplit(log, '\n')) {
      const std::vector<absl::string_view> words = absl::StrSplit(line, " was back after ");
      int ms = 0;
      if (words.size() == 2 && absl::SimpleAtoi(words[1].substr(0, words[1].find(' ')), &ms)) {
        times.push_back(ms);
      }
    }
  }
  std::sort(times.begin(), times.end());
  return times;
}

TEST(SlurmLoadTest, NoByteIsGivenTwiceAndNoneIsLost) {
  auto started = Cluster::Start({});
  if (absl::IsFailedPrecondition(started.status())) GTEST_SKIP() << started.status().message();
  ASSERT_OK(started);
  Cluster& cluster = **started;
  const auto logs = absl::MakeCleanup([&cluster] {
    if (::testing::Test::HasFailure()) std::cerr << cluster.Logs();
  });
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const auto below = [&random](unsigned n) { return static_cast<int>(random() % n); };

  Watch watch(cluster);
  std::set<uint32_t> cancelled, unguaranteed;
  std::vector<uint32_t> jobs;
  for (int i = 0; i < kJobs; ++i) {
    // Sizes of the devices' granularity.
    const int mib = 2 * (1 + below(1024));
    const std::string hold = absl::StrCat(cluster.Program("gpumemctl"), " hold");
    const bool guaranteed = below(4) != 0;
    const uint32_t job = cluster.Submit(
        kUsers[below(3)], {absl::StrCat("--gpumem=", mib, guaranteed ? "" : ",guarantee=0")},
        absl::StrCat(hold, " --for 1ms --size ", mib + 2, "MiB && touch $SLURM_JOB_ID.too-much; ",
                     hold, " --for ", 1 + below(2000), "ms --size ", mib, "MiB"));
    ASSERT_NE(job, 0u);
    jobs.push_back(job);
    if (!guaranteed) unguaranteed.insert(job);
    if (below(8) == 0) {
      const uint32_t killed = jobs[jobs.size() - 1 - below(std::min<size_t>(jobs.size(), 20))];
      const std::string signal = below(2) == 0 ? "--signal=KILL" : "--signal=TERM";
      cluster.AsRoot(below(2) == 0 ? std::vector<std::string>{"scancel", absl::StrCat(killed)}
                                   : std::vector<std::string>{"scancel", "--full", signal,
                                                              absl::StrCat(killed)});
      cancelled.insert(killed);
    }
    if (below(20) == 0) {
      ASSERT_OK(cluster.Crash(1 + below(kNodes), "slurmd"));
    }
    if (below(25) == 0) {
      ASSERT_OK(cluster.Crash(1 + below(kNodes), "gpumemd"));
    }
  }
  ASSERT_TRUE(Eventually(
      [&] {
        return cluster.AsRoot({"squeue", "--noheader"}).output.empty();
      },
      absl::Minutes(10)))
      << cluster.AsRoot({"squeue"}).output;
  EXPECT_EQ(watch.End(), "");
  std::cout << "looked " << watch.looks() << " times\n";

  for (int node = 1; node <= kNodes; ++node) {
    // What a slurmd left that was killed is swept, the last time two minutes after its successor
    // began.
    EXPECT_TRUE(Eventually([&] { return cluster.Tenants(node).empty(); }, absl::Minutes(3)));
    EXPECT_THAT(cluster.Tenants(node), IsEmpty());
    EXPECT_EQ(cluster.Charged(node), 0u);
    const std::string state = cluster.NodeField(node, "State");
    EXPECT_TRUE(absl::StartsWith(state, "IDLE") && !absl::StrContains(state, "DRAIN"))
        << cluster.AsRoot({"scontrol", "show", "node", absl::StrCat("node", node)}).output;
  }
  int completed = 0;
  for (const uint32_t job : jobs) {
    EXPECT_NE(access(absl::StrCat(cluster.shared(), "/", job, ".too-much").c_str(), F_OK), 0);
    const std::string state = cluster.JobField(job, "JobState");
    completed += state == "COMPLETED";
    // What a killed slurmd left has its guarantee until it is swept. Then there may be no room for
    // a job that has none.
    const bool is_denied = unguaranteed.count(job) > 0 && state == "FAILED" &&
                           absl::StrContains(cluster.Output(job), "guaranteed to other tenants");
    EXPECT_TRUE(state == "COMPLETED" || cancelled.count(job) > 0 || is_denied)
        << job << ": " << state << "\n"
        << cluster.Output(job);
  }
  EXPECT_GT(completed, kJobs / 2);

  const std::vector<int> times = EpilogTimes(cluster);
  ASSERT_FALSE(times.empty());
  std::cout << times.size() << " epilogs, ms: median " << times[times.size() / 2] << ", p99 "
            << times[times.size() * 99 / 100] << ", most " << times.back() << "\n";
  EXPECT_LE(times[times.size() * 99 / 100], 1000);
}

}  // namespace
}  // namespace gpumem
