// SPDX-License-Identifier: Apache-2.0
// The admin socket: its access control, its refusals, and gRPC's own tools on it.
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
#include "tests/support/attack.h"
#include "tests/support/child.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"

namespace gpumem {
namespace {

using ::testing::AllOf;
using testing::AttackTest;
using testing::CallBytes;
using testing::Child;
using ::testing::HasSubstr;
using testing::kAnswerTime;
using testing::WireSession;
using Stub = v1::Admin::Stub;

class Admin : public AttackTest {
 protected:
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request) {
    Response response;
    Stub stub(admin_channel_);
    const grpc::Status status = (stub.*method)(testing::ContextWith().get(), request, &response);
    if (status.ok()) return response;
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

  absl::Status SetQuota(const v1::SetQuotaRequest& request) {
    return Call(&Stub::SetQuota, request).status();
  }

  // Returns the access of a process of these ids: one word each for session, api and admin.
  std::string VisitAs(uid_t uid, gid_t gid) {
    // mkdtemp's folder is closed to other users.
    chmod(std::filesystem::path(daemon_->runtime_dir()).parent_path().c_str(), 0755);
    Child child = Child::Self(
        {"--role", "visitor", daemon_->runtime_dir(), absl::StrCat(uid), absl::StrCat(gid)});
    auto word = ReceiveMessage(child.channel(), absl::Now() + kAnswerTime);
    return word.ok() ? word->bytes : word.status().ToString();
  }
};

constexpr uid_t kNobody = 65534;

// --- Requests ------------------------------------------------------------------------

TEST_F(Admin, UnknownTenantsAreNotFound) {
  v1::SetQuotaRequest set;
  set.set_tenant("nobody");
  set.mutable_quota()->set_max_segments(1);
  EXPECT_STATUS(SetQuota(set), kNotFound, "\"nobody\"");
  v1::GetQuotaRequest get;
  EXPECT_STATUS(Call(&Stub::GetQuota, get), kNotFound, "");
  get.set_tenant("nobody");
  EXPECT_STATUS(Call(&Stub::GetQuota, get), kNotFound, "\"nobody\"");
  v1::ListSessionsRequest sessions;
  sessions.set_tenant("nobody");
  EXPECT_STATUS(Call(&Stub::ListSessions, sessions), kNotFound, "\"nobody\"");
  v1::ListSegmentsRequest segments;
  segments.set_tenant("nobody");
  EXPECT_STATUS(Call(&Stub::ListSegments, segments), kNotFound, "\"nobody\"");
  v1::TrimRequest trim;
  trim.set_tenant("nobody");
  EXPECT_STATUS(Call(&Stub::Trim, trim), kNotFound, "\"nobody\"");
  // However long the name, the answer fits.
  get.set_tenant(std::string(60000, 'x'));
  EXPECT_STATUS(Call(&Stub::GetQuota, get), kNotFound, "\"xxxx");
}

TEST_F(Admin, UnknownDevicesAreNotFound) {
  v1::ListSegmentsRequest segments;
  segments.set_device_uuid("GPU-x");
  EXPECT_STATUS(Call(&Stub::ListSegments, segments), kNotFound, "\"GPU-x\"");
  v1::TrimRequest trim;
  trim.set_device_uuid("GPU-x");
  EXPECT_STATUS(Call(&Stub::Trim, trim), kNotFound, "\"GPU-x\"");
  v1::SetQuotaRequest set;
  set.set_tenant("bad");
  set.mutable_quota()->set_max_segments(1);
  v1::DeviceLimit& limit = *set.mutable_quota()->add_devices();
  limit.set_device_uuid("GPU-x");
  EXPECT_STATUS(SetQuota(set), kNotFound, "\"GPU-x\"");
  // All or nothing: the limit beside it was not applied.
  v1::GetQuotaRequest get;
  get.set_tenant("bad");
  EXPECT_NE(Call(&Stub::GetQuota, get)->quota().max_segments(), 1u);
}

TEST_F(Admin, ChangesThatMakeNoSenseAreRefusedAndChangeNothing) {
  v1::GetQuotaRequest get;
  get.set_tenant("bad");
  const auto before = Call(&Stub::GetQuota, get);
  ASSERT_OK(before);
  v1::SetQuotaRequest set;
  set.set_tenant("bad");
  EXPECT_STATUS(SetQuota(set), kInvalidArgument, "");
  set.mutable_quota();
  EXPECT_STATUS(SetQuota(set), kInvalidArgument, "");
  set.mutable_quota()->set_max_segments(1);
  set.add_clear("max_sessions");
  set.add_clear("colour");
  EXPECT_STATUS(SetQuota(set), kInvalidArgument, "\"colour\"");
  set.clear_clear();
  set.add_clear("max_segments");
  EXPECT_STATUS(SetQuota(set), kInvalidArgument, "\"max_segments\"");
  set.clear_clear();
  set.mutable_quota()->set_max_in_flight(0);
  EXPECT_STATUS(SetQuota(set), kInvalidArgument, "max_in_flight");
  EXPECT_EQ(Call(&Stub::GetQuota, get)->quota().ShortDebugString(),
            before->quota().ShortDebugString());
}

TEST_F(Admin, MalformedAndOversizedRequestsAreRefused) {
  for (const char* method :
       {"GetStatus", "ListTenants", "ListSessions", "ListSegments", "GetQuota", "SetQuota",
        "SetPods", "ListPods", "UnsetQuota", "Reload", "CheckReload", "Trim", "SuspendSession",
        "ResumeSession", "SuspendPublication", "ResumePublication", "Drain"}) {
    const std::string path = absl::StrCat("/gpumem.v1.Admin/", method);
    EXPECT_FALSE(CallBytes(admin_channel_, path, "\xff").ok());
    EXPECT_STATUS(CallBytes(admin_channel_, path, std::string((5 << 20) + 1, 'x')),
                  kResourceExhausted, "larger than max");
  }
  EXPECT_FALSE(Status().draining());
  EXPECT_STATUS(CallBytes(admin_channel_, "/gpumem.v1.Admin/Reboot", ""), kUnimplemented, "");
}

// --- Access control ------------------------------------------------------------------

TEST_F(Admin, AnOrdinaryUserIsAWorkerAndNoOperator) {
  if (!testing::CanBeOtherUsers()) GTEST_SKIP() << "being another user takes root";
  EXPECT_EQ(VisitAs(kNobody, kNobody), "session OK, api OK, admin PERMISSION_DENIED");
}

TEST_F(Admin, TheSocketsModeAloneMakesNoOperator) {
  if (!testing::CanBeOtherUsers()) GTEST_SKIP() << "being another user takes root";
  auto daemon = testing::DaemonProcess::Start(
      {.config = "[daemon]\nadmin_socket_mode = \"0666\"\nadmin_group = \"daemon\"\n"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  bystander_->Stop();
  bystander_ = nullptr;  // of the first daemon
  daemon_ = *std::move(daemon);
  EXPECT_EQ(VisitAs(kNobody, kNobody), "session OK, api OK, admin UNAVAILABLE");
  const group* admins = getgrnam("daemon");
  ASSERT_NE(admins, nullptr);
  EXPECT_EQ(VisitAs(kNobody, admins->gr_gid), "session OK, api OK, admin OK");
  EXPECT_EQ(VisitAs(0, 0), "session OK, api OK, admin OK");
}

// --- gRPC's own services -------------------------------------------------------------

TEST_F(Admin, ItsHealthCanBeAsked) {
  const std::string serving = "\x08\x01";  // HealthCheckResponse{status: SERVING}
  const auto ask = [this](const std::string& service) {
    // HealthCheckRequest{service}
    const std::string request =
        service.empty()
            ? ""
            : absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
    return CallBytes(admin_channel_, "/grpc.health.v1.Health/Check", request);
  };
  auto whole = ask("");
  ASSERT_OK(whole);
  EXPECT_EQ(*whole, serving);
  EXPECT_STATUS(ask("gpumem.v9.Broker"), kNotFound, "");
  EXPECT_EQ(ask("gpumem.v1.Admin").value_or("refused"), serving);
}

TEST_F(Admin, ReflectionListsTheServices) {
  const char* method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const std::string list_services("\x3a\x00", 2);  // ServerReflectionRequest{list_services: ""}
  auto answer = testing::StreamBytes(admin_channel_, method, list_services);
  ASSERT_OK(answer);
  EXPECT_THAT(*answer, AllOf(HasSubstr("gpumem.v1.Admin"), HasSubstr("grpc.health.v1.Health")));
}

// --- Roles of other processes --------------------------------------------------------

std::string Word(absl::StatusCode code) { return absl::StatusCodeToString(code); }

int Visit(const std::string& dir, uid_t uid, gid_t gid) {
  if (setgroups(0, nullptr) != 0 || setgid(gid) != 0 || setuid(uid) != 0) return 1;
  WireSession session(dir + "/session.sock");
  const absl::Status met = session.Greet(testing::HelloOf(""));
  absl::Status called = met;
  if (met.ok()) {
    called = testing::CallBroker(*session.TakeBroker(), &v1::Broker::Stub::GetUsage,
                                 v1::GetUsageRequest(), session.token())
                 .status();
  }
  absl::Status admin = ConnectUnix(dir + "/admin.sock", SOCK_STREAM).status();
  if (admin.ok()) {
    v1::GetStatusResponse status;
    const grpc::Status asked = v1::Admin::NewStub(testing::ChannelTo(dir + "/admin.sock"))
                                   ->GetStatus(testing::ContextWith().get(), {}, &status);
    admin = absl::Status(static_cast<absl::StatusCode>(asked.error_code()), "");
  }
  const std::string words = absl::StrCat("session ", Word(met.code()), ", api ",
                                         Word(called.code()), ", admin ", Word(admin.code()));
  return SendMessage(3, words, {}, absl::Now() + kAnswerTime).ok() ? 0 : 1;
}

}  // namespace

int RunRole(const std::vector<std::string>& args) {
  uint32_t uid, gid;
  if (args.size() != 4 || args[0] != "visitor" || !absl::SimpleAtoi(args[2], &uid) ||
      !absl::SimpleAtoi(args[3], &gid)) {
    return 2;
  }
  return Visit(args[1], uid, gid);
}

}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--role") {
    return gpumem::RunRole(std::vector<std::string>(argv + 2, argv + argc));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
