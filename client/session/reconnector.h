// Keeps a session on a living Connection: when its daemon dies, the next one is asked for the
// session (Hello.resume_token) and told what the client has (Reconcile). When the gRPC connection
// ends and its daemon lives, that one is asked in the same way.
//
// There is no thread behind it. Whoever needs a connection and finds it ended brings the session
// back, one thread at a time; the others wait for that one. What a thread has begun when its time
// is over, the next goes on with: to close a socket that the daemon has welcomed would end the
// session.
//
// Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <random>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/session/connection.h"
#include "client/session/handshake.h"
#include "client/session/lease_book.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::internal {

class Reconnector {
 public:
  // `first` is the connection that `welcome` came over. `greeting`: what its Hello said. `book`
  // outlives this. Not `enabled`: the session ends with its first connection.
  Reconnector(std::shared_ptr<Connection> first, v1::Welcome welcome, Greeting greeting,
              std::string runtime_dir, LeaseBook* book, bool enabled);
  // Ends the session, also where a forked child has copies of its sockets.
  ~Reconnector() = default;
  Reconnector(const Reconnector&) = delete;
  Reconnector& operator=(const Reconnector&) = delete;

  // The newest connection, whether it lives or not.
  std::shared_ptr<Connection> current() const;

  // A connection that lives.
  //   UNAVAILABLE  the session is over; or there was no daemon for it until then, and the next call
  //                may find one
  absl::StatusOr<std::shared_ptr<Connection>> Get(absl::Time deadline);
  // The same for those who can do without: waits for nobody but a daemon that is there, and for
  // that one no longer than `patience`.
  absl::StatusOr<std::shared_ptr<Connection>> GetSoon(absl::Duration patience);

  // Not OK: the session is over for good, and why.
  absl::Status over() const;
  bool enabled() const { return enabled_; }

 private:
  using ConnectionPtr = std::shared_ptr<Connection>;

  absl::StatusOr<ConnectionPtr> GetOr(absl::Time deadline, bool may_wait);
  // One step after the other from no connection to a reconciled one. Not OK: this time it was
  // nothing; in over_ already where it never will be.
  absl::StatusOr<ConnectionPtr> Resume(absl::Time deadline);
  absl::Status Greet(absl::Time deadline);
  absl::Status Reconcile(absl::Time deadline);
  absl::Status EndForGood(absl::Status why);
  absl::Status Away() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const v1::Welcome welcome_;
  const Greeting greeting_;
  const std::string runtime_dir_;
  LeaseBook* const book_;
  const bool enabled_;

  // How far the session has been brought back. Of the thread that has set busy_.
  struct Progress {
    Progress();
    ~Progress();
    UniqueFd socket;           // Hello is said
    ConnectionPtr connection;  // Welcome has come; has taken the socket
  };
  std::optional<Progress> progress_;

  mutable absl::Mutex mutex_;
  ConnectionPtr current_ ABSL_GUARDED_BY(mutex_);
  absl::Status over_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // a thread brings it back
  absl::Time next_try_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration back_off_ ABSL_GUARDED_BY(mutex_);
  std::string trouble_ ABSL_GUARDED_BY(mutex_);  // of the last try
  std::minstd_rand random_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::internal
