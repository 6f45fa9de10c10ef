// SPDX-License-Identifier: Apache-2.0
#include "tests/support/wire.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/denial.h"
#include "common/endpoints.h"
#include "common/unix_channel.h"
#include "tests/support/raw_call.h"

namespace gpumem::testing {
namespace {

UniqueFd ConnectOrDie(const std::string& path, int type) {
  absl::StatusOr<UniqueFd> socket = ConnectUnix(path, type, absl::Now() + kAnswerTime);
  if (socket.ok()) return *std::move(socket);
  fprintf(stderr, "%s\n", socket.status().ToString().c_str());
  abort();
}

}  // namespace

v1::Hello HelloOf(absl::string_view tenant, absl::string_view name) {
  v1::Hello hello;
  hello.set_protocol_version(kProtocolVersion);
  hello.set_client_name(std::string(name));
  hello.set_tenant(std::string(tenant));
  return hello;
}

WireSession::WireSession(const std::string& socket_path)
    : socket_(ConnectOrDie(socket_path, SOCK_SEQPACKET)) {}

absl::Status WireSession::Send(absl::string_view bytes, absl::Span<const int> fds) {
  // Not SendMessage(), which would refuse data that a test may want to send.
  std::string control(CMSG_SPACE(fds.size() * sizeof(int)), '\0');
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  if (sendmsg(socket_.get(), &header, MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, "sendmsg");
}

absl::StatusOr<v1::ServerMessage> WireSession::Receive(std::vector<UniqueFd>* fds) {
  absl::StatusOr<UnixMessage> packet = ReceiveMessage(socket_.get(), absl::Now() + kAnswerTime);
  if (!packet.ok()) return packet.status();
  v1::ServerMessage message;
  if (!message.ParseFromString(packet->bytes)) return absl::DataLossError("no ServerMessage");
  if (fds != nullptr) *fds = std::move(packet->fds);
  return message;
}

absl::Status WireSession::Answer() {
  std::vector<UniqueFd> fds;
  absl::StatusOr<v1::ServerMessage> message = Receive(&fds);
  if (!message.ok()) return message.status();
  if (message->has_refusal()) {
    absl::Status refused(static_cast<absl::StatusCode>(message->refusal().code()),
                         message->refusal().message());
    if (message->refusal().has_denial()) AttachDenial(message->refusal().denial(), &refused);
    return refused;
  }
  if (message->has_goodbye()) return absl::CancelledError(message->goodbye().reason());
  if (!message->has_welcome()) return absl::InternalError(message->ShortDebugString());
  if (fds.size() != 1) return absl::InternalError("a Welcome without its gRPC connection");
  welcome_ = message->welcome();
  api_ = std::move(fds.front());
  return absl::OkStatus();
}

absl::Status WireSession::Greet(const v1::Hello& hello) {
  const absl::Status sent = Send(hello.SerializeAsString());
  absl::Status answer = Answer();
  // The daemon may have refused the connection, and closed it, before the Hello.
  return answer.ok() ? sent : answer;
}

std::shared_ptr<grpc::Channel> WireSession::TakeChannel() { return ChannelOver(TakeApi()); }

bool WireSession::Ended() { return absl::IsUnavailable(Receive().status()); }

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& socket_path) {
  grpc::ChannelArguments arguments;
  // A separate connection for each channel, and so for each client of a test.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("unix:" + socket_path, grpc::InsecureChannelCredentials(),
                                   arguments);
}

std::shared_ptr<grpc::Channel> ChannelOver(UniqueFd socket) {
  fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return grpc::CreateCustomInsecureChannelFromFd("gpumemd", socket.release(), {});
}

std::shared_ptr<grpc::Channel> ChannelOfSession(const std::string& session_socket,
                                                absl::string_view tenant) {
  auto session = std::make_shared<WireSession>(session_socket);
  if (absl::Status greeted = session->Greet(HelloOf(tenant)); !greeted.ok()) {
    fprintf(stderr, "%s\n", greeted.ToString().c_str());
    abort();
  }
  std::shared_ptr<grpc::Channel> channel = session->TakeChannel();
  return {channel.get(), [channel, session](grpc::Channel*) {}};
}

std::unique_ptr<grpc::ClientContext> ContextWith(absl::string_view token, absl::Duration timeout) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  if (!token.empty()) context->AddMetadata(kTokenMetadata, std::string(token));
  return context;
}

absl::StatusOr<std::string> CallBytes(const std::shared_ptr<grpc::Channel>& channel,
                                      const std::string& method, const std::string& request,
                                      absl::string_view token) {
  return PendingCall(channel, method, request, ContextWith(token)).Wait();
}

absl::StatusOr<std::string> StreamBytes(const std::shared_ptr<grpc::Channel>& channel,
                                        const std::string& method, const std::string& request) {
  RawStream stream(channel, method, ContextWith());
  std::string answer;
  if (stream.Write(request, /*last=*/true)) stream.Read(&answer);
  const absl::Status status = stream.Finish();
  if (!status.ok()) return status;
  return answer;
}

UniqueFd ConnectStream(const std::string& socket_path) {
  return ConnectOrDie(socket_path, SOCK_STREAM);
}

namespace http2 {
namespace {

std::string BigEndian(uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

// A header field in HPACK, literal and unindexed (RFC 7541, 6.2.2); each part < 127 bytes.
std::string Field(absl::string_view name, absl::string_view value) {
  return absl::StrCat(absl::string_view("\0", 1), BigEndian(name.size(), 1), name,
                      BigEndian(value.size(), 1), value);
}

}  // namespace

std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  return absl::StrCat(BigEndian(payload.size(), 3), BigEndian(type, 1), BigEndian(flags, 1),
                      BigEndian(stream, 4), payload);
}

std::string Opening(uint32_t initial_window) {
  constexpr uint8_t kSettings = 4;
  constexpr uint16_t kInitialWindowSize = 4;
  return absl::StrCat(
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      Frame(kSettings, 0, 0, BigEndian(kInitialWindowSize, 2) + BigEndian(initial_window, 4)));
}

std::string Headers(uint32_t stream, absl::string_view method, bool end) {
  constexpr uint8_t kHeaders = 1, kEndStream = 1, kEndHeaders = 4;
  const std::string fields = Field(":method", "POST") + Field(":scheme", "http") +
                             Field(":path", method) + Field(":authority", "localhost") +
                             Field("te", "trailers") + Field("content-type", "application/grpc");
  return Frame(kHeaders, kEndHeaders | (end ? kEndStream : 0), stream, fields);
}

std::string Data(uint32_t stream, absl::string_view message) {
  constexpr uint8_t kData = 0, kEndStream = 1;
  return Frame(kData, kEndStream, stream,
               absl::StrCat(absl::string_view("\0", 1), BigEndian(message.size(), 4), message));
}

}  // namespace http2
}  // namespace gpumem::testing
