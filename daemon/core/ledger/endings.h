// SPDX-License-Identifier: Apache-2.0
// How sessions end: what each had is given up, a bounded number of objects at a time.
#pragma once

#include <cstddef>

#include "daemon/core/admission/admission_control.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/bounds.h"
#include "daemon/core/ledger/leases.h"
#include "daemon/core/ledger/made/made_tenants.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/segments.h"
#include "daemon/core/ledger/sessions.h"
#include "daemon/core/publication/attach_waiters.h"
#include "daemon/core/publication/claims.h"
#include "daemon/core/publication/publications.h"
#include "daemon/core/suspension/suspensions.h"

namespace gpumemd {

class Endings {
 public:
  // All must outlive this.
  Endings(LedgerBase* base, Segments* segments, MadeTenants* made_tenants, Sessions* sessions,
          AttachWaiters* attach_waiters, ContentClaims* claims, Publications* publications,
          Suspensions* suspensions, Leases* leases, AdmissionControl* admission)
      : state_(base->state),
        changes_(base->changes),
        auditor_(base->auditor),
        segments_(*segments),
        made_tenants_(*made_tenants),
        sessions_(*sessions),
        attach_waiters_(*attach_waiters),
        claims_(*claims),
        publications_(*publications),
        suspensions_(*suspensions),
        leases_(*leases),
        admission_(*admission) {}

  // Ends the session's leases, as its socket is closed. Segments that its process may map stay
  // charged. Unknown and already closed sessions are no error: both ends of a session race.
  void SocketClosed(SessionId session, size_t steps = kLeasesAtOnce);
  // Ends the session's mappings too: the process is gone, and with it all its mappings and GPU
  // work.
  void ProcessGone(SessionId session, size_t steps = kLeasesAtOnce);

  // SocketClosed and ProcessGone end about `steps` leases, mappings, events and segments of
  // publications. Continue ends the rest of a larger session. In between, the session no longer
  // counts as one, and what it still has stays charged. Until no session is ending, no request is
  // refused for want of memory, and no memory is revoked for one: the memory on its way back may be
  // enough.
  // Both also end the publications of tenants that have ended.
  bool HasAny() const { return !state_.ending.empty() || !state_.ended_tenants.empty(); }
  void Continue(size_t steps = kLeasesAtOnce);

  // Completes the end of a session that an earlier daemon may have begun to end.
  void Complete(SessionId session);

 private:
  using Segment = records::Segment;
  using Session = records::Session;
  using Tenant = records::Tenant;
  using RequestKey = ChangeLog::RequestKey;

  void EndSession(SessionId id, Session& session);
  // Continues to end what a session had, and subtracts the steps from `steps`. True if nothing is
  // left.
  bool WindUp(SessionId id, Session& session, size_t& steps);
  void Continue(SessionId id, size_t& steps);
  void EndPublications(size_t& steps);

  LedgerState& state_;
  ChangeLog& changes_;
  const Auditor& auditor_;
  Segments& segments_;
  MadeTenants& made_tenants_;
  Sessions& sessions_;
  AttachWaiters& attach_waiters_;
  ContentClaims& claims_;
  Publications& publications_;
  Suspensions& suspensions_;
  Leases& leases_;
  AdmissionControl& admission_;
};

}  // namespace gpumemd
