// SPDX-License-Identifier: Apache-2.0
// Users of one GrpcListener do not hold each other up.
#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "daemon/transport/testing/grpc_listener_fixture.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd::listener {
namespace {

using gpumem::ConnectUnix;

// --- Ends ----------------------------------------------------------------------------------------

// A connection with two calls of GetUsage.
class Line {
 public:
  explicit Line(const std::string& path) {
    auto socket = ConnectUnix(path, SOCK_STREAM);
    EXPECT_TRUE(socket.ok()) << socket.status();
    if (!socket.ok()) return;
    socket_.reset(fcntl(socket->get(), F_DUPFD_CLOEXEC, 0));
    fcntl(socket->get(), F_SETFL, O_NONBLOCK);
    const auto stub = gpumem::v1::Broker::NewStub(
        grpc::CreateInsecureChannelFromFd("gpumemd", socket->release()));
    for (Call& call : calls_) {
      call.reader = stub->AsyncGetUsage(&call.context, {}, &queue_);
      call.reader->Finish(&call.response, &call.status, nullptr);
    }
  }
  ~Line() {
    HangUp();
    for (size_t i = 0; i < std::size(calls_); ++i) {
      void* tag;
      bool ok;
      queue_.Next(&tag, &ok);
    }
  }
  void HangUp() { shutdown(socket_.get(), SHUT_RDWR); }

 private:
  struct Call {
    grpc::ClientContext context;
    gpumem::v1::GetUsageResponse response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<gpumem::v1::GetUsageResponse>> reader;
  };

  gpumem::UniqueFd socket_;
  grpc::CompletionQueue queue_;
  Call calls_[2];
};

class GrpcListenerUsersTest : public GrpcListenerTest {
 protected:
  // Has four connections hang up, whose calls are under way. They end one after another.
  void HangUpAfterEachOther(absl::Duration patience) {
    Start(kLong, {.ends = {.max_calls = 1, .patience = patience}});
    for (int i = 0; i < 4; ++i) lines_.push_back(std::make_unique<Line>(path_));
    EXPECT_TRUE(by_thread_.Usages(8));
    for (const auto& line : lines_) line->HangUp();
  }

  std::vector<std::unique_ptr<Line>> lines_;
};
INSTANTIATE_TEST_SUITE_P(ByThread, GrpcListenerUsersTest, ::testing::Values(false));

TEST_P(GrpcListenerUsersTest, AConnectionThatIsNotClosedDelaysTheEndsOfOthersOnlyBriefly) {
  HangUpAfterEachOther(absl::Milliseconds(1));
  EXPECT_TRUE(by_thread_.CancelledUsages(8));
  by_thread_.LetUsagesEnd();
}

TEST_P(GrpcListenerUsersTest, ConnectionsOfOneUserEndInTurn) {
  HangUpAfterEachOther(absl::Hours(1));
  EXPECT_TRUE(by_thread_.CancelledUsages(2));
  // Others do not wait for them.
  EXPECT_TRUE(Call().ok());
  EXPECT_TRUE(by_thread_.CancelledUsages(2));
  by_thread_.LetUsagesEnd();
  EXPECT_TRUE(by_thread_.CancelledUsages(8));
}

TEST_P(GrpcListenerUsersTest, ConnectionsThatAreBeingClosedMakeNoRoomForMore) {
  if (!CanBecomeUser()) GTEST_SKIP() << kNeedsRoot;
  Start(kLong, {.ends = {.max_calls = 1, .patience = absl::Hours(1)}}, /*max_connections=*/3);
  for (int i = 0; i < 3; ++i) lines_.push_back(std::make_unique<Line>(path_));
  EXPECT_TRUE(by_thread_.Usages(6));
  for (const auto& line : lines_) line->HangUp();
  // One of them is closed, and its calls have not ended. The others wait for that.
  EXPECT_TRUE(by_thread_.CancelledUsages(2));
  EXPECT_FALSE(CallOn(ConnectAs(kOther)).ok());
  by_thread_.LetUsagesEnd();
  EXPECT_TRUE(by_thread_.CancelledUsages(6));
  const absl::Time give_up = absl::Now() + kLong;
  while (!CallOn(ConnectAs(kOther)).ok()) ASSERT_LT(absl::Now(), give_up);
}

// --- Users ---------------------------------------------------------------------------------------

TEST_P(GrpcListenerUsersTest, AUserWhoKeepsAllThreadsDelaysNoOther) {
  if (!CanBecomeUser()) GTEST_SKIP() << kNeedsRoot;
  Start(kLong);
  do {
    lines_.push_back(std::make_unique<Line>(path_));
    ASSERT_LE(lines_.size(), static_cast<size_t>(kMostThreads));
  } while (Call().ok());
  EXPECT_TRUE(CallOn(ConnectAs(kOther)).ok());
  by_thread_.LetUsagesEnd();
}

TEST_P(GrpcListenerUsersTest, AUserWithoutConnectionsMakesRoomForAnother) {
  if (!CanBecomeUser()) GTEST_SKIP() << kNeedsRoot;
  Start(kLong);
  auto first = ConnectAs(kOther), second = ConnectAs(kOther + 1);
  EXPECT_TRUE(CallOn(first).ok());
  EXPECT_TRUE(CallOn(second).ok());
  const grpc::Status third = Call();
  EXPECT_FALSE(third.ok());
  EXPECT_EQ(started(), 2);
  second.reset();
  const absl::Time give_up = absl::Now() + kLong;
  while (!Call().ok()) ASSERT_LT(absl::Now(), give_up);
  EXPECT_TRUE(CallOn(first).ok());
  EXPECT_EQ(started(), 3);
}

}  // namespace
}  // namespace gpumemd::listener
