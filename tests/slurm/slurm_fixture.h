// SPDX-License-Identifier: Apache-2.0
// What tests of a cluster of Slurm share.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/slurm/cluster.h"
#include "tests/support/child.h"
#include "tests/support/expect_status.h"

namespace gpumem {

class SlurmTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (cluster_ != nullptr && HasFailure()) std::fputs(cluster_->Logs().c_str(), stderr);
  }

  // False if the test cannot go on: it is skipped, or has failed.
  bool Start(const testing::Cluster::Options& options = {}) {
    auto cluster = testing::Cluster::Start(options);
    if (absl::IsFailedPrecondition(cluster.status())) {
      Skip(std::string(cluster.status().message()));
      return false;
    }
    EXPECT_OK(cluster);
    if (!cluster.ok()) return false;
    cluster_ = *std::move(cluster);
    return true;
  }

  static void Skip(const std::string& why) { GTEST_SKIP() << why; }

  // A command that holds so many MiB until it is killed.
  std::string Hold(int mib) const {
    return absl::StrCat(cluster_->Program("gpumemctl"), " hold --size ", mib, "MiB");
  }
  bool WaitForCharge(int node, uint64_t mib) const {
    return testing::Eventually([&] { return cluster_->Charged(node) == mib << 20; },
                               absl::Seconds(60));
  }
  bool WaitForTenants(int node, const std::vector<std::string>& names) const {
    return testing::Eventually([&] { return cluster_->Tenants(node) == names; }, absl::Minutes(3));
  }
  // Nothing is left of any job on the nodes.
  void ExpectNothingLeft() {
    EXPECT_TRUE(cluster_->WaitForQuiet());
    for (int node = 1; node <= testing::kNodes; ++node) {
      EXPECT_THAT(cluster_->Tenants(node), ::testing::IsEmpty());
      EXPECT_EQ(cluster_->Charged(node), 0u);
      // Not drained. Slurm may add that it plans something for the node, or has not reached it yet.
      EXPECT_THAT(cluster_->NodeField(node, "State"),
                  ::testing::AnyOf("IDLE", "IDLE+PLANNED", "IDLE+NOT_RESPONDING"))
          << cluster_->NodeField(node, "Reason");
    }
  }

  std::unique_ptr<testing::Cluster> cluster_;
};

}  // namespace gpumem
