// SPDX-License-Identifier: Apache-2.0
// The session socket: each peer is identified, given a tenant, a session and a token, and then
// watched. File descriptors are sent only here.
//
// One thread serves all sockets and pidfds. A peer is assumed hostile: it has hello_timeout to say
// Hello, in one message of the right shape. Anything else, then or later, ends that peer's
// connection only, with a sentence that says why.
//
//   accepted ── Hello ok ──▶ live ── socket closed ──▶ watched ── pidfd ──▶ forgotten
//       └─ Refusal, timeout ─▶ closed                     (only while its process may
//                                                          still map memory)
//
// A session of an earlier daemon (Adopt) is watched, and becomes live again when its client resumes
// it. A client that has lost its gRPC connection resumes a live session in the same way: the
// session moves to the new session socket, and the old one is closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/identity/pods.h"
#include "daemon/core/identity/rules.h"
#include "daemon/transport/api_servers.h"
#include "daemon/transport/peer/peer.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumemd {

struct SessionServerOptions {
  absl::Duration hello_timeout = absl::Seconds(5);
  // Connections that have not said Hello yet. Beyond the limit the longest silent is closed.
  uint32_t max_greeting = 1024;
  uint32_t max_greeting_per_uid = 256;
  uint64_t generation = 0;        // of this daemon, for Welcome
  AuditSink* audit = nullptr;     // records peers that no rule admits; may be null
  const PodBook* pods = nullptr;  // outlives the server; null: no pod is described
  // Makes a session's gRPC connection; Welcome carries the client's end. Statuses as
  // ApiServers::Connect; null: sessions get none.
  std::function<absl::StatusOr<ApiServers::Connection>(uid_t uid, const std::string& tenant)>
      connect_api;
  // How long a send may wait for a client that does not read its socket. It delays only that
  // client's request.
  absl::Duration send_timeout = absl::Seconds(2);
  // See Acceptance; tests set it.
  bool peers_by_number = !KernelHasPeerPidfd();
};

class SessionServer {
 public:
  // `listener` is a listening SEQPACKET socket. `broker` outlives this. `on_ended` is called once
  // for each session whose socket has closed or whose process has ended.
  SessionServer(gpumem::UniqueFd listener, Broker* broker, std::vector<Rule> rules,
                std::function<void(SessionId)> on_ended, SessionServerOptions options = {});
  // Says Goodbye to all clients, and ends every session.
  ~SessionServer();

  // Starts serving. Call once.
  void Start();

  SessionServer(const SessionServer&) = delete;
  SessionServer& operator=(const SessionServer&) = delete;
  // Sets the rules for later connections. Thread-safe.
  void SetRules(std::vector<Rule> rules);

  // Adopts a session that an earlier daemon began and whose client has not resumed it, and watches
  // its process. Call before Start().
  void Adopt(SessionId session, Peer peer, TenantMatch match);
  // Leaves new clients to the next daemon: accepts no more connections and reads no more Hellos.
  // Connected clients learn at the end that this daemon stops, and ask the next one. On return no
  // session is being begun. Thread-safe.
  void Park() ABSL_LOCKS_EXCLUDED(hello_mutex_);
  // Makes Goodbye say that the daemon ends, and not its sessions. Stops all notifications to the
  // broker. Thread-safe.
  void LeaveSessions();

  // Allows Deliveries to the client of a resumed session, which has now reported its leases.
  // Thread-safe.
  void Reconciled(SessionId session);

  // Sends a Delivery to the session's socket, in several messages if one does not carry all
  // descriptors. `description`: further fields of it, left out if they do not fit into one message.
  // Thread-safe.
  //   UNAVAILABLE         the session's socket is closed; or the session was resumed and is not
  //                       Reconciled(), so that the call is of an earlier connection
  //   RESOURCE_EXHAUSTED  the client does not read its socket; its session is ended
  //   DEADLINE_EXCEEDED   there is no room at the moment, or it takes several messages, and
  //                       `may_wait` is false
  absl::Status Deliver(SessionId session, uint64_t delivery_id, const Broker::Handover& handover,
                       bool may_wait, const gpumem::v1::Delivery* description = nullptr);

  // Claims the lane of the session's present connection (Broker.Converse), as long as the result
  // lives. Thread-safe.
  //   ALREADY_EXISTS  it is claimed
  //   UNAVAILABLE     the session's socket is closed
  absl::StatusOr<std::shared_ptr<void>> ClaimLane(SessionId session);

  // Sends a signal to the session's process, and never to one that reuses its pid. Works also after
  // the socket has closed, while the session is watched. Thread-safe; does not wait, and does not
  // call the broker.
  //   NOT_FOUND            no such session, or its process has ended
  //   PERMISSION_DENIED    the daemon may not signal that process
  //   FAILED_PRECONDITION  it is not certain which process it is (Peer::certain)
  absl::Status Signal(SessionId session, int signal);

  // Returns the identity and rule match of the session's process when it connected. Thread-safe.
  //   UNAVAILABLE  the session has ended
  struct Recognition {
    PeerIdentity peer;
    TenantMatch match;
  };
  absl::StatusOr<Recognition> WhoIs(SessionId session);

  // Returns a pidfd of the session's process, which the caller owns. It stays valid after the
  // session is forgotten. Thread-safe; does not call the broker.
  //   NOT_FOUND            no such session
  //   RESOURCE_EXHAUSTED   the daemon has no descriptors left
  //   FAILED_PRECONDITION  it is not certain which process it is (Peer::certain)
  absl::StatusOr<gpumem::UniqueFd> ProcessOf(SessionId session);

  // Stops watching the session's process. Thread-safe; makes no calls to other objects.
  void Forget(SessionId session);

 private:
  struct Connection {
    uint64_t key = 0;  // names it in epoll
    // Shared with Deliver, so that the number is not closed and reused under a send.
    // Null once closed. Changed only by the serving thread, under mutex_.
    std::shared_ptr<const gpumem::UniqueFd> socket;
    Peer peer;
    absl::Time greeting_ends;
    bool welcomed = false;
    SessionId session{};                  // once welcomed
    TenantMatch match;                    // the same; set before it is in sessions_
    std::shared_ptr<ApiLine> api;         // its gRPC connection; likewise
    std::atomic<bool> reconciled = true;  // false: resumed, and not yet reconciled
    // Shared with the lane, which must not keep the line above.
    const std::shared_ptr<std::atomic<bool>> has_lane = std::make_shared<std::atomic<bool>>(false);
    // Held during a Delivery of several parts. Two half-sent ones could wait for each other's
    // client to read.
    absl::Mutex parts_mutex;
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  // Returns the session's connection; null if there is none.
  ConnectionPtr FindSession(SessionId session);
  void Serve();
  void AcceptSome();
  void Accept(gpumem::UniqueFd socket);
  void MakeRoomFor(uid_t uid);
  void OnSocket(const ConnectionPtr& connection) ABSL_LOCKS_EXCLUDED(hello_mutex_);
  void OnHello(const ConnectionPtr& connection) ABSL_LOCKS_EXCLUDED(hello_mutex_);
  absl::Status Welcome(const ConnectionPtr& connection, const std::string& hello);
  // Returns the tenant of a process that asks for `wished`, by the rules and by the tenants that
  // were made at run time.
  //   PERMISSION_DENIED, UNAVAILABLE  as MatchTenant
  absl::StatusOr<TenantMatch> Match(const PeerIdentity& peer, const std::string& wished)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Both connect the client to gRPC first and leave its end in `api`.
  absl::StatusOr<Broker::NewSession> Open(const ConnectionPtr& connection,
                                          const gpumem::v1::Hello& hello,
                                          ApiServers::Connection* api);
  // Resumes a session that the client began earlier, with this daemon or another.
  absl::StatusOr<Broker::NewSession> Resume(const ConnectionPtr& connection,
                                            const std::string& token, ApiServers::Connection* api);
  absl::Status ConnectApi(Connection& connection, ApiServers::Connection* api);
  // Ends the session's previous connection, but not the session.
  void Replace(const ConnectionPtr& old);
  void EndExpiredGreetings();
  // Sends a last message, if any, closes the socket, and tells the broker.
  void Close(const ConnectionPtr& connection, const absl::Status& why);
  void CloseAll();
  void Watch(int fd, uint64_t id);

  const gpumem::UniqueFd listener_;
  Broker* const broker_;
  const std::function<void(SessionId)> on_ended_;
  const SessionServerOptions options_;
  const gpumem::UniqueFd epoll_;
  const gpumem::UniqueFd stop_;  // eventfd
  gpumem::UniqueFd spare_;       // closed for a moment when descriptors run out, to send a refusal

  absl::Mutex hello_mutex_;          // while a Hello is answered
  std::atomic<bool> parks_ = false;  // set under hello_mutex_

  absl::Mutex mutex_;
  std::shared_ptr<const std::vector<Rule>> rules_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, ConnectionPtr> connections_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SessionId, ConnectionPtr> sessions_ ABSL_GUARDED_BY(mutex_);
  bool leaves_sessions_ ABSL_GUARDED_BY(mutex_) = false;

  // Only the serving thread's.
  uint64_t next_key_ = 1;
  int64_t queue_empty_at_ = 0;         // BootTime(); see Acceptance
  std::list<ConnectionPtr> greeting_;  // in the order of their expiry

  std::thread thread_;
};

}  // namespace gpumemd
