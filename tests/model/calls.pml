// SPDX-License-Identifier: Apache-2.0
// The daemon's calls and events of one client. Each step is one change under the broker's mutex, or
// one action without it.

#define SOCKET_OPEN(c) (alive[c] && !closed[c] && presence[c] == HERE)

inline SocketClosed(c) {
  // step: Endings::SocketClosed (daemon/core/ledger/endings.cc)
  // order: Endings::SocketClosed (daemon/core/ledger/endings.cc): EndSession( < Continue(
  if
  :: session[c] == LIVE -> session[c] = ENDED;
  :: else
  fi;
  WindUp(c, false);
}

#ifdef FAULT_CALLS_NOT_AWAITED
#define CALLS_ENDED(c) true
#else
#define CALLS_ENDED(c) (call[c] == idle && release[c] != r_taken)
#endif

#ifdef FAULT_DEAD_PROCESSES_SURVIVE
#define WATCHED(c) (presence[c] != AWAY)
#else
#define WATCHED(c) true
#endif

#define NoRoom() (retained == 0 && (OnDevice() >= CAPACITY))
#define OnDevice() (HAS(charged, 0) + HAS(charged, 1) + HAS(charged, 2) + HAS(charged, 3))

inline PutInStore(segment) {
#if KEEPER
  Send(m_store, segment);
#else
  // step: FdCrates::AddCrate (daemon/restart/fd_store/fd_crates.cc)
  if
  :: !crate_made ->
    Send(m_crate, 0);
    crate_made = true;
  :: else
  fi;
  ADD(in_store, segment);
#endif
}

inline Created(c) {
  ADD(made, lease_segment[call_lease[c]]);
  Record();
}

inline Reserve(c) {
  call_regrants[c] = false;
  call_fresh[c] = false;
#ifndef FAULT_NOT_REGRANTED
  // step: Reconciliation::Regrant (daemon/core/ledger/recovery/reconciliation.cc)
  // order: Reconciliation::Regrant (daemon/core/ledger/recovery/reconciliation.cc): regrants.erase( < leases_.End( < ++segment.pins
  for (i : 0 .. LEASES - 1) {
    if
    :: HAS(regrants, i) && lease_client[i] == c && lease_request[i] == request[c] ->
      call_lease[c] = i;
      call_regrants[c] = true;
    :: else
    fi;
  }
#endif
  if
  :: call_regrants[c] ->
    DEL(regrants, call_lease[c]);
    ADD(pinned, lease_segment[call_lease[c]]);
    call[c] = reserved;
  // step: AdmissionControl::BeginAcquire (daemon/core/admission/admission_control.cc)
  :: !call_regrants[c] && next_lease < LEASES && (retained != 0 || (OnDevice() < CAPACITY && next_segment < SEGMENTS)) ->
    // step: Operations::Grant (daemon/core/ledger/operations.cc)
    // order: Operations::Pin (daemon/core/ledger/operations.cc): ->pins < Expose(
    call_lease[c] = next_lease;
    next_lease++;
    lease_client[call_lease[c]] = c;
    lease_request[call_lease[c]] = request[c];
    if
    :: retained != 0 ->
      FirstOf(retained);
      DEL(retained, s);
    :: else ->
      s = next_segment;
      next_segment++;
      call_fresh[c] = true;
      ADD(charged, s);
    fi;
    lease_segment[call_lease[c]] = s;
    ADD(pinned, s);
    ADD(exposed[c], s);
    call[c] = reserved;
  :: else -> answer[c] = REFUSED;
  fi;
  Record();
}

inline Release(c) {
  if
  :: release_lease[c] == LEASES ->
    for (i : 0 .. LEASES - 1) {
      if
      :: HAS(regrants, i) && lease_client[i] == c && lease_request[i] == pending_request[c] -> End(i, TRUSTS);
      :: else
      fi;
    }
    release[c] = r_taken;
#ifdef FAULT_RELEASED_TWICE
  :: release_lease[c] != LEASES ->
#else
  :: release_lease[c] != LEASES && HAS(leases, release_lease[c]) ->
#endif
    End(release_lease[c], TRUSTS);
    release[c] = r_taken;
  :: else -> release[c] = r_unknown;
  fi;
  Record();
}

inline Reconcile(c) {
  // step: Reconciliation::Reconcile (daemon/core/ledger/recovery/reconciliation.cc)
  // order: Reconciliation::Reconcile (daemon/core/ledger/recovery/reconciliation.cc): unknown_.push_back( < ended.push_back( < leases_.End( < regrants.swap( < Unexpose( < Settle( < Presence::kHere
  unknown[c] = named_leases[c] & ~leases;
  kept_mapped = 0;
  for (i : 0 .. LEASES - 1) {
    if
    :: HAS(leases, i) && lease_client[i] == c ->
      if
#ifdef FAULT_UNNAMED_LEASES_STAY
      :: true ->
#else
      :: HAS(named_leases[c], i) || (named_request[c] != 0 && lease_request[i] == named_request[c]) ->
#endif
        ADD(kept_mapped, lease_segment[i]);
        if
        :: named_request[c] != 0 && lease_request[i] == named_request[c] -> ADD(regrants, i);
        :: else -> DEL(regrants, i);
        fi;
      :: else -> End(i, TRUSTS);
      fi;
    :: else
    fi;
  }
  for (s : 0 .. SEGMENTS - 1) {
    if
    :: TRUSTS && call[c] == idle && HAS(exposed[c], s) && !HAS(kept_mapped, s) ->
      DEL(exposed[c], s);
      Settle(s);
    :: else
    fi;
  }
  presence[c] = HERE;
  statement[c] = r_taken;
  Record();
}

// An Acquire: Advance, Reserve, Carry, Create, HandOver, Taken.
proctype Acquire(byte c) {
end:
  do
  // step: Broker::Reserve (daemon/core/broker/acquire.cc)
  // order: Broker::Reserve (daemon/core/broker/acquire.cc): MayBegin( < Regrant( < BeginAcquire(
  // order: Broker::Advance (daemon/core/broker/acquire.cc): Reserve( < HandOver( < Taken( < Carry(
  :: atomic {
      TAKES_CALLS && asks[c] == a_sent && answer[c] == 0 && call[c] == idle && presence[c] == HERE &&
        session[c] == LIVE && !(doomed != 0 && NoRoom()) ->
      d_step { Reserve(c); }
    }
  // step: Broker::Create (daemon/core/broker/acquire.cc)
  // order: Broker::Create (daemon/core/broker/acquire.cc): ->Create(spec) < continuity_->Keep( < memory_.emplace( < operations().Created(
  :: atomic {
      SERVES && call[c] == reserved && call_fresh[c] ->
      ADD(in_daemon, lease_segment[call_lease[c]]);
#ifdef FAULT_MADE_BEFORE_KEPT
      d_step { Created(c); }
#endif
      call[c] = created;
    }
  // step: ContinuityStore::Keep (daemon/restart/continuity_store.cc)
  // step: StorePlaces::Put (daemon/restart/store_places.cc)
  // order: StorePlaces::Put (daemon/restart/store_places.cc): TakeDirectPlace( < store_.Store( < StoreInRoom( < MakeRoom()
  :: atomic {
      SERVES && call[c] == created && nfull(messages) ->
#ifndef FAULT_KEPT_AFTER_ANSWER
      PutInStore(lease_segment[call_lease[c]]);
#endif
      call[c] = kept;
    }
  // step: Operations::Created (daemon/core/ledger/operations.cc)
  :: atomic {
      SERVES && call[c] == kept ->
#ifndef FAULT_MADE_BEFORE_KEPT
      d_step { Created(c); }
#endif
      call[c] = entered;
    }
  // step: Broker::HandOver (daemon/core/broker/acquire.cc)
  // order: Broker::HandOver (daemon/core/broker/acquire.cc): Abort( < Describe( < deliver(handover) < Commit(
  // step: SessionServer::Deliver (daemon/transport/session_deliveries.cc)
  // order: SessionServer::Deliver (daemon/transport/session_deliveries.cc): connection->reconciled < SendMessage(
  :: atomic {
      SERVES && (call[c] == entered || (call[c] == reserved && !call_fresh[c])) ->
      if
      :: SOCKET_OPEN(c) ->
        ADD(in_socket[c], call_lease[c]);
        call[c] = delivered;
      :: else ->
        d_step {
          Abort(c);
          cancelled[c] = false;
          call[c] = idle;
          ForgetIfDone(c);
          Record();
        }
      fi;
    }
#ifdef FAULT_ANSWERED_BEFORE_COMMIT
  :: atomic { SERVES && call[c] == delivered && asks[c] == a_sent && answer[c] == 0 -> answer[c] = call_lease[c] + 1; }
#endif
  // step: Operations::Commit (daemon/core/ledger/operation_ends.cc)
  // order: Operations::Commit (daemon/core/ledger/operation_ends.cc): --segment.pins < AddLease( < Settle( < EndOperation(
  :: atomic {
      SERVES && call[c] == delivered ->
      d_step {
        DEL(pinned, lease_segment[call_lease[c]]);
        if
        :: session[c] == LIVE && !call_regrants[c] -> ADD(leases, call_lease[c]);
        :: else
        fi;
        Settle(lease_segment[call_lease[c]]);
        call[c] = committed;
#ifndef FAULT_JOURNALED_AFTER_ANSWER
        Record();
#endif
      }
    }
  // step: Broker::Taken (daemon/core/broker/acquire.cc)
  // order: Broker::Taken (daemon/core/broker/acquire.cc): CountGrant( < Keep(
  // step: Broker::Keep (daemon/core/broker/acquire.cc)
  // order: Broker::Keep (daemon/core/broker/acquire.cc): given_up < ReleaseInParts(
  // step: BrokerService::WaitingCall::AnswerWith (daemon/transport/service/broker_service.cc)
  // order: BrokerService::WaitingCall::AnswerWith (daemon/transport/service/broker_service.cc): call_.reset() < Answer(
  :: atomic {
      SERVES && call[c] == committed ->
      d_step {
        if
        :: cancelled[c] && HAS(leases, call_lease[c]) -> End(call_lease[c], TRUSTS);
        :: !cancelled[c] && asks[c] == a_sent && answer[c] == 0 ->
          answer[c] = (session[c] == LIVE -> call_lease[c] + 1 : REFUSED);
        :: else
        fi;
        cancelled[c] = false;
        call[c] = idle;
        call_fresh[c] = false;
        call_regrants[c] = false;
        ForgetIfDone(c);
#ifdef FAULT_JOURNALED_AFTER_ANSWER
        late[c] = true;
#else
        Record();
#endif
#ifdef FAULT_KEPT_AFTER_ANSWER
        late[c] = true;
#endif
      }
    }
#ifdef FAULT_KEPT_AFTER_ANSWER
  :: atomic {
      SERVES && late[c] && nfull(messages) ->
      if
      :: HAS(leases, call_lease[c]) -> PutInStore(lease_segment[call_lease[c]]);
      :: else
      fi;
      late[c] = false;
    }
#endif
#ifdef FAULT_JOURNALED_AFTER_ANSWER
  :: atomic {
      SERVES && late[c] ->
      d_step { Record(); }
      late[c] = false;
    }
#endif
  od
}

// Hello, Reconcile, Release, and the ends of sessions.
proctype Session(byte c) {
end:
  do
  // step: SessionServer::Welcome (daemon/transport/session_handshake.cc)
  // order: SessionServer::Welcome (daemon/transport/session_handshake.cc): Resume( < Failpoint("welcome-before") < SendMessage(
  // step: Ledger::OpenSession (daemon/core/ledger/ledger.cc)
  // order: Ledger::OpenSession (daemon/core/ledger/ledger.cc): TakeBegunBefore( < SocketClosed( < sessions_.Open(
  :: atomic {
      TAKES_CALLS && connection[c] == c_hello && alive[c] ->
      d_step {
        if
        :: session[c] == LIVE && presence[c] == AWAY -> SocketClosed(c);
        :: else
        fi;
        session[c] = LIVE;
        presence[c] = HERE;
        Record();
        connection[c] = c_opened;
      }
    }
  // step: Broker::Resume (daemon/core/broker/restore.cc)
  // step: Sessions::Resume (daemon/core/ledger/sessions.cc)
  // step: SessionServer::Resume (daemon/transport/session_handshake.cc)
  // order: SessionServer::Resume (daemon/transport/session_handshake.cc): broker_->Resume( < reconciled = false < Replace(
  :: atomic {
      TAKES_CALLS && connection[c] == c_resumes ->
      if
      :: session[c] == LIVE ->
        presence[c] = RETURNING;
        closed[c] = false;
        connection[c] = c_welcomed;
      :: else -> connection[c] = c_over;
      fi;
    }
  // step: Broker::Reconcile (daemon/core/broker/restore.cc)
  // order: Broker::Reconcile (daemon/core/broker/restore.cc): reconciliation().Begin( < pools_sent_.erase( < .Reconcile(
  // step: Reconciliation::Begin (daemon/core/ledger/recovery/reconciliation.cc)
  // order: Reconciliation::Begin (daemon/core/ledger/recovery/reconciliation.cc): may_reconcile < HasCalls( < BeginCall(
  :: atomic {
      TAKES_CALLS && statement[c] == r_asked && session[c] == LIVE && presence[c] == RETURNING &&
        CALLS_ENDED(c) ->
      d_step { Reconcile(c); }
    }
  :: atomic { SERVES && statement[c] == r_taken -> statement[c] = r_done; }
  // step: Leases::Release (daemon/core/ledger/leases.cc)
  // order: Leases::Release (daemon/core/ledger/leases.cc): Check( < End(
  // step: Reconciliation::DropRegrants (daemon/core/ledger/recovery/reconciliation.cc)
  :: atomic {
      TAKES_CALLS && release[c] == r_asked && presence[c] == HERE && session[c] == LIVE ->
      d_step { Release(c); }
    }
  // The answer.
  :: atomic { SERVES && release[c] == r_taken -> release[c] = r_done; }
  // step: Endings::ProcessGone (daemon/core/ledger/endings.cc)
  // order: Endings::ProcessGone (daemon/core/ledger/endings.cc): process_gone = true < EndSession( < Continue(
  :: atomic {
      SERVES && !alive[c] && WATCHED(c) && (session[c] == LIVE || exposed[c] != 0) ->
      d_step {
        session[c] = ENDED;
        WindUp(c, true);
        Record();
      }
    }
  // step: SessionServer::Close (daemon/transport/session_server.cc)
  :: atomic {
      TAKES_CALLS && closed[c] ->
      d_step {
        closed[c] = false;
        cut_off[c] = true;
        SocketClosed(c);
        presence[c] = AWAY;
        Record();
      }
    }
  od
}
