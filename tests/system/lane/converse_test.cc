// SPDX-License-Identifier: Apache-2.0
// Broker.Converse: the calls of a session on one stream, and clients that break its rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/attack.h"
#include "tests/support/child.h"
#include "tests/support/expect_denial.h"
#include "tests/support/expect_status.h"
#include "tests/support/wire.h"
#include "tests/system/testing/api_fixture.h"

namespace gpumem {
namespace {

using testing::Api;
using testing::CallBroker;
using testing::ContextWith;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::WireSession;
using Stub = v1::Broker::Stub;

// One stream.
class Conversation {
 public:
  Conversation(Stub& stub, absl::string_view token)
      : context_(ContextWith(token, absl::Seconds(60))), stream_(stub.Converse(context_.get())) {}
  ~Conversation() { context_->TryCancel(); }

  // Returns the answer. An error: of the stream, which has ended.
  absl::StatusOr<v1::SessionResponse> Ask(v1::SessionRequest request) {
    request.set_number(++number_);
    stream_->Write(request);
    v1::SessionResponse response;
    if (!stream_->Read(&response)) {
      const grpc::Status status = stream_->Finish();
      return status.ok() ? absl::UnavailableError("it has ended") : FromGrpcStatus(status);
    }
    EXPECT_EQ(response.number(), number_);
    return response;
  }

 private:
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionResponse>> stream_;
  uint64_t number_ = 0;
};

absl::Status StatusOf(const v1::StatusDetails& details) {
  return FromGrpcStatus(FromStatusDetails(details));
}

v1::SessionRequest GetUsage() {
  v1::SessionRequest request;
  request.mutable_get_usage();
  return request;
}

class Converse : public Api {
 protected:
  static v1::SessionRequest AcquireOne(uint64_t request_id) {
    v1::SessionRequest request;
    *request.mutable_acquire() = AcquireOf(1);
    request.mutable_acquire()->set_request_id(request_id);
    return request;
  }
  void Hold(const v1::SessionResponse& response) {
    for (const v1::Lease& lease : response.acquire().leases()) {
      held_.emplace_back(token(), lease.lease_id());
    }
  }
};

TEST_F(Converse, TheDeliveryDescribesTheLeasesOfTheAnswer) {
  Conversation lane(*broker_, token());
  auto answer = lane.Ask(AcquireOne(77));
  ASSERT_OK(answer);
  ASSERT_FALSE(answer->has_status());
  Hold(*answer);
  std::vector<UniqueFd> fds;
  auto message = session_->Receive(&fds);
  ASSERT_OK(message);
  const v1::Delivery& delivery = message->delivery();
  EXPECT_EQ(fds.size(), 1u);
  EXPECT_EQ(delivery.delivery_id(), answer->acquire().delivery_id());
  EXPECT_EQ(delivery.request_id(), 77u);
  ASSERT_EQ(delivery.leases_size(), 1);
  EXPECT_EQ(delivery.leases(0).SerializeAsString(),
            answer->acquire().leases(0).SerializeAsString());

  // Clients without a stream see nothing new.
  Api::AcquireOne();
  message = session_->Receive(&fds);
  ASSERT_OK(message);
  EXPECT_EQ(message->delivery().request_id(), 0u);
  EXPECT_EQ(message->delivery().leases_size(), 0);
}

TEST_F(Converse, AMessageReleasesAndThenAcquires) {
  Conversation lane(*broker_, token());
  auto answer = lane.Ask(AcquireOne(1));
  ASSERT_OK(answer);
  const uint64_t first = answer->acquire().leases(0).lease_id();
  v1::SessionRequest request = AcquireOne(2);
  request.mutable_release()->add_lease_ids(first);
  answer = lane.Ask(request);
  ASSERT_OK(answer);
  EXPECT_FALSE(answer->has_status());
  EXPECT_FALSE(answer->has_release_status());
  Hold(*answer);
  EXPECT_EQ(Usage().devices(0).leased_bytes(), 2 * kMiB);

  // A failing release does not stop the call.
  request = GetUsage();
  request.mutable_release()->add_lease_ids(first);
  answer = lane.Ask(request);
  ASSERT_OK(answer);
  EXPECT_STATUS(StatusOf(answer->release_status()), kNotFound, absl::StrCat("lease ", first));
  EXPECT_EQ(answer->get_usage().usage().devices(0).leased_bytes(), 2 * kMiB);

  // Nothing but a number.
  answer = lane.Ask({});
  ASSERT_OK(answer);
  EXPECT_FALSE(answer->has_status());
}

TEST_F(Converse, RefusalsAreThoseOfTheUnaryCalls) {
  Conversation lane(*broker_, token());
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1} << 40, 250 * kMiB}) {
    v1::SessionRequest request;
    *request.mutable_acquire() = AcquireOf(bytes, 3);
    auto answer = lane.Ask(request);
    ASSERT_OK(answer);
    const absl::Status unary = Acquire(request.acquire()).status();
    EXPECT_FALSE(unary.ok());
    EXPECT_EQ(StatusOf(answer->status()), unary);
  }
  v1::SessionRequest request;
  request.mutable_open()->add_tickets(std::string(32, 'x'));
  auto answer = lane.Ask(request);
  ASSERT_OK(answer);
  EXPECT_STATUS(StatusOf(answer->status()), kNotFound, "ticket");
  request.mutable_attach()->set_name("nothing");
  answer = lane.Ask(request);
  ASSERT_OK(answer);
  EXPECT_STATUS(StatusOf(answer->status()), kNotFound, "nothing");
  // Requests that wait are unary calls.
  *request.mutable_acquire() = AcquireOf(1);
  request.mutable_acquire()->set_wait_ms(1000);
  answer = lane.Ask(request);
  ASSERT_OK(answer);
  EXPECT_STATUS(StatusOf(answer->status()), kInvalidArgument, "unary");
  request.mutable_attach()->set_wait_for_version(1);
  answer = lane.Ask(request);
  ASSERT_OK(answer);
  EXPECT_STATUS(StatusOf(answer->status()), kInvalidArgument, "unary");
}

TEST_F(Converse, ASessionHasOneStream) {
  auto first = std::make_unique<Conversation>(*broker_, token());
  EXPECT_OK(first->Ask(GetUsage()));
  EXPECT_STATUS(Conversation(*broker_, token()).Ask(GetUsage()).status(), kAlreadyExists, "stream");
  EXPECT_OK(first->Ask(GetUsage()));
  // Its end makes room for another.
  first.reset();
  EXPECT_TRUE(Eventually([&] { return Conversation(*broker_, token()).Ask(GetUsage()).ok(); }));
  EXPECT_STATUS(Conversation(*broker_, "").Ask(GetUsage()).status(), kUnauthenticated, "token");
}

TEST_F(Converse, TheEndOfTheSessionEndsIt) {
  WireSession other = Session("other");
  auto channel = other.TakeBroker();
  Conversation lane(*channel, other.token());
  EXPECT_OK(lane.Ask(GetUsage()));
  other.Close();
  EXPECT_TRUE(Eventually([&] { return !lane.Ask(GetUsage()).ok(); }));
}

TEST_F(Converse, AMessageThatIsTooLargeEndsIt) {
  v1::SessionRequest request;
  request.mutable_attach()->set_name(std::string(70'000, 'x'));
  EXPECT_STATUS(Conversation(*broker_, token()).Ask(request).status(), kInvalidArgument,
                "larger than");
  ASSERT_TRUE(Eventually([&] { return Conversation(*broker_, token()).Ask(GetUsage()).ok(); }));
}

// The daemon counts each message as a call: so many frames without calls would be a flood.
TEST_F(Converse, AQuickClientIsNoFlood) {
  Conversation lane(*broker_, token());
  for (int i = 0; i < 20'000; ++i) ASSERT_OK(lane.Ask(GetUsage()));
}

TEST_F(Converse, MessagesAheadOfTheirAnswersCloseTheConnection) {
  WireSession bad = Session("bad");
  auto broker = bad.TakeBroker();
  const auto context = ContextWith(bad.token());
  auto stream = broker->Converse(context.get());
  for (int i = 0; i < 1000 && stream->Write(GetUsage()); ++i) {
  }
  v1::SessionResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  // Others of the tenant are not harmed.
  EXPECT_OK(Conversation(*broker_, token()).Ask(GetUsage()));
}

}  // namespace
}  // namespace gpumem
