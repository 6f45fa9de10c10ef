// SPDX-License-Identifier: Apache-2.0
// Operators tell a real gpumemd of pods: what it takes, what it refuses, and what it forgets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/kubernetes/node.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::DaemonProcess;
using ::testing::IsEmpty;
using ::testing::SizeIs;

void AddLabel(const std::string& key, const std::string& value, v1::PodFacts* pod) {
  v1::PodLabel& label = *pod->add_labels();
  label.set_key(key);
  label.set_value(value);
}

v1::PodFacts PodOf(int number) {
  v1::PodFacts pod;
  pod.set_uid(absl::StrFormat("%08d-2a99-45ad-af94-d91eb81a87e9", number));
  pod.set_namespace_("team");
  pod.set_name(absl::StrCat("pod-", number));
  AddLabel("tier", "prod", &pod);
  return pod;
}

v1::SetPodsRequest ListOf(const std::string& owner, int pods) {
  v1::SetPodsRequest request;
  request.set_owner(owner);
  request.set_revision("1");
  for (int number = 0; number < pods; ++number) *request.add_pods() = PodOf(number);
  return request;
}

class SetPodsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon =
        DaemonProcess::Start({.config = "[daemon]\nadmin_socket_mode = \"0666\"\n"
                                        "[[rule]]\ntenant = \"user-{uid}\"\ndefault = true\n"});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    node_ = std::make_unique<kubernetes::Node>(
        kubernetes::NodeOptions{.runtime_dir = daemon_->runtime_dir()});
  }
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<kubernetes::Node> node_;
};

TEST_F(SetPodsTest, ListsAreKeptUntilTheDaemonEnds) {
  ASSERT_TRUE(node_->SetPods(ListOf("a", 3)).ok());
  ASSERT_TRUE(node_->SetPods(ListOf("b", 1)).ok());
  ASSERT_TRUE(node_->SetPods(ListOf("a", 2)).ok());
  const auto known = node_->Pods();
  ASSERT_TRUE(known.ok()) << known.status();
  ASSERT_THAT(known->lists(), SizeIs(2));
  EXPECT_EQ(known->lists(0).owner(), "b");
  EXPECT_EQ(known->lists(1).owner(), "a");
  EXPECT_EQ(known->lists(1).revision(), "1");
  EXPECT_EQ(known->lists(1).pod_count(), 2u);
  EXPECT_THAT(known->lists(1).pods(), IsEmpty()) << "not asked for";
  ASSERT_TRUE(node_->SetPods(ListOf("b", 0)).ok());
  EXPECT_THAT(node_->Pods()->lists(), SizeIs(1));
  ASSERT_TRUE(daemon_->Restart().ok());
  EXPECT_THAT(node_->Pods()->lists(), IsEmpty());
}

TEST_F(SetPodsTest, WhatMakesNoSenseIsRefusedAsAWhole) {
  ASSERT_TRUE(node_->SetPods(ListOf("a", 1)).ok());
  v1::SetPodsRequest twice = ListOf("a", 2);
  *twice.add_pods() = PodOf(0);
  EXPECT_TRUE(absl::IsInvalidArgument(node_->SetPods(twice)));
  v1::SetPodsRequest no_uuid = ListOf("a", 2);
  no_uuid.mutable_pods(1)->set_uid("../../etc");
  EXPECT_TRUE(absl::IsInvalidArgument(node_->SetPods(no_uuid)));
  v1::SetPodsRequest label = ListOf("a", 2);
  AddLabel("other", "a b", label.mutable_pods(1));
  EXPECT_TRUE(absl::IsInvalidArgument(node_->SetPods(label)));
  v1::SetPodsRequest labels = ListOf("a", 2);
  AddLabel("tier", "test", labels.mutable_pods(1));
  EXPECT_TRUE(absl::IsInvalidArgument(node_->SetPods(labels)));
  EXPECT_TRUE(absl::IsInvalidArgument(node_->SetPods(ListOf("", 1))));
  EXPECT_TRUE(absl::IsInvalidArgument(node_->SetPods(ListOf(std::string(33, 'a'), 1))));
  EXPECT_EQ(node_->Pods()->lists(0).pod_count(), 1u);
}

TEST_F(SetPodsTest, HugeListsAreRefused) {
  EXPECT_TRUE(node_->SetPods(ListOf("a", 2048)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(node_->SetPods(ListOf("a", 2049))));
  v1::SetPodsRequest flood = ListOf("a", 1);
  for (int i = 0; i < 1000; ++i) {
    AddLabel(absl::StrCat("l", i), "", flood.mutable_pods(0));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(node_->SetPods(flood)));
  v1::SetPodsRequest large = ListOf("a", 2000);
  for (v1::PodFacts& pod : *large.mutable_pods()) {
    for (int i = 0; i < 20; ++i) AddLabel(absl::StrCat("l", i), "value", &pod);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(node_->SetPods(large))) << "4 MiB of texts";
  v1::SetPodsRequest huge = ListOf("a", 1);
  huge.mutable_pods(0)->set_name(std::string(6 << 20, 'a'));
  EXPECT_TRUE(absl::IsResourceExhausted(node_->SetPods(huge))) << "of gRPC";
  for (const char* owner : {"b", "c", "d"}) EXPECT_TRUE(node_->SetPods(ListOf(owner, 1)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(node_->SetPods(ListOf("e", 1))));
  EXPECT_EQ(node_->Pods()->lists(0).pod_count(), 2048u);
}

TEST_F(SetPodsTest, OnlyOperatorsTellOfPods) {
  if (!testing::CanBeOtherUsers()) GTEST_SKIP() << "being another user takes root";
  chmod(std::filesystem::path(daemon_->runtime_dir()).parent_path().c_str(), 0755);
  Child other = Child::Self({"--tell", daemon_->runtime_dir()});
  EXPECT_EQ(other.Wait(), static_cast<int>(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(node_->Pods()->lists(), IsEmpty());
}

}  // namespace

int TellAsNobody(const std::string& runtime_dir) {
  constexpr uid_t kNobody = 65534;
  if (setgid(kNobody) != 0 || setuid(kNobody) != 0) return 100;
  kubernetes::Node node({.runtime_dir = runtime_dir});
  return static_cast<int>(node.SetPods(ListOf("a", 1)).code());
}

}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--tell") return gpumem::TellAsNobody(argv[2]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
