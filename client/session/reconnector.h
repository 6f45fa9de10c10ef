// SPDX-License-Identifier: Apache-2.0
// Keeps a session on a living Connection. When its daemon dies, it asks the next one for the
// session (Hello.resume_token) and sends it the client's state (Reconcile). When only the gRPC
// connection ends, it asks the same daemon in the same way.
//
// It has no thread. A thread that needs a connection and finds it ended resumes the session; other
// threads wait for it. If its deadline passes, the next thread continues its work: closing a socket
// that the daemon has welcomed would end the session.
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
  // `first` is the connection of `welcome`. `greeting`: the contents of its Hello. `book` must
  // outlive this. `enabled` false: the session ends with its first connection.
  Reconnector(std::shared_ptr<Connection> first, v1::Welcome welcome, Greeting greeting,
              std::string runtime_dir, LeaseBook* book, bool enabled);
  // Ends the session, even if a forked child has copies of its sockets.
  ~Reconnector() = default;
  Reconnector(const Reconnector&) = delete;
  Reconnector& operator=(const Reconnector&) = delete;

  // Returns the newest connection, alive or not.
  std::shared_ptr<Connection> current() const;

  // Returns a living connection, and blocks until there is one.
  //   UNAVAILABLE  the session is over; or there was no daemon for it by the deadline, and the next
  //                call may find one
  absl::StatusOr<std::shared_ptr<Connection>> Get(absl::Time deadline);
  // As Get(), for optional work: waits neither for another thread nor for an absent daemon. Waits
  // for a running daemon at most `patience`.
  absl::StatusOr<std::shared_ptr<Connection>> GetSoon(absl::Duration patience);

  // Not OK: the session is over for good, and why.
  absl::Status over() const;
  bool enabled() const { return enabled_; }

 private:
  using ConnectionPtr = std::shared_ptr<Connection>;

  absl::StatusOr<ConnectionPtr> GetOr(absl::Time deadline, bool may_wait);
  // Performs the steps from no connection to a reconciled one. Not OK: this attempt failed. A
  // permanent failure is also in over_.
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

  // The progress of the resume. Owned by the thread that has set busy_.
  struct Progress {
    Progress();
    ~Progress();
    UniqueFd socket;           // Hello has been sent
    ConnectionPtr connection;  // Welcome has arrived; owns the socket
  };
  std::optional<Progress> progress_;

  mutable absl::Mutex mutex_;
  ConnectionPtr current_ ABSL_GUARDED_BY(mutex_);
  absl::Status over_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is resuming the session
  absl::Time next_try_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration back_off_ ABSL_GUARDED_BY(mutex_);
  std::string trouble_ ABSL_GUARDED_BY(mutex_);  // the error of the last attempt
  std::minstd_rand random_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::internal
