// SPDX-License-Identifier: Apache-2.0
// The view socket: what it shows, what it refuses, whom it admits, and that operators do not notice
// its users.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/bytes.h"
#include "common/unix_channel.h"
#include "gpumem/client.h"
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
using Stub = v1::Admin::Stub;

constexpr uid_t kNobody = 65534;

gid_t GroupOf(const char* name) {
  const group* found = getgrnam(name);
  EXPECT_NE(found, nullptr) << name;
  return found == nullptr ? kNobody : found->gr_gid;
}

// True if a call of this name changes nothing.
bool Shows(absl::string_view name) {
  return absl::StartsWith(name, "Get") || absl::StartsWith(name, "List") || name == "WatchEvents";
}

class View : public AttackTest {
 protected:
  void SetUp() override {
    AttackTest::SetUp();
    view_channel_ = testing::ChannelTo(daemon_->Socket("view.sock"));
  }
  // Its gRPC server would count among what the daemon holds.
  void TearDown() override {
    view_channel_.reset();
    AttackTest::TearDown();
  }

  // Returns the access of a process of these ids: a status for each of view and admin.
  std::string VisitAs(uid_t uid, gid_t gid) {
    // mkdtemp's folder is closed to other users.
    chmod(std::filesystem::path(daemon_->runtime_dir()).parent_path().c_str(), 0755);
    return TellOf({"visitor", daemon_->runtime_dir(), absl::StrCat(uid), absl::StrCat(gid)});
  }
  // Returns the exit code of a command as a process of this group, and its output.
  std::string RunAs(gid_t gid, const std::string& command) {
    const std::filesystem::path folder =
        std::filesystem::path(daemon_->runtime_dir()).parent_path();
    chmod(folder.c_str(), 0755);
    // The tree of the build may be closed to other users.
    const std::string program = folder / "gpumemctl";
    std::filesystem::copy_file(testing::ProgramPath("gpumemctl"), program,
                               std::filesystem::copy_options::overwrite_existing);
    return TellOf({"run", daemon_->runtime_dir(), absl::StrCat(kNobody), absl::StrCat(gid),
                   absl::StrCat(program, " --runtime-dir ", daemon_->runtime_dir(), " ", command)});
  }
  // Returns the message of this program in a role.
  std::string TellOf(std::vector<std::string> role) {
    role.insert(role.begin(), "--role");
    Child child = Child::Self(std::move(role));
    auto word = ReceiveMessage(child.channel(), absl::Now() + kAnswerTime);
    return word.ok() ? word->bytes : word.status().ToString();
  }
  void RestartWith(const std::string& config) {
    auto daemon = testing::DaemonProcess::Start({.config = config});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    if (bystander_ != nullptr) bystander_->Stop();
    bystander_ = nullptr;  // of the first daemon
    daemon_ = *std::move(daemon);
  }

  std::shared_ptr<grpc::Channel> view_channel_;
};

TEST_F(View, ShowsWhatTheAdminSocketShows) {
  Stub view(view_channel_), admin(admin_channel_);
  v1::GetStatusResponse status;
  ASSERT_TRUE(view.GetStatus(testing::ContextWith().get(), {}, &status).ok());
  EXPECT_EQ(status.devices_size(), Status().devices_size());
  EXPECT_EQ(status.runtime_dir(), daemon_->runtime_dir());
  EXPECT_EQ(status.holders_shown(), v1::HOLDERS_SHOWN_OWN);
  for (const char* tenant : {"good", "bad"}) {
    v1::GetQuotaRequest get;
    get.set_tenant(tenant);
    v1::GetQuotaResponse seen, known;
    ASSERT_TRUE(view.GetQuota(testing::ContextWith().get(), get, &seen).ok());
    ASSERT_TRUE(admin.GetQuota(testing::ContextWith().get(), get, &known).ok());
    EXPECT_EQ(seen.quota().ShortDebugString(), known.quota().ShortDebugString());
  }
  // Statuses are those of the admin socket, too.
  v1::GetQuotaRequest unknown;
  unknown.set_tenant("nobody");
  v1::GetQuotaResponse none;
  EXPECT_EQ(view.GetQuota(testing::ContextWith().get(), unknown, &none).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(View, ShowsTheHistoryUpToNow) {
  auto client = daemon_->Connect("other", "holder");
  ASSERT_OK(client);
  auto segment = (*client)->Acquire({.bytes = 2 * kMiB});
  ASSERT_OK(segment);
  for (const auto& channel : {view_channel_, admin_channel_}) {
    Stub stub(channel);
    v1::GetHistoryRequest request;
    request.add_tenants("other");
    v1::GetHistoryResponse history;
    const grpc::Status read = stub.GetHistory(testing::ContextWith().get(), request, &history);
    ASSERT_TRUE(read.ok()) << read.error_message();
    EXPECT_EQ(history.interval_ms(), 10'000u);
    EXPECT_LE(history.since_unix_ms(), history.now_unix_ms());
    ASSERT_EQ(history.series_size(), 1);
    EXPECT_EQ(history.series(0).tenant(), "other");
    EXPECT_EQ(history.series(0).device_uuid(), Status().devices(0).device_uuid());
    ASSERT_GE(history.series(0).points_size(), 1);
    const v1::HistoryPoint& last = *history.series(0).points().rbegin();
    EXPECT_EQ(last.charged_bytes(), 2 * kMiB);
    EXPECT_EQ(last.leased_bytes(), 2 * kMiB);
    EXPECT_EQ(last.limit_bytes(), 64 * kMiB);
    request.set_device_uuid(Status().devices(1).device_uuid());
    ASSERT_TRUE(stub.GetHistory(testing::ContextWith().get(), request, &history).ok());
    EXPECT_EQ(history.series_size(), 0);
    request.set_device_uuid("GPU-x");
    EXPECT_EQ(stub.GetHistory(testing::ContextWith().get(), request, &history).error_code(),
              grpc::StatusCode::NOT_FOUND);
    request.clear_device_uuid();
    request.add_tenants("unknown");
    EXPECT_EQ(stub.GetHistory(testing::ContextWith().get(), request, &history).error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  EXPECT_TRUE(segment->Release().ok());
}

TEST_F(View, RefusesEveryCallThatChangesSomething) {
  const google::protobuf::ServiceDescriptor* calls =
      v1::GetStatusRequest::descriptor()->file()->pool()->FindServiceByName("gpumem.v1.Admin");
  ASSERT_NE(calls, nullptr);
  int refused = 0;
  for (int i = 0; i < calls->method_count(); ++i) {
    const std::string& name = calls->method(i)->name();
    const std::string path = absl::StrCat("/gpumem.v1.Admin/", name);
    if (Shows(name)) {
      EXPECT_NE(CallBytes(view_channel_, path, "\xff").status().code(),
                absl::StatusCode::kPermissionDenied)
          << name;
      continue;
    }
    ++refused;
    EXPECT_STATUS(CallBytes(view_channel_, path, ""), kPermissionDenied,
                  "the view socket is read-only: " + name);
  }
  EXPECT_GE(refused, 18);
  EXPECT_FALSE(Status().draining());
  EXPECT_STATUS(CallBytes(view_channel_, "/gpumem.v1.Broker/Acquire", ""), kUnimplemented, "");
}

TEST_F(View, AdmitsItsGroupAndOperators) {
  if (!testing::CanBeOtherUsers()) GTEST_SKIP() << "being another user takes root";
  EXPECT_EQ(VisitAs(kNobody, kNobody), "view PERMISSION_DENIED, admin PERMISSION_DENIED");
  const gid_t viewers = GroupOf("games");
  const gid_t admins = GroupOf("daemon");
  // By the group of the socket's file.
  ASSERT_NO_FATAL_FAILURE(RestartWith("[daemon]\nview_group = \"games\"\n"));
  EXPECT_EQ(VisitAs(kNobody, viewers), "view OK, admin PERMISSION_DENIED");
  EXPECT_EQ(VisitAs(kNobody, kNobody), "view PERMISSION_DENIED, admin PERMISSION_DENIED");
  // The daemon itself turns others away where the mode does not.
  ASSERT_NO_FATAL_FAILURE(
      RestartWith("[daemon]\nview_group = \"games\"\nadmin_group = \"daemon\"\n"
                  "view_socket_mode = \"0666\"\nadmin_socket_mode = \"0666\"\n"));
  EXPECT_EQ(VisitAs(kNobody, kNobody), "view UNAVAILABLE, admin UNAVAILABLE");
  EXPECT_EQ(VisitAs(kNobody, viewers), "view OK, admin UNAVAILABLE");
  EXPECT_EQ(VisitAs(kNobody, admins), "view OK, admin OK");
  EXPECT_EQ(VisitAs(0, 0), "view OK, admin OK");
}

TEST_F(View, GpumemctlShowsAndDoesNotChange) {
  if (!testing::CanBeOtherUsers()) GTEST_SKIP() << "being another user takes root";
  ASSERT_NO_FATAL_FAILURE(
      RestartWith("[daemon]\nview_group = \"games\"\n[[tenant]]\nname = \"t\"\n"
                  "[[rule]]\ntenant = \"t\"\ndefault = true\n"));
  const gid_t viewers = GroupOf("games");
  EXPECT_THAT(RunAs(viewers, "status"), AllOf(HasSubstr("[0]"), HasSubstr("admitting")));
  EXPECT_THAT(RunAs(viewers, "quota list"), AllOf(HasSubstr("[0]"), HasSubstr("t")));
  EXPECT_THAT(RunAs(viewers, "events"), AllOf(HasSubstr("[0]"), HasSubstr("started")));
  EXPECT_THAT(RunAs(viewers, "drain"),
              AllOf(HasSubstr("[4]"), HasSubstr("the view socket is read-only: Drain")));
  EXPECT_THAT(RunAs(viewers, "quota set t --limit 1GiB"),
              AllOf(HasSubstr("[4]"), HasSubstr("the view socket is read-only: SetQuota")));
  EXPECT_THAT(RunAs(kNobody, "status"), AllOf(HasSubstr("[4]"), HasSubstr("view_group")));
}

// Operators' streams are others.
TEST_F(View, AllItsEventStreamsLeaveThoseOfOperators) {
  struct Stream {
    std::unique_ptr<grpc::ClientContext> context = testing::ContextWith();
    std::unique_ptr<grpc::ClientReader<v1::EventRecord>> reader;
  };
  v1::WatchEventsRequest request;
  request.set_past(true);
  request.set_follow(true);
  const auto watch = [&](const std::shared_ptr<grpc::Channel>& channel) {
    Stream stream;
    stream.reader = Stub(channel).WatchEvents(stream.context.get(), request);
    return stream;
  };
  std::vector<Stream> streams;
  v1::EventRecord record;
  for (int i = 0; i < 16; ++i) {
    streams.push_back(watch(view_channel_));
    ASSERT_TRUE(streams.back().reader->Read(&record)) << i;  // it is served
  }
  Stream refused = watch(view_channel_);
  EXPECT_FALSE(refused.reader->Read(&record));
  EXPECT_EQ(refused.reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  Stream operators = watch(admin_channel_);
  EXPECT_TRUE(operators.reader->Read(&record));
  operators.context->TryCancel();
  for (Stream& stream : streams) stream.context->TryCancel();
}

TEST_F(View, HasHealthAndReflection) {
  EXPECT_EQ(CallBytes(view_channel_, "/grpc.health.v1.Health/Check", "").value_or("refused"),
            "\x08\x01");  // HealthCheckResponse{status: SERVING}
  const char* method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const std::string list_services("\x3a\x00", 2);  // ServerReflectionRequest{list_services: ""}
  auto answer = testing::StreamBytes(view_channel_, method, list_services);
  ASSERT_OK(answer);
  EXPECT_THAT(*answer, AllOf(HasSubstr("gpumem.v1.Admin"), HasSubstr("grpc.health.v1.Health")));
}

// --- Roles of other processes --------------------------------------------------------

absl::Status Ask(const std::string& socket) {
  if (absl::Status connected = ConnectUnix(socket, SOCK_STREAM).status(); !connected.ok()) {
    return connected;
  }
  v1::GetStatusResponse status;
  const grpc::Status asked = v1::Admin::NewStub(testing::ChannelTo(socket))
                                 ->GetStatus(testing::ContextWith().get(), {}, &status);
  return absl::Status(static_cast<absl::StatusCode>(asked.error_code()), "");
}

int Tell(const std::string& words) {
  return SendMessage(3, words, {}, absl::Now() + kAnswerTime).ok() ? 0 : 1;
}

int Visit(const std::string& dir) {
  const auto word = [&](const char* name) {
    return absl::StatusCodeToString(Ask(absl::StrCat(dir, "/", name)).code());
  };
  return Tell(absl::StrCat("view ", word("view.sock"), ", admin ", word("admin.sock")));
}

int Run(const std::string& command) {
  FILE* out = popen((command + " 2>&1").c_str(), "r");
  if (out == nullptr) return 1;
  std::string said(1 << 15, '\0');
  said.resize(fread(said.data(), 1, said.size(), out));
  return Tell(absl::StrCat(said, "[", WEXITSTATUS(pclose(out)), "]"));
}

}  // namespace

int RunRole(const std::vector<std::string>& args) {
  uint32_t uid, gid;
  if (args.size() < 4 || !absl::SimpleAtoi(args[2], &uid) || !absl::SimpleAtoi(args[3], &gid) ||
      setgroups(0, nullptr) != 0 || setgid(gid) != 0 || setuid(uid) != 0) {
    return 2;
  }
  return args[0] == "run" && args.size() == 5 ? Run(args[4]) : Visit(args[1]);
}

}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--role") {
    return gpumem::RunRole(std::vector<std::string>(argv + 2, argv + argc));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
