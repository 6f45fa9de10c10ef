// SPDX-License-Identifier: Apache-2.0
// What the page's server serves: the daemon's state as JSON, filtered for each viewer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/web/feed/viewer.h"

namespace gpumem::web {

// A shared text, never null: viewers that see the same share one.
using Message = std::shared_ptr<const std::string>;

// Ends when it is destroyed. Its destructor blocks until a call of `send` in progress has returned,
// and must not run inside of `send`.
class Subscription {
 public:
  virtual ~Subscription() = default;
};

// Thread-safe.
class FeedSource {
 public:
  virtual ~FeedSource() = default;

  // Calls `send` with complete server-sent events ("event: NAME\ndata: JSON\n\n"): first
  // "snapshot", or "daemon" while the daemon is away, then changes, ticks and events. `send` runs
  // on the source's thread: it must not block, nor call the source. There is no call after the
  // subscription is destroyed, and there may be calls before Subscribe() returns. Requires that the
  // subscription is destroyed before the source. Never returns null.
  virtual std::unique_ptr<Subscription> Subscribe(const Viewer& viewer,
                                                  std::function<void(Message)> send) = 0;

  // Returns the state as a JSON document. Blocks for a query of the daemon if the last is older
  // than 100 ms, and queries have not taken their share of the time.
  //   UNAVAILABLE        there is no daemon
  //   PERMISSION_DENIED  the daemon does not admit this program
  //   RESOURCE_EXHAUSTED  too many users look at different parts of the state
  virtual absl::StatusOr<Message> Snapshot(const Viewer& viewer) = 0;

  // Returns the last hour of these tenants, of all that the viewer may see if `tenants` is empty,
  // on a device or on all ("") as a JSON document. Blocks for a query of the daemon.
  //   NOT_FOUND      no such tenant, or none that the viewer may see
  //   UNIMPLEMENTED  the daemon is older than this call
  //   and those of Snapshot()
  virtual absl::StatusOr<std::string> History(const Viewer& viewer, const std::string& device,
                                              const std::vector<std::string>& tenants) = 0;

  // Returns totals as a JSON document, also while the daemon is away. They name no tenant: every
  // admitted viewer may have them. Blocks as Snapshot().
  virtual std::string Overview() = 0;
};

}  // namespace gpumem::web
