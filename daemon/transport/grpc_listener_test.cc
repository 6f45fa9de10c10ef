// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/grpc_listener.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/unix_channel.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd {
namespace {

using gpumem::ConnectUnix;

constexpr absl::Duration kLong = absl::Seconds(30);

// Of both interfaces, as the daemon's are.
class ByCallback : public gpumem::v1::Broker::CallbackService {
 public:
  grpc::ServerUnaryReactor* WhoAmI(grpc::CallbackServerContext* context,
                                   const gpumem::v1::WhoAmIRequest*,
                                   gpumem::v1::WhoAmIResponse*) override {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};
class ByThread : public gpumem::v1::Broker::Service {
 public:
  grpc::Status WhoAmI(grpc::ServerContext*, const gpumem::v1::WhoAmIRequest*,
                      gpumem::v1::WhoAmIResponse*) override {
    return grpc::Status::OK;
  }
};

int OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
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
  void Start(absl::Duration linger) {
    auto socket = gpumem::ListenUnix(path_, SOCK_STREAM, 0600);
    ASSERT_TRUE(socket.ok()) << socket.status();
    listener_ = std::make_unique<GrpcListener>(
        *std::move(socket),
        [this](grpc::ServerBuilder& builder) {
          builder.RegisterService(GetParam() ? static_cast<grpc::Service*>(&by_callback_)
                                             : &by_thread_);
        },
        [this](grpc::Server&) {
          absl::MutexLock lock(&mutex_);
          ++started_;
        },
        GrpcListenerOptions{.linger = linger});
    listener_->Start();
  }
  grpc::Status Call() {
    // A separate channel, since channels to one address share their connection.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto channel = grpc::CreateCustomChannel(absl::StrCat("unix:", path_),
                                             grpc::InsecureChannelCredentials(), arguments);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kLong));
    gpumem::v1::WhoAmIResponse response;
    return gpumem::v1::Broker::NewStub(channel)->WhoAmI(&context, {}, &response);
  }
  int started() {
    absl::MutexLock lock(&mutex_);
    return started_;
  }

  std::string folder_, path_;
  ByCallback by_callback_;
  ByThread by_thread_;
  absl::Mutex mutex_;
  int started_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<GrpcListener> listener_;
};

TEST_P(GrpcListenerTest, ThereIsNoServerBeforeTheFirstConnection) {
  Start(kLong);
  EXPECT_EQ(started(), 0);
  for (int i = 0; i < 3; ++i) {
    const grpc::Status called = Call();
    EXPECT_TRUE(called.ok()) << called.error_message();
  }
  EXPECT_EQ(started(), 1);
}

TEST_P(GrpcListenerTest, AServerEndsWithItsConnectionsAndTheNextStartsAnother) {
  Start(absl::ZeroDuration());
  // After a server has ended, the next connection starts another, any number of times, without
  // leaking descriptors.
  const auto call_until = [&](int servers) {
    const absl::Time give_up = absl::Now() + kLong;
    while (started() < servers && absl::Now() < give_up) {
      const grpc::Status called = Call();
      EXPECT_TRUE(called.ok()) << called.error_message();
    }
    EXPECT_GE(started(), servers);
    return OpenDescriptors();
  };
  const int before = call_until(5);
  EXPECT_LT(call_until(30), before + 20);
}

TEST_P(GrpcListenerTest, AnOpenConnectionKeepsTheServer) {
  Start(absl::ZeroDuration());
  auto idle = ConnectUnix(path_, SOCK_STREAM);
  ASSERT_TRUE(idle.ok()) << idle.status();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Call().ok());
  EXPECT_EQ(started(), 1);
}

TEST_P(GrpcListenerTest, NoConnectionIsServedAfterTheEnd) {
  Start(kLong);
  EXPECT_TRUE(Call().ok());
  listener_->StopAccepting();
  EXPECT_FALSE(ConnectUnix(path_, SOCK_STREAM).ok());
  listener_->Shutdown(absl::Now());
  EXPECT_EQ(started(), 1);
}

INSTANTIATE_TEST_SUITE_P(Interfaces, GrpcListenerTest, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "ByCallback" : "ByThread"; });

}  // namespace
}  // namespace gpumemd
