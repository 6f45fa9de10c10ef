// SPDX-License-Identifier: Apache-2.0
// The daemon: how it starts, serves, and ends.

#define SERVES (daemon == serving || daemon == parked || daemon == frozen)
#define TAKES_CALLS (daemon == serving)

// All that is of the process ends with it.
inline Die() {
  daemon = dead;
  survivable = false;
  other_form = false;
  crate_made = false;
  in_daemon = 0;
  inherited = 0;
  charged = 0;
  made = 0;
  lost = 0;
  retained = 0;
  doomed = 0;
  pinned = 0;
  leases = 0;
  regrants = 0;
  next_segment = 0;
  next_lease = 0;
  disposal = d_idle;
  batch = 0;
  to_remove = 0;
  for (i : 0 .. CLIENTS - 1) {
    late[i] = false;
    cancelled[i] = false;
    exposed[i] = 0;
    session[i] = NO_SESSION;
    presence[i] = AWAY;
    call[i] = idle;
    call_lease[i] = 0;
    call_fresh[i] = false;
    call_regrants[i] = false;
    release[i] = r_none;
    statement[i] = r_none;
    closed[i] = false;
    if
    :: connection[i] == c_hello || connection[i] == c_opened -> connection[i] = c_new;
    :: connection[i] == c_up || connection[i] == c_resumes || connection[i] == c_welcomed ||
         connection[i] == c_states ->
      connection[i] = c_broken;
    :: else
    fi;
    if
    :: asks[i] == a_sent && answer[i] == 0 -> asks[i] = a_unanswered;
    :: else
    fi;
  }
}

// --- Start, orderly stop -----------------------------------------------------------------------

// A message to the manager; it is lost if the manager has been killed.
inline Send(what, which) {
  // step: FdStore::Send (daemon/restart/fd_store/fd_store.cc)
  if
  :: manager_lives -> messages!what, which;
  :: else
  fi;
}

inline RemoveFromStore(segment) {
  // step: StorePlaces::Remove (daemon/restart/store_places.cc)
  // order: StorePlaces::Remove (daemon/restart/store_places.cc): crates_.Remove( < RemoveAndWait( < direct_.erase(
#if KEEPER
  Send(m_remove, segment);
#else
  DEL(in_store, segment);
#endif
}

#if CLIENTS == 1
#define NoCalls() \
  (call[0] == idle && release[0] != r_taken && statement[0] != r_taken)
#else
#define NoCalls() \
  (call[0] == idle && call[1] == idle && release[0] != r_taken && release[1] != r_taken && \
   statement[0] != r_taken && statement[1] != r_taken)
#endif

inline Destroyed(segment) {
  // step: Segments::Destroyed (daemon/core/ledger/segments.cc)
  DEL(doomed, segment);
  DEL(charged, segment);
  DEL(made, segment);
  DEL(lost, segment);
  Record();
}

proctype Life() {
end:
  do
  // step: ContinuityStore::Open (daemon/restart/continuity_store.cc)
  // order: ContinuityStore::Open (daemon/restart/continuity_store.cc): TakeInherited() < ChooseJournal( < JournalFile::Adopt( < places_.Adopt( < CreateJournal(
  :: atomic {
      daemon == opening && nfull(messages) ->
      inherited = in_store;
      in_daemon = in_store;
      crate_made = crate_stored;
      if
      :: HAS(journals, journal) && journal_complete ->
        if
        :: true;
        :: UPGRADES && len(messages) < 3 -> other_form = true;
        fi;
        if
        :: HAS(journals, 1 - journal) -> Send(m_no_journal, 1 - journal);
        :: else
        fi;
      :: else ->
        // Generation 1: all that is stored has no owner.
        d_step {
          journal_complete = false;
          j_segments = 0;
          j_made = 0;
          j_leases = 0;
          inherited = 0;
          for (i : 0 .. CLIENTS - 1) {
            j_exposed[i] = 0;
            j_session[i] = NO_SESSION;
          }
        }
        if
        :: !HAS(journals, journal) -> Send(m_journal, journal);
        :: else
        fi;
      fi;
      if
      :: other_form -> Send(m_journal, 1 - journal);
      :: else
      fi;
#ifdef FAULT_OLD_JOURNAL_FIRST
      if
      :: other_form -> Send(m_no_journal, journal);
      :: else
      fi;
#endif
      daemon = restoring;
    }
  // step: Broker::Restore (daemon/core/broker/restore.cc)
  // order: Broker::Restore (daemon/core/broker/restore.cc): ->Adopt( < memory_.emplace( < ledger_.Restore( < erase_if(memory_ < continuity_->Begin( < KeepChanges() < survivable_ = true
  // step: ContinuityStore::Begin (daemon/restart/continuity_store.cc)
  // order: ContinuityStore::Begin (daemon/restart/continuity_store.cc): file_->Rewrite( < old_journals_ < unneeded.push_back( < LetGo(unneeded)
  :: atomic {
      daemon == restoring ->
      d_step {
        RestoreLedger();
        WriteJournal();
        journal_complete = true;
        if
        :: other_form -> journal = 1 - journal;
        :: else
        fi;
#ifdef FAULT_UNNEEDED_KEPT
        to_remove = 0;
#else
        to_remove = in_store & ~charged;
#endif
        daemon = letting_go;
      }
    }
  :: atomic {
      daemon == letting_go && other_form && nfull(messages) ->
#ifndef FAULT_OLD_JOURNAL_FIRST
      Send(m_no_journal, 1 - journal);
#endif
      other_form = false;
    }
  :: atomic {
      daemon == letting_go && !other_form && nfull(messages) ->
      if
      :: to_remove == 0 -> daemon = finishing;
      :: else ->
        d_step { FirstOf(to_remove); skip; }
        DEL(to_remove, s);
        RemoveFromStore(s);
      fi;
    }
  :: atomic {
      daemon == finishing && empty(messages) ->
      // What was never granted is closed as Restore() returns; then the daemon listens.
      in_daemon = in_daemon & charged;
      inherited = 0;
      survivable = true;
      // step: Server::Start (daemon/server/server.cc)
      // order: Server::Start (daemon/server/server.cc): ContinuityStore::Open( < Inherit() < Listen(
      daemon = serving;
    }
  // step: Server::HandOver (daemon/server/server.cc)
  // order: Server::~Server (daemon/server/server.cc): sessions_->Park() < broker_service_->Park() < AwaitCalls( < LeaveSessions() < api_servers_->Shutdown( < Freeze() < sessions_.reset() < broker_.reset()
  :: atomic {
      daemon == serving && stops > 0 && manager_lives ->
      stops--;
      daemon = parked;
    }
  // step: Broker::Freeze (daemon/core/broker/restore.cc)
  // order: Broker::Freeze (daemon/core/broker/restore.cc): Continue( < survivable_ = false
  :: atomic {
      daemon == parked && NoCalls() ->
      d_step {
#ifdef FAULT_STOP_ENDS_SESSIONS
        for (count : 0 .. CLIENTS - 1) {
          if
          :: session[count] == LIVE ->
            session[count] = ENDED;
            WindUp(count, false);
          :: else
          fi;
        }
        Record();
#endif
        survivable = false;
        daemon = frozen;
      }
    }
  :: atomic { daemon == frozen -> d_step { Die(); skip; } }
  od
}

// --- Disposal ----------------------------------------------------------------------------------

// step: Broker::DisposeLoop (daemon/core/broker/disposal.cc)
// order: Broker::DisposeLoop (daemon/core/broker/disposal.cc): std::exchange(doomed_ < survivable = survivable_ < continuity_->LetGo( < memory.reset() < Destroyed(
proctype Disposal() {
end:
  do
  :: atomic {
      SERVES && disposal == d_idle && doomed != 0 ->
      batch = doomed;
#ifdef FAULT_NOT_LET_GO
      to_remove = 0;
#else
      to_remove = (survivable -> doomed : 0);
#endif
      disposal = d_letting_go;
    }
  :: atomic {
      SERVES && disposal == d_letting_go && nfull(messages) ->
      if
      :: to_remove == 0 -> disposal = d_waiting;
      :: else ->
        d_step { FirstOf(to_remove); skip; }
        DEL(to_remove, s);
        RemoveFromStore(s);
      fi;
    }
  :: atomic { SERVES && disposal == d_waiting && empty(messages) -> disposal = d_closing; }
  :: atomic {
      SERVES && disposal == d_closing ->
      d_step {
        FirstOf(batch);
#ifdef FAULT_REFUND_BEFORE_FREE
        Destroyed(s);
#else
        DEL(in_daemon, s);
#endif
        disposal = d_refunding;
      }
    }
  :: atomic {
      SERVES && disposal == d_refunding ->
      d_step {
        FirstOf(batch);
#ifdef FAULT_REFUND_BEFORE_FREE
        DEL(in_daemon, s);
#else
        Destroyed(s);
#endif
        DEL(batch, s);
        disposal = (batch == 0 -> d_idle : d_closing);
      }
    }
  od
}
