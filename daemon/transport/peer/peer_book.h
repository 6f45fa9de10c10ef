// SPDX-License-Identifier: Apache-2.0
// Identifies the caller of a gRPC call, for the audit. gRPC does not report a call's connection,
// only the name of the client's socket. The kernel reports whose connection has that name.
//
// gpumemctl gives its socket a unique name (unix(7), autobind), so that the caller is unambiguous.
// For clients without a name the book knows all connected peers: the caller is one of them. Use
// this to record callers, never to authorize them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/identity/rules.h"

namespace gpumemd {

// Thread-safe.
class PeerBook {
 public:
  // Records a connection on `socket`. Call before gRPC gets it.
  void Connected(uint64_t connection, int socket, const PeerIdentity& peer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps the entry for a while: a call of it may still be in flight.
  void Ended(uint64_t connection) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the possible callers. `name` is the call's grpc::ServerContextBase::peer().
  std::vector<AuditOperator> Find(const std::string& name) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    std::string name;
    AuditOperator who;
    absl::Time ended = absl::InfiniteFuture();
  };

  mutable absl::Mutex mutex_;
  absl::btree_map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumemd
