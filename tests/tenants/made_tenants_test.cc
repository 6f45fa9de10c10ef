// SPDX-License-Identifier: Apache-2.0
// Tenants that are made at run time, with a real daemon under gpumem-keeper: by an operator over
// the admin socket, and by programs under their own tenant. The daemon is killed meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/kept_daemon.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::ChannelTo;
using testing::Child;
using testing::ContextWith;
using testing::Eventually;
using testing::Hear;
using testing::KeptDaemon;

constexpr absl::Duration kTimeout = absl::Seconds(60);

constexpr char kConfig[] = R"([host]
device_bytes = "64MiB"
[[tenant]]
name = "team"
limit = "48MiB"
[[rule]]
tenant = "job"
made = true
default = true
[[rule]]
tenant = "team"
default = true
)";

class MadeTenantsTest : public ::testing::Test {
 protected:
  using Stub = v1::Admin::Stub;

  void SetUp() override {
    auto daemon = KeptDaemon::Start({.config = kConfig});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }

  absl::StatusOr<std::unique_ptr<Client>> TryConnect(const std::string& tenant = "") {
    return Client::Connect(
        {.runtime_dir = daemon_->runtime_dir(), .tenant = tenant, .timeout = kTimeout});
  }
  std::unique_ptr<Client> Connect(const std::string& tenant = "") {
    auto client = TryConnect(tenant);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request) {
    Response response;
    Stub stub(ChannelTo(absl::StrCat(daemon_->runtime_dir(), "/admin.sock")));
    const grpc::Status status = (stub.*method)(ContextWith().get(), request, &response);
    if (status.ok()) return response;
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }
  absl::Status Create(const std::string& tenant, uint64_t limit, const std::string& parent = "") {
    v1::CreateTenantRequest request;
    request.set_tenant(tenant);
    request.set_parent(parent);
    request.set_owner("slurm");
    request.mutable_quota()->set_limit_bytes(limit);
    return Call(&Stub::CreateTenant, request).status();
  }
  absl::StatusOr<v1::EndTenantResponse> End(const std::string& tenant, absl::Duration wait) {
    v1::EndTenantRequest request;
    request.set_tenant(tenant);
    request.set_owner("slurm");
    request.set_wait_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(wait)));
    return Call(&Stub::EndTenant, request);
  }
  static Segment Acquire(Client& client, uint64_t mib) {
    auto segment = client.Acquire({.bytes = mib * kMiB});
    EXPECT_TRUE(segment.ok()) << segment.status();
    return segment.ok() ? *std::move(segment) : Segment();
  }
  static absl::StatusCode Asks(Client& client, uint64_t mib) {
    return client.Acquire({.bytes = mib * kMiB}).status().code();
  }

  std::unique_ptr<KeptDaemon> daemon_;
};

TEST_F(MadeTenantsTest, AnOperatorsTenantHoldsItsLimitAndOutlivesTheDaemon) {
  EXPECT_EQ(Connect()->tenant(), "team") << "there is no job yet";
  ASSERT_EQ(Create("job", 16 * kMiB, "team"), absl::OkStatus());
  ASSERT_EQ(Create("job", 16 * kMiB, "team"), absl::OkStatus()) << "once more";
  EXPECT_TRUE(absl::IsAlreadyExists(Create("job", 17 * kMiB, "team")));
  EXPECT_TRUE(absl::IsAlreadyExists(Create("team", 17 * kMiB)));
  const std::unique_ptr<Client> client = Connect();
  ASSERT_EQ(client->tenant(), "job");
  Segment held = Acquire(*client, 12);
  EXPECT_EQ(Asks(*client, 6), absl::StatusCode::kResourceExhausted);

  ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
  EXPECT_EQ(Asks(*client, 6), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Asks(*client, 4), absl::StatusCode::kOk);
  EXPECT_EQ(Connect()->tenant(), "job");
  auto tenants = Call(&Stub::ListTenants, v1::ListTenantsRequest());
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  ASSERT_EQ(tenants->tenants(0).usage().tenant(), "job");
  EXPECT_EQ(tenants->tenants(0).made().owner(), "slurm");
  EXPECT_EQ(tenants->tenants(0).made().parent(), "team");
  EXPECT_EQ(tenants->tenants(0).made().uid(), getuid());
  EXPECT_FALSE(tenants->tenants(1).has_made());

  // It ends, and what a living process holds is told.
  auto left = End("job", absl::Milliseconds(1));
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_FALSE(left->gone());
  ASSERT_EQ(left->devices_size(), 1);
  EXPECT_GE(left->devices(0).bytes(), 12 * kMiB);
  ASSERT_GE(left->sessions_size(), 1);
  EXPECT_EQ(left->sessions(0).pid(), getpid());
  EXPECT_EQ(Asks(*client, 1), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::IsFailedPrecondition(TryConnect().status()));
  ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
  EXPECT_EQ(Asks(*client, 1), absl::StatusCode::kFailedPrecondition) << "it has ended for good";

  EXPECT_EQ(held.Release(), absl::OkStatus());
  held = Segment();
  Connect("team");  // by the second rule
  left = End("job", absl::Milliseconds(1));
  EXPECT_TRUE(left.ok() && !left->gone()) << "the session";
}

TEST_F(MadeTenantsTest, EndingWaitsForTheLastSession) {
  ASSERT_EQ(Create("job", 16 * kMiB), absl::OkStatus());
  Child holder = Child::Self({"--hold", daemon_->runtime_dir()});
  ASSERT_EQ(Hear(holder.channel()), "holds as job");
  auto left = End("job", absl::ZeroDuration());
  ASSERT_TRUE(left.ok()) << left.status();
  ASSERT_EQ(left->sessions_size(), 1);
  EXPECT_EQ(left->sessions(0).pid(), holder.pid());
  holder.Signal(SIGKILL);
  left = End("job", kTimeout);
  // It may have gone before the second call.
  EXPECT_TRUE(left.ok() ? left->gone() : absl::IsNotFound(left.status())) << left.status();
  EXPECT_TRUE(absl::IsNotFound(End("job", absl::ZeroDuration()).status()));
  EXPECT_EQ(Connect()->tenant(), "team");
}

TEST_F(MadeTenantsTest, AProgramsTenantHoldsItsLimitAndEndsWithIt) {
  std::unique_ptr<Client> maker = Connect();
  auto made = maker->CreateTenant({.name = "run", .limits = {.limit_bytes = 8 * kMiB}});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(*made, absl::StrCat("team:", getuid(), ".run"));
  const std::unique_ptr<Client> inside = Connect(*made);
  ASSERT_NE(inside, nullptr);
  EXPECT_EQ(inside->tenant(), *made);
  setenv("GPUMEM_TENANT", made->c_str(), 1);
  EXPECT_EQ(Connect()->tenant(), *made);
  EXPECT_EQ(Connect("team")->tenant(), "team") << "what the program names goes first";
  unsetenv("GPUMEM_TENANT");
  const Segment held = Acquire(*inside, 6);
  EXPECT_EQ(Asks(*inside, 4), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(maker->UpdateTenant(*made, {.limit_bytes = 10 * kMiB}), absl::OkStatus());
  EXPECT_EQ(Asks(*inside, 4), absl::StatusCode::kOk);
  // The parent's limit counts it.
  Segment parents = Acquire(*maker, 40);
  EXPECT_EQ(Asks(*inside, 4), absl::StatusCode::kResourceExhausted);

  ASSERT_EQ(daemon_->Kill(), absl::OkStatus());
  EXPECT_EQ(Asks(*inside, 6), absl::StatusCode::kResourceExhausted);
  auto again = maker->CreateTenant({.name = "run", .limits = {.limit_bytes = 10 * kMiB}});
  EXPECT_TRUE(again.ok()) << again.status();
  const auto other = Connect()->CreateTenant({.name = "run"});
  EXPECT_TRUE(absl::IsAlreadyExists(other.status())) << other.status();

  auto ended = maker->EndTenant(*made);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->sessions, 1u);
  ASSERT_EQ(ended->device_bytes.size(), 1u);
  EXPECT_GE(ended->device_bytes.begin()->second, 6 * kMiB);
  EXPECT_EQ(Asks(*inside, 1), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(TryConnect(*made).ok());
  EXPECT_TRUE(maker->EndTenant("team:0.none")->gone);

  const std::string second = *maker->CreateTenant();
  const std::unique_ptr<Client> there = Connect(second);
  parents = Segment();  // which keeps the session
  maker.reset();
  EXPECT_TRUE(Eventually([&] { return Asks(*there, 1) == absl::StatusCode::kFailedPrecondition; },
                         kTimeout));
}

// Holds memory as any tenant until it is killed.
int Hold(const std::string& dir) {
  auto client = Client::Connect({.runtime_dir = dir, .timeout = kTimeout});
  if (!client.ok()) return 1;
  auto segment = (*client)->Acquire({.bytes = 4 * kMiB});
  if (!segment.ok()) return 2;
  testing::Say(testing::kParentChannel, "holds as " + (*client)->tenant());
  Hear(testing::kParentChannel);
  return 0;
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--hold") return gpumem::Hold(argv[2]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
