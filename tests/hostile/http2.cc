// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/http2.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"

namespace gpumem::hostile {
namespace {

constexpr size_t kMaxFrameBytes = 16384;
// Bodies are queued up to this, so that answers to PING are not stuck behind them.
constexpr size_t kMaxQueuedBytes = 256 * 1024;

uint32_t Number(absl::string_view bytes) {
  uint32_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

}  // namespace

const char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string BigEndian(uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  return absl::StrCat(BigEndian(payload.size(), 3), BigEndian(type, 1), BigEndian(flags, 1),
                      BigEndian(stream, 4), payload);
}

std::string HeaderField(absl::string_view name, absl::string_view value) {
  return absl::StrCat(absl::string_view("\0", 1), BigEndian(name.size(), 1), name,
                      BigEndian(value.size(), 1), value);
}

std::string CallHeaders(uint32_t stream, absl::string_view method, absl::string_view token,
                        absl::string_view more) {
  std::string fields = HeaderField(":method", "POST") + HeaderField(":scheme", "http") +
                       HeaderField(":path", method) + HeaderField(":authority", "localhost") +
                       HeaderField("te", "trailers") +
                       HeaderField("content-type", "application/grpc");
  // gRPC carries metadata whose name ends in "-bin" in base64.
  if (!token.empty()) fields += HeaderField(kTokenMetadata, absl::Base64Escape(token));
  absl::StrAppend(&fields, more);
  return Frame(kHeaders, kEndHeaders, stream, fields);
}

std::string GrpcMessage(absl::string_view message) {
  return absl::StrCat(absl::string_view("\0", 1), BigEndian(message.size(), 4), message);
}

ssize_t SendSome(int socket, absl::string_view bytes) {
  const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) return sent;
  return errno == EAGAIN || errno == EINTR ? 0 : -1;
}

bool DropInput(int socket) {
  char bytes[65536];
  while (true) {
    const ssize_t got = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got > 0) continue;
    return got < 0 && (errno == EAGAIN || errno == EINTR);
  }
}

Http2Client::Http2Client(UniqueFd socket, std::string token, int dropped)
    : socket_(std::move(socket)), token_(std::move(token)), dropped_(dropped) {
  constexpr uint32_t kLargeWindow = 0x7fff0000;
  constexpr uint16_t kInitialWindowSize = 4;
  // Answers never wait for this side.
  out_ = absl::StrCat(
      kPreface,
      Frame(kSettings, 0, 0, BigEndian(kInitialWindowSize, 2) + BigEndian(kLargeWindow, 4)),
      Frame(kWindowUpdate, 0, 0, BigEndian(kLargeWindow - 65535, 4)));
}

uint32_t Http2Client::Begin(absl::string_view method, std::shared_ptr<const std::string> body,
                            bool end, absl::string_view fields) {
  const uint32_t stream = std::exchange(next_stream_, next_stream_ + 2);
  out_ += CallHeaders(stream, method, token_, fields);
  unsent_ += body->size();
  streams_[stream] = {.body = std::move(body), .end = end, .window = initial_window_};
  waiting_.push_back(stream);
  return stream;
}

void Http2Client::Say(uint32_t stream, absl::string_view bytes) {
  out_ += Frame(kData, 0, stream, bytes);
}

void Http2Client::QueueBodies() {
  for (size_t looked = waiting_.size(); looked > 0 && out_.size() < kMaxQueuedBytes; --looked) {
    const uint32_t id = waiting_.front();
    waiting_.pop_front();
    const auto found = streams_.find(id);
    if (found == streams_.end()) continue;
    Stream& stream = found->second;
    const int64_t room = std::min<int64_t>({stream.window, window_, kMaxFrameBytes});
    const size_t left = stream.body->size() - stream.sent;
    const size_t size = std::min<size_t>(left, static_cast<size_t>(std::max<int64_t>(room, 0)));
    if (size > 0) {
      const bool last = stream.end && size == left;
      out_ += Frame(kData, last ? kEndStream : 0, id,
                    absl::string_view(*stream.body).substr(stream.sent, size));
      stream.sent += size;
      stream.window -= static_cast<int64_t>(size);
      window_ -= static_cast<int64_t>(size);
      unsent_ -= size;
    }
    if (stream.sent < stream.body->size()) waiting_.push_back(id);
  }
}

void Http2Client::Answered(uint32_t id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  Stream& stream = found->second;
  unsent_ -= stream.body->size() - stream.sent;
  ++answered_;
  granted_ += !stream.answer.empty();
  if (id == awaited_) {
    awaited_answer_ = std::move(stream.answer);
    awaited_ = 0;
  }
  streams_.erase(found);
}

void Http2Client::OnFrame(uint8_t type, uint8_t flags, uint32_t id, absl::string_view payload) {
  const auto stream = streams_.find(id);
  switch (type) {
    case kData:
      ++data_frames_;
      if (stream != streams_.end()) absl::StrAppend(&stream->second.answer, payload);
      if ((flags & kEndStream) != 0) Answered(id);
      return;
    case kHeaders:
      if ((flags & kEndStream) != 0) Answered(id);
      return;
    case kRstStream:
      return Answered(id);
    case kGoAway:
      closed_ = true;
      return;
    case kPing:
      if ((flags & kAck) == 0) out_ += Frame(kPing, kAck, 0, payload);
      return;
    case kWindowUpdate: {
      const uint32_t more = Number(payload) & 0x7fffffff;
      if (id == 0) window_ += more;
      if (stream != streams_.end()) stream->second.window += more;
      return;
    }
    case kSettings:
      if ((flags & kAck) != 0) return;
      for (absl::string_view left = payload; left.size() >= 6; left.remove_prefix(6)) {
        if (Number(left.substr(0, 2)) != 4) continue;
        const int64_t change = int64_t{Number(left.substr(2, 4))} - initial_window_;
        initial_window_ += change;
        for (auto& [number, open] : streams_) open.window += change;
      }
      out_ += Frame(kSettings, kAck, 0, "");
      return;
    default:
      return;
  }
}

bool Http2Client::ReadSome() {
  char bytes[65536];
  while (true) {
    const ssize_t got = recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0) return false;
    in_.append(bytes, static_cast<size_t>(got));
  }
  absl::string_view left = in_;
  while (left.size() >= kFrameHeaderBytes) {
    const size_t size = Number(left.substr(0, 3));
    if (left.size() < kFrameHeaderBytes + size) break;
    OnFrame(static_cast<uint8_t>(left[3]), static_cast<uint8_t>(left[4]),
            Number(left.substr(5, 4)) & 0x7fffffff, left.substr(kFrameHeaderBytes, size));
    left.remove_prefix(kFrameHeaderBytes + size);
  }
  in_.erase(0, in_.size() - left.size());
  return true;
}

bool Http2Client::Run(const std::function<bool()>& done, absl::Time deadline) {
  while (!closed_ && !done()) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    QueueBodies();
    ssize_t sent = 0;
    if (!out_.empty()) {
      sent = SendSome(socket_.get(), out_);
      if (sent > 0) out_.erase(0, static_cast<size_t>(sent));
    }
    if (sent == 0) {
      pollfd ready[] = {{socket_.get(), POLLIN, 0}, {dropped_, POLLIN, 0}};
      if (!out_.empty()) ready[0].events |= POLLOUT;
      poll(ready, 2, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
      // Without a session there is nothing to wait for either.
      if (ready[1].revents != 0 && !DropInput(dropped_)) closed_ = true;
    }
    if (sent < 0 || !ReadSome()) closed_ = true;
  }
  return done();
}

absl::StatusOr<std::string> Http2Client::Call(absl::string_view method, absl::string_view message,
                                              absl::Time deadline) {
  awaited_answer_.clear();
  awaited_ = Begin(method, std::make_shared<const std::string>(GrpcMessage(message)));
  if (!Run([this] { return awaited_ == 0; }, deadline)) {
    awaited_ = 0;
    if (closed_) return absl::UnavailableError("the connection is closed");
    return absl::DeadlineExceededError("no answer in time");
  }
  if (awaited_answer_.size() < 5) return absl::FailedPreconditionError("refused");
  return awaited_answer_.substr(5);
}

}  // namespace gpumem::hostile
