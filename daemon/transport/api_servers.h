// SPDX-License-Identifier: Apache-2.0
// gRPC for sessions: each session gets a connection, of which the session socket hands the client
// one end.
//
// Only peers that the kernel has identified, and that a rule has assigned a tenant, speak HTTP/2 to
// the daemon. The sessions of one uid and tenant share a gRPC server with a separate memory quota.
// The quota bounds what its peers make gRPC hold; under its pressure gRPC closes connections of
// this server alone.
//
// A guard thread cuts
//   - connections whose peer does not read (options.stalled_after),
//   - all connections of a uid and tenant that have sent more frames than frame_budget.h allows:
//     calls that are reset at once (CVE-2023-44487), unfinished requests, SETTINGS, PING. gRPC
//     receives none of them after that instant (metered_sockets.h). New connections are refused for
//     a while.
// A client of libgpumem whose connection is cut asks for another one (Hello.resume_token).
//
// call_window.h limits the calls in progress of each uid and tenant. Further calls wait in the
// sockets of its clients. Connections that end while many calls are open are closed in turn.
//
// The guard sleeps while nothing comes or goes on gRPC's sockets. It runs gRPC's timers, if they
// are taken over (polling/quiet_grpc.h).
//
// A server exists while it has connections, and for options.linger after that. Making one takes
// some 2 ms.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "daemon/transport/api_line.h"
#include "daemon/transport/meter/activity.h"
#include "daemon/transport/meter/call_window.h"
#include "daemon/transport/meter/frame_budget.h"

namespace gpumemd {

struct ApiServersOptions {
  absl::Duration linger = absl::Seconds(30);
  // How long a peer may leave a full receive buffer unread.
  absl::Duration stalled_after = absl::Milliseconds(500);
  // Minimum time between returns of the process's free memory to the machine, after connections
  // have ended.
  absl::Duration trim_interval = absl::Seconds(5);
  // Poll interval of the guard; and without activity on gRPC's sockets.
  absl::Duration guard_interval = absl::Milliseconds(100);
  absl::Duration quiet_interval = absl::Seconds(10);
  FrameBudgetOptions frames;  // of each uid and tenant
  CallWindowOptions calls;    // of each uid and tenant
  // Open calls of connections that are being closed, of each uid and tenant.
  CallWindowOptions ends = CallWindowOptions::OfEnds();
  // How long new connections are refused after a flood. Doubles with each further flood within ten
  // times this time.
  absl::Duration first_pause = absl::Seconds(1);
  absl::Duration longest_pause = absl::Minutes(1);
};

// Thread-safe.
class ApiServers {
 public:
  // Configures a builder, except its listening ports. Several servers exist at a time, so services
  // need methods of the callback interface.
  using Prepare = std::function<void(grpc::ServerBuilder&)>;

  explicit ApiServers(Prepare prepare, ApiServersOptions options = {});
  // As StopConnecting(), then Shutdown() without a grace period.
  ~ApiServers();
  ApiServers(const ApiServers&) = delete;
  ApiServers& operator=(const ApiServers&) = delete;

  struct Connection {
    gpumem::UniqueFd client_end;    // a connected STREAM socket, close-on-exec
    std::shared_ptr<ApiLine> line;  // for its session to cut
    // Hands the daemon's end to gRPC. That takes longer than all of Connect(), so a client that has
    // its end by then sets it up meanwhile. What it sends before waits in the socket. Ends the
    // connection if the servers have been shut down. Destroyed without a call, it closes the
    // daemon's end; cut the line then. Call before the end of the ApiServers.
    absl::AnyInvocable<void()> serve;
  };
  // Connects a client of this uid and tenant.
  //   RESOURCE_EXHAUSTED  the process has no descriptors left; or too many connections of this uid
  //                       and tenant have not been closed yet
  //   UNAVAILABLE         refused for a while after a flood; or the daemon stops
  absl::StatusOr<Connection> Connect(uid_t uid, const std::string& tenant)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses new clients; existing connections stay.
  void StopConnecting() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all servers: calls in flight have until `deadline`. Requires StopConnecting() first.
  void Shutdown(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // Since the start.
  struct Cuts {
    uint64_t stalled = 0;  // connections
    uint64_t floods = 0;   // each one cut all connections of a uid and tenant
  };
  Cuts cuts() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Includes servers that have ended but are remembered for their pause.
  size_t server_count() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Key = std::pair<uid_t, std::string>;
  struct Server {
    std::unique_ptr<grpc::Server> server;            // null: remembered for its pause only
    std::vector<std::shared_ptr<ApiLine>> lines;     // until gRPC has closed them
    std::shared_ptr<FrameBudget> frames;             // of the lines since the last flood
    std::shared_ptr<CallWindow> calls;               // of all lines
    std::shared_ptr<CallWindow> ends;                // of all lines
    uint64_t calls_seen = 0;                         // of calls->received()
    absl::Time called_at = absl::InfinitePast();     // when the guard last saw new calls
    absl::Time idle_since = absl::InfiniteFuture();  // without lines
    absl::Time refused_until = absl::InfinitePast();
    absl::Duration pause = absl::ZeroDuration();  // the last one
  };

  // True if its last flood is no longer ago than its pause.
  static bool HasFlooded(const Server& server, absl::Time now);

  void Serve(const Key& key, gpumem::UniqueFd served) ABSL_LOCKS_EXCLUDED(mutex_);
  void Guard() ABSL_LOCKS_EXCLUDED(mutex_);
  // Has the guard look again. Callable with any lock.
  void Wake() ABSL_LOCKS_EXCLUDED(wake_mutex_);
  // Sleeps for a time, or until Wake().
  void AwaitWake(absl::Duration time) ABSL_LOCKS_EXCLUDED(wake_mutex_);
  // True if something may change without activity on a socket.
  bool Pending() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How long the guard may sleep if nothing wakes it.
  absl::Duration QuietTime(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Resumes reads of held sockets where there is room again. True if some are still held.
  bool ResumeHeld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the windows whether more than one of them gets calls.
  void ShareWindows(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Checks all servers once. `ended` receives the servers to shut down without the mutex.
  void Look(absl::Time now, std::vector<std::unique_ptr<grpc::Server>>& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the lines that gRPC has closed. Returns how many it has yet to close.
  size_t DropClosed(Server& server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutStalled(const Key& key, Server& server, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Cuts all lines, and refuses new ones for a while, if they sent too many frames.
  void CutFlood(const Key& key, Server& server, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Prepare prepare_;
  const ApiServersOptions options_;

  mutable absl::Mutex mutex_;
  bool connecting_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<Key, Server> servers_ ABSL_GUARDED_BY(mutex_);
  Cuts cuts_ ABSL_GUARDED_BY(mutex_);
  bool closed_some_ ABSL_GUARDED_BY(mutex_) = false;  // since memory was last given back
  absl::Mutex wake_mutex_ ABSL_ACQUIRED_AFTER(mutex_);
  bool woken_ ABSL_GUARDED_BY(wake_mutex_) = false;
  ActivityWatch activity_;
  std::thread guard_;
};

}  // namespace gpumemd
