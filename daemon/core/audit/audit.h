// SPDX-License-Identifier: Apache-2.0
// The audit: which tenant got, was denied, lost and gave back how much memory, and why; and what
// operators and the daemon itself changed. One record for each event, as data;
// docs/reference/audit.md lists them all.
//
// The broker makes the records under its mutex and does no I/O for them. A writer takes them out of
// an AuditRing (audit_ring.h). A record holds no secret: no token, no ticket. It holds names that
// clients choose unchanged; the writer escapes them as needed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/core/ids.h"

namespace gpumemd {

enum class AuditEvent {
  // The daemon.
  kStarted,
  kRestored,       // what was taken over from the daemon before it
  kStopped,        // in order
  kReloaded,       // the configuration
  kReloadRefused,  // it has a mistake; nothing was changed
  // Operators.
  kQuotaSet,
  kQuotaUnset,
  kDraining,   // nothing new is admitted
  kAdmitting,  // after kDraining
  kTrimmed,
  kPoolSet,
  kPoolTrimmed,
  kLeasesSuspended,  // by a session that an operator asked to
  kLeasesResumed,    // likewise
  kLeasesDemoted,
  kLeasesPromoted,
  kPublicationSuspended,
  // Tenants that operators and sessions make at run time.
  kTenantMade,
  kTenantChanged,
  kTenantEnded,
  // The policy of suspensions.
  kSuspensionAsked,
  kSuspensionEnded,  // the session has suspended, or not
  // Sessions.
  kRefused,  // a connection or a ticket, to a process that may not have it
  kSessionOpened,
  kSessionResumed,  // after a restart of the daemon
  kSessionEnded,
  // Memory.
  kGranted,
  kReleased,
  kSuspended,  // put aside into the host tier
  kResumed,    // back on its device
  kMoved,      // put aside by the daemon, once its last user had let go of it
  kDemoted,    // in host memory that GPUs map
  kPromoted,   // back on its device
  kPublicationResumed,
  kDenied,
  kPublished,
  kPublicationEnded,
  kClaimed,     // contents, which the session is to load and publish
  kClaimEnded,  // by the publication, a release, or the end of the session
  kLost,        // the memory can no longer be opened
  // Memory that is taken back.
  kRevoking,         // its holders are told to give it up
  kSignalled,        // a process was asked to end, or ended
  kRevoked,          // the memory is back
  kRevocationEnded,  // the memory stays with its holders
  kReclaimed,        // from a process that has ended
  // The audit itself.
  kSuppressed,  // too many of one event
  kMissed,      // records were lost before they were written
};

// An operator's process, as the kernel identifies it.
struct AuditOperator {
  uid_t uid = 0;
  pid_t pid = 0;

  bool operator==(const AuditOperator&) const = default;
};

// Empty and absent fields were not given.
struct AuditRecord {
  uint64_t number = 0;  // given by the ring; one above that of the record before
  absl::Time time;
  AuditEvent event{};

  // The tenant that is billed, and the process.
  std::string tenant;
  std::optional<SessionId> session;
  std::optional<pid_t> pid;
  std::optional<uid_t> uid;
  std::string client;   // the name that the client gave itself
  std::string command;  // the process's name
  std::string rule;     // that named the tenant

  // The object.
  std::string call;    // acquire, open, attach, …
  std::string owner;   // the tenant that is charged, if another
  std::string device;  // its UUID
  std::string kind;
  std::string publication;
  std::optional<uint64_t> version;  // of the publication
  std::string content;              // of a claim: its content id, in hexadecimal
  std::vector<LeaseId> leases;      // at most kMaxAuditIds
  std::vector<SegmentId> segments;  // the same
  std::vector<SessionId> holders;   // of segments that are revoked
  std::string of;                   // the event that was suppressed

  // Amounts.
  std::optional<uint64_t> bytes;
  std::optional<uint64_t> count;     // of segments; of kSuppressed and kMissed, of events
  std::optional<uint64_t> resident;  // of kSuspended and kResumed: bytes that did not move
  std::optional<uint64_t> asked, used, limit;            // of a denial, in bytes or counts
  std::optional<uint64_t> sessions, gone, publications;  // of kRestored
  std::optional<uint64_t> generation;

  // Reasons, and the operator.
  std::string cause;    // of a denial: device-limit, queue, …
  std::string limited;  // whose limit that is, if not the tenant's own
  std::string signal;   // SIGTERM or SIGKILL
  std::string why;      // a sentence
  std::string version_of_daemon, backend, config;
  // One operator; all candidates, if several could not be told from each other.
  std::vector<AuditOperator> by;
  std::vector<std::string> changes;
};

// Ids in one record: the most that one granted request has.
inline constexpr size_t kMaxAuditIds = 253;

// "session-opened"
absl::string_view NameOf(AuditEvent event);

// One field of a record; its name is the same for every event.
struct AuditField {
  absl::string_view name;
  bool number = false;
  bool list = false;  // may have any number of values
  std::vector<std::string> values;
};
// Returns all that the record holds but its time, number and event, always in the same order.
std::vector<AuditField> FieldsOf(const AuditRecord& record);

// Returns the same as a sentence without its end.
std::string Tell(const AuditRecord& record);

// The properties of an event.
struct AuditKind {
  AuditEvent event;
  absl::string_view name;
  int priority;                  // as of syslog(3)
  absl::string_view message_id;  // for the journal (sd_journal_print(3)): a UUID for each event
  absl::string_view meaning;
  // Names of fields, optional ones with a '?' at the end: exactly those that its records may have.
  std::vector<absl::string_view> fields;
};
const AuditKind& KindOf(AuditEvent event);
absl::Span<const AuditKind> AuditKinds();

class AuditSink {
 public:
  virtual ~AuditSink() = default;
  // Takes the record. Must return at once and must not call its caller. Thread-safe.
  virtual void Record(AuditRecord record) = 0;
  // True if a record like this one would be left out now. It then counts as left out, and need not
  // be made. For frequent events.
  virtual bool LeavesOut(AuditEvent /*event*/, absl::string_view /*tenant*/, uint64_t /*bytes*/,
                         absl::Time /*time*/) {
    return false;
  }
};

}  // namespace gpumemd
