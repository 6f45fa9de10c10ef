// SPDX-License-Identifier: Apache-2.0
// The state that the ledger's parts share: devices, tenants, sessions, segments, leases, waiters
// and publications. Only the ledger changes it; others read it through const functions.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/admission/account.h"
#include "daemon/core/admission/usage.h"
#include "daemon/core/event/ipc_events.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/ledger/made/ended_tenants.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/retainers.h"
#include "daemon/core/ledger/sharded_map.h"
#include "daemon/core/publication/versions.h"
#include "daemon/core/quota/quota.h"
#include "daemon/device/device.h"

namespace gpumemd {

struct LedgerState {
  using Pool = records::Pool;
  using Publication = records::Publication;
  using Segment = records::Segment;
  using Session = records::Session;
  using Tenant = records::Tenant;
  using ProcessKey = std::pair<pid_t, uint64_t>;                // a process and its start time
  using PublicationName = std::pair<std::string, std::string>;  // of a tenant and of a publication

  // `usage`: the clock of accounts; empty: `clock`, which then has to be monotonic.
  LedgerState(std::vector<DeviceInfo> infos, Bounds limits, std::function<absl::Time()> clock,
              UsageClock usage = nullptr);
  // Segments refund the accounts of tenants and devices: they are destroyed first.
  ~LedgerState();
  LedgerState(const LedgerState&) = delete;
  LedgerState& operator=(const LedgerState&) = delete;

  // True if a request to acquire is refused. `resumes`: it brings suspended leases back. Their
  // holder had them before, and may need them to come to an end.
  bool RefusesAcquire(bool resumes) const { return closing || (draining && !resumes); }

  // --- Devices and segments

  // Returns the index of a device.
  //   NOT_FOUND  there is no device with this UUID
  absl::StatusOr<size_t> FindDevice(absl::string_view uuid) const;
  uint64_t charged(size_t device) const { return device_accounts[device].charged(); }
  uint64_t releasing(size_t device) const {
    return device_accounts[device].bytes(SegmentState::kReleasing);
  }
  struct Place {
    size_t device = 0;
    Kind kind = Kind::kVmm;
  };
  Place PlaceOf(SegmentId segment) const {
    return {segments.at(segment)->device, segments.at(segment)->kind};
  }
  static Pool& PoolOf(const Segment& segment) { return segment.tenant->pools[segment.device]; }
  // True if a process has the segment's pool open. It need not have opened the segment.
  static bool HeldByPool(const Segment& segment) {
    return TraitsOf(segment.kind).pooled && !PoolOf(segment).importers.empty();
  }
  // Returns the bytes of released segments in the tenant's pools: on a device, or on all.
  static uint64_t IdleInPools(const Tenant& tenant, std::optional<size_t> device);

  // --- Tenants

  Tenant* FindTenant(absl::string_view name);
  const Tenant* FindTenant(absl::string_view name) const;
  static absl::Status NoSuchTenant(absl::string_view name);
  // True if `tenant` is `above`, or is under it.
  static bool IsUnder(const Tenant& tenant, const Tenant& above);
  // Return the sums over all devices; of bytes without pinned memory.
  uint64_t TotalCharged(const Tenant& tenant) const;
  static uint64_t TotalSegments(const Tenant& tenant);
  uint64_t LimitOn(const Tenant& tenant, size_t device) const;
  uint64_t GuaranteeOn(const Tenant& tenant, size_t device) const;
  uint64_t MaxRetainedOn(const Tenant& tenant, size_t device) const;
  // True if the usage of the tenant and of those above it, without releasing segments, is within
  // their limits: on this device, over all, and in number. Above a limit no segment is retained.
  bool WithinLimits(const Tenant& tenant, size_t device) const;

  // Returns FAILED_PRECONDITION if the tenant was made at run time and has ended.
  static absl::Status CheckGoesOn(const Tenant& tenant);

  // Returns the topmost tenant above it, or itself.
  static const Tenant* TreeOf(const Tenant& tenant);

  // --- Sessions

  // Returns the session with this token.
  //   NOT_FOUND  no live session has it
  absl::StatusOr<SessionId> FindByToken(const Secret& token) const;
  //   ABORTED  the session has ended, or there was none
  absl::StatusOr<Session*> LiveSession(SessionId id);
  static ProcessKey ProcessOf(const Session& session);
  // Adds the lease to its session and its segment. CountLeases counts it, from the beginning of the
  // operation that is about to give it.
  void AddLease(LeaseId id, records::Lease lease);
  void CountLeases(Tenant& tenant, int64_t change);
  // Counts a lease that the session's process maps now, or no more, if it could be suspended.
  void CountMapped(SessionId id, Session& session, const Segment& segment, bool mapped);
  // Counts a lease that the session has now, or no more, if it is of kind driver.
  static void CountDriver(LeaseId id, const records::Lease& lease, Session& session,
                          const Segment& segment, bool leased);
  // Counts a segment that the session has leases of now, or no more, if it is demoted. To be called
  // for each such session around each change of Segment::home.
  static void CountDemoted(Session& session, const Segment& segment, bool leased);
  // True if the session may suspend leases of this segment, once the segment's kind allows it.
  static bool IsSuspendable(const Session& session, const Segment& segment) {
    return TraitsOf(segment.kind).suspendable && !segment.charge.revocable() &&
           segment.tenant == session.tenant;
  }
  // Returns the answer that the session's request was given before, if it is still remembered.
  static std::optional<uint64_t> AnswerTo(const Session& session, uint64_t request);
  // Return the bytes that processes took past the broker.
  uint64_t UnbrokeredOf(const Tenant& tenant, absl::string_view device_uuid) const;
  uint64_t UnbrokeredOf(SessionId session) const;

  // --- Publications

  // Returns null if there is none, or if sessions of `reader` may not know it. A null `reader` is
  // an operator.
  const Publication* FindPublication(const PublicationName& name, const Tenant* reader) const;
  static bool MayAttach(const Publication& publication, const Tenant& reader);
  absl::Time ExpiryOf(const Publication& publication) const;

  const std::vector<DeviceInfo> devices;
  const Bounds bounds;
  const std::function<absl::Time()> now;
  UsageClock usage_clock;
  UsesChanged uses_changed;
  bool draining = false;     // refuses new sessions and operations, but no resumption
  bool closing = false;      // refuses resumptions, too
  bool queue_stale = false;  // quotas have changed: the order of the waiters is out of date

  uint64_t quotas_version = 0;  // grows with every change of a tenant's quota

  std::vector<Account> device_accounts;
  std::vector<Retainers> retainers;          // by device: all tenants
  std::vector<uint64_t> reclaimed;           // by device: bytes that only ended processes still had
  std::vector<uint64_t> suspended, resumed;  // by device: bytes that moved to the tier, and back
  std::map<std::string, std::unique_ptr<Tenant>, std::less<>> tenants;
  Quota default_quota;
  uint32_t made_tenants = 0;  // all, and those that sessions have made
  uint32_t made_by_sessions = 0;
  uint32_t lasting_tenants = 0;  // of these
  // Those of one uid's sessions, and how many of them are lasting.
  struct MadeOfUid {
    absl::btree_set<MadeTenantId> ids;
    uint32_t lasting = 0;
  };
  absl::flat_hash_map<uid_t, MadeOfUid> made_of_uid;
  absl::flat_hash_map<MadeTenantId, Tenant*> made_by_id;
  EndedTenants last_ended;  // of those that operators made
  // Those that are ending and may have publications, which Endings ends.
  absl::btree_set<std::string> ended_tenants;

  absl::flat_hash_map<SessionId, std::unique_ptr<Session>> sessions;
  absl::flat_hash_map<Secret, SessionId> tokens;
  absl::btree_set<SessionId> ending;
  absl::flat_hash_map<uid_t, uint32_t> sessions_of_uid;  // live and lingering
  std::map<ProcessKey, records::Process> processes;
  std::vector<UnbrokeredBytes> unbrokered;
  // Sessions with watches that accept requests to suspend, whose entries in the index of SwapPolicy
  // are out of date; and whether all are.
  absl::flat_hash_set<SessionId> swaps_changed;
  bool swaps_stale = false;

  absl::flat_hash_map<SegmentId, std::unique_ptr<Segment>> segments;
  absl::btree_set<SegmentId> revoking;
  ShardedMap<LeaseId, records::Lease> leases;
  uint64_t lease_count = 0;  // of all tenants
  ShardedMap<Secret, records::TicketEntry> tickets;
  IpcEvents events;
  uint64_t open_operations = 0;
  uint32_t operators_operations = 0;  // of these, those without a session
  uint64_t regranting = 0;            // items of those operations that give no new lease
  uint64_t tier_pins = 0;             // pins by reservations in the tier and by copies
  // Suspended segments that their last user has let go of: the daemon moves them to the tier
  // (Suspensions::BeginLater). Those that found no room there, and the last of these that was tried
  // again.
  absl::btree_set<SegmentId> to_move, without_room;
  SegmentId retried{};
  std::map<WaiterId, records::Waiter> waiters;  // by arrival
  // Processes that have begun to hold leases, firm or revocable, since waiters were last checked.
  std::vector<ProcessKey> newly_holding;
  // Publications that have ended, or whose segments have come back, since then.
  absl::btree_set<PublicationId> moved_publications;

  absl::btree_map<PublicationId, Publication> publications;
  absl::btree_map<PublicationName, PublicationId> by_name;  // the newest of each
  absl::btree_set<std::pair<absl::Time, PublicationId>> expiries;
  std::map<WaiterId, records::AttachWaiter> attach_waiters;
  absl::btree_map<records::Contents, records::ContentClaim> claims;
  uint64_t metadata_bytes = 0;
  Versions versions;  // of names that are no longer published

  uint64_t next_session = 1;
  uint64_t next_segment = 1;
  uint64_t next_lease = 1;
  uint64_t next_operation = 1;
  uint64_t next_waiter = 1;
  uint64_t next_publication = 1;
  uint64_t next_reservation = 1;
  uint64_t next_made_tenant = 1;
};

}  // namespace gpumemd
