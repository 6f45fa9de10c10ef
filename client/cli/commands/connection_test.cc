// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "common/http2_refusal.h"
#include "common/unix_channel.h"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;

class FakeAdmin final : public v1::Admin::Service {
 public:
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override {
    response->set_version("9.9");
    return ++calls <= failures ? end : grpc::Status::OK;
  }
  grpc::Status CheckReload(grpc::ServerContext*, const v1::CheckReloadRequest*,
                           v1::ReloadResponse*) override {
    return ++calls <= failures ? end : grpc::Status::OK;
  }
  grpc::Status SetQuota(grpc::ServerContext*, const v1::SetQuotaRequest*,
                        v1::GetQuotaResponse*) override {
    return ++calls <= failures ? end : grpc::Status::OK;
  }
  grpc::Status GetQuota(grpc::ServerContext*, const v1::GetQuotaRequest* request,
                        v1::GetQuotaResponse*) override {
    return {grpc::StatusCode::NOT_FOUND, "no tenant " + request->tenant()};
  }

  // Ends calls as gRPC does when the daemon ends: the first `failures` return `end`.
  std::atomic<int> calls = 0, failures = 0;
  grpc::Status end{grpc::StatusCode::UNAVAILABLE, "GOAWAY received"};
};

UniqueFd Accept(const UniqueFd& listener) {
  pollfd event{.fd = listener.get(), .events = POLLIN, .revents = 0};
  poll(&event, 1, -1);
  return UniqueFd(accept(listener.get(), nullptr, nullptr));
}

class ConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gpumemctl-test-XXXXXX";  // short enough for a socket's name
    ASSERT_NE(mkdtemp(path), nullptr);
    dir_ = path;
  }
  void TearDown() override {
    unlink((dir_ + "/admin.sock").c_str());
    unlink((dir_ + "/view.sock").c_str());
    rmdir(dir_.c_str());
  }

  std::unique_ptr<grpc::Server> Serve(FakeAdmin& service, const char* socket = "/admin.sock") {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + dir_ + socket, grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    return builder.BuildAndStart();
  }

  std::string dir_;
};

TEST_F(ConnectionTest, CallsTheDaemon) {
  FakeAdmin service;
  const std::unique_ptr<grpc::Server> server = Serve(service);
  ASSERT_NE(server, nullptr);

  auto admin = ConnectAdmin(dir_);
  ASSERT_TRUE(admin.ok()) << admin.status();
  auto status = Call(**admin, &v1::Admin::Stub::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->version(), "9.9");
  v1::GetQuotaRequest request;
  request.set_tenant("x");
  EXPECT_EQ(Call(**admin, &v1::Admin::Stub::GetQuota, request).status(),
            absl::NotFoundError("no tenant x"));
}

TEST_F(ConnectionTest, RepeatsACallThatChangesNothing) {
  FakeAdmin service;
  const std::unique_ptr<grpc::Server> server = Serve(service);
  ASSERT_NE(server, nullptr);
  auto admin = ConnectAdmin(dir_);
  ASSERT_TRUE(admin.ok()) << admin.status();
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED}) {
    service.end = {code, "the end"};
    service.calls = 0;
    service.failures = 2;
    auto status = Call(**admin, &v1::Admin::Stub::GetStatus, v1::GetStatusRequest());
    EXPECT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(service.calls, 3);
    service.calls = 0;
    EXPECT_TRUE(Call(**admin, &v1::Admin::Stub::CheckReload, v1::CheckReloadRequest()).ok());
    EXPECT_EQ(service.calls, 3);

    service.calls = 0;
    const absl::Status set =
        Call(**admin, &v1::Admin::Stub::SetQuota, v1::SetQuotaRequest()).status();
    EXPECT_EQ(set.code(), absl::StatusCode::kUnavailable) << set;
    EXPECT_THAT(std::string(set.message()), HasSubstr("the call may have taken effect"));
    EXPECT_EQ(service.calls, 1);
  }
}

TEST_F(ConnectionTest, SaysThatThereWasNoAnswerInTime) {
  FakeAdmin service;
  const std::unique_ptr<grpc::Server> server = Serve(service);
  ASSERT_NE(server, nullptr);
  service.end = {grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded"};
  service.failures = 2;
  auto admin = ConnectAdmin(dir_, absl::Seconds(7));
  ASSERT_TRUE(admin.ok()) << admin.status();
  const absl::Status get =
      Call(**admin, &v1::Admin::Stub::GetStatus, v1::GetStatusRequest()).status();
  EXPECT_EQ(get.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(get.message()),
              HasSubstr("no answer of the daemon within 7s; --timeout"));
  const absl::Status set =
      Call(**admin, &v1::Admin::Stub::SetQuota, v1::SetQuotaRequest()).status();
  EXPECT_EQ(set.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(set.message()), HasSubstr("the call may have taken effect"));
}

TEST_F(ConnectionTest, PassesOnTheDaemonsOwnDeadlines) {
  FakeAdmin service;
  const std::unique_ptr<grpc::Server> server = Serve(service);
  ASSERT_NE(server, nullptr);
  service.end = {grpc::StatusCode::DEADLINE_EXCEEDED, "2 left"};
  service.failures = 1;
  auto admin = ConnectAdmin(dir_, absl::Seconds(7));
  ASSERT_TRUE(admin.ok()) << admin.status();
  const absl::Status set =
      Call(**admin, &v1::Admin::Stub::SetQuota, v1::SetQuotaRequest()).status();
  EXPECT_EQ(set, absl::DeadlineExceededError("2 left"));
}

TEST_F(ConnectionTest, TheTimeoutHoldsForTheConnection) {
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  const std::string path = dir_ + "/admin.sock";
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 0), 0);
  // Fills the queue of connections.
  const absl::StatusOr<UniqueFd> first = ConnectUnix(path, SOCK_STREAM, absl::InfiniteFuture());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(ConnectAdmin(dir_, absl::Milliseconds(20)).status()));
}

TEST_F(ConnectionTest, SaysWhereItFoundNoDaemon) {
  auto admin = ConnectAdmin(dir_);
  EXPECT_EQ(admin.status(), absl::UnavailableError("no daemon at " + dir_ +
                                                   ": start one with gpumemd "
                                                   "--runtime-dir " +
                                                   dir_ +
                                                   ", or name its folder by "
                                                   "--runtime-dir or GPUMEM_RUNTIME_DIR"));
}

TEST_F(ConnectionTest, ADaemonWithoutRoomSaysSo) {
  absl::StatusOr<UniqueFd> listener = ListenUnix(dir_ + "/admin.sock", SOCK_STREAM, 0600);
  ASSERT_TRUE(listener.ok()) << listener.status();
  for (const absl::Status& why :
       {absl::ResourceExhaustedError("1024 connections of uid 5"),
        absl::PermissionDeniedError("the admin socket is for operators")}) {
    std::thread daemon([&] {
      const UniqueFd refused = Accept(*listener);
      const std::string bytes = Http2Refusal(why);
      send(refused.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    });
    const absl::Status status = ConnectAdmin(dir_).status();
    daemon.join();
    EXPECT_EQ(status.code(), why.code());
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::IsPermissionDenied(why) ? "permission denied for "
                                                        : "1024 connections of uid 5"));
  }
}

TEST_F(ConnectionTest, AViewerUsesTheViewSocket) {
  absl::StatusOr<UniqueFd> listener = ListenUnix(dir_ + "/admin.sock", SOCK_STREAM, 0600);
  ASSERT_TRUE(listener.ok()) << listener.status();
  FakeAdmin service;
  service.end = {grpc::StatusCode::PERMISSION_DENIED, "the view socket is read-only"};
  const std::unique_ptr<grpc::Server> server = Serve(service, "/view.sock");
  ASSERT_NE(server, nullptr);
  std::thread daemon([&] {
    const UniqueFd refused = Accept(*listener);
    const std::string bytes = Http2Refusal(absl::PermissionDeniedError("for operators"));
    send(refused.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  });
  auto viewer = ConnectAdmin(dir_);
  daemon.join();
  ASSERT_TRUE(viewer.ok()) << viewer.status();
  EXPECT_TRUE(Call(**viewer, &v1::Admin::Stub::GetStatus, v1::GetStatusRequest()).ok());
  // The daemon's words reach the user.
  service.failures = 9;
  EXPECT_EQ(Call(**viewer, &v1::Admin::Stub::SetQuota, v1::SetQuotaRequest()).status(),
            absl::PermissionDeniedError("the view socket is read-only"));
}

// As a daemon that ends: the next one answers.
TEST_F(ConnectionTest, ADaemonThatHangsUpIsAskedAgain) {
  absl::StatusOr<UniqueFd> listener = ListenUnix(dir_ + "/admin.sock", SOCK_STREAM, 0600);
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::thread daemon([&] {
    Accept(*listener);
    const UniqueFd refused = Accept(*listener);
    const std::string bytes = Http2Refusal(absl::ResourceExhaustedError("full"));
    send(refused.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  });
  const absl::Status status = ConnectAdmin(dir_).status();
  daemon.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_F(ConnectionTest, ADaemonThatAlwaysHangsUpDoesNotAllowIt) {
  absl::StatusOr<UniqueFd> listener = ListenUnix(dir_ + "/admin.sock", SOCK_STREAM, 0600);
  ASSERT_TRUE(listener.ok()) << listener.status();
  std::thread daemon([&] {
    for (int i = 0; i < 3; ++i) Accept(*listener);
  });
  const absl::Status status = ConnectAdmin(dir_).status();
  daemon.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/admin.sock: use sudo"));
}

}  // namespace
}  // namespace gpumem::cli
