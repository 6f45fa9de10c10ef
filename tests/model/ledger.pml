// SPDX-License-Identifier: Apache-2.0
// The ledger: what a change does to segments, leases and sessions, and to the journal. Each caller
// is one change under the broker's mutex, which ends with Record(). A kill before the journal has
// the change is a kill before the change: no other process has seen it.

// The first segment, or lease, of a set, in `s`.
inline FirstOf(set) {
  s = 0;
  do
  :: HAS(set, s) -> break;
  :: else -> s++;
  od;
}

inline WriteJournal() {
  // step: ImageOf (daemon/core/ledger/change_log.cc)
  j_segments = charged;
  j_made = made;
  j_leases = leases;
#ifndef FAULT_COUNTERS_NOT_JOURNALED
  j_next_segment = next_segment;
  j_next_lease = next_lease;
#endif
  for (k : 0 .. CLIENTS - 1) {
    j_exposed[k] = exposed[k];
    j_session[k] = session[k];
  }
}

inline Record() {
  // step: Broker::Record (daemon/core/broker/broker.cc)
  // order: Broker::Update::~Update (daemon/core/broker/broker.cc): Settle() < Unlock() < resume()
  // order: Broker::Record (daemon/core/broker/broker.cc): survivable_ < TakeChanges() < Write(
  // order: JournalTable::Append (daemon/core/journal/table.cc): Stage( < WriteStageHead( < Publish( < ApplyStage(
  if
  :: survivable -> WriteJournal();
  :: else
  fi
}

inline AnyLive() {
  any_live = false;
  for (k : 0 .. CLIENTS - 1) {
    any_live = any_live || session[k] == LIVE;
  }
}

inline Doom(segment) {
  // step: Segments::Doom (daemon/core/ledger/segments.cc)
  DEL(retained, segment);
  if
  :: HAS(made, segment) -> ADD(doomed, segment);
  // step: Broker::Settle (daemon/core/broker/broker.cc)
  :: else -> DEL(charged, segment);  // it was never made, and is gone at once
  fi;
}

inline Settle(segment) {
  // step: Segments::Settle (daemon/core/ledger/segments.cc)
  is_leased = false;
  is_exposed = false;
  for (k : 0 .. LEASES - 1) {
    is_leased = is_leased || (HAS(leases, k) && lease_segment[k] == segment);
  }
  for (k : 0 .. CLIENTS - 1) {
    is_exposed = is_exposed || HAS(exposed[k], segment);
  }
  AnyLive();
  if
  :: !HAS(charged, segment) || HAS(doomed, segment) -> skip;
  :: else ->
    DEL(retained, segment);
    if
    :: is_leased || HAS(pinned, segment) || is_exposed -> skip;
    :: else ->
      if
      :: RETAINS && HAS(made, segment) && !HAS(lost, segment) && any_live -> ADD(retained, segment);
      :: else -> Doom(segment);
      fi;
    fi;
  fi;
}

inline End(lease, unmapped) {
  // step: Leases::End (daemon/core/ledger/leases.cc)
  // order: Leases::End (daemon/core/ledger/leases.cc): leases.Erase( < --segment.leases < Unexpose( < Settle(
  DEL(leases, lease);
  DEL(regrants, lease);
  if
  :: unmapped -> DEL(exposed[lease_client[lease]], lease_segment[lease]);
  :: else
  fi;
  Settle(lease_segment[lease]);
}

inline ForgetIfDone(client) {
  // step: Sessions::ForgetIfDone (daemon/core/ledger/sessions.cc)
  if
  :: session[client] == ENDED && exposed[client] == 0 && call[client] == idle ->
    session[client] = NO_SESSION;
  :: else
  fi;
}

inline WindUp(client, gone) {
  // step: Endings::WindUp (daemon/core/ledger/endings.cc)
  // order: Endings::WindUp (daemon/core/ledger/endings.cc): DoomOldest( < leases_.End( < process_gone < Unexpose( < Settle(
  AnyLive();
  for (s : 0 .. SEGMENTS - 1) {
    if
    :: !any_live && HAS(retained, s) -> Doom(s);
    :: else
    fi;
  }
  for (i : 0 .. LEASES - 1) {
    if
    :: HAS(leases, i) && lease_client[i] == client -> 
#ifdef FAULT_CLOSE_COUNTS_AS_UNMAPPED
      End(i, true);
#else
      End(i, false);
#endif
    :: else
    fi;
  }
  if
  :: gone ->
    for (s : 0 .. SEGMENTS - 1) {
      if
      :: HAS(exposed[client], s) ->
        DEL(exposed[client], s);
        Settle(s);
      :: else
      fi;
    }
  :: else
  fi;
  ForgetIfDone(client);
}

inline Abort(client) {
  // step: Operations::Abort (daemon/core/ledger/operation_ends.cc)
  // order: Operations::Abort (daemon/core/ledger/operation_ends.cc): Unexpose( < --segment.pins < Doom( < regrants.try_emplace( < EndOperation(
  s = lease_segment[call_lease[client]];
  DEL(pinned, s);
  if
  :: call_regrants[client] ->
    if
    :: session[client] == LIVE -> ADD(regrants, call_lease[client]);
    :: else
    fi;
    Settle(s);
  :: else ->
    DEL(exposed[client], s);
    if
    :: call_fresh[client] -> Doom(s);
    :: else -> Settle(s);
    fi;
  fi;
}

// The state that a daemon makes of what it found.
inline RestoreLedger() {
  // step: Restorer::Restore (daemon/core/ledger/recovery/restore.cc)
  // order: Restorer::Restore (daemon/core/ledger/recovery/restore.cc): RestoreSessions( < RestoreSegments( < RestoreHolders( < Settle( < Complete(
  next_segment = j_next_segment;
  next_lease = j_next_lease;
  for (i : 0 .. CLIENTS - 1) {
    // step: FindSurvivors (daemon/restart/inherit.cc)
#ifdef FAULT_DEAD_PROCESSES_SURVIVE
    session[i] = j_session[i];
#else
    session[i] = (alive[i] -> j_session[i] : NO_SESSION);
#endif
    presence[i] = AWAY;
#ifndef FAULT_EXPOSURES_FORGOTTEN
    exposed[i] = (session[i] == NO_SESSION -> 0 : j_exposed[i]);
#endif
  }
  // step: Restorer::RestoreSegments (daemon/core/ledger/recovery/restore.cc)
  for (s : 0 .. SEGMENTS - 1) {
    is_exposed = false;
    for (k : 0 .. CLIENTS - 1) {
      is_exposed = is_exposed || HAS(exposed[k], s);
    }
    if
    :: HAS(j_segments, s) && HAS(j_made, s) && (HAS(inherited, s) || is_exposed) ->
      ADD(charged, s);
      ADD(made, s);
      if
      :: !HAS(inherited, s) -> ADD(lost, s);
      :: else
      fi;
    :: else
    fi;
  }
  // step: Restorer::RestoreHolders (daemon/core/ledger/recovery/restore.cc)
  for (i : 0 .. CLIENTS - 1) {
    exposed[i] = exposed[i] & charged;
  }
  for (i : 0 .. LEASES - 1) {
    if
    :: HAS(j_leases, i) && session[lease_client[i]] != NO_SESSION && HAS(charged, lease_segment[i]) ->
      ADD(leases, i);
      ADD(regrants, i);
    :: else
    fi;
  }
  for (s : 0 .. SEGMENTS - 1) {
    Settle(s);
  }
  // step: Endings::Complete (daemon/core/ledger/endings.cc)
  for (count : 0 .. CLIENTS - 1) {
    if
    :: session[count] == ENDED -> WindUp(count, false);
    :: else
    fi;
  }
  // Restore() closes what it took over and the ledger does not have.
  in_daemon = in_daemon & (charged | ~j_segments);
}
