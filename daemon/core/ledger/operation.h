// SPDX-License-Identifier: Apache-2.0
// Requests to the ledger, and its decisions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/core/ids.h"
#include "daemon/device/device.h"

namespace gpumemd {

struct AcquireSpec {
  std::string device_uuid;   // empty: the first device that makes the kind
  uint64_t bytes = 0;        // of each segment, before rounding
  std::optional<Kind> kind;  // absent: the device's default
  uint32_t count = 1;
  bool most_free = false;          // instead of a UUID: the device on which the tenant can get most
  std::vector<std::string> among;  // with most_free: one of these; empty: any
  bool without_pressure = false;   // no holder is asked to make room for it
  bool revocable = false;          // the leases may be taken back
  bool waits = false;              // also for memory that others hold
  uint64_t request_id = 0;         // chosen by the session, for Regrant; 0: none
  std::string tag;                 // of the leases
  bool scratch = false;            // bytes of suspended segments are dropped
  // Brings these suspended leases, or the segments of this suspended publication on one device,
  // back. Only `waits` and `without_pressure` count then.
  std::vector<LeaseId> resumes;
  std::optional<PublicationId> publication;
  bool BringsBack() const { return !resumes.empty() || publication.has_value(); }
};

struct PublishSpec {
  PublicationId id{};  // from NewPublicationId; 0: the next
  std::string name;
  std::string content_id;       // at most kMaxContentId bytes; empty: none
  std::vector<LeaseId> leases;  // their segments, in this order
  uint64_t metadata_bytes = 0;
  bool to_any = false;     // every tenant's sessions may attach; else only the publisher's tenant's
  bool ephemeral = false;  // it ends with its publisher's session
  absl::Duration expire_after = absl::InfiniteDuration();  // above 0; without attached sessions
  uint64_t request = 0;  // chosen by the client; a repeated request gets the same answer; 0: none
};

struct AttachSpec {
  std::string name;      // of the session's tenant, or "TENANT/NAME"
  uint64_t version = 0;  // this or a later one; 0: the newest
  bool revocable = false;
  uint64_t request_id = 0;  // as in AcquireSpec
  bool waits = false;       // if it is suspended: also for memory that others hold
  // Takes only a publication with this content id. If there is none, takes the claim on it or, with
  // `waits`, waits for either; `version` is 0 and `request_id` is not.
  bool claims = false;
  std::string content_id;
};

// The decision of BeginAcquire, BeginOpen or BeginAttach. Says for each segment whether it still
// has to be created.
struct Operation {
  OperationId id{};
  SessionId session{};  // none: an operator's
  size_t device = 0;    // index of the devices given to the ledger; of an Acquire only
  Kind kind = Kind::kVmm;
  bool revocable = false;  // the leases
  bool regrant = false;    // the leases exist already (Regrant)
  bool resumes = false;    // the leases exist already, and are suspended
  uint64_t request_id = 0;
  std::string tag;  // of an Acquire's leases
  // Of an Attach. With `resumes`: the suspended publication, whose segments come back without a
  // lease.
  std::optional<PublicationId> publication;
  struct Item {
    LeaseId lease{};
    SegmentId segment{};
    bool fresh = false;   // still to be created
    bool reused = false;  // was retained: holds old bytes of the same tenant
    // Of a resuming operation: the segment in the tier with the contents of a fresh segment.
    std::optional<SegmentId> tier;
  };
  std::vector<Item> items;
  size_t exposed = 0;  // how many of these count as mappable by the session's process
};

// The decision of BeginAcquire or BeginAttach: one of these.
struct Admission {
  std::optional<Operation> operation;
  std::optional<WaiterId> waiter;
  std::optional<PublicationId> suspended;  // to be brought back before a session attaches
  bool claimed = false;                    // the session has the claim, by this request
};

// Returns CANCELLED: the answer to a request that its client has given up.
inline absl::Status GivenUp() {
  return absl::CancelledError("the client has given up the request");
}

}  // namespace gpumemd
