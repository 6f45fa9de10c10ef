// SPDX-License-Identifier: Apache-2.0
// Bad requests on a session's gRPC connection: the right status with words that help, to that
// client alone, and nothing leaked (the fixture looks, tests/support/attack.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/unix_channel.h"
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
using testing::CallBytes;
using testing::Child;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::kAnswerTime;
using testing::WireSession;
using Stub = v1::Broker::Stub;

constexpr uint64_t kCapacity = 256 * kMiB;
constexpr const char* kMethodsWithToken[] = {
    "Acquire", "Open",   "Share",     "Release",          "WhoAmI",         "GetUsage",
    "Publish", "Attach", "Unpublish", "ListPublications", "ReportActivity", "ExchangeLeases"};

std::string Method(absl::string_view name) { return absl::StrCat("/gpumem.v1.Broker/", name); }

// --- Tokens --------------------------------------------------------------------------

TEST_F(Api, TokensThatNameNoLiveSessionAreRefusedByEveryMethod) {
  std::string stale;
  {
    WireSession ended = Session("bad");
    stale = ended.token();
  }
  ASSERT_TRUE(Eventually([&] { return Usage().sessions() == 1; }));
  struct Case {
    std::string token, words;
  };
  const Case cases[] = {{"", "carries no session token"},
                        {std::string(31, 'x'), "not a session token"},
                        {token() + "x", "not a session token"},
                        {std::string(32, '\0'), "has ended; connect again"},
                        {std::string(32, 'x'), "has ended; connect again"},
                        {stale, "has ended; connect again"}};
  const auto channel = OtherChannel();
  for (const Case& bad : cases) {
    for (const char* method : kMethodsWithToken) {
      EXPECT_STATUS(CallBytes(channel, Method(method), "", bad.token), kUnauthenticated, bad.words);
    }
    const auto context = testing::ContextWith(bad.token);
    auto watch = broker_->Watch(context.get(), v1::WatchRequest());
    v1::Event event;
    EXPECT_FALSE(watch->Read(&event));
    const grpc::Status status = watch->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_THAT(status.error_message(), HasSubstr(bad.words));
  }
  // A look at the devices is free.
  EXPECT_OK(CallBroker(*broker_, &Stub::ListDevices, v1::ListDevicesRequest(), ""));
}

TEST_F(Api, AStolenTokenBringsNoDescriptor) {
  Child thief = Child::Self({"--role", "thief", daemon_->runtime_dir()});
  ASSERT_OK(SendMessage(thief.channel(), token(), {}, absl::Now() + kAnswerTime));
  auto word = ReceiveMessage(thief.channel(), absl::Now() + kAnswerTime);
  ASSERT_OK(word);
  // It was answered, with as many descriptors afterwards as before.
  ASSERT_THAT(word->bytes, HasSubstr("lease "));
  EXPECT_THAT(word->bytes, HasSubstr("descriptors: 0 more"));
  EXPECT_EQ(thief.Wait(), 0);
  // The descriptors that it requested came here.
  std::vector<UniqueFd> fds;
  auto delivery = session_->Receive(&fds);
  ASSERT_OK(delivery);
  EXPECT_EQ(delivery->delivery().lease_ids_size(), 1);
  EXPECT_EQ(fds.size(), 1u);
  held_.emplace_back(token(), delivery->delivery().lease_ids(0));
}

// --- Leases --------------------------------------------------------------------------

TEST_F(Api, LeasesOfOthersAreUnknownToASession) {
  const uint64_t lease = AcquireOne();
  for (const char* tenant : {"bad", "other"}) {
    WireSession stranger = Session(tenant);
    EXPECT_STATUS(Release({lease}, stranger.token()), kNotFound, absl::StrCat("lease ", lease));
    EXPECT_STATUS(Share(lease, stranger.token()), kNotFound, absl::StrCat("lease ", lease));
  }
  EXPECT_OK(Share(lease, token()));
  for (uint64_t unknown : {uint64_t{0}, lease + 1000, UINT64_MAX}) {
    EXPECT_STATUS(Release({unknown}, token()), kNotFound, absl::StrCat("lease ", unknown));
    EXPECT_STATUS(Share(unknown, token()), kNotFound, absl::StrCat("lease ", unknown));
  }
}

TEST_F(Api, ReleaseIsAllOrNothingAndCountsALeaseOnce) {
  const uint64_t one = AcquireOne(), two = AcquireOne();
  EXPECT_STATUS(Release({one, two, 4711}, token()), kNotFound, "4711");
  EXPECT_EQ(Usage().devices(0).leased_bytes(), 4 * kMiB);
  EXPECT_OK(Release({one, one, one}, token()));
  EXPECT_EQ(Usage().devices(0).leased_bytes(), 2 * kMiB);
  EXPECT_STATUS(Release({two, one}, token()), kNotFound, absl::StrCat("lease ", one));
  EXPECT_OK(Release({two}, token()));
  EXPECT_OK(Release({}, token()));
  held_.clear();
}

// --- Sizes, counts, devices, kinds ---------------------------------------------------

TEST_F(Api, SizesThatNoDeviceHasAreRefused) {
  EXPECT_STATUS(Acquire(AcquireOf(0)), kInvalidArgument, "");
  for (uint64_t bytes : {kCapacity + 1, uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - kMiB}) {
    for (uint32_t count : {1u, 2u, 253u}) {
      EXPECT_STATUS(Acquire(AcquireOf(bytes, count)), kInvalidArgument, "");
    }
  }
  // The device has so much, but the tenant may not have it.
  const absl::Status denied = Acquire(AcquireOf(kCapacity)).status();
  EXPECT_DENIED(denied, kDeviceLimit);
  EXPECT_EQ(testing::DenialIn(denied).limit, 64 * kMiB);
  EXPECT_DENIED(Acquire(AcquireOf(kCapacity, 253)), kDeviceLimit);
  auto smallest = Acquire(AcquireOf(1));
  ASSERT_OK(smallest);
  EXPECT_EQ(smallest->leases(0).size_bytes(), 2 * kMiB);
  EXPECT_EQ(Usage().charged_bytes(), 2 * kMiB);
}

TEST_F(Api, SizesTimesCountsDoNotWrapAround) {
  auto daemon = testing::DaemonProcess::Start({.flags = {"--host-device-bytes", "16PiB"}});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  WireSession session((*daemon)->Socket("session.sock"));
  ASSERT_OK(session.Greet(testing::HelloOf("")));
  auto broker = session.TakeBroker();
  // The largest device that there may be.
  for (const auto& [bits, count] : {std::pair(54, 2u), std::pair(54, 253u), std::pair(53, 128u)}) {
    const auto refused =
        CallBroker(*broker, &Stub::Acquire, AcquireOf(uint64_t{1} << bits, count), session.token());
    EXPECT_DENIED(refused, kCapacity);
    EXPECT_EQ(testing::DenialIn(refused.status()).limit, uint64_t{1} << 54);
    const auto usage = CallBroker(*broker, &Stub::GetUsage, v1::GetUsageRequest(), session.token());
    ASSERT_OK(usage);
    EXPECT_EQ(usage->usage().devices(0).peak_bytes(), 0u) << "some of it was charged";
  }
}

TEST_F(Api, CountsBeyondOneMessageAreRefused) {
  for (uint32_t count : {254u, 65536u, UINT32_MAX}) {
    EXPECT_STATUS(Acquire(AcquireOf(1, count)), kInvalidArgument, absl::StrCat(count));
  }
  const absl::Status denied = Acquire(AcquireOf(1, 253)).status();
  EXPECT_DENIED(denied, kDeviceLimit);
  EXPECT_EQ(testing::DenialIn(denied).limit, 64 * kMiB);
  EXPECT_EQ(Usage().charged_bytes(), 0u);
  auto one = Acquire(AcquireOf(1, 0));
  ASSERT_OK(one);
  EXPECT_EQ(one->leases_size(), 1);
}

TEST_F(Api, UnknownDevicesAndKindsAreRefusedByName) {
  v1::AcquireRequest request = AcquireOf(1);
  request.set_device_uuid("GPU-0");
  EXPECT_STATUS(Acquire(request), kNotFound, "\"GPU-0\"");
  // The answer has to fit whatever was asked.
  request.set_device_uuid(std::string(60000, 'u'));
  EXPECT_STATUS(Acquire(request), kNotFound, "\"uuuu");
  request.set_device_uuid("\n\r%\x01");
  EXPECT_STATUS(Acquire(request), kNotFound, "");
  request = AcquireOf(1);
  request.set_kind(static_cast<v1::Kind>(77));
  EXPECT_STATUS(Acquire(request), kUnimplemented, "77");
  EXPECT_STATUS(Share(AcquireOne(), token(), static_cast<v1::TicketScope>(77)), kInvalidArgument,
                "77");
}

// --- Tickets -------------------------------------------------------------------------

TEST_F(Api, InvalidTicketsAreRefusedAndNothingIsOpened) {
  auto ticket = Share(AcquireOne(), token());
  ASSERT_OK(ticket);
  EXPECT_STATUS(Open({}, token()), kInvalidArgument, "253");
  EXPECT_STATUS(Open(std::vector<std::string>(254, *ticket), token()), kInvalidArgument, "254");
  for (size_t size : {size_t{0}, size_t{31}, size_t{33}, size_t{60000}}) {
    EXPECT_STATUS(Open({*ticket, std::string(size, 't')}, token()), kInvalidArgument,
                  absl::StrCat(size));
  }
  EXPECT_STATUS(Open({*ticket, std::string(32, 't')}, token()), kNotFound, "");
  // A token is no ticket.
  EXPECT_STATUS(Open({token()}, token()), kNotFound, "");
  WireSession stranger = Session("other");
  EXPECT_STATUS(Open({*ticket}, stranger.token()), kPermissionDenied, "other");
  EXPECT_EQ(Usage().charged_bytes(), 2 * kMiB);
  EXPECT_OK(Open(std::vector<std::string>(253, *ticket), token()));
  EXPECT_EQ(Usage().charged_bytes(), 2 * kMiB);
}

TEST_F(Api, TheLeasesOfASessionAreBounded) {
  auto ticket = Share(AcquireOne(), token());
  ASSERT_OK(ticket);
  ASSERT_OK(session_->Receive());
  const std::vector<std::string> tickets(253, *ticket);
  absl::Status ended;
  for (int i = 0; i < 1000 && ended.ok(); ++i) {
    ended = Open(tickets, token());
    if (ended.ok()) ended = session_->Receive().status();
  }
  EXPECT_STATUS(ended, kResourceExhausted, "leases");
  EXPECT_EQ(Usage().charged_bytes(), 2 * kMiB);
  std::vector<uint64_t> leases;
  const uint64_t last = held_.back().second;
  for (const auto& [token, lease] : std::exchange(held_, {})) {
    leases.push_back(lease);
    if (leases.size() < 10000 && lease != last) continue;
    EXPECT_OK(Release(std::exchange(leases, {}), token));
  }
}

// --- Messages ------------------------------------------------------------------------

TEST_F(Api, RequestsThatDoNotParseAreRefusedByType) {
  const auto channel = OtherChannel();
  // Cut off, of another wire type, no UTF-8 in a string, an unending varint.
  for (const std::string& bytes : {std::string("\x0a\x05x"), std::string("\xff\xff\xff\xff\xff"),
                                   std::string("\x0a\x01\xff"), std::string(12, '\x80')}) {
    for (const char* method : {"Acquire", "ListDevices"}) {
      if (bytes[0] == '\x0a' && bytes[1] == '\x01' && method[0] == 'L') continue;
      EXPECT_STATUS(CallBytes(channel, Method(method), bytes, token()), kInvalidArgument,
                    absl::StrCat("gpumem.v1.", method, "Request"));
    }
  }
  for (const char* method :
       {"Acquire", "Open", "Share", "Release", "WhoAmI", "GetUsage", "Watch", "Publish", "Attach",
        "Unpublish", "ListPublications", "ReportActivity", "ExchangeLeases"}) {
    EXPECT_STATUS(CallBytes(channel, Method(method), "\xff", token()), kInvalidArgument,
                  absl::StrCat("gpumem.v1.", method, "Request"));
  }
}

TEST_F(Api, OversizedRequestsAndMetadataAreRefused) {
  const auto channel = OtherChannel();
  for (const char* method : kMethodsWithToken) {
    EXPECT_STATUS(
        CallBytes(channel, Method(method), std::string((1 << 20) + 128 * 1024 + 1, 'x'), token()),
        kResourceExhausted, "larger than max");
  }
  auto broker = NewBroker();
  // The limit holds once the client has acknowledged it.
  EXPECT_OK(CallBroker(*broker, &Stub::GetUsage, v1::GetUsageRequest(), token()));
  // More than twice gRPC's limit ends the connection.
  for (const auto& [bytes, code] : {std::pair(12000, grpc::StatusCode::RESOURCE_EXHAUSTED),
                                    std::pair(100000, grpc::StatusCode::UNAVAILABLE)}) {
    const auto context = testing::ContextWith(token());
    context->AddMetadata("x-large", std::string(static_cast<size_t>(bytes), 'x'));
    v1::GetUsageResponse response;
    const grpc::Status status = broker->GetUsage(context.get(), v1::GetUsageRequest(), &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    // At most that connection is lost; the session's other calls go on.
    EXPECT_EQ(Usage().tenant(), "bad");
  }
}

TEST_F(Api, CompressedRequestsAreRefused) {
  auto broker = NewBroker();
  v1::ReleaseRequest request;
  for (int i = 0; i < 1000; ++i) request.add_lease_ids(1);
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    const auto context = testing::ContextWith(token());
    context->set_compression_algorithm(algorithm);
    v1::ReleaseResponse response;
    const grpc::Status status = broker->Release(context.get(), request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
  }
  EXPECT_EQ(Usage().tenant(), "bad");
}

TEST_F(Api, UnknownMethodsAreUnimplemented) {
  const auto channel = OtherChannel();
  for (const char* method :
       {"/gpumem.v1.Broker/Steal", "/gpumem.v1.Admin/SetQuota", "/gpumem.v2.Broker/Acquire", "/"}) {
    SCOPED_TRACE(method);
    EXPECT_STATUS(CallBytes(channel, method, "", token()), kUnimplemented, "");
  }
}

// --- Roles of other processes --------------------------------------------------------

// Uses another session's token.
int Steal(const std::string& dir) {
  auto token = ReceiveMessage(3, absl::Now() + kAnswerTime);
  if (!token.ok()) return 1;
  WireSession own(dir + "/session.sock");
  if (!own.Greet(testing::HelloOf("bad")).ok()) return 1;
  auto broker = own.TakeBroker();
  if (!CallBroker(*broker, &Stub::ListDevices, v1::ListDevicesRequest(), "").ok()) return 1;
  const int before = testing::CountFds(getpid());
  v1::AcquireRequest acquire;
  acquire.set_bytes(1);
  auto stolen = CallBroker(*broker, &Stub::Acquire, acquire, token->bytes);
  pollfd delivery{own.fd(), POLLIN, 0};
  const int came = poll(&delivery, 1, 0);
  const std::string word =
      stolen.ok()
          ? absl::StrCat("lease ", stolen->leases(0).lease_id(),
                         ", descriptors: ", testing::CountFds(getpid()) - before + came, " more")
          : stolen.status().ToString();
  return SendMessage(3, word, {}, absl::Now() + kAnswerTime).ok() ? 0 : 1;
}

}  // namespace

int RunRole(const std::string& role, const std::string& dir) {
  return role == "thief" ? Steal(dir) : 2;
}

}  // namespace gpumem

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--role") return gpumem::RunRole(argv[2], argv[3]);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
