// Broker.Watch: events to the sessions that ask for them.
//
// Events carry state, not steps: what changes while a reader has not taken the last event
// is told once, as it then stands. So nothing piles up for a slow reader. One that takes
// nothing for kStuckAfter while there is news is dropped.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/core/broker/broker.h"
#include "proto/gpumem/v1/broker.grpc.pb.h"

namespace gpumemd {

class Watcher;

// Thread-safe.
class WatchHub {
 public:
  static constexpr absl::Duration kStuckAfter = absl::Seconds(10);

  explicit WatchHub(Broker* broker);
  // No watch may be under way.
  ~WatchHub();

  // Starts a watch for the call's session; it sends serialized Events, first how things stand. The
  // reactor lives until gRPC is done with it.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                    Broker::Call call, std::string tenant);

  // Tell the watchers, from a thread of the hub's own: these return at once, call neither
  // the broker nor gRPC, and so may be called under the broker's mutex.
  void QuotaChanged(absl::string_view tenant);  // empty: every tenant
  void DrainingChanged();
  void SegmentsLost(SessionId session);
  void Pressed(const Pressure& pressure);
  void Revoked(SessionId session);

  // Ends the session's watches.
  void SessionEnded(SessionId session);
  // Ends all, and each that begins later as soon as it has begun.
  void EndAll();

  // Tells nobody anything from here on. The threads that it may still hold up are over.
  void Stop();

 private:
  friend class Watcher;
  void Remove(Watcher* watcher);
  void Tell();

  struct News {
    absl::flat_hash_set<std::string> tenants;  // whose quota has changed
    bool every_tenant = false;
    bool draining = false;
    absl::flat_hash_set<SessionId> bereaved;  // who has lost segments
    absl::flat_hash_set<SessionId> revoked;   // whose leases are being taken back
    std::vector<Pressure> pressures;          // one for each tenant and device at most
    bool any() const {
      return !tenants.empty() || every_tenant || draining || !bereaved.empty() ||
             !revoked.empty() || !pressures.empty();
    }
  };

  Broker* const broker_;
  absl::Mutex mutex_;
  absl::flat_hash_set<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
  News news_ ABSL_GUARDED_BY(mutex_);
  bool all_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gpumemd
