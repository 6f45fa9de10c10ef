#include "daemon/transport/api_servers.h"

#include <fcntl.h>
#include <grpcpp/server_posix.h>
#include <malloc.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "daemon/log/log.h"
#include "daemon/transport/descriptor_reserve.h"
#include "daemon/transport/peer_socket.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

// Connections of one uid and tenant that were cut and that gRPC has yet to close.
constexpr size_t kMaxClosing = 256;

}  // namespace

ApiServers::ApiServers(Prepare prepare, ApiServersOptions options)
    : prepare_(std::move(prepare)), options_(options), guard_([this] { Guard(); }) {}

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
  Server& server = servers_[Key(uid, tenant)];
  if (now < server.refused_until) {
    return absl::UnavailableError(absl::StrCat(
        "processes of uid ", uid, " as tenant ", tenant,
        " have flooded the daemon with calls that they reset; it connects none of them for "
        "another ",
        absl::FormatDuration(absl::Ceil(server.refused_until - now, absl::Milliseconds(1)))));
  }
  if (server.lines.size() >= kMaxClosing && DropClosed(server) >= kMaxClosing) {
    return absl::ResourceExhaustedError(absl::StrCat("too many ended connections of uid ", uid,
                                                     " as tenant ", tenant,
                                                     " have yet to be closed; try again later"));
  }
  if (server.counted.server == nullptr) {
    grpc::ServerBuilder builder;
    prepare_(builder);
    server.counted = StartCounted(builder);
    if (server.counted.server == nullptr) {
      return absl::InternalError("gRPC could not start a server; the daemon's log may say why");
    }
    server.counts = {};
    server.errors = 0;
  }
  server.idle_since = absl::InfiniteFuture();
  server.lines.push_back(connection.line);
  by_number_.insert_or_assign(connection.line->number(), std::pair(&server, connection.line.get()));
  grpc::AddInsecureChannelFromFd(server.counted.server.get(), served.release());
  return connection;
}

void ApiServers::AnsweredWithError(absl::string_view peer) {
  int number = 0;
  if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &number)) return;
  absl::MutexLock lock(&mutex_);
  const auto line = by_number_.find(number);
  if (line != by_number_.end()) ++line->second.first->errors;
}

void ApiServers::StopConnecting() {
  absl::MutexLock lock(&mutex_);
  connecting_ = false;
}

void ApiServers::Shutdown(absl::Time deadline) {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (guard_.joinable()) guard_.join();
  std::map<Key, Server> ended;
  {
    absl::MutexLock lock(&mutex_);
    ended.swap(servers_);
    by_number_.clear();
  }
  // All at one time: each waits for its clients up to the deadline.
  std::vector<std::thread> threads;
  for (auto& [key, server] : ended) {
    if (server.counted.server == nullptr) continue;
    threads.emplace_back([&server = *server.counted.server, deadline] {
      server.Shutdown(absl::ToChronoTime(std::max(deadline, absl::Now())));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

ApiServers::Cuts ApiServers::cuts() const {
  absl::MutexLock lock(&mutex_);
  return cuts_;
}

size_t ApiServers::server_count() const {
  absl::MutexLock lock(&mutex_);
  return servers_.size();
}

void ApiServers::Guard() {
  absl::Duration pause = absl::InfiniteDuration();
  absl::Time next_trim = absl::InfinitePast();
  while (true) {
    std::vector<CountedServer> ended;
    bool trim = false;
    {
      const auto wake = [this, pause]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || (pause == absl::InfiniteDuration() && !servers_.empty());
      };
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&wake), pause);
      if (stopping_) return;
      const absl::Time now = absl::Now();
      const bool busy = Look(now, ended);
      if (closed_some_ && now >= next_trim) {
        trim = true;
        closed_some_ = false;
        next_trim = now + options_.trim_interval;
      }
      pause = servers_.empty() ? absl::InfiniteDuration()
              : busy           ? options_.busy_interval
                               : options_.quiet_interval;
    }
    for (CountedServer& server : ended) server.server->Shutdown(std::chrono::system_clock::now());
    ended.clear();
    if (trim) malloc_trim(0);
  }
}

bool ApiServers::Look(absl::Time now, std::vector<CountedServer>& ended) {
  bool busy = false;
  for (auto it = servers_.begin(); it != servers_.end();) {
    auto& [key, server] = *it;
    DropClosed(server);
    CutStalled(key, server, now);
    busy = CutFlood(key, server, now) || busy;
    if (!server.lines.empty()) {
      ++it;
      continue;
    }
    server.idle_since = std::min(server.idle_since, now);
    if (server.counted.server != nullptr && now >= server.idle_since + options_.linger) {
      ended.push_back(std::move(server.counted));
      server.counted = {};
    }
    const bool remembered = now < server.refused_until + 10 * server.pause;
    it = server.counted.server == nullptr && !remembered ? servers_.erase(it) : std::next(it);
  }
  return busy;
}

size_t ApiServers::DropClosed(Server& server) {
  size_t closing = 0;
  for (auto it = server.lines.begin(); it != server.lines.end();) {
    if ((*it)->Closed()) {
      closed_some_ = true;
      const auto numbered = by_number_.find((*it)->number());
      if (numbered != by_number_.end() && numbered->second.second == it->get()) {
        by_number_.erase(numbered);
      }
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

bool ApiServers::CutFlood(const Key& key, Server& server, absl::Time now) {
  if (server.counted.server == nullptr) return false;
  const CallCounts before = std::exchange(server.counts, CountCalls(server.counted));
  const uint64_t failures = server.counts.failed - before.failed;
  const uint64_t errors = std::exchange(server.errors, 0);
  const uint64_t resets = failures - std::min(failures, errors);
  const double refill = absl::ToDoubleSeconds(now - server.looked_at) * options_.resets_per_second;
  server.looked_at = now;
  server.resets_left = std::min(options_.max_resets, server.resets_left + std::max(refill, 0.0));
  if (static_cast<double>(resets) <= server.resets_left) {
    server.resets_left -= static_cast<double>(resets);
    return server.counts.started != before.started;
  }

  size_t cut = 0;
  for (const std::shared_ptr<ApiLine>& line : server.lines) {
    if (line->is_cut()) continue;
    line->Cut();
    ++cut;
  }
  cuts_.flooding += cut;
  const bool again = now < server.refused_until + 10 * server.pause;
  server.pause = again ? std::min(2 * server.pause, options_.longest_pause) : options_.first_pause;
  server.refused_until = now + server.pause;
  LogLimited(spdlog::level::warn, "cut floods", key.first,
             "processes of uid {} as tenant {} reset too many calls ({} since the last look): cut "
             "their {} "
             "gRPC connections; none is made for {}",
             key.first, key.second, resets, cut, absl::FormatDuration(server.pause));
  return true;
}

}  // namespace gpumemd
