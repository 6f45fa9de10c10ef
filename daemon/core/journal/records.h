// SPDX-License-Identifier: Apache-2.0
// The journal's records of the ledger: plain values, one record each.
//
// A batch of changes takes the ledger (ledger.h) from one consistent state to the next. The journal
// (table.h) keeps each batch whole or not at all. A JournalImage (image.h) is the state that all
// batches together make. A change puts a whole object in place of the one with the same key, or
// erases the one with that key.
//
// Each object takes one record of kRecordBytes, whatever its type. So a record is found by its
// number, never spans two pages, and is overwritten by another without bookkeeping. 256 bytes are
// the smallest power of two that holds the largest objects. These are sessions (a token and three
// names) and interprocess events (a handle and two names). 10,000 segments with a lease and an
// exposure each take 7.4 MiB. codec.h has the layout.
//
// Times are Unix times in nanoseconds, sizes are in bytes. Ids of 0 mean none.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "daemon/core/ids.h"
#include "daemon/core/journal/tenant_records.h"
#include "daemon/core/journal/types.h"
#include "daemon/device/device.h"

namespace gpumemd::journal {

// Each type has a Key that tells its objects apart, key(), and its Type. OfKey makes an object of
// which only the key counts. Fields visits the stored fields in their order on disk, the key's
// first. A type never changes such that its old records read differently (table.h, "Versions").

// The highest number of each object type that was ever given out, so that no number is given out
// twice: an erased object leaves no other trace. The same holds for the versions of publications'
// names. The highest version of all ended names suffices to make the next version of each name
// higher. There is one Counters object, which cannot be erased. Every put of an object raises the
// number of its type by itself. Counters need a put only for numbers that were given out and never
// put, where that matters.
struct Counters {
  static constexpr Type kType = Type::kCounters;
  using Key = std::monostate;

  uint64_t session = 0, segment = 0, lease = 0, publication = 0, ipc_event = 0;
  uint64_t ended_version = 0;  // of publications
  uint64_t made_tenant = 0;    // since version 6

  Key key() const { return {}; }
  static constexpr void KeyFields(auto&, auto&&) {}
  static constexpr void Fields(auto& self, auto&& visit) {
    visit(self.session), visit(self.segment), visit(self.lease), visit(self.publication),
        visit(self.ipc_event), visit(self.ended_version), visit(self.made_tenant);
  }

  // Returns the counter for the objects of a type; null if their keys are other objects' numbers.
  uint64_t* Of(Type type) {
    switch (type) {
      case Type::kSession:
        return &session;
      case Type::kSegment:
        return &segment;
      case Type::kLease:
        return &lease;
      case Type::kPublication:
      case Type::kPublicationContent:  // its number is the publication's
        return &publication;
      case Type::kIpcEvent:
        return &ipc_event;
      case Type::kMadeTenant:
      case Type::kMadeTenantQuota:
        return &made_tenant;
      default:
        return nullptr;
    }
  }
  void RaiseTo(const Counters& other) {
    session = std::max(session, other.session);
    segment = std::max(segment, other.segment);
    lease = std::max(lease, other.lease);
    publication = std::max(publication, other.publication);
    ipc_event = std::max(ipc_event, other.ipc_event);
    ended_version = std::max(ended_version, other.ended_version);
    made_tenant = std::max(made_tenant, other.made_tenant);
  }
  bool operator==(const Counters&) const = default;
};

struct Session {
  static constexpr Type kType = Type::kSession;
  using Key = SessionId;

  SessionId id{};
  Secret token{};
  // Of the session's process (PeerIdentity, rules.h).
  pid_t pid = 0;
  uint64_t start_time = 0;  // in clock ticks since boot; 0: unknown
  uid_t uid = 0;
  gid_t gid = 0;
  int64_t opened_ns = 0;
  bool certain = true;     // SessionDetails::certain
  bool ended = false;      // its socket was closed; its process may still map segments
  bool revocable = false;  // leases of its process are revocable, if it has any (records::Process)
  TenantName tenant;
  Name client_name;
  Command command;
  uint32_t connect_id = 0;  // SessionDetails::connect_id

  Key key() const { return id; }
  static Session OfKey(Key key) { return {.id = key}; }
  static constexpr void KeyFields(auto& self, auto&& visit) { visit(self.id); }
  static constexpr void Fields(auto& self, auto&& visit) {
    visit(self.token), visit(self.pid), visit(self.start_time), visit(self.uid), visit(self.gid),
        visit(self.opened_ns), visit(self.certain), visit(self.ended), visit(self.revocable),
        visit(self.tenant), visit(self.client_name), visit(self.command), visit(self.connect_id);
  }
  bool operator==(const Session&) const = default;
};

struct Segment {
  static constexpr Type kType = Type::kSegment;
  using Key = SegmentId;

  SegmentId id{};
  uint64_t bytes = 0;  // also of a segment of kind tier without bytes there (scratch)
  int64_t created_ns = 0;
  Kind kind = Kind::kVmm;
  bool made = false;  // its memory exists
  bool lost = false;
  bool shared_out = false;  // it was given to another tenant's process, or to an unknown one
  bool revocable = false;
  TenantName tenant;
  DeviceUuid device_uuid;
  // Of kind tier, and of demoted contents: the device that they came from; since version 2.
  DeviceUuid home_uuid;
  bool scratch = false;  // since version 3

  Key key() const { return id; }
  static Segment OfKey(Key key) { return {.id = key}; }
  static constexpr void KeyFields(auto& self, auto&& visit) { visit(self.id); }
  static constexpr void Fields(auto& self, auto&& visit) {
    visit(self.bytes), visit(self.created_ns), visit(self.kind), visit(self.made), visit(self.lost),
        visit(self.shared_out), visit(self.revocable), visit(self.tenant), visit(self.device_uuid),
        visit(self.home_uuid), visit(self.scratch);
  }
  bool operator==(const Segment&) const = default;
};

struct Lease {
  static constexpr Type kType = Type::kLease;
  using Key = LeaseId;

  LeaseId id{};
  SessionId session{};
  SegmentId segment{};
  PublicationId publication{};  // by which it was attached, and which may have ended; 0: none
  uint64_t request_id = 0;      // of the call that made it; 0: none
  std::array<std::optional<Secret>, 2> tickets;  // by TicketScope
  bool suspended = false;                        // since version 2
  Tag tag;                                       // since version 3

  Key key() const { return id; }
  static Lease OfKey(Key key) { return {.id = key}; }
  static constexpr void KeyFields(auto& self, auto&& visit) { visit(self.id); }
  static constexpr void Fields(auto& self, auto&& visit) {
    visit(self.session), visit(self.segment), visit(self.publication), visit(self.request_id),
        visit(self.tickets[0]), visit(self.tickets[1]), visit(self.suspended), visit(self.tag);
  }
  bool operator==(const Lease&) const = default;
};

// Number of handed-over leases of a segment that the session's process may still map. Erased at 0.
struct Exposure {
  static constexpr Type kType = Type::kExposure;
  using Key = std::pair<SessionId, SegmentId>;

  SessionId session{};
  SegmentId segment{};
  uint32_t count = 0;

  Key key() const { return {session, segment}; }
  static Exposure OfKey(Key key) { return {.session = key.first, .segment = key.second}; }
  static constexpr void KeyFields(auto& self, auto&& visit) {
    visit(self.session), visit(self.segment);
  }
  static constexpr void Fields(auto& self, auto&& visit) { visit(self.count); }
  bool operator==(const Exposure&) const = default;
};

// Number of times that the session's process was handed memory of its tenant's pool there.
struct PoolImport {
  static constexpr Type kType = Type::kPoolImport;
  using Key = std::pair<SessionId, DeviceUuid>;

  SessionId session{};
  DeviceUuid device_uuid;
  uint32_t count = 0;

  Key key() const { return {session, device_uuid}; }
  static PoolImport OfKey(const Key& key) {
    return {.session = key.first, .device_uuid = key.second};
  }
  static constexpr void KeyFields(auto& self, auto&& visit) {
    visit(self.session), visit(self.device_uuid);
  }
  static constexpr void Fields(auto& self, auto&& visit) { visit(self.count); }
  bool operator==(const PoolImport&) const = default;
};

struct Publication {
  static constexpr Type kType = Type::kPublication;
  using Key = PublicationId;

  PublicationId id{};
  uint64_t version = 0;
  bool persistent = false;      // outlives its publisher's session
  bool any_tenant = false;      // any tenant may attach to it
  int64_t expire_after_ns = 0;  // without attachers; 0: never
  SessionId publisher{};        // 0: its session has ended
  int64_t created_ns = 0;
  int64_t idle_since_ns = 0;    // 0: a session is attached
  uint32_t metadata_bytes = 0;  // in a separate file
  TenantName tenant;
  Name name;

  Key key() const { return id; }
  static Publication OfKey(Key key) { return {.id = key}; }
  static constexpr void KeyFields(auto& self, auto&& visit) { visit(self.id); }
  static constexpr void Fields(auto& self, auto&& visit) {
    visit(self.version), visit(self.persistent), visit(self.any_tenant),
        visit(self.expire_after_ns), visit(self.publisher), visit(self.created_ns),
        visit(self.idle_since_ns), visit(self.metadata_bytes), visit(self.tenant), visit(self.name);
  }
  bool operator==(const Publication&) const = default;
};

// The segment at an index of a publication's list.
struct PublicationItem {
  static constexpr Type kType = Type::kPublicationItem;
  using Key = std::pair<PublicationId, uint32_t>;

  PublicationId publication{};
  uint32_t index = 0;
  SegmentId segment{};

  Key key() const { return {publication, index}; }
  static PublicationItem OfKey(Key key) { return {.publication = key.first, .index = key.second}; }
  static constexpr void KeyFields(auto& self, auto&& visit) {
    visit(self.publication), visit(self.index);
  }
  static constexpr void Fields(auto& self, auto&& visit) { visit(self.segment); }
  bool operator==(const PublicationItem&) const = default;
};

struct IpcEvent {
  static constexpr Type kType = Type::kIpcEvent;
  using Key = IpcEventId;

  IpcEventId id{};
  SessionId session{};
  LeaseId lease{};  // that the event belongs to; 0: it has a name, or its lease has ended
  bool handed_out = false;
  Name name;
  DeviceUuid device_uuid;
  ExportData handle{};

  Key key() const { return id; }
  static IpcEvent OfKey(Key key) { return {.id = key}; }
  static constexpr void KeyFields(auto& self, auto&& visit) { visit(self.id); }
  static constexpr void Fields(auto& self, auto&& visit) {
    visit(self.session), visit(self.lease), visit(self.handed_out), visit(self.name),
        visit(self.device_uuid), visit(self.handle);
  }
  bool operator==(const IpcEvent&) const = default;
};

// The answer to one of a session's requests (records::Session::Answer).
struct Answer {
  static constexpr Type kType = Type::kAnswer;
  using Key = std::pair<SessionId, uint64_t>;

  SessionId session{};
  uint64_t request_id = 0;
  uint64_t number = 0;

  Key key() const { return {session, request_id}; }
  static Answer OfKey(Key key) { return {.session = key.first, .request_id = key.second}; }
  static constexpr void KeyFields(auto& self, auto&& visit) {
    visit(self.session), visit(self.request_id);
  }
  static constexpr void Fields(auto& self, auto&& visit) { visit(self.number); }
  bool operator==(const Answer&) const = default;
};

// A part of the tier's file that holds a part of a segment's contents, at an index of its list.
struct TierExtent {
  static constexpr Type kType = Type::kTierExtent;
  using Key = std::pair<SegmentId, uint32_t>;

  SegmentId segment{};
  uint32_t index = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  Key key() const { return {segment, index}; }
  static TierExtent OfKey(Key key) { return {.segment = key.first, .index = key.second}; }
  static constexpr void KeyFields(auto& self, auto&& visit) {
    visit(self.segment), visit(self.index);
  }
  static constexpr void Fields(auto& self, auto&& visit) { visit(self.offset), visit(self.bytes); }
  bool operator==(const TierExtent&) const = default;
};

// The content id of a publication that has one.
struct PublicationContent {
  static constexpr Type kType = Type::kPublicationContent;
  using Key = PublicationId;

  PublicationId publication{};
  ContentId content_id;

  Key key() const { return publication; }
  static PublicationContent OfKey(Key key) { return {.publication = key}; }
  static constexpr void KeyFields(auto& self, auto&& visit) { visit(self.publication); }
  static constexpr void Fields(auto& self, auto&& visit) { visit(self.content_id); }
  bool operator==(const PublicationContent&) const = default;
};

// The claim of a session on contents of its tenant (records::ContentClaim).
struct Claim {
  static constexpr Type kType = Type::kClaim;
  using Key = std::pair<SessionId, uint64_t>;

  SessionId session{};
  uint64_t request_id = 0;
  Name name;
  ContentId content_id;

  Key key() const { return {session, request_id}; }
  static Claim OfKey(Key key) { return {.session = key.first, .request_id = key.second}; }
  static constexpr void KeyFields(auto& self, auto&& visit) {
    visit(self.session), visit(self.request_id);
  }
  static constexpr void Fields(auto& self, auto&& visit) {
    visit(self.name), visit(self.content_id);
  }
  bool operator==(const Claim&) const = default;
};

using Object = std::variant<Counters, Session, Segment, Lease, Exposure, PoolImport, Publication,
                            PublicationItem, IpcEvent, Answer, TierExtent, PublicationContent,
                            Claim, MadeTenant, MadeTenantQuota, MadeTenantDevice, MadeTenantUse>;

enum class Op : uint8_t { kPut = 1, kErase = 2 };

// One change. For an erased object only the key counts.
struct Change {
  Op op = Op::kPut;
  Object object;
};

template <typename T>
Change Put(T object) {
  return {Op::kPut, std::move(object)};
}
// Erase<journal::Lease>(id), Erase<journal::Exposure>({session, segment}).
template <typename T>
requires(!std::same_as<T, Counters>) Change Erase(const typename T::Key& key) {
  return {Op::kErase, T::OfKey(key)};
}

}  // namespace gpumemd::journal
