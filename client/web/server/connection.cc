// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace gpumem::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

// Time and bytes for what a peer sends after a mistake.
constexpr absl::Duration kLinger = absl::Seconds(1);
constexpr size_t kMostLinger = 64 * 1024;

using Fields = http::request<http::string_body>;

absl::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

std::optional<std::string> FieldOf(const Fields& fields, beast::string_view name) {
  std::optional<std::string> joined;
  const auto [first, last] = fields.equal_range(name);
  for (auto field = first; field != last; ++field) {
    joined = joined.has_value() ? absl::StrCat(*joined, ", ", View(field->value()))
                                : std::string(View(field->value()));
  }
  return joined;
}

// Returns the size of the fields, as a peer usually sends them.
size_t SizeOf(const Fields& fields) {
  size_t size = 2;  // the empty line
  for (const auto& field : fields) size += field.name_string().size() + field.value().size() + 4;
  return size;
}

Request RequestOf(Fields& fields) {
  return {.method = std::string(View(fields.method_string())),
          .target = std::string(View(fields.target())),
          .sender = {.host = FieldOf(fields, "Host"),
                     .origin = FieldOf(fields, "Origin"),
                     .fetch_site = FieldOf(fields, "Sec-Fetch-Site"),
                     .fetch_mode = FieldOf(fields, "Sec-Fetch-Mode"),
                     .fetch_dest = FieldOf(fields, "Sec-Fetch-Dest")},
          .authorization = FieldOf(fields, "Authorization").value_or(""),
          .accept_encoding = FieldOf(fields, "Accept-Encoding").value_or(""),
          .if_none_match = FieldOf(fields, "If-None-Match").value_or(""),
          .body = std::move(fields.body())};
}

const Message& Comment() {
  static const Message comment = std::make_shared<const std::string>(":\n\n");
  return comment;
}

}  // namespace

Connection::Connection(ConnectionHost* host, Seats::Id id, Stream::socket_type socket,
                       Caller caller)
    : host_(host),
      id_(id),
      caller_(caller),
      stream_(std::move(socket)),
      buffer_(host->limits().header_bytes + host->limits().body_bytes) {}

void Connection::Start() {
  Expire(host_->limits().request);
  ReadRequest();
}

void Connection::Close() {
  if (!std::exchange(open_, false)) return;
  const auto self = shared_from_this();  // the host may hold the last reference
  subscription_.reset();
  out_body_.reset();
  unsent_.reset();
  if (mailbox_ != nullptr) mailbox_->End();
  ticket_.reset();
  place_.reset();
  Error ignored;
  stream_.socket().shutdown(asio::socket_base::shutdown_both, ignored);
  stream_.close();
  host_->Closed(id_);
}

std::optional<uid_t> Connection::uid() const {
  const std::optional<Viewer>& viewer = caller_.viewer.has_value() ? caller_.viewer : viewer_;
  return viewer.has_value() ? std::optional<uid_t>(viewer->uid) : std::nullopt;
}

size_t Connection::unsent_bytes() const {
  if (mailbox_ != nullptr) return mailbox_->bytes();
  return out_body_ != nullptr ? out_body_->size() : 0;
}

void Connection::Expire(absl::Duration after) {
  stream_.expires_after(absl::ToChronoNanoseconds(std::max(after, absl::ZeroDuration())));
}

// Waits for the next request's first byte, which may be later than the others.
void Connection::AwaitRequest() {
  if (buffer_.size() > 0) return Start();
  Expire(host_->limits().keep_alive);
  stream_.async_read_some(buffer_.prepare(4096),
                          [self = shared_from_this()](const Error& error, size_t size) {
                            if (!self->open_) return;
                            if (error) return self->Close();
                            self->buffer_.commit(size);
                            self->Start();
                          });
}

void Connection::ReadRequest() {
  parser_.emplace();
  parser_->header_limit(host_->limits().header_bytes);
  parser_->body_limit(host_->limits().body_bytes);
  // The head alone: an eager parser forgets that the length is too large (Boost 1.74).
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](const Error& error, size_t) {
                            if (!self->open_) return;
                            if (error) return self->Refuse(error);
                            self->ReadBody();
                          });
}

void Connection::ReadBody() {
  // The parser takes any coding before "chunked", and reads a body to the connection's end, or
  // none, if it does not know the coding. What comes between two programs might count it
  // differently.
  const std::optional<std::string> coding = FieldOf(parser_->get(), "Transfer-Encoding");
  if (coding.has_value() && *coding != "chunked") {
    return Refuse(http::error::bad_transfer_encoding);
  }
  http::async_read(stream_, buffer_, *parser_,
                   [self = shared_from_this()](const Error& error, size_t) {
                     if (!self->open_) return;
                     if (error) return self->Refuse(error);
                     self->OnRequest();
                   });
}

// Answers a request that is none, if the peer may understand an answer.
void Connection::Refuse(const Error& error) {
  if (error.category() != make_error_code(http::error::bad_method).category() ||
      error == http::error::end_of_stream || error == http::error::partial_message) {
    return Close();
  }
  keep_alive_ = false;
  linger_ = true;
  head_ = false;
  if (error == http::error::body_limit) {
    return Send(ErrorAnswer(413, absl::InvalidArgumentError("the request's body is too large")));
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return Send(ErrorAnswer(431, absl::InvalidArgumentError("the request's head is too large")));
  }
  Send(ErrorAnswer(absl::InvalidArgumentError("this is no request of HTTP/1.1")));
}

void Connection::OnRequest() {
  Fields fields = parser_->release();
  // The parser may have let pass twice the limit: what has come in pieces counts anew.
  if (SizeOf(fields) > host_->limits().header_bytes) return Refuse(http::error::header_limit);
  keep_alive_ = fields.version() >= 11 && fields.keep_alive();
  linger_ = false;
  head_ = fields.method() == http::verb::head;
  const Request request = RequestOf(fields);
  viewer_ = host_->handler().Authenticate(caller_, request.authorization);
  authorization_ = request.authorization;
  host_->Active(id_, uid());
  // The time of an answer is that of the feed: no deadline for the peer.
  stream_.expires_never();
  ticket_ = host_->handler().Handle(
      caller_, viewer_, request,
      [weak = weak_from_this(), executor = stream_.get_executor()](Answer answer) {
        asio::post(executor, [weak, answer = std::move(answer)]() mutable {
          const auto self = weak.lock();
          if (self != nullptr && self->open_) self->Send(std::move(answer));
        });
      });
}

void Connection::Send(Answer answer) {
  if (answer.stream.has_value()) keep_alive_ = false;
  out_body_ = std::move(answer.body);
  out_file_ = out_body_ != nullptr ? absl::string_view(*out_body_) : answer.file;
  ticket_.reset();
  place_ = std::move(answer.place);
  std::optional<size_t> length;
  if (!answer.stream.has_value() && answer.status != 304) length = out_file_.size();
  out_head_ = HeadOf(answer, keep_alive_, length);
  if (head_) out_file_ = {};  // HEAD announces the body, but does not send it
  sent_ = 0;
  send_ends_ = absl::Now() + host_->limits().answer;
  if (answer.stream.has_value() && !head_) return BeginStream();
  if (out_body_ != nullptr) {
    unsent_ = host_->unsent()->Count(out_body_);
    host_->Relieve();
    if (!open_) return;
  }
  WriteSome();
}

void Connection::WriteSome() {
  writing_ = true;
  const size_t of_head = std::min(sent_, out_head_.size());
  const std::array<asio::const_buffer, 2> rest = {
      asio::buffer(out_head_) + of_head,
      asio::buffer(out_file_.data(), out_file_.size()) + (sent_ - of_head)};
  Expire(std::min(host_->limits().progress, send_ends_ - absl::Now()));
  stream_.async_write_some(rest, [self = shared_from_this()](const Error& error, size_t size) {
    if (!self->open_) return;
    if (error) return self->Close();
    self->sent_ += size;
    if (self->sent_ < self->out_head_.size() + self->out_file_.size()) return self->WriteSome();
    self->OnSent();
  });
}

void Connection::OnSent() {
  writing_ = false;
  out_body_.reset();
  unsent_.reset();
  out_file_ = {};
  place_.reset();
  host_->Active(id_, uid());
  if (mailbox_ != nullptr) {
    if (out_head_.empty()) mailbox_->Pop();
    out_head_.clear();
    return NextMessage();
  }
  if (linger_) {
    Error ignored;
    stream_.socket().shutdown(asio::socket_base::shutdown_send, ignored);
    buffer_.clear();
    Expire(kLinger);  // for all reads
    return Linger(kMostLinger);
  }
  if (!keep_alive_) return Close();
  AwaitRequest();
}

// Reads what the peer still sends, up to a limit. Closed at once, it might not get the answer.
void Connection::Linger(size_t left) {
  stream_.async_read_some(buffer_.prepare(std::min<size_t>(left, 4096)),
                          [self = shared_from_this(), left](const Error& error, size_t size) {
                            if (!self->open_) return;
                            if (error || size >= left) return self->Close();
                            self->Linger(left - size);
                          });
}

void Connection::BeginStream() {
  mailbox_ =
      std::make_shared<Mailbox>(host_->limits().stream_bytes, host_->unsent(),
                                [weak = weak_from_this(), executor = stream_.get_executor()] {
                                  asio::post(executor, [weak] {
                                    const auto self = weak.lock();
                                    if (self != nullptr && self->open_) self->NextMessage();
                                  });
                                });
  subscription_ = host_->feed().Subscribe(
      *viewer_, [mailbox = mailbox_](const Message& message) { mailbox->Send(message); });
  stream_.expires_never();  // of the read that follows
  WatchStream();
  WriteSome();
}

// Notices the peer's end. It has nothing to say.
void Connection::WatchStream() {
  stream_.async_read_some(asio::buffer(ignored_),
                          [self = shared_from_this()](const Error&, size_t) { self->Close(); });
}

void Connection::NextMessage() {
  host_->Relieve();
  if (!open_) return;
  if (mailbox_->full()) return Close();  // the page connects again
  if (writing_) return;
  out_body_ = mailbox_->Front();
  if (out_body_ == nullptr) return;
  out_file_ = *out_body_;
  sent_ = 0;
  send_ends_ = absl::Now() + host_->limits().answer;
  WriteSome();
}

void Connection::Beat() {
  if (mailbox_ == nullptr) return;
  if (!host_->handler().Authenticate(caller_, authorization_).has_value()) return Close();
  if (!writing_) mailbox_->Send(Comment());
}

}  // namespace gpumem::web
