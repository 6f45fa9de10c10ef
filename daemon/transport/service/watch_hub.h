// SPDX-License-Identifier: Apache-2.0
// Broker.Watch: events to the sessions that ask for them.
//
// Events carry state, not steps: changes since the last event that a reader took are sent once, as
// the latest state. So no queue grows for a slow reader. A reader that takes nothing for
// kStuckAfter while there is news is dropped.
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

  // Which requests of the daemon a client takes.
  struct Serves {
    bool suspension = false;  // to suspend or resume
    bool demotion = false;    // with `suspension`: to demote or promote, too
  };
  // Starts a watch for the call's session. It sends serialized Events, first the present state. The
  // reactor lives until gRPC is done with it.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(grpc::CallbackServerContext* context,
                                                    Broker::Call call, std::string tenant,
                                                    Serves serves);

  // Notify the watchers from a thread of the hub. These functions return at once and call neither
  // the broker nor gRPC, so they may be called under the broker's mutex.
  void QuotaChanged(absl::string_view tenant);  // empty: every tenant
  void DrainingChanged();
  void SegmentsLost(SessionId session);
  void Pressed(const Pressure& pressure);
  void Revoked(SessionId session);
  void SuspensionRequested(SessionId session);

  // Ends the session's watches.
  void SessionEnded(SessionId session);
  // Ends all watches, and each later one as soon as it has begun.
  void EndAll();

  // Stops all notifications. Requires that no thread is still serving a watch.
  void Stop();

 private:
  friend class Watcher;
  void Remove(Watcher* watcher);
  void Tell();

  struct News {
    absl::flat_hash_set<std::string> tenants;  // whose quota has changed
    bool every_tenant = false;
    bool draining = false;
    absl::flat_hash_set<SessionId> orphaned;  // sessions that have lost segments
    absl::flat_hash_set<SessionId> revoked;   // sessions whose leases are being revoked
    absl::flat_hash_set<SessionId> asked;     // sessions that are asked to suspend or resume
    std::vector<Pressure> pressures;          // one for each tenant and device at most
    bool any() const {
      return !tenants.empty() || every_tenant || draining || !orphaned.empty() ||
             !revoked.empty() || !asked.empty() || !pressures.empty();
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
