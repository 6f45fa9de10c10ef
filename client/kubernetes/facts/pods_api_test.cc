// SPDX-License-Identifier: Apache-2.0
#include "client/kubernetes/facts/pods_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/kubernetes/facts/testing/fake_pods_api.h"

namespace gpumem::kubernetes {
namespace pods_api_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr absl::Duration kTimeout = absl::Minutes(1);

class PodsApiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Not in the test's folder: names of sockets have at most 107 characters.
    char dir[] = "/tmp/gpumem-pods-api-XXXXXX";
    ASSERT_NE(mkdtemp(dir), nullptr);
    dir_ = dir;
    socket_ = dir_ + "/pods-api.sock";
  }
  ~PodsApiTest() override {
    unlink(socket_.c_str());
    rmdir(dir_.c_str());
  }
  static ::v1alpha1::Pod PodOf(int number) {
    ::v1alpha1::Pod pod;
    pod.mutable_metadata()->set_name(absl::StrCat("pod-", number));
    pod.mutable_metadata()->set_namespace_("team");
    pod.mutable_metadata()->set_uid(absl::StrFormat("%08d-2a99-45ad-af94-d91eb81a87e9", number));
    return pod;
  }
  std::string dir_, socket_;
};

TEST_F(PodsApiTest, FactsAreRead) {
  FakePodsApi kubelet(socket_);
  ::v1alpha1::Pod pod = PodOf(2);
  (*pod.mutable_metadata()->mutable_labels())["tier"] = "prod";
  pod.mutable_spec()->set_service_account_name("runner");
  pod.mutable_spec()->add_resource_claims()->set_resource_claim_name("shared");
  pod.mutable_spec()->add_resource_claims();
  pod.mutable_status()->set_phase("Running");
  pod.mutable_status()->add_resource_claim_statuses()->set_resource_claim_name("own");
  pod.mutable_status()->mutable_extended_resource_claim_status()->set_resource_claim_name("more");
  ::v1alpha1::Pod of_file = PodOf(1);
  of_file.mutable_metadata()->set_uid(std::string(32, '0'));
  kubelet.Set({pod, of_file});
  const auto list = ListPodsOfKubelet(socket_, kTimeout);
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->problems, IsEmpty());
  ASSERT_THAT(list->pods, SizeIs(2));
  EXPECT_EQ(list->pods[0].uid, std::string(32, '0'));
  const Pod& read = list->pods[1];
  EXPECT_EQ(read.name_space, "team");
  EXPECT_EQ(read.name, "pod-2");
  EXPECT_EQ(read.service_account, "runner");
  EXPECT_EQ(read.phase, "Running");
  EXPECT_THAT(read.labels, ElementsAre(Pair("tier", "prod")));
  EXPECT_THAT(read.claims, ElementsAre("more", "own", "shared"));
}

// The bytes of a pod as a kubelet writes them: fields by Kubernetes' numbers, others between them.
TEST_F(PodsApiTest, NumbersAreThoseOfKubernetes) {
  const auto field = [](int number, const std::string& bytes) {
    const auto varint = [](size_t value) {
      std::string text;
      for (; value >= 128; value /= 128) text += static_cast<char>(value % 128 + 128);
      return text + static_cast<char>(value);
    };
    return absl::StrCat(varint(static_cast<size_t>(number) * 8 + 2), varint(bytes.size()), bytes);
  };
  const std::string metadata = absl::StrCat(
      field(1, "infer"), field(2, "infer-"), field(3, "team"),
      field(5, "099b88fb-2a99-45ad-af94-d91eb81a87e9"), field(6, "77"),
      field(11, field(1, "tier") + field(2, "prod")), field(12, field(1, "note") + field(2, "x")));
  const std::string spec =
      absl::StrCat(field(2, field(1, "main")), field(8, "runner"), field(10, "node-1"),
                   field(39, field(1, "gpu") + field(3, "shared")),
                   field(39, field(1, "own") + field(4, "template")));
  const std::string status =
      absl::StrCat(field(1, "Running"), field(15, field(1, "own") + field(2, "own-x")),
                   field(18, field(2, "extended")));
  ::v1alpha1::WatchPodsEvent event;
  event.set_type(::v1alpha1::ADDED);
  event.set_pod(absl::StrCat(field(1, metadata), field(2, spec), field(3, status)));
  std::vector<::v1alpha1::WatchPodsEvent> events = {event};
  events.emplace_back().set_type(::v1alpha1::INITIAL_SYNC_COMPLETE);
  FakePodsApi kubelet(socket_);
  kubelet.SetEvents(events);
  const auto list = ListPodsOfKubelet(socket_, kTimeout);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_THAT(list->pods, SizeIs(1));
  EXPECT_EQ(list->pods[0], (Pod{.uid = "099b88fb-2a99-45ad-af94-d91eb81a87e9",
                                .name_space = "team",
                                .name = "infer",
                                .service_account = "runner",
                                .phase = "Running",
                                .labels = {{"tier", "prod"}},
                                .claims = {"extended", "own-x", "shared"}}));
}

TEST_F(PodsApiTest, ChangesDuringTheListCount) {
  FakePodsApi kubelet(socket_);
  ::v1alpha1::Pod changed = PodOf(2);
  changed.mutable_status()->set_phase("Running");
  std::vector<::v1alpha1::WatchPodsEvent> events = {
      FakePodsApi::Event(::v1alpha1::ADDED, PodOf(1)),
      FakePodsApi::Event(::v1alpha1::ADDED, PodOf(2)),
      FakePodsApi::Event(::v1alpha1::DELETED, PodOf(1)),
      FakePodsApi::Event(::v1alpha1::MODIFIED, changed)};
  events.emplace_back().set_type(::v1alpha1::INITIAL_SYNC_COMPLETE);
  kubelet.SetEvents(events);
  const auto list = ListPodsOfKubelet(socket_, kTimeout);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_THAT(list->pods, SizeIs(1));
  EXPECT_EQ(list->pods[0].phase, "Running");
}

TEST_F(PodsApiTest, PodsThatMakeNoSenseDoNotHideOthers) {
  FakePodsApi kubelet(socket_);
  ::v1alpha1::Pod bad = PodOf(1);
  bad.mutable_metadata()->set_namespace_("../x");
  ::v1alpha1::Pod flood = PodOf(2);
  for (size_t i = 0; i <= kMostLabels; ++i) {
    (*flood.mutable_metadata()->mutable_labels())[absl::StrCat("l", i)] = "";
  }
  std::vector<::v1alpha1::WatchPodsEvent> events = {
      FakePodsApi::Event(::v1alpha1::ADDED, bad), FakePodsApi::Event(::v1alpha1::ADDED, flood),
      FakePodsApi::Event(::v1alpha1::ADDED, PodOf(3))};
  events.emplace_back().set_type(::v1alpha1::ADDED);
  events.back().set_pod("\xff");
  events.emplace_back().set_type(::v1alpha1::INITIAL_SYNC_COMPLETE);
  kubelet.SetEvents(events);
  const auto list = ListPodsOfKubelet(socket_, kTimeout);
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_THAT(list->pods, SizeIs(1));
  EXPECT_EQ(list->pods[0].name, "pod-3");
  EXPECT_THAT(list->problems, SizeIs(3));
}

TEST_F(PodsApiTest, AnswersAreBoundedInSizeAndTime) {
  FakePodsApi kubelet(socket_);
  ::v1alpha1::Pod large = PodOf(1);
  (*large.mutable_metadata()->mutable_labels())["a"] = std::string(9 << 20, 'a');
  kubelet.Set({large});
  EXPECT_TRUE(absl::IsResourceExhausted(ListPodsOfKubelet(socket_, kTimeout).status()));
  std::vector<::v1alpha1::WatchPodsEvent> events(2 * kMostPods + 1,
                                                 FakePodsApi::Event(::v1alpha1::ADDED, PodOf(1)));
  kubelet.SetEvents(events);
  EXPECT_TRUE(absl::IsResourceExhausted(ListPodsOfKubelet(socket_, kTimeout).status()));
  kubelet.SetEvents({FakePodsApi::Event(::v1alpha1::ADDED, PodOf(1))});
  const auto late = ListPodsOfKubelet(socket_, absl::Milliseconds(200));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << "without an end: " << late.status();
}

TEST_F(PodsApiTest, OtherKubeletsAreReported) {
  EXPECT_TRUE(absl::IsUnavailable(ListPodsOfKubelet(socket_, kTimeout).status()));
  FakePodsApi kubelet(socket_);
  // Before 1.37 ADDED was 0.
  kubelet.SetEvents({FakePodsApi::Event(::v1alpha1::UNSPECIFIED, PodOf(1))});
  EXPECT_TRUE(absl::IsUnimplemented(ListPodsOfKubelet(socket_, kTimeout).status()));
  kubelet.SetEvents({});
  kubelet.Refuse(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "not yet"));
  const auto early = ListPodsOfKubelet(socket_, kTimeout);
  EXPECT_TRUE(absl::IsFailedPrecondition(early.status())) << early.status();
  EXPECT_EQ(early.status().message(), "not yet");
}

}  // namespace pods_api_test
}  // namespace gpumem::kubernetes
