// SPDX-License-Identifier: Apache-2.0
// Sessions, and the calls that each has in flight. How a session ends: endings.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/base.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/tenants.h"

namespace gpumemd {

class Sessions {
 public:
  // All must outlive this.
  Sessions(LedgerBase* base, Tenants* tenants)
      : state_(base->state),
        changes_(base->changes),
        auditor_(base->auditor),
        effects_(base->effects),
        tenants_(*tenants) {}

  // Opens a session.
  //   RESOURCE_EXHAUSTED   the tenant, the user or the daemon has too many
  //   FAILED_PRECONDITION  the tenant has ended (MadeTenants)
  absl::StatusOr<SessionId> Open(absl::string_view tenant, SessionDetails details,
                                 const Secret& token);
  // Returns the status that Open would return, before anything is made for the session.
  absl::Status CheckRoom(absl::string_view tenant, const SessionDetails& details);

  // Counts a call that the session waits for.
  //   RESOURCE_EXHAUSTED  its tenant has too many
  //   ABORTED             the session has ended
  absl::Status BeginCall(SessionId session);
  void EndCall(SessionId session);
  // Turns a call that has begun into a watch: it stays open, and the client does not wait for its
  // answer.
  //   RESOURCE_EXHAUSTED  the session, or its tenant, has too many; the call goes on
  absl::Status BecomeWatch(SessionId session);
  void EndWatch(SessionId session);
  // True if calls of the session are in flight or waiting. Calls of a lost connection may still be
  // granted something.
  bool HasCalls(SessionId session) const;

  // Marks the session's client as connected anew, after the end of an earlier daemon or the loss of
  // its connection to this one. The session is kReturning until Reconciliation::Reconcile.
  // `certain`: as SessionDetails::certain, by its new connection.
  //   NOT_FOUND  it has ended, or it is of another process
  absl::Status Resume(SessionId session, const PeerIdentity& peer, bool certain = true);

  // Remembers the answer, if the request has a number: a repeated request gets it again.
  void RememberAnswer(SessionId id, records::Session& session, uint64_t request, uint64_t number);

  // Removes a session that has ended and has nothing left. May delete `session`.
  void ForgetIfDone(SessionId id, records::Session& session);

  // Adds a session of an earlier daemon.
  void Restore(SessionId id, std::unique_ptr<records::Session> session);
  // Returns the restored session that the same process began by the same attempt, if any, and
  // forgets that it did. The process begins anew because its Welcome was lost with the earlier
  // daemon: no client returns for that session.
  std::optional<SessionId> TakeBegunBefore(const SessionDetails& details);

 private:
  using Session = records::Session;
  using Tenant = records::Tenant;
  using ProcessKey = LedgerState::ProcessKey;
  using RequestKey = ChangeLog::RequestKey;

  void CountSession(const Session& session, int change);
  // True if all that is left of the session is that its process has pools open.
  static bool OnlyImports(const Session& session);
  // Hands over to another session of the same process which pools that process has open. False if
  // there is none.
  bool HandOverImports(SessionId id, Session& session);
  // Returns the session with the lowest id among those of this process that `fits` accepts.
  std::optional<SessionId> FirstOf(const PeerIdentity& peer,
                                   absl::FunctionRef<bool(SessionId, const Session&)> fits) const;
  // Returns a session of this process and tenant for which OnlyImports is true.
  std::optional<SessionId> Predecessor(const Tenant& tenant, const PeerIdentity& peer) const;

  LedgerState& state_;
  ChangeLog& changes_;
  const Auditor& auditor_;
  Effects& effects_;
  Tenants& tenants_;
  std::set<std::pair<ProcessKey, SessionId>> by_process_;  // all sessions
  // Restored sessions, by process and by the id that the process gave its attempt to begin one.
  std::map<std::pair<ProcessKey, uint32_t>, SessionId> begun_before_;
};

}  // namespace gpumemd
