// SPDX-License-Identifier: Apache-2.0
// Unbrokered memory, on a real gpumemd. The host backend has no driver that counts it, so a file
// stands in for the driver (daemon/device/process_memory.h). tests/gpu/unbrokered_test.cc tests the
// driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "common/unix_channel.h"
#include "gpumem/client.h"
#include "proto/gpumem/v1/admin.grpc.pb.h"
#include "tests/support/child.h"
#include "tests/support/daemon_process.h"
#include "tests/support/expect_denial.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using testing::Child;
using testing::DaemonProcess;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::Hear;
using testing::kParentChannel;
using ::testing::Not;
using testing::Say;

std::string Config(const std::string& reaction) {
  return absl::StrCat(R"(
[host]
device_bytes = "64MiB"
[unbrokered]
context_allowance = "100MiB"
tolerance = "10MiB"
interval = "10ms"
reaction = ")",
                      reaction, R"("
[[tenant]]
name = "team"
[[tenant]]
name = "other"
[[rule]]
tenant = "team"
default = true
[[rule]]
tenant = "other"
default = true
)");
}

class Unbrokered : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = DaemonProcess::Start({.config = Config("report")});
    ASSERT_OK(daemon);
    daemon_ = *std::move(daemon);
    admin_ = v1::Admin::NewStub(testing::ChannelTo(daemon_->Socket("admin.sock")));
    device_ = Status().devices(0).device_uuid();
  }

  // A process with a session.
  Child Worker(const std::string& tenant) {
    Child child = Child::Self({"--role", daemon_->runtime_dir(), tenant});
    EXPECT_EQ(Hear(child.channel()), "ready");
    return child;
  }

  // Sets the answer of the driver's stand-in: bytes by pid.
  void Use(const std::map<pid_t, uint64_t>& processes) {
    const std::string path = daemon_->Socket("host-process-memory");
    std::ofstream file(path + ".new");
    for (const auto& [pid, bytes] : processes)
      file << device_ << ' ' << pid << ' ' << bytes << '\n';
    file.close();
    ASSERT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
  }

  v1::GetStatusResponse Status() {
    v1::GetStatusResponse status;
    EXPECT_TRUE(admin_->GetStatus(testing::ContextWith().get(), {}, &status).ok());
    return status;
  }
  uint64_t UnbrokeredOf(const std::string& tenant) {
    v1::GetQuotaRequest request;
    request.set_tenant(tenant);
    v1::GetQuotaResponse response;
    admin_->GetQuota(testing::ContextWith().get(), request, &response);
    return response.usage().devices().empty() ? 0 : response.usage().devices(0).unbrokered_bytes();
  }
  uint64_t UnbrokeredOf(const Child& child) {
    v1::ListSessionsResponse sessions;
    EXPECT_TRUE(admin_->ListSessions(testing::ContextWith().get(), {}, &sessions).ok());
    for (const v1::SessionInfo& session : sessions.sessions()) {
      if (session.pid() == child.pid()) return session.unbrokered_bytes();
    }
    return 0;
  }
  bool Logs(const std::string& words) {
    return Eventually([&] { return daemon_->Log().find(words) != std::string::npos; });
  }

  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::string device_;
};

TEST_F(Unbrokered, IsShownByTenantAndSessionAndWhoHasNoneIsShownToOperators) {
  const Child worker = Worker("team");
  Use({{worker.pid(), 150 * kMiB}, {getpid(), 7 * kMiB}, {0, kMiB}});
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf("team") == 50 * kMiB; }));
  EXPECT_EQ(UnbrokeredOf(worker), 50 * kMiB);
  EXPECT_EQ(UnbrokeredOf("other"), 0u);
  const v1::GetStatusResponse status = Status();
  ASSERT_EQ(status.foreign_processes_size(), 2);
  EXPECT_EQ(status.foreign_processes(0).pid(), getpid());
  EXPECT_EQ(status.foreign_processes(0).bytes(), 7 * kMiB);
  EXPECT_EQ(status.foreign_processes(0).device_uuid(), device_);
  EXPECT_THAT(status.foreign_processes(0).command(), Not(::testing::IsEmpty()));
  EXPECT_EQ(status.foreign_processes(1).pid(), 0);
  EXPECT_TRUE(Logs(absl::StrCat("(pid ", worker.pid(), ", session ")));
  EXPECT_THAT(daemon_->Log(), HasSubstr("has taken 50.00 MiB of "));
  // It is reported, and that is all.
  auto client = daemon_->Connect("team");
  ASSERT_OK(client);
  EXPECT_OK((*client)->Acquire({.bytes = 2 * kMiB}));
  Use({});
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf("team") == 0; }));
  EXPECT_EQ(Status().foreign_processes_size(), 0);
}

// A process that charges its driver's memory is charged for what the driver takes beyond it, too.
TEST_F(Unbrokered, IsChargedBesideMemoryOfTheProcessesDriver) {
  auto client = daemon_->Connect("team");
  ASSERT_OK(client);
  auto charge = (*client)->Acquire({.bytes = 10 * kMiB, .kind = Kind::kDriver});
  ASSERT_OK(charge);
  const auto charged = [&] {
    const auto usage = (*client)->GetUsage();
    return usage.ok() ? usage->devices.at(0).charged_bytes : 0;
  };
  Use({{getpid(), 26 * kMiB}});
  ASSERT_TRUE(Eventually([&] { return charged() == 26 * kMiB; })) << charged();
  EXPECT_EQ(UnbrokeredOf("team"), 0u);
  EXPECT_EQ((*client)->Acquire({.bytes = 40 * kMiB}).status().code(),
            absl::StatusCode::kResourceExhausted);
  Use({{getpid(), 3 * kMiB}});  // a part of the charge is not used yet
  EXPECT_TRUE(Eventually([&] { return charged() == 10 * kMiB; })) << charged();
  EXPECT_OK((*client)->Acquire({.bytes = 40 * kMiB}));
  Use({{getpid(), 26 * kMiB}});
  ASSERT_TRUE(Eventually([&] { return charged() == 26 * kMiB; })) << charged();
  ASSERT_OK(charge->Release());
  EXPECT_TRUE(Eventually([&] { return charged() == 0; })) << "it charges nothing any more";
}

TEST_F(Unbrokered, DeniesTheTenantWhatIsNewUntilItIsGone) {
  const Child worker = Worker("team");
  auto colleague = daemon_->Connect("team"), other = daemon_->Connect("other");
  ASSERT_OK(colleague);
  ASSERT_OK(other);
  auto held = (*colleague)->Acquire({.bytes = 2 * kMiB});
  ASSERT_OK(held);
  daemon_->Reconfigure(Config("deny-new"));
  Use({{worker.pid(), 150 * kMiB}});
  ASSERT_TRUE(Eventually([&] { return !(*colleague)->Acquire({.bytes = 2 * kMiB}).ok(); }));
  const absl::Status denied = (*colleague)->Acquire({.bytes = 2 * kMiB}).status();
  EXPECT_DENIED(denied, kUnbrokered);
  const Denial denial = testing::DenialIn(denied);
  EXPECT_EQ(denial.tenant, "team");
  EXPECT_EQ(denial.asked, 2 * kMiB);
  EXPECT_EQ(denial.used, 50 * kMiB);
  EXPECT_EQ(denial.device_uuid, device_);
  EXPECT_OK((*other)->Acquire({.bytes = 2 * kMiB}));
  EXPECT_OK(held->Release());
  Use({{worker.pid(), 90 * kMiB}});
  EXPECT_TRUE(Eventually([&] { return (*colleague)->Acquire({.bytes = 2 * kMiB}).ok(); }));
  EXPECT_TRUE(Logs("it no longer causes denials for the tenant"));
}

TEST_F(Unbrokered, EndsTheProcessAndNobodyElse) {
  Child worker = Worker("team"), colleague = Worker("team");
  Use({{worker.pid(), 150 * kMiB}, {colleague.pid(), 100 * kMiB}, {getpid(), 500 * kMiB}});
  ASSERT_TRUE(Eventually([&] { return UnbrokeredOf(worker) == 50 * kMiB; }));
  // Also a process from before the configuration said so.
  daemon_->Reconfigure(Config("terminate"));
  EXPECT_EQ(worker.Wait(), 128 + SIGTERM);
  EXPECT_TRUE(Logs("has ended"));
  EXPECT_THAT(daemon_->Log(), HasSubstr("SIGTERM to "));
  EXPECT_THAT(daemon_->Log(), HasSubstr("of tenant team, which has taken 50.00 MiB of "));
  Say(colleague.channel(), "still there?");
  EXPECT_EQ(Hear(colleague.channel()), "yes");
}

}  // namespace

int Work(const std::string& runtime_dir, const std::string& tenant) {
  auto client = Client::Connect({.runtime_dir = runtime_dir, .tenant = tenant});
  const std::string word = client.ok() ? "ready" : client.status().ToString();
  Say(kParentChannel, word);
  while (Hear(kParentChannel) == "still there?") {
    Say(kParentChannel, "yes");
  }
  return 0;
}

}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--role") return gpumem::Work(argv[2], argv[3]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
