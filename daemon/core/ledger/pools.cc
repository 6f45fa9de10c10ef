// SPDX-License-Identifier: Apache-2.0
// Memory that comes from a tenant's memory pool on a device (kind mempool).
//
// What CUDA has once exported from a pool returns to the device only when the pool is destroyed and
// every process that imported it has ended. An import cannot be undone, and it keeps all of the
// pool's memory, not only the part that the process has opened (measured with driver 580;
// docs/benchmarks.md). So a released segment stays charged, as lingering, until the last of these
// processes has gone. Until then it serves the tenant's next request of its size.
#include <algorithm>
#include <utility>

#include "daemon/core/ledger/segments.h"

namespace gpumemd {

void Segments::Import(SessionId id, Session& session, size_t device) {
  ++session.tenant->pools[device].importers[id];
  session.imported.insert(device);
  changes_.Touch(id, device);
}

void Segments::Unimport(SessionId id, Session& session, size_t device, bool all) {
  Pool& pool = session.tenant->pools[device];
  auto it = pool.importers.find(id);
  if (it == pool.importers.end()) return;  // its process is gone already
  changes_.Touch(id, device);
  if (!all && --it->second > 0) return;
  pool.importers.erase(it);
  session.imported.erase(device);
  if (!pool.importers.empty()) return;
  absl::btree_set<SegmentId> released = std::exchange(pool.lost, {});
  while (const std::optional<SegmentId> idle = pool.idle.TakeOldest()) released.insert(*idle);
  for (SegmentId segment : released) Settle(segment, *state_.segments.at(segment));
}

void Segments::EndImport(SessionId id, Session& session, size_t device, size_t& steps) {
  Pool& pool = session.tenant->pools[device];
  // The session is one of the importers: the device is in session.imported.
  const bool is_last = pool.importers.size() == 1;
  const size_t released = is_last ? pool.idle.size() + pool.lost.size() : 0;
  if (released <= steps) {
    steps -= std::min(steps, released + 1);
    return Unimport(id, session, device, /*all=*/true);
  }
  for (; steps > 0; --steps) {
    const SegmentId segment = pool.lost.empty() ? *pool.idle.TakeOldest() : *pool.lost.begin();
    pool.lost.erase(segment);
    Doom(segment, *state_.segments.at(segment));
  }
}

}  // namespace gpumemd
