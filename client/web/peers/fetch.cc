// SPDX-License-Identifier: Apache-2.0
#include "client/web/peers/fetch.h"

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gpumem::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

using Error = boost::system::error_code;
using Protocol = asio::generic::stream_protocol;
using Plain = beast::basic_stream<Protocol>;

std::string HostFieldOf(const Peer& peer) {
  const bool six = absl::StrContains(peer.host, ':');
  const std::string host = absl::StrCat(six ? "[" : "", peer.host, six ? "]" : "");
  return peer.port == (peer.tls ? 443 : 80) || !peer.unix_path.empty()
             ? host
             : absl::StrCat(host, ":", peer.port);
}

// One request. Its handlers hold it until they have run.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(asio::io_context* context, asio::ssl::context* tls, const Peer& peer,
           const FetchLimits& limits, std::function<void(absl::StatusOr<std::string>)> done)
      : peer_(peer),
        limits_(limits),
        done_(std::move(done)),
        timer_(*context),
        resolver_(*context),
        stream_(Plain(*context), *tls),
        buffer_(limits.head_bytes + limits.body_bytes) {}

  void Start() {
    timer_.expires_after(absl::ToChronoNanoseconds(limits_.time));
    timer_.async_wait([self = shared_from_this()](const Error& error) {
      if (!error) self->End(absl::DeadlineExceededError("it does not answer in time"));
    });
    if (!peer_.unix_path.empty()) {
      endpoints_.emplace_back(asio::local::stream_protocol::endpoint(peer_.unix_path));
      return Connect();
    }
    Error no_address;
    const auto address = asio::ip::make_address(peer_.host, no_address);
    if (!no_address) {
      endpoints_.emplace_back(asio::ip::tcp::endpoint(address, peer_.port));
      return Connect();
    }
    resolver_.async_resolve(
        peer_.host, absl::StrCat(peer_.port),
        [self = shared_from_this()](const Error& error,
                                    const asio::ip::tcp::resolver::results_type& results) {
          if (error) return self->Fail("its name is not known", error);
          for (const auto& result : results) self->endpoints_.emplace_back(result.endpoint());
          self->Connect();
        });
  }

 private:
  // Tries the addresses, one after the other.
  void Connect() {
    if (done_ == nullptr) return;
    if (endpoints_.empty()) return End(absl::UnavailableError("its name has no address"));
    const Protocol::endpoint endpoint = endpoints_.front();
    endpoints_.erase(endpoints_.begin());
    stream_.next_layer().async_connect(endpoint, [self = shared_from_this()](const Error& error) {
      if (self->done_ == nullptr) return;
      if (error && !self->endpoints_.empty()) {
        self->stream_.next_layer().close();
        return self->Connect();
      }
      if (error) return self->Fail("no connection", error);
      self->peer_.tls ? self->Shake() : self->Write();
    });
  }

  void Shake() {
    Error error;
    stream_.set_verify_mode(asio::ssl::verify_peer, error);
    stream_.set_verify_callback(asio::ssl::host_name_verification(peer_.host), error);
    SSL_set_tlsext_host_name(stream_.native_handle(), peer_.host.c_str());
    stream_.async_handshake(asio::ssl::stream_base::client,
                            [self = shared_from_this()](const Error& failed) {
                              if (failed) return self->Fail("no valid certificate", failed);
                              self->Write();
                            });
  }

  void Write() {
    if (done_ == nullptr) return;
    request_.version(11);
    request_.method(http::verb::get);
    request_.target(absl::StrCat(peer_.path, "/api/v1/overview"));
    request_.set(http::field::host, HostFieldOf(peer_));
    request_.set(http::field::accept, "application/json");
    request_.set(http::field::accept_encoding, "identity");
    request_.set(http::field::user_agent, "gpumem-web");
    for (const auto& [name, value] : peer_.headers) request_.set(name, value);
    request_.keep_alive(false);
    const auto written = [self = shared_from_this()](const Error& error, size_t) {
      if (error) return self->Fail("no connection", error);
      self->Read();
    };
    peer_.tls ? http::async_write(stream_, request_, written)
              : http::async_write(stream_.next_layer(), request_, written);
  }

  void Read() {
    if (done_ == nullptr) return;
    parser_.header_limit(limits_.head_bytes);
    parser_.body_limit(limits_.body_bytes);
    // The head alone: an eager parser forgets that the length is too large (Boost 1.74).
    const auto read = [self = shared_from_this()](const Error& error, size_t) {
      error ? self->OnAnswer(error) : self->ReadBody();
    };
    peer_.tls ? http::async_read_header(stream_, buffer_, parser_, read)
              : http::async_read_header(stream_.next_layer(), buffer_, parser_, read);
  }

  void ReadBody() {
    if (done_ == nullptr) return;
    const auto read = [self = shared_from_this()](const Error& error, size_t) {
      self->OnAnswer(error);
    };
    peer_.tls ? http::async_read(stream_, buffer_, parser_, read)
              : http::async_read(stream_.next_layer(), buffer_, parser_, read);
  }

  void OnAnswer(const Error& error) {
    if (error == http::error::header_limit || error == http::error::body_limit ||
        error == http::error::buffer_overflow) {
      return End(absl::ResourceExhaustedError("its answer is too large"));
    }
    if (error) return Fail("no answer of HTTP", error);
    const unsigned status = parser_.get().result_int();
    if (status / 100 == 3) {
      return End(absl::FailedPreconditionError(
          absl::StrCat("it redirects to another place (HTTP ", status, ")")));
    }
    if (status != 200) {
      return End(absl::FailedPreconditionError(absl::StrCat("it refuses (HTTP ", status, ")")));
    }
    End(std::move(parser_.get().body()));
  }

  void Fail(absl::string_view what, const Error& error) {
    End(absl::UnavailableError(absl::StrCat(what, " (", error.message(), ")")));
  }

  void End(absl::StatusOr<std::string> result) {
    if (done_ == nullptr) return;
    const auto done = std::exchange(done_, nullptr);
    timer_.cancel();
    resolver_.cancel();
    stream_.next_layer().close();
    done(std::move(result));
  }

  const Peer peer_;
  const FetchLimits limits_;
  std::function<void(absl::StatusOr<std::string>)> done_;  // nullptr: ended
  asio::steady_timer timer_;
  asio::ip::tcp::resolver resolver_;
  asio::ssl::stream<Plain> stream_;  // without TLS, the layer below
  std::vector<Protocol::endpoint> endpoints_;
  http::request<http::empty_body> request_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
};

}  // namespace

void Fetch(asio::io_context* context, asio::ssl::context* tls, const Peer& peer,
           const FetchLimits& limits, std::function<void(absl::StatusOr<std::string>)> done) {
  std::make_shared<Exchange>(context, tls, peer, limits, std::move(done))->Start();
}

}  // namespace gpumem::web
