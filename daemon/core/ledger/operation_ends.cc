// SPDX-License-Identifier: Apache-2.0
// How operations end: Commit makes their leases live, Abort undoes them.
#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/core/ledger/operations.h"
#include "daemon/core/mutant.h"

namespace gpumemd {

absl::Status Operations::Commit(const Operation& operation) {
  size_t next = 0;
  return Commit(operation, next, SIZE_MAX).status();
}

absl::StatusOr<bool> Operations::Commit(const Operation& operation, size_t& next, size_t steps) {
  Session* const session = SessionOf(operation);
  // A publication comes back for all sessions, also if the one that asked for it has ended.
  const bool live = session == nullptr || session->live ||
                    (operation.resumes && operation.publication) || Mutant(Fault::kCommitsToEnded);
  for (; next < operation.items.size() && steps > 0; ++next, --steps) {
    const Operation::Item& item = operation.items[next];
    Segment& segment = *state_.segments.at(item.segment);
    --segment.pins;
    if (segment.charge.revocable()) segment.charge.MarkChanged();  // it can be revoked now
    const bool gives_new = !operation.regrant && !operation.resumes;
    if (gives_new) {
      StopArriving(*session, /*ended=*/!live);
    } else {
      --state_.regranting;
    }
    if (operation.resumes) {
      if (live) {
        steps -= std::min(steps - 1, CommitResumed(operation.session, item));
      } else if (item.fresh) {
        suspensions_.EndResume(*item.tier, /*resumed=*/false);
      }
    }
    if (live && gives_new) {
      state_.AddLease(item.lease, {.session = operation.session,
                                   .segment = item.segment,
                                   .publication = operation.publication,
                                   .request_id = operation.request_id,
                                   .tag = operation.tag});
      if (!Mutant(Fault::kCommitsUnjournaled)) changes_.Touch(item.lease);
      if (segment.lost) effects_.orphaned.insert(operation.session);
      if (segment.charge.revoking()) effects_.revoked.insert(operation.session);
    } else if (gives_new) {
      publications_.Detach(operation.publication, operation.session);
    }
    segments_.Settle(item.segment, segment);
  }
  if (next < operation.items.size()) return false;
  EndOperation(session);
  if (live && !operation.regrant && !operation.resumes) auditor_.Granted(operation);
  if (live && operation.resumes) auditor_.Resumed(operation);
  if (session != nullptr) sessions_.ForgetIfDone(operation.session, *session);
  if (!live) return absl::AbortedError("the session ended while the request was being served");
  return true;
}

// Counts a lease as arrived at the session. `ended`: it ended before the session had it.
void Operations::StopArriving(Session& session, bool ended) {
  --session.arriving;
  if (ended) state_.CountLeases(*session.tenant, -1);
}

void Operations::EndOperation(Session* session) {
  --state_.open_operations;
  --(session == nullptr ? state_.operators_operations : session->operations);
}

void Operations::Abort(const Operation& operation, bool handed_over) {
  size_t next = 0;
  Abort(operation, handed_over, next, SIZE_MAX);
}

bool Operations::Abort(const Operation& operation, bool handed_over, size_t& next, size_t steps) {
  Session* const session = SessionOf(operation);
  // First all mappings by its process, then the states of the segments.
  const size_t unexposed = handed_over || operation.regrant || Mutant(Fault::kAbortKeepsMappings)
                               ? 0
                               : operation.exposed;
  for (; next < unexposed && steps > 0; ++next, --steps) {
    const Operation::Item& item = operation.items[next];
    Segment& segment = *state_.segments.at(item.segment);
    segments_.Unexpose(item.segment, segment, operation.session, /*all=*/false);
    if (TraitsOf(segment.kind).pooled) {
      segments_.Unimport(operation.session, *session, segment.device, /*all=*/false);
    }
  }
  for (; next < unexposed + operation.items.size() && steps > 0; ++next, --steps) {
    const Operation::Item& item = operation.items[next - unexposed];
    Segment& segment = *state_.segments.at(item.segment);
    if (operation.regrant || operation.resumes) {
      --state_.regranting;
      if (operation.resumes && item.fresh) {
        suspensions_.EndResume(*item.tier, /*resumed=*/false);
      }
    } else {
      StopArriving(*session, /*ended=*/true);
      publications_.Detach(operation.publication, operation.session);
    }
    --segment.pins;
    if (segment.charge.revocable()) segment.charge.MarkChanged();  // as in Commit
    const bool of_operation = item.fresh || item.tier;
    if (of_operation && !handed_over && !Mutant(Fault::kAbortKeepsFresh) &&
        !(segment.made && state_.HeldByPool(segment))) {
      // Several items may be of one segment.
      if (segment.pins == 0) segments_.Doom(item.segment, segment);
    } else {
      segments_.Settle(item.segment, segment);
    }
  }
  if (next < unexposed + operation.items.size()) return false;
  if (operation.regrant && session->live && !Mutant(Fault::kAbortDropsRegrant)) {
    std::vector<LeaseId> leases;
    for (const Operation::Item& item : operation.items) leases.push_back(item.lease);
    session->regrants.try_emplace(operation.request_id, std::move(leases));
  }
  EndOperation(session);
  if (session != nullptr) sessions_.ForgetIfDone(operation.session, *session);
  return true;
}

}  // namespace gpumemd
