// The audit: who got, was denied, lost and gave back how much of what, and why; and what operators
// and the daemon itself changed. One record for each event, as data; docs/audit.md has all of them.
//
// The broker makes the records under its mutex and does no I/O for them: who writes them down takes
// them out of an AuditRing (audit_ring.h). There is no secret in a record: no token, no ticket.
// Names that clients choose are in it as they are; who writes them escapes what has to be.
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
  kRestored,       // a daemon before it was there: what was taken over from it
  kStopped,        // in order
  kReloaded,       // the configuration
  kReloadRefused,  // it has a mistake: nothing was changed
  // Operators.
  kQuotaSet,
  kQuotaUnset,
  kDraining,   // nothing new is admitted
  kAdmitting,  // again
  kTrimmed,
  kPoolSet,
  kPoolTrimmed,
  // Sessions.
  kRefused,  // a connection or a ticket: whoever it was may not have that
  kSessionOpened,
  kSessionResumed,  // after a restart of the daemon
  kSessionEnded,
  // Memory.
  kGranted,
  kReleased,
  kDenied,
  kPublished,
  kPublicationEnded,
  kLost,  // the memory can no longer be opened
  // Memory that is taken back.
  kRevoking,         // its holders are told to give it up
  kSignalled,        // a process was asked to end, or ended
  kRevoked,          // it is back
  kRevocationEnded,  // without that
  kReclaimed,        // from a process that has ended
  // The audit itself.
  kSuppressed,  // too many of one event
  kMissed,      // records were lost before they were written
};

// An operator's process, by the kernel's word.
struct AuditOperator {
  uid_t uid = 0;
  pid_t pid = 0;

  bool operator==(const AuditOperator&) const = default;
};

// What is empty or absent was not said. Bytes are bytes.
struct AuditRecord {
  uint64_t number = 0;  // given by the ring; each is one above that of the record before
  absl::Time time;
  AuditEvent event{};

  // Who: the tenant that is billed, and the process.
  std::string tenant;
  std::optional<SessionId> session;
  std::optional<pid_t> pid;
  std::optional<uid_t> uid;
  std::string client;   // the name that it gave itself
  std::string command;  // the process's name
  std::string rule;     // that named the tenant

  // What.
  std::string call;    // acquire, open, attach, …
  std::string owner;   // the tenant that is charged, where it is another
  std::string device;  // its UUID
  std::string kind;
  std::string publication;
  std::optional<uint64_t> version;  // of the publication
  std::vector<LeaseId> leases;      // at most kMaxAuditIds
  std::vector<SegmentId> segments;  // the same
  std::vector<SessionId> holders;   // of segments that are taken back
  std::string of;                   // the event that was suppressed

  // How much.
  std::optional<uint64_t> bytes;
  std::optional<uint64_t> count;               // of segments; of kSuppressed and kMissed, of events
  std::optional<uint64_t> asked, used, limit;  // of a denial, in bytes or counts
  std::optional<uint64_t> sessions, gone, publications;  // of kRestored
  std::optional<uint64_t> generation;

  // Why, and by whom.
  std::string cause;    // of a denial: device-limit, queue, …
  std::string limited;  // whose limit that is, where it is not the tenant's own
  std::string signal;   // SIGTERM or SIGKILL
  std::string why;      // a sentence
  std::string version_of_daemon, backend, config;
  // One operator; of several that could not be told from each other, all of them.
  std::vector<AuditOperator> by;
  std::vector<std::string> changes;
};

// Of one record: what one request that is granted has at most.
inline constexpr size_t kMaxAuditIds = 253;

// "session-opened"
absl::string_view NameOf(AuditEvent event);

// One of a record's fields, with a name that is the same for every event.
struct AuditField {
  absl::string_view name;
  bool number = false;
  bool list = false;  // it may have any number of values
  std::vector<std::string> values;
};
// All that the record says but its time, number and event, always in the same order.
std::vector<AuditField> FieldsOf(const AuditRecord& record);

// The same as a sentence without its end.
std::string Tell(const AuditRecord& record);

// What there is to know of an event.
struct AuditKind {
  AuditEvent event;
  absl::string_view name;
  int priority;                  // as of syslog(3)
  absl::string_view message_id;  // for the journal (sd_journal_print(3)): a UUID for each event
  absl::string_view meaning;
  // Names of fields, the optional ones with a '?' behind: exactly what its records may have.
  std::vector<absl::string_view> fields;
};
const AuditKind& KindOf(AuditEvent event);
absl::Span<const AuditKind> AuditKinds();

class AuditSink {
 public:
  virtual ~AuditSink() = default;
  // Takes the record; returns at once, and must not call whom it came from. Thread-safe.
  virtual void Record(AuditRecord record) = 0;
  // Whether a record like this one would be left out now: then it counts as left out, and need not
  // be made. For what happens often.
  virtual bool LeavesOut(AuditEvent /*event*/, absl::string_view /*tenant*/, uint64_t /*bytes*/,
                         absl::Time /*time*/) {
    return false;
  }
};

}  // namespace gpumemd
