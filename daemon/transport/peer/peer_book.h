// Who is behind a call of gRPC, for the audit. gRPC does not say which connection a call came by,
// only what name the client's socket has; the kernel says whose connection that is.
//
// gpumemctl gives its socket a name of its own (unix(7), autobind), so that it is never mixed up
// with another. Of clients without one it is known who is connected, and no more: one of those it
// was. This is for telling who did something, never for deciding who may.
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
  // A connection whose socket is `socket`, before gRPC gets it.
  void Connected(uint64_t connection, int socket, const PeerIdentity& peer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Remembered for a while: a call of it may still be under way.
  void Ended(uint64_t connection) ABSL_LOCKS_EXCLUDED(mutex_);

  // Who may have made a call: `name` is what grpc::ServerContextBase::peer() says of it.
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
