// SPDX-License-Identifier: Apache-2.0
// gpumem's own driver of Kubernetes, with a real gpumemd: what it takes from the API server, and
// what it tells it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "tests/kubernetes/dra_node.h"
#include "tests/support/child.h"

namespace gpumem::testing {
namespace {

using kubernetes::ClaimName;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

class DraWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto node = DraNode::Start();
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    ASSERT_TRUE(node_->Register().ok());
  }
  // Prepares a claim. Returns the error, or "".
  std::string ErrorOf(const ClaimName& name) {
    return std::string(node_->Prepare(name).status().message());
  }
  void ExpectTenants(const std::map<std::string, std::map<std::string, uint64_t>>& wanted) {
    const auto tenants = node_->Tenants();
    ASSERT_TRUE(tenants.ok()) << tenants.status();
    EXPECT_EQ(*tenants, wanted);
  }
  bool HasFile(const ClaimName& name) const {
    return std::filesystem::exists(node_->CdiFile(name.uid));
  }

  std::unique_ptr<DraNode> node_;
};

TEST_F(DraWatchTest, FreeMemoryIsPublishedSeldom) {
  const auto publish = [&] {
    EXPECT_TRUE(node_->driver().Publish(absl::InfiniteFuture()).ok());
    const json slice = json::parse(node_->slice());
    return slice["spec"]["devices"][0]["attributes"]["free"]["int"].get<uint64_t>() >> 20;
  };
  EXPECT_EQ(publish(), 1024u);
  node_->store().SetClaims({ClaimText(One(), kDevice0, 600, kPodA)});
  ASSERT_EQ(ErrorOf(One()), "");
  EXPECT_EQ(publish(), 1024u) << "not yet";
  ASSERT_TRUE(node_->RestartDriver(/*free_pause=*/absl::ZeroDuration()).ok());
  ASSERT_TRUE(node_->Register().ok());
  EXPECT_EQ(publish(), 424u);
  node_->store().SetClaims(
      {ClaimText(One(), kDevice0, 600, kPodA), ClaimText(Two(), kDevice0, 10, kPodB)});
  ASSERT_EQ(ErrorOf(Two()), "");
  EXPECT_EQ(publish(), 424u) << "less than 1/64";
  EXPECT_EQ(node_->store().writes(), 2);
}

TEST_F(DraWatchTest, AClaimThatWasMadeAnewIsRefused) {
  ClaimName anew = One();
  anew.uid = Two().uid;
  node_->store().SetClaims({ClaimText(anew, kDevice0, 600, kPodA)});
  EXPECT_THAT(ErrorOf(One()), HasSubstr("made anew, with the uid " + Two().uid));
  EXPECT_FALSE(HasFile(One()));
  ExpectTenants({});
  EXPECT_EQ(ErrorOf(anew), "");
}

// A pod's tenant has all of its claims, though the kubelet names those alone that are not prepared.
TEST_F(DraWatchTest, OtherClaimsOfThePodCount) {
  node_->store().SetClaims(
      {ClaimText(One(), kDevice0, 600, kPodA), ClaimText(Two(), kDevice1, 10, kPodA)});
  ASSERT_TRUE(Eventually([&] {
    const auto tenants = node_->Tenants();
    return ErrorOf(One()).empty() && tenants.ok() && node_->Tenants()->at(kTenantA).size() == 2;
  }));
  ExpectTenants({{kTenantA, {{kGpu0, 600}, {kGpu1, 10}}}});
}

// A watch may lag behind what a request has just read.
TEST_F(DraWatchTest, NoTenantEndsByAWatchAlone) {
  Child program = node_->RunProgram();
  ASSERT_TRUE(Eventually([&] { return node_->Register().ok(); }, kPatience));
  ASSERT_TRUE(Eventually([&] { return !node_->slice().empty(); }, kPatience));
  node_->api_server().FreezeWatches(true);
  node_->store().SetClaims({ClaimText(One(), kDevice0, 600, kPodA)});
  ASSERT_TRUE(Eventually([&] { return ErrorOf(One()).empty(); }, kPatience));
  const auto reads = [&] {
    const auto requests = node_->api_server().Requests();
    return std::count_if(requests.begin(), requests.end(), [](const auto& request) {
      return !request.watch && absl::StrContains(request.path, "resourceclaims");
    });
  };
  const auto before = reads();
  ASSERT_TRUE(Eventually([&] { return reads() >= before + 5; }, kPatience)) << "rounds ask first";
  ExpectTenants({{kTenantA, {{kGpu0, 600}}}});
  node_->api_server().FreezeWatches(false);
}

}  // namespace
}  // namespace gpumem::testing
