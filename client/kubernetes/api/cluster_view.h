// SPDX-License-Identifier: Apache-2.0
// Claims of a driver and slices of a node, as the API server has them: two watches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/kubernetes/api/api_server.h"
#include "client/kubernetes/api/cache.h"
#include "client/kubernetes/api/claims.h"
#include "client/kubernetes/api/reflector.h"

namespace gpumem::kubernetes {

struct ViewOptions {
  ApiServerOptions api_server;
  std::string driver;
  std::string node;  // as Kubernetes calls it
  // The one pool of the driver on this node. Claims without a device of it are not kept. Empty:
  // pools may have any names.
  std::string pool;
};

class ClusterView {
 public:
  explicit ClusterView(const ViewOptions& options);

  // Waits until nothing is stale. Statuses as Reflector::WaitFresh.
  absl::Status WaitFresh(absl::Time deadline);

  // The objects of the last list and of events since. `stale` says why it may be out of date; OK:
  // it follows the API server.
  struct State {
    absl::Span<const Claim> claims;
    absl::Span<const Slice> slices;
    absl::Status stale;
    uint64_t changes = 0;
  };
  // Calls `read` with the state. The thread of the watch waits for it.
  //   UNAVAILABLE, …  there was no complete list yet
  absl::Status Read(absl::FunctionRef<void(const State&)> read) const;

  // How often claims or slices have changed, and slices alone.
  uint64_t changes() const;
  uint64_t slice_changes() const;
  // Waits for a change after the number `seen`. True if there is one.
  bool WaitForChange(uint64_t seen, absl::Time until) const;

 private:
  uint64_t Changes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return claims_.changes() + slices_.changes();
  }

  mutable absl::Mutex mutex_;
  Cache<Claim> claims_ ABSL_GUARDED_BY(mutex_);
  Cache<Slice> slices_ ABSL_GUARDED_BY(mutex_);
  // After what they fill: they end first.
  Reflector claims_reflector_;
  Reflector slices_reflector_;
};

}  // namespace gpumem::kubernetes
