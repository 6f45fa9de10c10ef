// SPDX-License-Identifier: Apache-2.0
// A second, naive ledger, to compare the first with: the promises of ledger.h in the simplest form.
// It keeps lists of holders and no sums; every number is counted anew from the lists. Events forget
// nothing: after each step the model looks for entries that are no longer needed.
//
// This struct is the state. The calls of the ledger are free functions on it, by subject:
//
//   tenants, sessions, segments, leases, publications, attachments, events   objects and their
//   calls devices, limits, guarantees                                              what a request
//   may get requests, queue, revocation, reclaim                                     how it gets
//   that restart, regrants                                                        another daemon
//   goes on answers, compare                                                         the ledger
//   against the model
//
// Each plays one call of the ledger. It takes the arguments and the ledger's answer, checks the
// answer, and moves to the next state.
//
//   INTERNAL  the answer is wrong; the message says what was expected
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/records.h"

namespace gpumemd::model {

struct LedgerModel {
  LedgerModel(std::vector<DeviceInfo> all_devices, Bounds all_bounds)
      : devices(std::move(all_devices)), bounds(all_bounds) {}

  const std::vector<DeviceInfo> devices;
  const Bounds bounds;
  Quota defaults;
  bool draining = false;
  std::map<std::string, Tenant> tenants;
  std::vector<UnbrokeredBytes> unbrokered;
  absl::Time noted;  // when the tenants' charges were last looked at (NoteUses)

  std::map<SessionId, Session> sessions;
  std::vector<SessionId> forgotten;
  std::set<SessionId> orphaned;
  // For each session, the last requests that were answered with a number, and the number.
  std::map<SessionId, std::vector<std::pair<uint64_t, uint64_t>>> answered;

  std::map<SegmentId, Segment> segments;
  std::vector<Mapping> mappings;
  std::vector<Import> imports;
  std::set<SegmentId> in_destruction;  // taken by TakeDoomed, not yet destroyed
  uint64_t clock = 0;                  // orders retained segments

  std::map<LeaseId, Lease> leases;
  std::map<OperationId, Operation> operations;
  Regrants regrants;

  std::map<WaiterId, Waiter> waiters;
  std::vector<WaiterId> refused;                // their session has ended
  bool queue_changed = false;                   // a change that waiters may wait for
  std::map<SegmentId, Charge> charges_checked;  // when waiters were last checked
  std::set<SessionId> revoked;                  // to be told
  Revocations::Times times;

  std::vector<Publication> publications;  // by number
  std::set<PublicationId> ended_publications;
  std::map<WaiterId, AttachWaiter> attach_waiters;
  std::set<WaiterId> attachable;
  std::map<ContentsKey, std::pair<SessionId, uint64_t>> claims;  // and their requests
  std::map<SessionId, std::vector<uint64_t>> claims_given_up;    // the last requests
  std::map<std::pair<std::string, std::string>, uint64_t> last_versions;
  // ended_version: the highest of all versions that ended. forgotten_version: the same as of the
  // last restart. gone_versions: by tenant, of names forgotten with the tenant.
  uint64_t ended_version = 0, forgotten_version = 0;
  std::map<std::string, uint64_t> gone_versions;

  std::vector<Event> events;

  // No number is ever given out twice.
  uint64_t last_session = 0, last_segment = 0, last_lease = 0, last_operation = 0;
  uint64_t last_waiter = 0, last_publication = 0, last_event = 0;
};

}  // namespace gpumemd::model
