// SPDX-License-Identifier: Apache-2.0
// The records of the model: sessions, segments, leases, requests and the like, each in the simplest
// form.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/time/time.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/ledger.h"

namespace gpumemd::model {

// How a tenant was made at run time.
struct Made {
  std::string owner;
  SessionId session{};  // 0: by an operator
  std::string parent;
  QuotaOverride own;
  bool ending = false;
  bool lasting = false;
  bool without_guarantees = false;  // since a restart that found that they cannot be kept
};

struct Tenant {
  Quota quota;
  std::string parent;  // empty: none
  bool configured = false;
  std::optional<QuotaOverride> overridden;
  std::optional<Made> made;
  uint64_t denials = 0;
  std::vector<uint64_t> peaks;  // by device
  // By device: charged bytes times time until LedgerModel::noted, and the bytes since then.
  struct Metered {
    absl::uint128 byte_ns = 0;
    uint64_t charged = 0;
  };
  std::map<size_t, Metered> metered;
};

struct Session {
  std::string tenant;
  std::string client;
  PeerIdentity peer;
  Secret token{};
  absl::Time opened;
  bool live = true;
  bool process_gone = false;
  bool ending = false;   // not live, and still has some of its leases or mappings
  bool goes_on = false;  // it was ending after an earlier call
  Presence presence = Presence::kHere;
  uint32_t calls = 0;
};

struct Segment {
  std::string tenant;
  size_t device = 0;
  Kind kind = Kind::kVmm;
  uint64_t bytes = 0;
  absl::Time created;
  uint64_t kept_since = 0;  // above 0: retained; the lower, the older
  bool given_up = false;    // doomed, perhaps taken by TakeDoomed, not yet destroyed
  bool made = false;
  bool lost = false;
  bool shared_out = false;  // it was given to another tenant
  std::string home;         // of demoted contents: the device that they came from
  bool revocable = false;
  bool revoking = false;  // it is being revoked; the next fields are about that
  absl::Time until;       // when the next step is due
  bool asked_to_end = false;
  bool ended = false;
  bool stuck = false;  // its holders did not end even by force
};

// What requests that wait depend on, of a segment.
struct Charge {
  SegmentState state{};
  bool revocable = false;
  bool revoking = false;
  bool stuck = false;
  bool operator==(const Charge&) const = default;
};

// A process was sent a segment, and may map it. One entry for each time.
struct Mapping {
  SessionId session{};
  SegmentId segment{};
  bool revocable = false;  // the lease was revocable
  bool operator==(const Mapping& other) const {
    return session == other.session && segment == other.segment;
  }
};

// A process was sent memory of its tenant's pool on a device, and has the pool open. One entry for
// each time.
struct Import {
  SessionId session{};
  size_t device = 0;
  bool operator==(const Import&) const = default;
};

struct Lease {
  SessionId session{};
  SegmentId segment{};
  std::optional<Secret> tickets[2];  // by TicketScope
  std::optional<PublicationId> publication{};
  uint64_t request_id = 0;
};

// A request to one device, with all defaults resolved.
struct Request {
  std::string tenant;
  size_t device = 0;
  Kind kind = Kind::kVmm;
  uint64_t bytes = 0;  // of each segment, rounded up
  uint32_t count = 1;
  bool revocable = false;
  uint64_t request_id = 0;
  uint64_t in_all() const { return bytes * count; }
};

// Devices of limits that are not about one device.
inline constexpr size_t kEverywhere = SIZE_MAX;
inline constexpr size_t kUnpinned = SIZE_MAX - 1;  // everywhere but in pinned memory

// One limit: its cause, its tenant ("": no tenant's) and its device.
struct LimitName {
  Denial::Cause cause{};
  std::string whose;
  size_t device = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 means the operator itself
  auto operator<=>(const LimitName&) const = default;
};

struct Waiter {
  SessionId session{};
  Request request;
  bool asked_to = false;
  absl::Time since;
  bool revokes = false;         // segments are, or were, revoked for it
  std::set<LimitName> claimed;  // other requests get nothing there before it
};

struct AttachWaiter {
  SessionId session{};
  std::string tenant, name;
  uint64_t version = 0;
  std::string content_id;  // empty: it waits for the version
  uint64_t request = 0;    // of one for contents
};

// A tenant, a name and a content id.
using ContentsKey = std::tuple<std::string, std::string, std::string>;

struct Publication {
  PublicationId id{};
  std::string tenant, name, content_id;
  uint64_t version = 0;
  std::vector<SegmentId> segments;
  uint64_t metadata_bytes = 0;
  bool to_any = false;
  bool ephemeral = false;
  absl::Duration expire_after;
  absl::Time published;
  absl::Time idle_since;
  SessionId publisher{};
  bool attached = false;  // a session was attached after the last step
};

struct Event {
  IpcEventId id{};
  SessionId session{};
  std::string device;
  ExportData handle{};
  Events::Place place;
  bool handed_out = false;
  bool listed = true;  // false: the lease that it belongs to has ended
  SegmentId segment{};
};

// Grants from before a restart that sessions may ask for again, by request.
using Regrants = std::map<std::pair<SessionId, uint64_t>, std::vector<LeaseId>>;

}  // namespace gpumemd::model
