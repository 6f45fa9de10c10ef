// SPDX-License-Identifier: Apache-2.0
// The interprocess events that sessions have registered, and which sessions may find them.
//
// An event has a name, which one tenant's sessions know, or stands beside a lease, for all sessions
// that lease the same segment. It ends with its session. If the lease ends before, the event can no
// longer be found. The handle is 64 bytes that only clients interpret.
//
// No I/O and no lock: part of the ledger's state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ids.h"
#include "daemon/device/device.h"

namespace gpumemd {

class IpcEvents {
 public:
  struct Event {
    SessionId session{};
    std::string device_uuid;
    ExportData handle{};
    std::string tenant, name;      // if it has a name
    std::string books;             // the tenant that counts it (records::Tenant::books)
    std::optional<LeaseId> lease;  // if it is beside one
    SegmentId segment{};           // of that lease
    bool handed_out = false;       // another session was given the handle
  };

  // Returns nothing if the tenant has an event of that name.
  std::optional<IpcEventId> Add(Event event);

  // Returns the event of that name, or null if the tenant has none.
  Event* FindByName(const std::string& tenant, const std::string& name, IpcEventId* id);
  // Returns the events beside a segment's leases, oldest first.
  std::vector<std::pair<IpcEventId, Event*>> FindBySegment(SegmentId segment);
  // Returns null if there is none of that number.
  const Event* Find(IpcEventId id) const;

  void Remove(IpcEventId id);
  // Returns one of the session's events; nullopt if it has none.
  std::optional<IpcEventId> AnyOf(SessionId session) const;
  // Puts the events beside a segment's leases beside another segment, to which the leases moved.
  void MoveTo(SegmentId from, SegmentId to);
  // Exchanges the events beside the leases of two segments, since the leases were exchanged.
  void Swap(SegmentId one, SegmentId other);
  // Returns the events that can no longer be found.
  std::vector<IpcEventId> LeaseEnded(LeaseId lease);
  // Restores an earlier daemon's event under its number. Numbers given out afterwards are higher
  // than `last` and all of these.
  void Restore(IpcEventId id, Event event);
  void GoOnAfter(uint64_t last) { next_ = std::max(next_, last + 1); }
  uint64_t last() const { return next_ - 1; }
  const absl::btree_map<IpcEventId, Event>& all() const { return events_; }

  size_t CountOf(SessionId session) const;
  size_t CountOf(const std::string& books) const;
  size_t CountBeside(SegmentId segment) const;
  size_t size() const { return events_.size(); }

 private:
  absl::btree_map<IpcEventId, Event> events_;
  absl::flat_hash_map<std::pair<std::string, std::string>, IpcEventId> by_name_;
  absl::flat_hash_map<SegmentId, absl::btree_set<IpcEventId>> by_segment_;
  absl::flat_hash_map<LeaseId, absl::btree_set<IpcEventId>> by_lease_;
  absl::flat_hash_map<SessionId, absl::btree_set<IpcEventId>> by_session_;
  absl::flat_hash_map<std::string, size_t> by_books_;  // how many
  uint64_t next_ = 1;
};

}  // namespace gpumemd
