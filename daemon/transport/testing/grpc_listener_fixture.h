// SPDX-License-Identifier: Apache-2.0
// Shared parts of the tests of GrpcListener: services of both interfaces, and calls by several
// users.
#pragma once

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unix_channel.h"
#include "daemon/transport/grpc_listener.h"
#include "daemon/transport/testing/api_servers_fixture.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd::listener {

// Beside AnswersWhoAmI: services have both interfaces, as the daemon's do.
class ByThread : public gpumem::v1::Broker::Service {
 public:
  grpc::Status WhoAmI(grpc::ServerContext*, const gpumem::v1::WhoAmIRequest*,
                      gpumem::v1::WhoAmIResponse*) override {
    return grpc::Status::OK;
  }
  // Ends after LetUsagesEnd() only, also if the client has gone. So gRPC does not close its
  // connection before.
  grpc::Status GetUsage(grpc::ServerContext* context, const gpumem::v1::GetUsageRequest*,
                        gpumem::v1::GetUsageResponse*) override {
    Count(usages_);
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    Count(cancelled_usages_);
    may_end_.WaitForNotification();
    return grpc::Status::OK;
  }
  void LetUsagesEnd() { may_end_.Notify(); }
  // True once exactly so many calls have begun, or were cancelled; false if that takes too long.
  bool Usages(int count) { return Reaches(usages_, count); }
  bool CancelledUsages(int count) { return Reaches(cancelled_usages_, count); }

 private:
  void Count(int& calls) {
    absl::MutexLock lock(&mutex_);
    ++calls;
  }
  bool Reaches(const int& calls, int count) {
    const auto reached = [&] { return calls == count; };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), kLong);
  }

  absl::Mutex mutex_;
  int usages_ = 0, cancelled_usages_ = 0;  // under the mutex
  absl::Notification may_end_;
};

// Changes the uid of the calling thread alone (setresuid(2)). False if it may not.
inline bool BecomeUser(uid_t uid) { return syscall(SYS_setresuid, -1, uid, -1) == 0; }
inline constexpr uid_t kOther = 1'000'000'000;
inline bool CanBecomeUser() { return geteuid() == 0 && BecomeUser(kOther) && BecomeUser(0); }
inline constexpr char kNeedsRoot[] = "a second user takes root, outside of a user namespace";

// Of each server.
inline constexpr int kMostThreads = 16;

inline int OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

inline grpc::Status CallOn(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kLong));
  gpumem::v1::WhoAmIResponse response;
  return gpumem::v1::Broker::NewStub(channel)->WhoAmI(&context, {}, &response);
}

class GrpcListenerTest : public ::testing::TestWithParam<bool> {
 protected:
  GrpcListenerTest() {
    char folder[] = "/tmp/gpumem-test-XXXXXX";
    folder_ = mkdtemp(folder);
    path_ = folder_ + "/api.sock";
  }
  ~GrpcListenerTest() override {
    listener_.reset();
    unlink(path_.c_str());
    rmdir(folder_.c_str());
  }
  void Start(absl::Duration linger, ConnectedUsersOptions users = {},
             uint32_t max_connections = 8192) {
    auto socket = gpumem::ListenUnix(path_, SOCK_STREAM, 0600);
    ASSERT_TRUE(socket.ok()) << socket.status();
    listener_ = std::make_unique<GrpcListener>(
        *std::move(socket),
        [this](grpc::ServerBuilder& builder) {
          grpc::ResourceQuota quota;
          builder.SetResourceQuota(quota.SetMaxThreads(kMostThreads));
          builder.RegisterService(GetParam() ? static_cast<grpc::Service*>(&by_callback_)
                                             : &by_thread_);
        },
        [this](grpc::Server&) {
          absl::MutexLock lock(&mutex_);
          ++started_;
        },
        GrpcListenerOptions{
            .max_connections = max_connections, .users = users, .max_users = 2, .linger = linger});
    listener_->Start();
    chmod(folder_.c_str(), 0755);
    chmod(path_.c_str(), 0666);
  }
  // Returns a connection of another user.
  std::shared_ptr<grpc::Channel> ConnectAs(uid_t uid) {
    EXPECT_TRUE(BecomeUser(uid));
    auto socket = gpumem::ConnectUnix(path_, SOCK_STREAM);
    EXPECT_TRUE(BecomeUser(0));
    EXPECT_TRUE(socket.ok()) << socket.status();
    return socket.ok() ? grpc::CreateInsecureChannelFromFd("gpumemd", socket->release()) : nullptr;
  }
  grpc::Status Call() {
    // A separate channel, since channels to one address share their connection.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto channel = grpc::CreateCustomChannel(absl::StrCat("unix:", path_),
                                             grpc::InsecureChannelCredentials(), arguments);
    return CallOn(channel);
  }
  int started() {
    absl::MutexLock lock(&mutex_);
    return started_;
  }

  std::string folder_, path_;
  AnswersWhoAmI by_callback_;
  ByThread by_thread_;
  absl::Mutex mutex_;
  int started_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<GrpcListener> listener_;
};
}  // namespace gpumemd::listener
