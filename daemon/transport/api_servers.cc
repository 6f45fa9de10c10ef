// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/api_servers.h"

#include <fcntl.h>
#include <grpcpp/server_posix.h>
#include <malloc.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/log/log.h"
#include "daemon/transport/descriptor_reserve.h"
#include "daemon/transport/meter/metered_sockets.h"
#include "daemon/transport/peer/peer_socket.h"
#include "daemon/transport/polling/quiet_grpc.h"
#include "daemon/transport/shut_down.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

// Connections of one uid and tenant that were cut and that gRPC has yet to close.
constexpr size_t kMaxClosing = 256;

// A uid and tenant that has made no call for so long leaves the processors to others.
constexpr absl::Duration kActive = absl::Seconds(1);

// After so many looks in which nothing has come or gone, the guard sleeps until something does.
constexpr int kQuietLooks = 3;

}  // namespace

ApiServers::ApiServers(Prepare prepare, ApiServersOptions options)
    : prepare_(std::move(prepare)),
      options_(options),
      activity_([this] { Wake(); }),
      guard_([this] { Guard(); }) {}

ApiServers::~ApiServers() {
  StopConnecting();
  Shutdown(absl::InfinitePast());
}

absl::StatusOr<ApiServers::Connection> ApiServers::Connect(uid_t uid, const std::string& tenant) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return NoDescriptors();
  }
  UniqueFd served(ends[0]);
  Connection connection{.client_end = UniqueFd(ends[1])};
  if (IsOfReserve(ends[1])) return NoDescriptors();
  RefuseDescriptors(served.get());
  fcntl(served.get(), F_SETFL, O_NONBLOCK);
  absl::StatusOr<std::shared_ptr<ApiLine>> line = ApiLine::Of(served);
  if (!line.ok()) return line.status();
  connection.line = *std::move(line);

  absl::MutexLock lock(&mutex_);
  if (!connecting_) return absl::UnavailableError("the daemon is stopping");
  const absl::Time now = absl::Now();
  const Key key(uid, tenant);
  Server& server = servers_[key];
  CutFlood(key, server, now);
  if (now < server.refused_until) {
    return absl::UnavailableError(absl::StrCat(
        "processes of uid ", uid, " as tenant ", tenant,
        " have flooded the daemon with frames of HTTP/2; it refuses their connections for another ",
        absl::FormatDuration(absl::Ceil(server.refused_until - now, absl::Milliseconds(1)))));
  }
  if (server.lines.size() >= kMaxClosing && DropClosed(server) >= kMaxClosing) {
    return absl::ResourceExhaustedError(absl::StrCat("too many ended connections of uid ", uid,
                                                     " as tenant ", tenant,
                                                     " have yet to be closed; try again later"));
  }
  if (server.server == nullptr) {
    grpc::ServerBuilder builder;
    prepare_(builder);
    server.server = builder.BuildAndStart();
    if (server.server == nullptr) {
      return absl::InternalError("gRPC could not start a server; see the daemon's log");
    }
  }
  if (server.frames == nullptr) {
    server.frames = std::make_shared<FrameBudget>(
        HasFlooded(server, now) ? options_.frames.AfterFlood() : options_.frames);
  }
  if (server.calls == nullptr) {
    // Metered sockets keep the window, which may outlive `this`. The callback is not called then:
    // no gRPC call is left.
    server.calls = std::make_shared<CallWindow>(options_.calls, [this] { Wake(); });
    server.ends = std::make_shared<CallWindow>(options_.ends, [this] { Wake(); });
  }
  if (absl::Status metered = MeterSocket(served.get(), server.frames, server.calls, server.ends);
      !metered.ok()) {
    return metered;
  }
  Wake();
  server.idle_since = absl::InfiniteFuture();
  // It keeps the server until `served` is closed.
  server.lines.push_back(connection.line);
  connection.serve = [this, key, served = std::move(served)]() mutable {
    Serve(key, std::move(served));
  };
  return connection;
}

void ApiServers::Serve(const Key& key, UniqueFd served) {
  absl::MutexLock lock(&mutex_);
  const auto server = servers_.find(key);
  if (server == servers_.end() || server->second.server == nullptr) {
    shutdown(served.get(), SHUT_RDWR);  // the line has a duplicate
    return;
  }
  grpc::AddInsecureChannelFromFd(server->second.server.get(), served.release());
}

void ApiServers::StopConnecting() {
  absl::MutexLock lock(&mutex_);
  connecting_ = false;
}

void ApiServers::Shutdown(absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    Wake();
  }
  if (guard_.joinable()) guard_.join();
  GiveBackGrpcTimers();
  std::map<Key, Server> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended.swap(servers_);
  }
  std::vector<grpc::Server*> servers;
  for (auto& [key, server] : ended) {
    if (server.server != nullptr) servers.push_back(server.server.get());
  }
  ShutDown(servers, deadline);
}

ApiServers::Cuts ApiServers::cuts() const {
  absl::MutexLock lock(&mutex_);
  return cuts_;
}

size_t ApiServers::server_count() const {
  absl::MutexLock lock(&mutex_);
  return servers_.size();
}

void ApiServers::Wake() {
  absl::MutexLock lock(&wake_mutex_);
  woken_ = true;
}

void ApiServers::AwaitWake(absl::Duration time) {
  absl::MutexLock lock(&wake_mutex_);
  wake_mutex_.AwaitWithTimeout(absl::Condition(&woken_), time);
  woken_ = false;
}

void ApiServers::Guard() {
  absl::Time next_look = absl::InfinitePast();
  absl::Time next_trim = absl::InfinitePast();
  uint64_t seen = ActivityWatch::count();
  int quiet_looks = 0;
  while (true) {
    std::vector<std::unique_ptr<grpc::Server>> ended;
    bool trim = false, runs_timers = false;
    absl::Duration pause;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      const absl::Time now = absl::Now();
      const bool looks = now >= next_look;
      if (looks) {
        Look(now, ended);
        next_look = now + options_.guard_interval;
        const bool active = std::exchange(seen, ActivityWatch::count()) != seen || Pending();
        quiet_looks = active ? 0 : quiet_looks + 1;
      }
      if (closed_some_ && now >= next_trim) {
        trim = true;
        closed_some_ = false;
        next_trim = now + options_.trim_interval;
      }
      pause = next_look - now;
      if (ResumeHeld()) pause = std::min(pause, options_.calls.patience);
      if (quiet_looks >= kQuietLooks) {
        activity_.Arm();
        if (ActivityWatch::count() == seen) pause = QuietTime(now);
      }
      if (closed_some_) pause = std::min(pause, next_trim - now);
      runs_timers = looks;
    }
    if (runs_timers && HasGrpcTimers()) RunGrpcTimers();
    for (auto& server : ended) server->Shutdown(std::chrono::system_clock::now());
    ended.clear();
    if (trim) malloc_trim(0);
    AwaitWake(pause);
  }
}

bool ApiServers::Pending() const {
  for (const auto& [key, server] : servers_) {
    for (const std::shared_ptr<CallWindow>& window : {server.calls, server.ends}) {
      if (window != nullptr && window->any_held()) return true;
    }
    for (const std::shared_ptr<ApiLine>& line : server.lines) {
      if (line->is_cut() || line->full()) return true;
    }
  }
  return false;
}

absl::Duration ApiServers::QuietTime(absl::Time now) const {
  // gRPC may have timers of servers that this does not know.
  absl::Duration time =
      servers_.empty() && !HasGrpcTimers() ? absl::InfiniteDuration() : options_.quiet_interval;
  for (const auto& [key, server] : servers_) {
    if (server.server != nullptr && server.lines.empty()) {
      time = std::min(time, server.idle_since + options_.linger - now);
    }
  }
  return std::max(time, absl::ZeroDuration());
}

bool ApiServers::ResumeHeld() {
  bool held = false;
  for (auto& [key, server] : servers_) {
    if (server.calls == nullptr) continue;
    for (const std::shared_ptr<CallWindow>& window : {server.calls, server.ends}) {
      if (!window->any_held()) continue;
      ResumeReads(window);
      held = held || window->any_held();
    }
  }
  return held;
}

void ApiServers::ShareWindows(absl::Time now) {
  int active = 0;
  for (auto& [key, server] : servers_) {
    if (server.calls == nullptr) continue;
    const uint64_t calls = server.calls->received();
    if (std::exchange(server.calls_seen, calls) != calls) server.called_at = now;
    if (now - server.called_at < kActive) ++active;
  }
  for (auto& [key, server] : servers_) {
    if (server.calls != nullptr) server.calls->SetAlone(active <= 1);
  }
}

void ApiServers::Look(absl::Time now, std::vector<std::unique_ptr<grpc::Server>>& ended) {
  ShareWindows(now);
  for (auto it = servers_.begin(); it != servers_.end();) {
    auto& [key, server] = *it;
    DropClosed(server);
    CutStalled(key, server, now);
    CutFlood(key, server, now);
    if (!server.lines.empty()) {
      ++it;
      continue;
    }
    server.idle_since = std::min(server.idle_since, now);
    if (server.server != nullptr && now >= server.idle_since + options_.linger) {
      ended.push_back(std::move(server.server));
    }
    it = server.server == nullptr && !HasFlooded(server, now) ? servers_.erase(it) : std::next(it);
  }
}

bool ApiServers::HasFlooded(const Server& server, absl::Time now) {
  return now < server.refused_until + 10 * server.pause;
}

size_t ApiServers::DropClosed(Server& server) {
  size_t closing = 0;
  for (auto it = server.lines.begin(); it != server.lines.end();) {
    if ((*it)->Closed()) {
      closed_some_ = true;
      *it = std::move(server.lines.back());
      server.lines.pop_back();
      continue;
    }
    closing += (*it)->is_cut() ? 1 : 0;
    ++it;
  }
  return closing;
}

void ApiServers::CutStalled(const Key& key, Server& server, absl::Time now) {
  for (const std::shared_ptr<ApiLine>& line : server.lines) {
    if (line->is_cut() || !line->Stalled(now, options_.stalled_after)) continue;
    line->Cut();
    ++cuts_.stalled;
    LogLimited(spdlog::level::warn, "cut connections", key.first,
               "a process of uid {} as tenant {} does not read its gRPC connection: cut", key.first,
               key.second);
  }
}

void ApiServers::CutFlood(const Key& key, Server& server, absl::Time now) {
  if (server.frames == nullptr || !server.frames->exhausted()) return;
  server.frames.reset();
  size_t cut = 0;
  for (const std::shared_ptr<ApiLine>& line : server.lines) {
    if (line->is_cut()) continue;
    line->Cut();
    ++cut;
  }
  ++cuts_.floods;
  server.pause = HasFlooded(server, now) ? std::min(2 * server.pause, options_.longest_pause)
                                         : options_.first_pause;
  server.refused_until = now + server.pause;
  LogLimited(spdlog::level::warn, "cut floods", key.first,
             "processes of uid {} as tenant {} flood the daemon with frames of HTTP/2: cut their "
             "{} gRPC connections; new ones are refused for {}",
             key.first, key.second, cut, absl::FormatDuration(server.pause));
}

}  // namespace gpumemd
