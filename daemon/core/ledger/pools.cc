// Memory that comes from a tenant's memory pool on a device (kind mempool).
//
// What CUDA has once exported from a pool returns to the device only when the pool is destroyed and
// every process that imported it has ended. An import cannot be undone, and it keeps all of the
// pool's memory, not only the part that the process has opened (measured with driver 580;
// docs/benchmarks.md). So a released segment stays charged, as lingering, until the last of these
// processes has gone. Until then it serves the tenant's next request of its size.
#include <algorithm>
#include <utility>

#include "daemon/core/ledger/ledger.h"

namespace gpumemd {
namespace {

bool SameProcess(const PeerIdentity& one, const PeerIdentity& other) {
  return one.pid == other.pid && one.start_time == other.start_time && one.start_time != 0;
}

}  // namespace

void Ledger::Import(SessionId id, Session& session, size_t device) {
  ++session.tenant->pools[device].importers[id];
  session.imported.insert(device);
  changes_.Touch(id, device);
}

void Ledger::Unimport(SessionId id, Session& session, size_t device, bool all) {
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

void Ledger::EndImport(SessionId id, Session& session, size_t device, size_t& steps) {
  Pool& pool = session.tenant->pools[device];
  const bool is_last = pool.importers.size() == 1 && pool.importers.contains(id);
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

bool Ledger::OnlyImports(const Session& session) {
  return !session.live && !session.ending && session.exposed.empty() && session.operations == 0 &&
         session.in_flight == 0 && session.watches == 0 && session.waiters.empty() &&
         session.attach_waiters.empty();
}

// A process that connects again and again thus does not leave many sessions. Takes the session with
// the lowest id, so that the choice does not depend on a hash.
bool Ledger::Bequeath(SessionId id, Session& session) {
  std::optional<SessionId> heir;
  for (const auto& [other_id, other] : state_.sessions) {
    if (other_id != id && other->tenant == session.tenant && !other->process_gone &&
        SameProcess(other->details.peer, session.details.peer) && (!heir || other_id < *heir)) {
      heir = other_id;
    }
  }
  if (!heir) return false;
  for (size_t device : session.imported) {
    absl::btree_map<SessionId, uint32_t>& importers = session.tenant->pools[device].importers;
    const uint32_t times = importers.at(id);
    importers.erase(id);
    importers[*heir] += times;
    changes_.Touch(id, device);
    changes_.Touch(*heir, device);
  }
  state_.sessions.at(*heir)->imported.insert(session.imported.begin(), session.imported.end());
  session.imported.clear();
  return true;
}

std::optional<SessionId> Ledger::Predecessor(const Tenant& tenant, const PeerIdentity& peer) const {
  for (const auto& [id, session] : state_.sessions) {
    if (session->tenant == &tenant && !session->process_gone && OnlyImports(*session) &&
        SameProcess(session->details.peer, peer)) {
      return id;  // the only one: all others have handed their imports over to it
    }
  }
  return std::nullopt;
}

}  // namespace gpumemd
