// SPDX-License-Identifier: Apache-2.0
// The ledger's record of each tenant, session, segment, lease and waiter. Plain records: only the
// ledger changes them (ledger.h), and keeps them consistent with each other.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/admission/account.h"
#include "daemon/core/admission/queue_line.h"
#include "daemon/core/admission/standing.h"
#include "daemon/core/denial.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/inspect/views.h"
#include "daemon/core/ledger/retained_pool.h"
#include "daemon/core/ledger/retainers.h"
#include "daemon/core/quota/overrides.h"
#include "daemon/core/quota/quota.h"
#include "daemon/device/device.h"

namespace gpumemd::records {

// Contents that a tenant publishes under a name, or is about to: PublishSpec::content_id.
struct Contents {
  std::string tenant;
  std::string name;
  std::string content_id;

  auto operator<=>(const Contents&) const = default;
};
// The right of a session to load contents (publication/claims.h), and the request that got it.
struct ContentClaim {
  SessionId session{};
  uint64_t request_id = 0;
};
// The tag of leases that the daemon itself gives a session (driver/overheads.h). No client can
// choose it.
inline constexpr absl::string_view kOverheadTag = "(overhead)";

// A tenant's memory pool on a device (kind mempool).
struct Pool {
  // The sessions whose processes may have it open, and how often each was handed a segment of it.
  // Sessions of ended processes are left out.
  absl::btree_map<SessionId, uint32_t> importers;
  RetainedPool idle;  // released, and ready for the tenant's next request of that size
  absl::btree_set<SegmentId> lost;  // released, and of no use
};
// The part of a tenant that an operator or a session made at run time (ledger/made/made_tenants.h).
struct MadeTenant {
  MadeTenantId id{};
  std::string owner;         // a tag that its maker chose
  SessionId session{};       // that made it, and may have ended; 0: an operator
  std::optional<uid_t> uid;  // of its maker
  // For whom an operator made it: sessions of that uid may read its use.
  std::optional<uid_t> user;
  absl::Time created;
  std::string parent;    // empty: its base's
  QuotaOverride quota;   // that it was made with: other fields follow its base (Tenants::QuotaOf)
  bool ending = false;   // nothing new for it; it is forgotten once it has nothing
  bool lasting = false;  // of a session: it does not end with that session
  // Its guarantees do not fit beside those of the configuration that this daemon started with.
  bool without_guarantees = false;

  bool by_session() const { return session != SessionId{}; }
};
struct Tenant {
  std::string name;
  Quota quota;
  bool configured = false;
  // An operator's, on top of its quota. The tenant is kept, lest a user shed it by leaving.
  std::optional<QuotaOverride> overridden;
  std::optional<MadeTenant> made;
  Tenant* parent = nullptr;  // whose quota counts this tenant's usage, too
  absl::btree_map<absl::string_view, Tenant*> children;  // those whose parent it is, by name
  // The tenant that counts what this one's sessions have of the daemon's objects: calls, watches,
  // claims, leases, metadata and events. Of a tenant that a session made, the nearest tenant above
  // that none has made, so that making tenants raises no bound. Otherwise this tenant.
  Tenant* books = this;
  std::vector<Account> accounts;       // by device, including tenants under it
  std::vector<RetainedPool> retained;  // by device
  std::vector<Retainers> retainers;    // by device: itself and tenants under it
  std::vector<Pool> pools;             // by device
  uint32_t sessions = 0;               // live and lingering
  uint32_t live_sessions = 0;
  uint32_t tree_sessions = 0;      // including tenants under it
  uint32_t tree_waiting = 0;       // requests that asked to wait, including tenants under it
  uint32_t tree_publications = 0;  // including tenants under it
  uint64_t metadata_bytes = 0;     // of its publications, and of tenants that it is the books of
  uint32_t lasting = 0;            // lasting tenants that it is the books of
  // The last versions of names that are no longer published, the oldest first; a few.
  std::vector<std::pair<std::string, uint64_t>> ended_names;
  uint64_t forgotten_version = 0;  // the highest of those that are not remembered one by one
  uint32_t in_flight = 0;
  uint32_t awaited = 0;  // requests that wait for its memory, also of other tenants' sessions
  uint32_t watches = 0;
  uint32_t claims = 0;
  uint64_t leases = 0;  // of its sessions, and those that operations are about to give
  // Of demoted segments that its sessions have leases of, including tenants under it. One counts
  // for each session.
  uint64_t demoted_bytes = 0;
  std::map<Denial::Cause, uint64_t> denials;

  // Returns the charge for a new segment of this tenant. The tenant outlives it.
  Charge ChargeFor(SegmentId segment, size_t device, uint64_t bytes, bool revocable) {
    return Charge(&accounts[device], bytes, revocable, {&quota.priority, segment});
  }
};
// Room in the host tier for the contents of a segment.
struct TierRoom {
  SegmentId from{};
  SegmentId to{};
};
// Why a session is asked to suspend.
enum class SuspensionCause {
  kOperator,
  kWaiter,  // another request waits for the memory
  kIdle,    // the session was idle for long
};
enum class SuspensionAction { kSuspend, kResume, kDemote, kPromote };
// A request that a session does this to its leases.
struct SuspensionRequest {
  uint64_t number = 0;
  SuspensionAction action = SuspensionAction::kSuspend;
  absl::Time until;
  std::string tag;  // of the leases; empty: all
  SuspensionCause cause = SuspensionCause::kOperator;
};
// What a session maps of a device's memory and could suspend.
struct Residence {
  uint64_t bytes = 0;  // by lease: a segment counts for each mapped lease of it
  uint64_t kept = 0;   // of them without scratch memory: what the host tier needs room for
  absl::Time since;    // when it last got or resumed a lease there
};
struct Session {
  Tenant* tenant = nullptr;
  SessionDetails details;
  Secret token{};
  absl::Time opened;
  bool live = true;  // its socket is open
  bool process_gone = false;
  bool ending = false;      // not live, and not all it had has ended (Endings::Continue)
  uint32_t in_flight = 0;   // calls
  uint32_t watches = 0;     // calls that became watches
  uint32_t operations = 0;  // begun, neither committed nor aborted
  absl::btree_set<WaiterId> waiters;
  absl::btree_set<LeaseId> leases;
  absl::btree_map<SegmentId, uint32_t> leased;  // the segments of these, and how often
  uint64_t leased_bytes = 0;                    // of these, each counted once
  uint64_t tier_bytes = 0;                      // of leased_bytes: in the host tier
  uint64_t demoted_bytes = 0;                   // of leased_bytes: of demoted segments
  // Of leased_bytes: of kind driver, by device, without overheads; and the leases of these.
  absl::btree_map<size_t, uint64_t> driver_bytes;
  absl::btree_map<size_t, std::vector<LeaseId>> overheads;
  uint32_t arriving = 0;               // leases that its operations are about to give it
  absl::btree_set<SegmentId> exposed;  // segments that its process may map
  absl::btree_set<size_t> imported;    // devices on which it is an importer of the pool
  // Whether the client of a session that an earlier daemon began has come back.
  Presence presence = Presence::kHere;
  uint32_t resumptions = 0;    // how often its client has connected anew
  bool may_reconcile = false;  // true after a reconnect, until its next call
  // Leases by the request that they were granted to. The client may not have got the answer: if it
  // repeats the request, it gets these leases. Filled by a restart of the daemon, for its earlier
  // grants, and by Reconciliation::Reconcile, for the requests that the client states.
  absl::btree_map<uint64_t, std::vector<LeaseId>> regrants;
  absl::btree_set<WaiterId> attach_waiters;
  // Of these, those that wait for contents, by request: each may come to a claim.
  absl::btree_map<uint64_t, WaiterId> contents_awaited;
  absl::btree_map<uint64_t, Contents> claims;  // by request
  // The last requests for a claim that its client gave up, the oldest first; a few. One that
  // arrives late gets no claim.
  std::deque<uint64_t> claims_given_up;
  absl::btree_set<std::string> made_tenants;    // that it made, and that have not ended
  absl::btree_set<PublicationId> publications;  // that it made and that still exist
  absl::btree_set<PublicationId> ephemeral;     // of these, that end with it
  // Answers to its last numbered requests, the oldest first; a few. For requests for leases, the
  // leases have the answer.
  struct Answer {
    uint64_t request = 0;
    uint64_t number = 0;  // a version, or an event's
  };
  std::deque<Answer> answers;
  // Room for the leases that it is about to suspend (Suspensions::Prepare), and the number of that
  // reservation; 0: none.
  uint64_t tier_reservation = 0;
  std::vector<TierRoom> tier_rooms;
  // Watches that accept requests to suspend, and the present request. `swap_watches` of them opt in
  // to requests of the policy (SwapPolicy), whatever the tenant's quota says; `no_swap_watches` opt
  // out. `demotion_watches` accept requests to demote, too.
  uint32_t suspension_watches = 0;
  uint32_t demotion_watches = 0;
  uint32_t swap_watches = 0;
  uint32_t no_swap_watches = 0;
  std::optional<SuspensionRequest> suspension_request;
  // For the policy: its last activity, and by device what it maps. It is not asked before
  // `swap_after`, since it has ignored a request; and once for the idle time since `idle_asked`.
  absl::Time active = absl::InfinitePast();
  absl::btree_map<size_t, Residence> residences;
  absl::Time swap_after = absl::InfinitePast();
  absl::Time idle_asked = absl::InfiniteFuture();

  // True if the policy may ask it.
  bool IsSwappable() const {
    const Quota& quota = tenant->quota;
    return live && suspension_watches > 0 && no_swap_watches == 0 &&
           (swap_watches > 0 || quota.swappable) && quota.release == ReleasePolicy::kTrust;
  }
};
struct Segment {
  Tenant* tenant = nullptr;
  size_t device = 0;
  Kind kind = Kind::kVmm;
  Charge charge;
  absl::Time created;
  bool made = false;  // its memory exists
  bool lost = false;
  bool shared_out = false;  // a process of another tenant, or an unknown one, was given it
  // The last step of its revocation, and when the next step is due.
  enum class Revocation { kTold, kAskedToEnd, kEnded } revocation = Revocation::kTold;
  absl::Time due = absl::InfiniteFuture();
  uint32_t pins = 0;  // operations under way on it
  uint32_t leases = 0;
  uint32_t publications = 0;  // that contain it
  // How many handed-over leases each session's process may still map.
  absl::btree_map<SessionId, uint32_t> exposures;
  absl::btree_set<LeaseId> suspended;  // of its leases
  // Its contents are being copied to or from the host tier. No session may open it meanwhile.
  bool copying = false;
  // The device that its contents came from: another one than `device` of kind tier, and of kind
  // host while a lease that was demoted has it (Exchanges).
  size_t home = 0;
  // Of kind tier: its place in the tier's file.
  std::vector<TierExtent> extents;
  // Of kind tier, or on its way there: the publication that holds it, and the place in that list.
  std::optional<std::pair<PublicationId, uint32_t>> published;
  // Its bytes need not be kept while it is suspended.
  bool scratch = false;
  // Of a scratch segment of kind tier: its size on the device. Its charge is 0 and it has no
  // memory.
  uint64_t dropped_bytes = 0;

  uint64_t size() const { return charge.bytes() + dropped_bytes; }
  bool demoted() const { return kind == Kind::kHost && home != device; }
};
// A process, and whether its leases are firm or revocable. A process that maps nothing has no
// record.
struct Process {
  uint32_t exposures = 0;  // segments that its sessions may map
  bool revocable = false;
};
struct Lease {
  SessionId session{};
  SegmentId segment{};
  std::optional<Secret> tickets[2];            // by TicketScope
  std::optional<PublicationId> publication{};  // by which it was attached; it may have ended
  uint64_t request_id = 0;                     // of the call that got it; 0: none
  bool suspended = false;                      // its session's process does not map it
  std::string tag;                             // its session's name for a selection of leases
};
// One version, sealed. Holds its segments as leases do, and has no session.
struct Publication {
  Tenant* tenant = nullptr;
  std::string name;
  std::string content_id;  // empty: none
  uint64_t version = 0;
  std::vector<SegmentId> segments;
  uint64_t bytes = 0;       // of these
  uint32_t in_tier = 0;     // how many of these are in the host tier
  uint64_t tier_bytes = 0;  // of bytes: of those in the tier
  uint64_t metadata_bytes = 0;
  bool to_any = false;     // every tenant's sessions may attach; else only its tenant's
  bool ephemeral = false;  // ends with its publisher's session
  absl::Duration expire_after = absl::InfiniteDuration();
  absl::Time published;
  absl::Time idle_since;  // set while no session is attached
  SessionId publisher{};  // may have ended; the fields below stay as they were
  pid_t publisher_pid = 0;
  std::string publisher_name;
  // Number of leases by session that the session got through it, or is about to get.
  absl::btree_map<SessionId, uint32_t> attached;
};
struct TicketEntry {
  LeaseId lease{};
  TicketScope scope = TicketScope::kTenant;
};

// A request for memory.
struct Request {
  Tenant* tenant = nullptr;
  size_t device = 0;
  Kind kind = Kind::kVmm;
  uint64_t bytes = 0;  // of each segment, rounded up
  uint32_t count = 0;
  bool revocable = false;
  uint64_t request_id = 0;
  std::string tag;       // of the leases
  bool scratch = false;  // the segments
  // Suspended leases, or a suspended publication, to bring back. `bytes` is the sum of their
  // segments in the tier, `count` is 1.
  std::vector<LeaseId> resumes;
  std::optional<PublicationId> publication;
  bool BringsBack() const { return !resumes.empty() || publication.has_value(); }
};
struct Waiter {
  SessionId session{};
  Request request;
  bool asked_to = false;  // false: it waits only for memory that is on its way back
  absl::Time since;
  bool revokes = false;
  // Until then nothing is revoked for it while sessions are asked to suspend. Infinite past: no
  // session was asked yet.
  absl::Time swap_until = absl::InfinitePast();
  // How many of its standings it claims. Later waiters get no memory there that it waits for.
  size_t claims = 0;

  // Queue data that limits how many other waiters a change has to check (admission/wait_queue.h).
  struct Claimed {
    ClaimKey key;
    Claim claim;
    uint64_t plain_need = 0;  // of the claim, assuming no reuse
    bool operator==(const Claimed&) const = default;
  };
  std::vector<Claimed> claimed;  // of the limits of its tenant and of that tenant's ancestors
  QueueRank rank{};
  const Tenant* tree = nullptr;  // its tenant's topmost ancestor, or its tenant
};
// A waiter for a version of a publication, or for contents. No version of it need exist yet.
struct AttachWaiter {
  SessionId session{};
  std::pair<std::string, std::string> name;  // the tenant's and the publication's
  uint64_t version = 0;                      // or a later one
  std::string content_id;                    // empty: it waits for the version
  uint64_t request_id = 0;                   // that a claim is for

  Contents contents() const { return {name.first, name.second, content_id}; }
};

}  // namespace gpumemd::records
