// SPDX-License-Identifier: Apache-2.0
// Plain values copied out of the ledger, for the services to translate and for tests to compare.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/admission/account.h"
#include "daemon/core/denial.h"
#include "daemon/core/identity/rules.h"
#include "daemon/core/ids.h"
#include "daemon/core/quota/quota.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Details of a session's client, for people and for the audit.
struct SessionDetails {
  PeerIdentity peer;
  std::string client_name;
  std::string command;  // the process's name when it connected
  std::string rule;     // the rule that named the tenant
  bool certain = true;  // the daemon can tell the process from any other, and so may end it
  // Chosen by the process, for its attempts to begin this one session; 0: none.
  uint32_t connect_id = 0;
};

// Whether a session's client is connected.
enum class Presence {
  kHere,
  kAway,       // the daemon that it was connected to is gone, and it has not come back
  kReturning,  // it has connected, and has not stated its leases (Reconcile)
};

struct LeaseView {
  LeaseId lease{};
  SegmentId segment{};
  std::string device_uuid;
  Kind kind = Kind::kVmm;
  uint64_t bytes = 0;
  std::string tenant;  // the segment's owner
  bool reused = false;
  bool revocable = false;
  bool suspended = false;  // what an operation hands over is not
  bool scratch = false;
  // As the memory reports it (daemon/device/device.h), added by the broker.
  std::optional<ExportData> export_data;
  uint64_t pool_id = 0;
};

struct DeviceUsageView {
  std::string device_uuid;
  uint64_t leased = 0;
  uint64_t retained = 0;
  uint64_t lingering = 0;
  uint64_t charged = 0;
  uint64_t limit = 0;
  uint64_t peak = 0;
  uint64_t byte_seconds = 0;  // of `charged` (admission/usage.h)
  uint64_t guarantee = 0;
  uint64_t borrowed = 0;   // held above the guarantee
  uint64_t revocable = 0;  // held
  uint64_t waited_for = 0;
  uint32_t waiting = 0;
  uint64_t unbrokered = 0;
  uint64_t obtainable = 0;  // at most (Room::Obtainable)
};

// How a tenant was made at run time (made/made_tenants.h).
struct MadeView {
  std::string owner;
  std::optional<uid_t> uid;   // of its maker
  std::optional<uid_t> user;  // for whom an operator made it
  SessionId session{};        // that made it; 0: an operator
  std::string parent;
  absl::Time created;
  bool ending = false;
  bool lasting = false;  // it does not end with the session that made it
};

struct TenantView {
  std::string name;
  bool configured = false;
  Quota quota;
  std::vector<DeviceUsageView> devices;
  uint64_t charged = 0;  // without pinned memory
  uint64_t segments = 0;
  uint32_t sessions = 0;
  uint32_t in_flight = 0;
  uint32_t waiting = 0;
  uint32_t publications = 0;
  uint64_t denials = 0;
  std::map<Denial::Cause, uint64_t> denials_by_cause;
  uint64_t demoted = 0;                         // bytes (records::Tenant::demoted_bytes)
  PreloadMode preload = PreloadMode::kAccount;  // in force
  std::optional<MadeView> made;
  std::vector<std::string> above;  // the tenants that it is under, the nearest first
};

// What a tenant that an operator made has used, until its end.
struct EndedTenantView {
  std::string name;
  std::string owner;
  std::optional<uid_t> user;
  absl::Time created, ended;
  struct OnDevice {
    std::string device_uuid;
    uint64_t limit = 0;
    uint64_t guarantee = 0;
    uint64_t peak = 0;
    uint64_t byte_seconds = 0;
  };
  std::vector<OnDevice> devices;
};

struct SessionView {
  SessionId id{};
  std::string tenant;
  bool live = true;
  Presence presence = Presence::kHere;
  SessionDetails details;
  uint32_t leases = 0;
  uint64_t leased_bytes = 0;
  uint64_t tier_bytes = 0;     // of these: in the host tier
  uint64_t demoted_bytes = 0;  // of these: demoted
  // Of these: of kind driver, by the devices' UUIDs, without overheads; and these.
  std::map<std::string, uint64_t> driver_bytes;
  std::map<std::string, uint64_t> overhead_bytes;
  uint64_t unbrokered = 0;  // over all devices
  absl::Duration age;
  absl::Duration idle;             // since its last activity (SwapPolicy)
  bool serves_suspension = false;  // a watch of it accepts requests to suspend
  bool swappable = false;          // the policy may ask it, too
  bool asked = false;              // to suspend, and its time is not over
};

// Memory that a session's process has taken from a device past the broker.
struct UnbrokeredBytes {
  SessionId session{};
  std::string device_uuid;
  uint64_t bytes = 0;
  bool denies = false;  // its tenant gets no new memory while this use lasts
};

struct SegmentView {
  SegmentId id{};
  std::string tenant;
  std::string device_uuid;
  Kind kind = Kind::kVmm;
  uint64_t bytes = 0;
  SegmentState state = SegmentState::kPending;
  std::vector<SessionId> sessions;  // that may map it, or have suspended it
  uint32_t leases = 0;
  uint32_t suspended = 0;     // of the leases
  uint32_t publications = 0;  // that contain it
  std::string home_uuid;      // of suspended and demoted contents: the device they came from
  bool lost = false;
  bool revocable = false;
  bool scratch = false;
  uint64_t dropped_bytes = 0;  // of kind tier: records::Segment::dropped_bytes
  absl::Duration age;
};

// A holder of a segment: a session, by a lease.
struct LeaseHolderView {
  LeaseId id{};
  SegmentId segment{};
  SessionId session{};
  std::string tenant;          // the session's
  bool attached = false;       // through a publication
  std::string publication;     // "TENANT/NAME" of it; empty if it has ended
  uint64_t version = 0;        // of it; 0 if it has ended
  bool shared = false;         // has a ticket for the segment's own tenant
  bool shared_to_any = false;  // has a ticket that sessions of any tenant may use
  bool suspended = false;
  bool demoted = false;
  std::string tag;
};

// A holder of segments: a publication, with the segments that it was sealed with.
struct PublicationHolderView {
  std::string tenant;
  std::string name;
  uint64_t version = 0;
  std::vector<SegmentId> segments;
};

struct HoldersView {
  std::vector<LeaseHolderView> leases;
  std::vector<PublicationHolderView> publications;
};

struct WaiterView {
  WaiterId id{};
  SessionId session{};
  std::string tenant;
  std::string device_uuid;
  Kind kind = Kind::kVmm;
  uint64_t bytes = 0;  // of each
  uint32_t count = 0;
  bool revocable = false;
  bool asked_to = false;  // false: it waits only for memory that is on its way back
  uint32_t position = 0;  // from 1, on its device
  absl::Duration age;
  Denial blocked_by;
};

// The newest version under a name.
struct PublicationView {
  PublicationId id{};
  std::string tenant;
  std::string name;
  std::string content_id;
  uint64_t version = 0;
  uint32_t segments = 0;
  uint32_t in_tier = 0;  // of these
  uint64_t bytes = 0;
  uint64_t tier_bytes = 0;  // of bytes: of those in the host tier
  uint64_t metadata_bytes = 0;
  bool to_any = false;  // every tenant may attach to it
  bool ephemeral = false;
  uint32_t attached = 0;  // sessions
  absl::Duration age;
  absl::Duration expire_after = absl::InfiniteDuration();
  absl::Duration expires_in = absl::InfiniteDuration();  // as things stand
  SessionId publisher{};
  pid_t publisher_pid = 0;
  std::string publisher_name;
  bool publisher_alive = false;
};

struct IpcEventView {
  IpcEventId id{};
  SessionId session{};
  std::string device_uuid;
  ExportData handle{};
};

}  // namespace gpumemd
