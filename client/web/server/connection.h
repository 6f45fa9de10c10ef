// SPDX-License-Identifier: Apache-2.0
// One connection of the server.
#pragma once

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "client/web/feed/feed_source.h"
#include "client/web/server/answer.h"
#include "client/web/server/handler.h"
#include "client/web/server/limits.h"
#include "client/web/server/mailbox.h"
#include "client/web/server/unsent.h"
#include "client/web/server/users/seats.h"

namespace gpumem::web {

// What a connection uses of its server.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  virtual const Limits& limits() const = 0;
  virtual Handler& handler() = 0;
  virtual FeedSource& feed() = 0;
  virtual const std::shared_ptr<Unsent>& unsent() = 0;
  // Closes connections, perhaps the caller, while there are too many unsent bytes.
  virtual void Relieve() = 0;
  // Notes activity of a connection, and the uid that it was for.
  virtual void Active(Seats::Id id, std::optional<uid_t> uid) = 0;
  // Forgets a connection.
  virtual void Closed(Seats::Id id) = 0;
};

// All of it on the server's thread. Handlers hold it until they have run.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Stream = boost::beast::basic_stream<boost::asio::generic::stream_protocol>;

  // `host` must outlive all handlers.
  Connection(ConnectionHost* host, Seats::Id id, Stream::socket_type socket, Caller caller);

  // Reads requests, and answers them, until Close().
  void Start();
  // Closes the connection, and ends its stream. Tells the host.
  void Close();
  // Returns the user of the last request, or of the peer; nullopt: not known before the login.
  std::optional<uid_t> uid() const;
  // Returns the bytes of what it has not sent.
  size_t unsent_bytes() const;
  // Sends a comment on a stream. Closes a stream whose key has expired.
  void Beat();

 private:
  using Error = boost::system::error_code;

  void AwaitRequest();
  void ReadRequest();
  void ReadBody();
  void OnRequest();
  void Refuse(const Error& error);
  void Send(Answer answer);
  void WriteSome();
  void OnSent();
  void Linger(size_t left);
  void BeginStream();
  void WatchStream();
  void NextMessage();
  void Expire(absl::Duration after);

  ConnectionHost* const host_;
  const Seats::Id id_;
  const Caller caller_;
  Stream stream_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  bool open_ = true;
  bool keep_alive_ = false;
  bool linger_ = false;  // the peer may still be sending
  bool head_ = false;    // the method is HEAD

  // The answer in progress: a head, then a body.
  std::string out_head_;
  Message out_body_;
  absl::string_view out_file_;
  size_t sent_ = 0;
  bool writing_ = false;
  absl::Time send_ends_;
  Calls::Ticket ticket_;  // of the request in progress
  Calls::Place place_;
  Unsent::Text unsent_;  // of an answer

  // Of a stream.
  std::optional<Viewer> viewer_;
  std::string authorization_;
  std::shared_ptr<Mailbox> mailbox_;
  std::unique_ptr<Subscription> subscription_;
  std::array<char, 64> ignored_ = {};
};

}  // namespace gpumem::web
