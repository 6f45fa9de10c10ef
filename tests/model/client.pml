// SPDX-License-Identifier: Apache-2.0
// A client: its program asks for segments and releases them; other threads of its library flush
// releases and resume the session. Each step may come between any two of another thread.

#define UP(c) (alive[c] && connection[c] == c_up)

inline Unmap(c, lease) {
  DEL(mapped[c], lease_segment[lease]);
}

inline GiveUpLease(c, lease, after) {
  // step: LeaseBook::AddPending (client/session/lease_book.cc)
  ADD(pending[c], lease);
  pending_after[lease] = after;
}

// A mapping that was made before the answer, which does not come.
inline Withdraw(c) {
  if
  :: early[c] != 0 ->
    Unmap(c, early[c] - 1);
    GiveUpLease(c, early[c] - 1, sent_after[c]);
    early[c] = 0;
  :: else
  fi;
}

inline EndRequest(c) {
  // step: LeaseBook::End (client/session/lease_book.cc)
  if
  :: request_named[c] != 0 ->
    pending_request[c] = request[c];
    pending_request_after[c] = request_named[c];
  :: else
  fi;
  on_lane[c] = false;
  request_named[c] = 0;
  asks[c] = a_none;
  answer[c] = 0;
}

#define Delivered(c) \
  ((HAS(in_socket[c], 0) && lease_request[0] == request[c]) || \
   (HAS(in_socket[c], 1) && lease_request[1] == request[c]) || \
   (HAS(in_socket[c], 2) && lease_request[2] == request[c]) || \
   (LEASES > 3 && HAS(in_socket[c], 3) && lease_request[LEASES - 1] == request[c]))

inline ArrivedLease(c) {
  s = 0;
  do
  :: HAS(in_socket[c], s) && lease_request[s] == request[c] -> break;
  :: else -> s++;
  od;
}

// A call that may map memory ahead of its answer has ended, and has undone that.
#ifdef FAULT_STATED_WHILE_EARLY
#define LaneIsFree(c) true
#else
#define LaneIsFree(c) (!on_lane[c] || asks[c] == a_none || asks[c] == a_booked)
#endif

#define Done(c) \
  ((request[c] == REQUESTS || connection[c] == c_over) && asks[c] == a_none && held[c] == 0 && \
   (connection[c] == c_over || \
    (pending[c] == 0 && pending_request[c] == 0 && in_socket[c] == 0 && release[c] == r_none && \
     call[c] == idle)))
#define Settled(c) (LeasesOf(c) == 0 && (!TRUSTS || exposed[c] == 0))
#define LeaseOf(c, l) (HAS(leases, l) && lease_client[l] == c)
#define LeasesOf(c) (LeaseOf(c, 0) + LeaseOf(c, 1) + LeaseOf(c, 2) + (LEASES > 3 && LeaseOf(c, LEASES - 1)))

inline Exit(c) {
  alive[c] = false;
  mapped[c] = 0;
  in_socket[c] = 0;
  held[c] = 0;
  pending[c] = 0;
  pending_request[c] = 0;
  early[c] = 0;
  on_lane[c] = false;
  asks[c] = a_none;
  answer[c] = 0;
  unknown[c] = 0;
  named_leases[c] = 0;
  named_request[c] = 0;
  client_lost[c] = 0;
  connection[c] = c_over;
  if
  :: release[c] != r_taken -> release[c] = r_none;
  :: else
  fi;
  if
  :: statement[c] != r_taken -> statement[c] = r_none;
  :: else
  fi;
}

#ifdef FAULT_RELEASED_TWICE
#define DUE(c, l) HAS(pending[c], l)
#else
#define DUE(c, l) (HAS(pending[c], l) && pending_after[l] == told[c])
#endif
#define DuePending(c) (DUE(c, 0) || DUE(c, 1) || DUE(c, 2) || (LEASES > 3 && DUE(c, LEASES - 1)))
#define STALE(c, l) (HAS(pending[c], l) && pending_after[l] < told[c])
#define StalePending(c) \
  (STALE(c, 0) || STALE(c, 1) || STALE(c, 2) || (LEASES > 3 && STALE(c, LEASES - 1)) || \
   (pending_request[c] != 0 && pending_request_after[c] < told[c]))

// The program's thread: requests, and releases of what it holds.
proctype Program(byte c) {
end:
  do
  // step: LeaseBook::Begin (client/session/lease_book.cc)
  // step: Session::CallForGrant (client/session/session.cc)
  // order: Session::CallForGrant (client/session/session.cc): booked(&book_) < Prepare( < CallOnLane( < TakeGrant( < HasEnded(
  :: atomic {
      alive[c] && asks[c] == a_none && request[c] < REQUESTS && connection[c] != c_new &&
        connection[c] != c_hello && connection[c] != c_opened && connection[c] != c_over ->
      request[c]++;
      asks[c] = a_booked;
    }
  :: atomic {
      UP(c) && asks[c] == a_booked && call[c] == idle ->
      sent_after[c] = told[c];
      asks[c] = a_sent;
      if
      :: on_lane[c] = true;
      :: on_lane[c] = false;
      fi;
    }
  // step: Session::CallOnLane (client/session/lane/calls.cc)
  // order: Session::CallOnLane (client/session/lane/calls.cc): EarlyMapping < Exchange( < booked.Granted( < Withdrawn() < AddPending( < early.reset() < maps.End() < Explain( < TakeGrant(
  // step: Deliveries::TakeArrived (client/session/deliveries.cc)
  :: atomic {
      alive[c] && on_lane[c] && (asks[c] == a_sent || asks[c] == a_unanswered) && early[c] == 0 && Delivered(c) ->
      d_step {
        ArrivedLease(c);
        DEL(in_socket[c], s);
        ADD(mapped[c], lease_segment[s]);
        early[c] = s + 1;
      }
    }
  // step: LeaseBook::Granted (client/session/lease_book.cc)
  // step: Session::TakeGrant (client/session/session.cc)
  // order: Session::TakeGrant (client/session/session.cc): Collect( < request.Granted(
  :: atomic {
      alive[c] && asks[c] == a_sent && answer[c] != 0 && answer[c] != REFUSED ->
      d_step {
        if
        :: early[c] == answer[c] || HAS(in_socket[c], answer[c] - 1) ->
          DEL(in_socket[c], answer[c] - 1);
          ADD(mapped[c], lease_segment[answer[c] - 1]);
          ADD(held[c], answer[c] - 1);
          early[c] = 0;
          on_lane[c] = false;
          request_named[c] = 0;
          asks[c] = a_none;
        // The memory did not come, and never will: it is asked for again.
        :: else ->
          Withdraw(c);
          asks[c] = a_booked;
        fi;
        answer[c] = 0;
      }
    }
  :: atomic {
      alive[c] && asks[c] == a_sent && answer[c] == REFUSED ->
      d_step {
        Withdraw(c);
        EndRequest(c);
      }
    }
  // The connection has ended without an answer: the request is repeated.
  // step: Session::HasEnded (client/session/failures.cc)
  :: atomic {
      alive[c] && asks[c] == a_unanswered ->
      d_step {
        Withdraw(c);
        in_socket[c] = 0;
        if
        :: connection[c] == c_over -> EndRequest(c);
        :: else -> asks[c] = a_booked;
        fi;
        on_lane[c] = false;
      }
    }
  // The request's time is over.
  :: atomic {
      alive[c] && give_ups > 0 && asks[c] != a_none && answer[c] == 0 ->
      give_ups--;
      d_step {
        cancelled[c] = (call[c] != idle);
        Withdraw(c);
        EndRequest(c);
      }
    }
  :: atomic { alive[c] && asks[c] == a_booked && connection[c] == c_over -> d_step { EndRequest(c); } }
  // step: LeaseBook::GiveUp (client/session/lease_book.cc)
  // step: Session::ForgetSoon (client/session/releases.cc)
  :: atomic {
      alive[c] && held[c] != 0 ->
      d_step {
        FirstOf(held[c]);
        DEL(held[c], s);
        Unmap(c, s);
        if
        :: HAS(client_lost[c], s) -> DEL(client_lost[c], s);
        :: else -> GiveUpLease(c, s, statements[c]);
        fi;
      }
    }
  // It has nothing left to do, and ends. The daemon may hold nothing for it that it does not know of.
  :: atomic {
      alive[c] && (UP(c) || connection[c] == c_over) && Done(c) ->
      if
      :: !ASKED(8) || lossy || connection[c] == c_over || !SERVES || closed[c] || Settled(c);
      :: else -> assert(8 == 0 /* the daemon holds what its client does not know of */);
      fi;
      d_step { Exit(c); }
    }
  od
}

// The threads that connect, resume and flush.
proctype Library(byte c) {
end:
  do
  // step: Session::Connect (client/session/connect.cc)
  :: atomic { alive[c] && connection[c] == c_new && daemon == serving -> connection[c] = c_hello; }
  // step: HearWelcome (client/session/handshake.cc)
  :: atomic { alive[c] && connection[c] == c_opened && SERVES -> connection[c] = c_up; }
  // step: Reconnector::Greet (client/session/reconnector.cc)
  // order: Reconnector::Resume (client/session/reconnector.cc): Greet( < Reconcile(
  :: atomic { alive[c] && connection[c] == c_broken && daemon == serving -> connection[c] = c_resumes; }
  // step: LeaseBook::AwaitEarlyMappings (client/session/lease_book.cc)
  // step: LeaseBook::MakeStatement (client/session/lease_book.cc)
  // step: Reconnector::Reconcile (client/session/reconnector.cc)
  // order: Reconnector::Reconcile (client/session/reconnector.cc): AwaitEarlyMappings( < MakeStatement() < Stub::Reconcile < book_->Lost( < set_statement(
  :: atomic {
      alive[c] && connection[c] == c_welcomed && LaneIsFree(c) ->
      d_step {
        statements[c]++;
        named_leases[c] = held[c];
        named_request[c] = 0;
#ifndef FAULT_REQUESTS_NOT_STATED
        if
        :: asks[c] != a_none ->
          named_request[c] = request[c];
          request_named[c] = statements[c];
        :: else
        fi;
#endif
        statement[c] = r_asked;
        connection[c] = c_states;
      }
    }
  // step: LeaseBook::Lost (client/session/lease_book.cc)
  :: atomic {
      alive[c] && connection[c] == c_states && statement[c] == r_done ->
      d_step {
        client_lost[c] = client_lost[c] | (unknown[c] & held[c]);
        unknown[c] = 0;
        named_leases[c] = 0;
        named_request[c] = 0;
        told[c] = statements[c];
        statement[c] = r_none;
        connection[c] = c_up;
        if
        :: asks[c] == a_none || asks[c] == a_booked -> in_socket[c] = 0;  // of the one before
        :: else
        fi;
      }
    }
  // step: LeaseBook::TakePending (client/session/lease_book.cc)
  // order: LeaseBook::TakePending (client/session/lease_book.cc): pending.statement < statement < pending.statement == statement
#ifndef FAULT_RELEASED_TWICE
  :: atomic {
      UP(c) && StalePending(c) ->
      d_step {
        for (i : 0 .. LEASES - 1) {
          if
          :: HAS(pending[c], i) && pending_after[i] < told[c] -> DEL(pending[c], i);
          :: else
          fi;
        }
        if
        :: pending_request_after[c] < told[c] -> pending_request[c] = 0;
        :: else
        fi;
      }
    }
#endif
  // step: Session::FlushAll (client/session/releases.cc)
  // order: Session::FlushAll (client/session/releases.cc): TakeAbandoned() < TakePending( < Flush( < ReleaseKnown( < due.pop_back()
  // step: Session::ReleaseOnce (client/session/releases.cc)
  :: atomic {
      UP(c) && release[c] == r_none && DuePending(c) ->
      d_step {
        release_lease[c] = 0;
        do
        :: DUE(c, release_lease[c]) -> break;
        :: else -> release_lease[c]++;
        od;
        release[c] = r_asked;
      }
    }
  :: atomic {
      UP(c) && release[c] == r_none && pending_request[c] != 0 && pending_request_after[c] == told[c] ->
      release_lease[c] = LEASES;
      release[c] = r_asked;
    }
  :: atomic {
      UP(c) && (release[c] == r_done || release[c] == r_unknown) ->
      d_step {
        if
        :: release_lease[c] == LEASES -> pending_request[c] = 0;
        :: else -> DEL(pending[c], release_lease[c]);
        fi;
        release[c] = r_none;
      }
    }
  // step: Deliveries::Sweep (client/session/deliveries.cc)
  // step: Deliveries::TakeAbandoned (client/session/deliveries.cc)
  :: atomic {
      UP(c) && in_socket[c] != 0 && (asks[c] == a_none || asks[c] == a_booked) ->
      d_step {
        FirstOf(in_socket[c]);
        DEL(in_socket[c], s);
        GiveUpLease(c, s, told[c]);
      }
    }
  od
}
