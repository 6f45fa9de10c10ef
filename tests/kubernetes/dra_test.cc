// SPDX-License-Identifier: Apache-2.0
// gpumem's own driver of Kubernetes, with a real gpumemd: the kubelet's requests, and the
// published slice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/kubernetes/dra/dra_v1.grpc.pb.h"
#include "client/kubernetes/dra/dra_v1beta1.grpc.pb.h"
#include "common/grpc_status.h"
#include "tests/kubernetes/dra_node.h"
#include "tests/support/child.h"

namespace gpumem::testing {
namespace {

using kubernetes::ClaimName;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

namespace v1 = ::k8s::io::kubelet::pkg::apis::dra::v1;
namespace v1beta1 = ::k8s::io::kubelet::pkg::apis::dra::v1beta1;

constexpr absl::Duration kPatience = absl::Seconds(60);

class DraTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto node = DraNode::Start();
    ASSERT_TRUE(node.ok()) << node.status();
    node_ = *std::move(node);
    const auto versions = node_->Register();
    ASSERT_TRUE(versions.ok()) << versions.status();
    EXPECT_THAT(*versions, ElementsAre("v1.DRAPlugin", "v1beta1.DRAPlugin"));
  }

  template <typename Request>
  static Request RequestOf(const std::vector<ClaimName>& names) {
    Request request;
    for (const ClaimName& name : names) {
      auto* const claim = request.add_claims();
      claim->set_namespace_(name.name_space);
      claim->set_name(name.name);
      claim->set_uid(name.uid);
    }
    return request;
  }
  absl::StatusOr<v1::NodePrepareResourcesResponse> Prepare(const std::vector<ClaimName>& names,
                                                           absl::Duration time = absl::Minutes(1)) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + time));
    v1::NodePrepareResourcesResponse response;
    absl::Status called = FromGrpcStatus(
        v1::DRAPlugin::NewStub(node_->channel())
            ->NodePrepareResources(&context, RequestOf<v1::NodePrepareResourcesRequest>(names),
                                   &response));
    if (!called.ok()) return called;
    return response;
  }
  // Returns the error of one claim.
  std::string ErrorOf(const ClaimName& name) {
    const auto response = Prepare({name});
    if (!response.ok()) return std::string(response.status().message());
    return response->claims().at(name.uid).error();
  }
  // Returns the errors, by uid.
  absl::StatusOr<std::map<std::string, std::string>> Unprepare(
      const std::vector<ClaimName>& names) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
    v1::NodeUnprepareResourcesResponse response;
    absl::Status called = FromGrpcStatus(
        v1::DRAPlugin::NewStub(node_->channel())
            ->NodeUnprepareResources(&context, RequestOf<v1::NodeUnprepareResourcesRequest>(names),
                                     &response));
    if (!called.ok()) return called;
    std::map<std::string, std::string> errors;
    for (const auto& [uid, claim] : response.claims()) errors[uid] = claim.error();
    return errors;
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

TEST_F(DraTest, GpusArePublished) {
  ASSERT_TRUE(node_->driver().Publish(absl::InfiniteFuture()).ok());
  const json slice = json::parse(node_->slice());
  EXPECT_EQ(slice["metadata"]["ownerReferences"][0]["uid"], "uid-of-node-1");
  EXPECT_EQ(slice["spec"]["pool"]["generation"], 1);
  ASSERT_EQ(slice["spec"]["devices"].size(), 2u);
  const json& device = slice["spec"]["devices"][1];
  EXPECT_EQ(device["name"], kDevice1);
  EXPECT_EQ(device["attributes"]["uuid"]["string"], kGpu1);
  EXPECT_EQ(device["capacity"]["memory"]["value"], absl::StrCat(1024 << 20));

  // Neither again nor by the next driver, unless it is gone.
  ASSERT_TRUE(node_->driver().Publish(absl::InfiniteFuture()).ok());
  ASSERT_TRUE(node_->RestartDriver().ok());
  ASSERT_TRUE(node_->driver().Publish(absl::InfiniteFuture()).ok());
  EXPECT_EQ(node_->store().writes(), 1);
  node_->store().SetSlices({});  // as the kubelet does when the driver is away
  ASSERT_TRUE(Eventually([&] {
    return node_->driver().Publish(absl::InfiniteFuture()).ok() && node_->store().writes() == 2;
  }));
  EXPECT_NE(node_->slice(), "");
}

TEST_F(DraTest, AClaimIsPreparedAndUnprepared) {
  ASSERT_TRUE(node_->driver().Publish(absl::InfiniteFuture()).ok());
  node_->store().SetClaims(
      {ClaimText(One(), kDevice0, 600, kPodA), ClaimText(Two(), kDevice1, 10, kPodB)});
  const auto prepared = Prepare({One()});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  ASSERT_EQ(prepared->claims_size(), 1);
  const auto& claim = prepared->claims().at(One().uid);
  EXPECT_EQ(claim.error(), "");
  ASSERT_EQ(claim.devices_size(), 1);
  EXPECT_EQ(claim.devices(0).pool_name(), "node-1");
  EXPECT_EQ(claim.devices(0).device_name(), kDevice0);
  EXPECT_THAT(claim.devices(0).request_names(), ElementsAre("gpu"));
  EXPECT_THAT(claim.devices(0).cdi_device_ids(),
              ElementsAre(absl::StrCat("gpumem.dev/claim=", One().uid),
                          absl::StrCat("nvidia.com/gpu=", kGpu0)));
  // Its tenant alone: the pod of the other claim may be far from its start.
  ExpectTenants({{kTenantA, {{kGpu0, 600}}}});
  std::ifstream file(node_->CdiFile(One().uid));
  const json spec = json::parse(file);
  const json& edits = spec["devices"][0]["containerEdits"];
  EXPECT_EQ(edits["mounts"][0]["hostPath"], node_->daemon().runtime_dir());
  EXPECT_EQ(edits["env"][0], "GPUMEM_RUNTIME_DIR=/run/gpumem");
  EXPECT_FALSE(HasFile(Two()));

  const auto again = Prepare({One(), Two()});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->claims().at(One().uid).SerializeAsString(), claim.SerializeAsString());
  ExpectTenants({{kTenantA, {{kGpu0, 600}}}, {kTenantB, {{kGpu1, 10}}}});

  // The pod has ended: its claim is unprepared, and then deleted.
  EXPECT_THAT(*Unprepare({One()}), ElementsAre(Pair(One().uid, "")));
  EXPECT_FALSE(HasFile(One()));
  EXPECT_TRUE(HasFile(Two()));
  EXPECT_THAT(*Unprepare({One()}), ElementsAre(Pair(One().uid, "")));
  node_->store().SetClaims({ClaimText(Two(), kDevice1, 10, kPodB)});
  ASSERT_TRUE(node_->Round().ok());
  ExpectTenants({{kTenantB, {{kGpu1, 10}}}});
}

TEST_F(DraTest, RestartsLoseNothing) {
  ASSERT_TRUE(node_->driver().Publish(absl::InfiniteFuture()).ok());
  node_->store().SetClaims({ClaimText(One(), kDevice0, 600, kPodA)});
  const auto first = Prepare({One()});
  ASSERT_TRUE(first.ok()) << first.status();

  // The driver is replaced. The kubelet registers it again, and asks again.
  ASSERT_TRUE(node_->RestartDriver().ok());
  ASSERT_TRUE(node_->Register().ok());
  const auto second = Prepare({One()});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->claims().at(One().uid).SerializeAsString(),
            first->claims().at(One().uid).SerializeAsString());

  // So is gpumemd, in the middle of the driver's life. Without a keeper it begins anew.
  ASSERT_TRUE(node_->KillAndRunDaemon().ok());
  node_->store().SetClaims(
      {ClaimText(One(), kDevice0, 600, kPodA), ClaimText(Two(), kDevice0, 100, kPodB)});
  const auto third = Prepare({Two()});
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(third->claims().at(Two().uid).error(), "");
  ASSERT_TRUE(node_->Round().ok());
  ExpectTenants({{kTenantA, {{kGpu0, 600}}}, {kTenantB, {{kGpu0, 100}}}});

  // The next driver unprepares what an earlier one has prepared, though the claims are gone.
  node_->store().SetClaims({});
  ASSERT_TRUE(node_->RestartDriver().ok());
  ASSERT_TRUE(node_->Register().ok());
  EXPECT_THAT(*Unprepare({One(), Two()}), ElementsAre(Pair(One().uid, ""), Pair(Two().uid, "")));
  EXPECT_FALSE(HasFile(One()) || HasFile(Two()));
}

TEST_F(DraTest, BothVersionsSayTheSame) {
  node_->store().SetClaims({ClaimText(One(), kDevice0, 600, kPodA)});
  const auto prepared = Prepare({One(), Two()});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const auto stub = v1beta1::DRAPlugin::NewStub(node_->channel());
  grpc::ClientContext first, second;
  v1beta1::NodePrepareResourcesResponse response;
  ASSERT_TRUE(
      stub->NodePrepareResources(
              &first, RequestOf<v1beta1::NodePrepareResourcesRequest>({One(), Two()}), &response)
          .ok());
  ASSERT_EQ(response.claims_size(), 2);
  for (const ClaimName& name : {One(), Two()}) {
    EXPECT_EQ(response.claims().at(name.uid).SerializeAsString(),
              prepared->claims().at(name.uid).SerializeAsString());
  }
  v1beta1::NodeUnprepareResourcesResponse unprepared;
  ASSERT_TRUE(
      stub->NodeUnprepareResources(
              &second, RequestOf<v1beta1::NodeUnprepareResourcesRequest>({One()}), &unprepared)
          .ok());
  EXPECT_EQ(unprepared.claims().at(One().uid).error(), "");
  EXPECT_FALSE(HasFile(One()));
}

TEST_F(DraTest, ErrorsAreOfTheirClaimAlone) {
  node_->store().SetClaims({ClaimText(One(), kDevice0, 600, kPodA)});
  const ClaimName wrong{"team", "wrong", "../../../tmp/x"};
  const auto prepared = Prepare({One(), Two(), wrong});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->claims().at(One().uid).error(), "");
  EXPECT_THAT(prepared->claims().at(Two().uid).error(), HasSubstr("team/two"));
  EXPECT_THAT(prepared->claims().at(wrong.uid).error(), HasSubstr("UUID"));
  EXPECT_THAT(prepared->claims().at(wrong.uid).devices(), IsEmpty());
  const auto unprepared = Unprepare({One(), Two(), wrong});
  ASSERT_TRUE(unprepared.ok()) << unprepared.status();
  EXPECT_THAT(*unprepared, UnorderedElementsAre(Pair(One().uid, ""), Pair(Two().uid, ""),
                                                Pair(wrong.uid, HasSubstr("UUID"))));
}

TEST_F(DraTest, AGuaranteeThatDoesNotFitIsRefusedUntilItDoes) {
  ASSERT_TRUE(node_->driver().Publish(absl::InfiniteFuture()).ok());
  const std::string one = ClaimText(One(), kDevice0, 600, kPodA);
  const std::string two = ClaimText(Two(), kDevice0, 1000, kPodB);
  node_->store().SetClaims({one});
  EXPECT_EQ(ErrorOf(One()), "");
  node_->store().SetClaims({one, two});
  EXPECT_THAT(ErrorOf(Two()), HasSubstr(kTenantB));
  EXPECT_FALSE(HasFile(Two()));
  ExpectTenants({{kTenantA, {{kGpu0, 600}}}});
  // The scheduler has given the memory to the next pod, and the first one's tenant is still there:
  // the kubelet would try again only after a minute.
  node_->store().SetClaims({two});
  EXPECT_EQ(ErrorOf(Two()), "");
  ExpectTenants({{kTenantB, {{kGpu0, 1000}}}});
  EXPECT_TRUE(HasFile(Two()));
}

// 60 pods come and go while rounds end the tenants of earlier ones, at the same time as the next
// pods' claims are prepared. No round ends or changes a tenant that a request has just made.
TEST_F(DraTest, RoundsAndRequestsGoTogether) {
  ASSERT_TRUE(node_->driver().Publish(absl::InfiniteFuture()).ok());
  constexpr int kPods = 60, kAlive = 5, kMib = 200;  // as many as fit on the GPU
  std::jthread rounds([&](const std::stop_token& end) {
    while (!end.stop_requested()) (void)node_->Round();
  });
  std::deque<int> alive;
  const auto name_of = [](int pod) {
    return ClaimName{"team", absl::StrCat("claim-", pod),
                     absl::StrFormat("%08d-2a99-45ad-af94-d91eb81a87e9", pod)};
  };
  const auto tenant_of = [&](int pod) { return absl::StrCat("pod-", name_of(pod).uid); };
  for (int pod = 1; pod <= kPods; ++pod) {
    if (alive.size() == kAlive) {
      EXPECT_THAT(*Unprepare({name_of(alive.front())}),
                  ElementsAre(Pair(name_of(alive.front()).uid, "")));
      alive.pop_front();
    }
    alive.push_back(pod);
    std::vector<std::string> claims;
    for (const int one : alive) {
      claims.push_back(ClaimText(name_of(one), kDevice0, kMib, name_of(one).uid));
    }
    node_->store().SetClaims(claims);
    // Refused until a round has ended the tenant of the pod that has gone.
    ASSERT_TRUE(Eventually([&] { return ErrorOf(name_of(pod)).empty(); }, kPatience)) << pod;
    const auto tenants = node_->Tenants();
    ASSERT_TRUE(tenants.ok()) << tenants.status();
    for (const int one : alive) {
      ASSERT_TRUE(tenants->contains(tenant_of(one))) << one << ", " << pod;
      EXPECT_THAT(tenants->at(tenant_of(one)), ElementsAre(Pair(kGpu0, kMib)));
    }
  }
  rounds.request_stop();
  rounds.join();
  ASSERT_TRUE(node_->Round().ok());
  const auto tenants = node_->Tenants();
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  EXPECT_EQ(tenants->size(), static_cast<size_t>(kAlive));
}

TEST_F(DraTest, TheProgramDoesAllOfIt) {
  node_->store().SetClaims({ClaimText(One(), kDevice0, 600, kPodA)});
  Child program = node_->RunProgram();
  ASSERT_TRUE(Eventually([&] { return node_->Register().ok(); }, kPatience));
  const auto prepared = Prepare({One()});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->claims().at(One().uid).error(), "");
  EXPECT_TRUE(HasFile(One()));
  ExpectTenants({{kTenantA, {{kGpu0, 600}}}});
  EXPECT_TRUE(Eventually([&] { return !node_->slice().empty(); }, kPatience));

  // It is killed. The next one adopts all of it.
  program.Signal(SIGKILL);
  program.Wait();
  program = node_->RunProgram();
  ASSERT_TRUE(
      Eventually([&] { return node_->Register().ok() && Prepare({One()}).ok(); }, kPatience));
  EXPECT_THAT(*Unprepare({One()}), ElementsAre(Pair(One().uid, "")));
  EXPECT_FALSE(HasFile(One()));
  node_->store().SetClaims({});
  EXPECT_TRUE(Eventually(
      [&] {
        const auto tenants = node_->Tenants();
        return tenants.ok() && tenants->empty();
      },
      kPatience));
  EXPECT_EQ(node_->store().writes(), 1);

  // It leaves no socket behind by which the kubelet would ask it.
  program.Signal(SIGTERM);
  EXPECT_EQ(program.Wait(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(node_->dir() + "/registry"));
}

TEST_F(DraTest, PeersThatAreAwayFailTheCall) {
  node_->store().SetClaims({ClaimText(One(), kDevice0, 600, kPodA)});
  node_->StopApiServer();
  EXPECT_TRUE(absl::IsUnavailable(Prepare({One()}).status()));
  EXPECT_TRUE(absl::IsUnavailable(node_->driver().Publish(absl::InfiniteFuture())));
  EXPECT_FALSE(HasFile(One()));
  node_->StartApiServer();
  EXPECT_EQ(ErrorOf(One()), "");
  // Nothing of it is needed to unprepare.
  node_->StopApiServer();
  EXPECT_THAT(*Unprepare({One()}), ElementsAre(Pair(One().uid, "")));
}

TEST_F(DraTest, ClaimsAreUnpreparedWhileTheApiServerHangs) {
  node_->store().SetClaims({ClaimText(One(), kDevice0, 600, kPodA)});
  EXPECT_EQ(ErrorOf(One()), "");
  absl::BlockingCounter asked(2);
  absl::Notification end;
  std::atomic<int> requests = 0;
  node_->api_server().Handle([&](const kubernetes::FakeApiServer::Request& request) {
    if (!request.watch && ++requests <= 2) asked.DecrementCount();
    end.WaitForNotification();
    return kubernetes::FakeApiServer::Answer{503, "{}"};
  });
  std::jthread publisher([&] { (void)node_->driver().Publish(absl::InfiniteFuture()); });
  std::jthread preparer([&] { (void)Prepare({Two()}); });
  asked.Wait();
  const absl::Time begin = absl::Now();
  EXPECT_THAT(*Unprepare({One()}), ElementsAre(Pair(One().uid, "")));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20)) << "the others wait for 30 s";
  end.Notify();
}

TEST_F(DraTest, RequestsAreBounded) {
  std::vector<ClaimName> names(kubernetes::kMostNamed + 1, One());
  EXPECT_TRUE(absl::IsResourceExhausted(Prepare(names).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(Unprepare(names).status()));
  ClaimName large = One();
  large.name = std::string(2 << 20, 'a');
  EXPECT_TRUE(absl::IsResourceExhausted(Prepare({large}).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      node_->driver().PrepareClaims({}, absl::Now() - absl::Seconds(1)).status()));
}

TEST_F(DraTest, OnlyItsOwnerMayEnterTheDriversFolder) {
  struct stat folder = {};
  ASSERT_EQ(stat((node_->dir() + "/driver").c_str(), &folder), 0);
  EXPECT_EQ(folder.st_mode & 0777, 0700u);
}

}  // namespace
}  // namespace gpumem::testing
