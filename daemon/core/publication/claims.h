// SPDX-License-Identifier: Apache-2.0
// Claims: of all sessions of a tenant, one loads some contents, and the others wait for it.
//
// A session claims contents (records::Contents) that are not published. While it has the claim, the
// tenant's other requests for them wait (AttachWaiters). When it publishes them, its claim ends and
// they attach. When it releases the claim or ends, the first of them has the claim in the same
// step. So contents that are waited for are claimed. A claim restricts no Publish, and memory of
// any contents can be published without one.
//
// A claim is named by its session and the request that got it. So a repeated request gets it again,
// and a client that has not heard the answer can release it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/operation.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/publication/attach_waiters.h"

namespace gpumemd {

class ContentClaims {
 public:
  // All must outlive this.
  ContentClaims(LedgerBase* base, AttachWaiters* waiters)
      : state_(base->state), changes_(base->changes), auditor_(base->auditor), waiters_(*waiters) {}

  // Checks a request for contents, before anything else of it.
  //   INVALID_ARGUMENT  its content id is empty or too long, it has no number, or it is for a
  //                     version, too
  //   CANCELLED         its client has given it up
  static absl::Status Check(const records::Session& session, const AttachSpec& spec);
  // Claims contents that are not published, or waits for them. A request that has its claim already
  // gets it again.
  //   INVALID_ARGUMENT    the session has a request of this number for other contents, or waiting
  //   NOT_FOUND           they are another tenant's
  //   DEADLINE_EXCEEDED   they are claimed, and the request does not wait
  //   RESOURCE_EXHAUSTED  the session or its tenant has too many claims, or too many requests wait
  absl::StatusOr<Admission> Begin(SessionId id, const AttachSpec& spec,
                                  const LedgerState::PublicationName& name);
  // Releases the session's claim by this request, or ends its wait. If the request arrives later,
  // it is refused. Idempotent.
  void Release(SessionId id, uint64_t request_id);
  // Releases the claim of a request that is refused, if it has come to one. It may be repeated.
  void Refused(SessionId id, uint64_t request_id);
  // Ends the session's claim on the contents, which it has just published, if it has it.
  void Published(SessionId id, const records::Publication& publication);
  // Releases the session's claims but those of requests for which `keeps` is true.
  template <typename Keeps>
  void ReleaseUnless(SessionId id, Keeps keeps, absl::string_view why) {
    records::Session& session = *state_.sessions.at(id);
    std::vector<uint64_t> ended;
    for (const auto& [request_id, contents] : session.claims) {
      if (!keeps(request_id)) ended.push_back(request_id);
    }
    for (const uint64_t request_id : ended) End(id, session, request_id, why);
  }
  // Adds a claim of an earlier daemon, unless the contents are claimed.
  void Restore(SessionId id, uint64_t request_id, records::Contents contents);

 private:
  void Add(SessionId id, records::Session& session, uint64_t request_id,
           const records::Contents& contents, absl::string_view why = "");
  // Releases the claim to the first waiter, if there is one.
  void End(SessionId id, records::Session& session, uint64_t request_id, absl::string_view why);
  void Remove(SessionId id, records::Session& session, uint64_t request_id, absl::string_view why);

  LedgerState& state_;
  ChangeLog& changes_;
  const Auditor& auditor_;
  AttachWaiters& waiters_;
};

// Returns DEADLINE_EXCEEDED: another session has the claim.
absl::Status ClaimedByAnother(const LedgerState& state, const records::Contents& contents);

}  // namespace gpumemd
