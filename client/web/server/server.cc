// SPDX-License-Identifier: Apache-2.0
#include "client/web/server/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <ctime>
#include <future>
#include <list>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/web/server/calls.h"
#include "client/web/server/connection.h"
#include "client/web/server/handler.h"
#include "client/web/server/users/accounts.h"
#include "client/web/server/users/logins.h"
#include "client/web/server/users/seats.h"
#include "client/web/server/users/viewer_of_peer.h"
#include "common/start_thread.h"
#include "common/unique_fd.h"

namespace gpumem::web {
namespace {

namespace asio = boost::asio;

// Retry interval if there was no descriptor for a connection.
constexpr absl::Duration kTryAgain = absl::Milliseconds(250);

constexpr int kAcceptsInATurn = 32;

std::string FirstOrigin(const std::vector<Listener>& listeners) {
  for (const Listener& listener : listeners) {
    if (!listener.origin.empty()) return listener.origin;
  }
  return "";
}

}  // namespace

// All of it on one thread, but for Run() and the destructor.
class Server::Loop final : public ConnectionHost {
 public:
  Loop(Options options, FeedSource* feed, std::unique_ptr<Calls> calls,
       std::unique_ptr<Calls> names, const std::string& origin)
      : options_(std::move(options)),
        feed_(feed),
        accounts_({0, geteuid()}, options_.now, [this](uid_t uid) { return LookUp(uid); }),
        logins_(options_.now, [this](uid_t uid) { return accounts_.UserOf(uid); }),
        calls_(std::move(calls)),
        names_(std::move(names)),
        handler_({.hosts = options_.hosts,
                  .node = options_.node,
                  .origin = origin,
                  .peers = options_.peers,
                  .user_of = [this](uid_t uid) { return accounts_.UserOf(uid); }},
                 feed, &logins_, calls_.get(), names_.get()),
        seats_(options_.limits.connections, options_.limits.connections_of_user) {}

  absl::Status Run(std::vector<Listener> listeners) {
    for (Listener& listener : listeners) {
      if (!listener.file.empty()) files_.push_back(listener.file);
      Accept(sockets_.emplace_back(context_, listener));
    }
    Beat();
    AwaitIdle();
    absl::StatusOr<std::thread> thread = StartThread([this] { context_.run(); });
    if (!thread.ok()) return thread.status();
    thread_ = *std::move(thread);
    return absl::OkStatus();
  }

  ~Loop() override {
    // While the sockets are open: a program that starts now makes new ones.
    for (const std::string& file : files_) unlink(file.c_str());
    context_.stop();
    if (thread_.joinable()) thread_.join();
    while (!connections_.empty()) connections_.begin()->second->Close();
    calls_.reset();  // its jobs use the event loop
    names_.reset();
  }

  absl::StatusOr<std::string> OwnLink() {
    std::promise<absl::StatusOr<std::string>> link;
    asio::post(context_, [&] { link.set_value(handler_.NewLink(OwnViewer())); });
    return link.get_future().get();
  }

  const Limits& limits() const override { return options_.limits; }
  Handler& handler() override { return handler_; }
  FeedSource& feed() override { return *feed_; }
  const std::shared_ptr<Unsent>& unsent() override { return unsent_; }
  void Relieve() override {
    while (unsent_->exceeded()) {
      std::vector<UnsentOf> unsent;
      for (const auto& [id, connection] : connections_) {
        unsent.push_back({id, UserOf(connection->uid()), connection->unsent_bytes()});
      }
      const std::optional<Seats::Id> worst = WorstOf(unsent);
      if (!worst.has_value()) return;
      CloseOne(worst);
    }
  }
  void Active(Seats::Id id, std::optional<uid_t> uid) override {
    CloseOne(seats_.Move(id, UserOf(uid)));
  }
  void Closed(Seats::Id id) override {
    seats_.Remove(id);
    connections_.erase(id);
    if (connections_.empty()) AwaitIdle();
  }

 private:
  struct Socket {
    Socket(asio::io_context& context, Listener& from)
        : tcp(!from.origin.empty()), listener(context, from.socket.release()), retry(context) {}
    const bool tcp;
    asio::posix::stream_descriptor listener;
    asio::steady_timer retry;
  };

  void Accept(Socket& socket) {
    socket.listener.async_wait(asio::posix::stream_descriptor::wait_read,
                               [this, &socket](const boost::system::error_code& error) {
                                 if (!error) AcceptSome(socket);
                               });
  }

  // Accepts connections, of a flood a part: others get their turn between them.
  void AcceptSome(Socket& socket) {
    for (int i = 0; i < kAcceptsInATurn; ++i) {
      if (AcceptOne(socket)) continue;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        return AcceptLater(socket);
      }
      if (errno == EAGAIN) break;
    }
    Accept(socket);
  }

  // The listener stays readable: not at once, or this thread would do nothing else.
  void AcceptLater(Socket& socket) {
    CloseOne(seats_.Quietest());
    socket.retry.expires_after(absl::ToChronoNanoseconds(kTryAgain));
    socket.retry.async_wait([this, &socket](const boost::system::error_code& error) {
      if (!error) Accept(socket);
    });
  }

  // False and errno if there is no connection.
  bool AcceptOne(Socket& socket) {
    sockaddr_storage address = {};
    socklen_t length = sizeof(address);
    UniqueFd fd(accept4(socket.listener.native_handle(), reinterpret_cast<sockaddr*>(&address),
                        &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) return false;
    Begin(std::move(fd), address.ss_family, socket.tcp);
    return true;
  }

  void Begin(UniqueFd fd, int family, bool tcp) {
    Caller caller;
    if (!tcp) {
      absl::StatusOr<Viewer> viewer = ViewerAt(fd.get(), options_.groups);
      if (!viewer.ok()) return;
      caller.viewer = *viewer;
    }
    Connection::Stream::socket_type socket(context_);
    boost::system::error_code error;
    socket.assign(asio::generic::stream_protocol(family, 0), fd.get(), error);
    if (error) return;
    fd.release();
    const Seats::Id id = ++last_id_;
    const auto connection = std::make_shared<Connection>(this, id, std::move(socket), caller);
    connections_[id] = connection;
    CloseOne(seats_.Add(id, UserOf(connection->uid())));
    connection->Start();
  }

  Seats::User UserOf(std::optional<uid_t> uid) {
    return uid.has_value() ? Seats::User(accounts_.UserOf(*uid)) : std::nullopt;
  }

  // Looks an account up, on another thread. Jobs of all look-ups are those of one user.
  Calls::Ticket LookUp(uid_t uid) {
    return names_
        ->Add(Accounts::kNone,
              [this, uid](const Calls::Place&) {
                const absl::StatusOr<bool> has = options_.has_account(uid);
                asio::post(context_, [this, uid, has] {
                  accounts_.End(uid, !has.ok() ? Accounts::Found::kUnknown
                                     : *has    ? Accounts::Found::kAccount
                                               : Accounts::Found::kNone);
                  if (has.ok() && *has) MoveConnectionsOf(uid);
                });
              })
        .value_or(nullptr);
  }

  void MoveConnectionsOf(uid_t uid) {
    std::vector<Seats::Id> moved;
    for (const auto& [id, connection] : connections_) {
      if (connection->uid() == uid) moved.push_back(id);
    }
    for (const Seats::Id id : moved) Active(id, uid);
  }

  void CloseOne(std::optional<Seats::Id> id) {
    if (!id.has_value()) return;
    const auto found = connections_.find(*id);
    if (found == connections_.end()) return seats_.Remove(*id);
    const std::shared_ptr<Connection> connection = found->second;
    connection->Close();
  }

  void Beat() {
    beat_.expires_after(absl::ToChronoNanoseconds(options_.limits.heartbeat));
    beat_.async_wait([this](const boost::system::error_code& error) {
      if (error) return;
      // A stream may end by it.
      const auto connections = connections_;
      for (const auto& [id, connection] : connections) connection->Beat();
      Beat();
    });
  }

  void AwaitIdle() {
    if (was_idle_ || options_.idle == absl::InfiniteDuration()) return;
    const absl::Duration of_logins = logins_.LiveUntil() - options_.now();
    idle_.expires_after(absl::ToChronoNanoseconds(std::max(options_.idle, of_logins)));
    idle_.async_wait([this](const boost::system::error_code& error) {
      if (error || !connections_.empty()) return;
      if (logins_.LiveUntil() > options_.now()) return AwaitIdle();
      was_idle_ = true;
      options_.on_idle();
    });
  }

  const Options options_;
  FeedSource* const feed_;
  const std::shared_ptr<Unsent> unsent_ = std::make_shared<Unsent>(options_.limits.unsent_bytes);
  asio::io_context context_{1};  // one thread
  asio::steady_timer beat_{context_}, idle_{context_};
  std::list<Socket> sockets_;
  std::vector<std::string> files_;
  Accounts accounts_;
  Logins logins_;
  std::unique_ptr<Calls> calls_, names_;
  Handler handler_;
  Seats seats_;
  Seats::Id last_id_ = 0;
  bool was_idle_ = false;
  std::map<Seats::Id, std::shared_ptr<Connection>> connections_;  // open
  std::thread thread_;
};

absl::Time BootTime() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::TimeFromTimespec(now);
}

Server::Server(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Server::~Server() = default;

absl::StatusOr<std::string> Server::OwnLink() { return loop_->OwnLink(); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(std::vector<Listener> listeners,
                                                      FeedSource* feed, Options options) {
  const std::string origin = FirstOrigin(listeners);
  const Calls::Limits limits = {.places = options.limits.documents_of_user,
                                .waiting = options.limits.connections_of_user,
                                .threads = options.limits.threads};
  absl::StatusOr<std::unique_ptr<Calls>> calls = Calls::Start(limits), names = Calls::Start(limits);
  if (!calls.ok()) return calls.status();
  if (!names.ok()) return names.status();
  // Asio throws if there are no descriptors for its event loop.
  try {
    auto loop = std::make_unique<Loop>(std::move(options), feed, *std::move(calls),
                                       *std::move(names), origin);
    if (absl::Status running = loop->Run(std::move(listeners)); !running.ok()) return running;
    return std::unique_ptr<Server>(new Server(std::move(loop)));
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no event loop for HTTP could be made: ", error.what()));
  }
}

}  // namespace gpumem::web
