// SPDX-License-Identifier: Apache-2.0
#include "daemon/metrics/http_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/start_thread.h"

namespace gpumemd {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

// The whole of a request but its body, of which there is none.
constexpr uint32_t kMaxHeaderBytes = 8 * 1024;

// Retry interval if there was no descriptor for a connection.
constexpr absl::Duration kTryAgain = absl::Milliseconds(250);

using Protocol = asio::generic::stream_protocol;
using Stream = beast::basic_stream<Protocol>;
using Response = http::response<http::string_body>;

std::chrono::nanoseconds ToChrono(absl::Duration duration) {
  return absl::ToChronoNanoseconds(duration);
}

}  // namespace

// All of it on one thread, but for Run's beginning and Stop.
class HttpServer::Loop {
 public:
  explicit Loop(HttpServerOptions options) : options_(std::move(options)) {}

  absl::Status Run(gpumem::UniqueFd listener) {
    listener_.assign(listener.release());
    Accept();
    absl::StatusOr<std::thread> thread = gpumem::StartThread([this] { context_.run(); });
    if (!thread.ok()) return thread.status();
    thread_ = *std::move(thread);
    return absl::OkStatus();
  }

  ~Loop() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
    // First: objects that the handlers hold refer to the other members.
    connections_.clear();
  }

 private:
  struct Connection {
    explicit Connection(Stream::socket_type socket) : stream(std::move(socket)) {}
    Stream stream;
    beast::flat_buffer buffer{kMaxHeaderBytes};
    std::optional<http::request_parser<http::empty_body>> parser;
    Response response;
    std::list<std::shared_ptr<Connection>>::iterator place;
    bool open = true;
  };
  using Shared = std::shared_ptr<Connection>;

  void Accept() {
    listener_.async_wait(asio::posix::stream_descriptor::wait_read,
                         [this](const boost::system::error_code& error) {
                           if (!error) AcceptOne();
                         });
  }

  void AcceptOne() {
    sockaddr_storage address = {};
    socklen_t length = sizeof(address);
    gpumem::UniqueFd fd(accept4(listener_.native_handle(), reinterpret_cast<sockaddr*>(&address),
                                &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      Begin(std::move(fd), address.ss_family);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The listener stays readable: not at once, or this thread would do nothing else.
      if (!connections_.empty()) Close(connections_.front());
      retry_.expires_after(ToChrono(kTryAgain));
      retry_.async_wait([this](const boost::system::error_code& error) {
        if (!error) Accept();
      });
      return;
    }
    Accept();
  }

  void Begin(gpumem::UniqueFd fd, int family) {
    Stream::socket_type socket(context_);
    boost::system::error_code error;
    socket.assign(Protocol(family, 0), fd.get(), error);
    if (error) return;
    fd.release();
    if (connections_.size() >= options_.max_connections) Close(connections_.front());
    auto connection = std::make_shared<Connection>(std::move(socket));
    connection->place = connections_.insert(connections_.end(), connection);
    Read(connection, options_.patience);
  }

  void Read(const Shared& connection, absl::Duration patience) {
    connection->parser.emplace();
    connection->parser->header_limit(kMaxHeaderBytes);
    connection->parser->body_limit(0);
    connection->stream.expires_after(ToChrono(patience));
    http::async_read(connection->stream, connection->buffer, *connection->parser,
                     [this, connection](const boost::system::error_code& error, size_t) {
                       if (!connection->open) return;
                       if (error) return Close(connection);
                       // It is not quiet.
                       connections_.splice(connections_.end(), connections_, connection->place);
                       Answer(connection);
                     });
  }

  void Answer(const Shared& connection) {
    const auto& request = connection->parser->get();
    Response& response = connection->response = {};
    response.version(request.version());
    response.keep_alive(request.keep_alive());
    const beast::string_view target = request.target().substr(0, request.target().find('?'));
    const bool head = request.method() == http::verb::head;
    if (request.method() != http::verb::get && !head) {
      response.result(http::status::method_not_allowed);
      response.set(http::field::allow, "GET, HEAD");
      Say(response, "only GET and HEAD are supported\n");
    } else if (target != beast::string_view(options_.path)) {
      response.result(http::status::not_found);
      Say(response, absl::StrCat("there is only ", options_.path, "\n"));
    } else {
      response.result(http::status::ok);
      response.set(http::field::content_type, options_.content_type);
      response.body() = Page();
    }
    response.prepare_payload();
    // HEAD announces the body, but does not send it; the length above stays.
    if (head) response.body().clear();
    connection->stream.expires_after(ToChrono(options_.patience));
    http::async_write(connection->stream, response,
                      [this, connection](const boost::system::error_code& error, size_t) {
                        if (!connection->open) return;
                        if (error || !connection->response.keep_alive()) return Close(connection);
                        // Idle, it keeps no page.
                        connection->response = {};
                        Read(connection, options_.keep_alive);
                      });
  }

  static void Say(Response& response, std::string words) {
    response.set(http::field::content_type, "text/plain; charset=utf-8");
    response.body() = std::move(words);
  }

  const std::string& Page() {
    const absl::Time now = absl::Now();
    if (now < page_made_ || now - page_made_ >= options_.page_holds) {
      page_ = options_.page();
      page_made_ = now;
    }
    return page_;
  }

  // By value: its place in the list may be the last that holds it.
  void Close(Shared connection) {
    if (!std::exchange(connection->open, false)) return;
    connections_.erase(connection->place);
    boost::system::error_code ignored;
    connection->stream.socket().shutdown(asio::socket_base::shutdown_both, ignored);
    connection->stream.close();
  }

  const HttpServerOptions options_;
  asio::io_context context_{1};  // one thread
  asio::posix::stream_descriptor listener_{context_};
  asio::steady_timer retry_{context_};
  std::list<Shared> connections_;  // open; the one that has been quiet for longest first
  std::string page_;
  absl::Time page_made_ = absl::InfinitePast();
  std::thread thread_;
};

HttpServer::HttpServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(gpumem::UniqueFd listener,
                                                              HttpServerOptions options) {
  // Asio throws if there are no descriptors for its event loop.
  try {
    auto loop = std::make_unique<Loop>(std::move(options));
    if (absl::Status running = loop->Run(std::move(listener)); !running.ok()) return running;
    return std::unique_ptr<HttpServer>(new HttpServer(std::move(loop)));
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no event loop for HTTP could be made: ", error.what()));
  }
}

}  // namespace gpumemd
