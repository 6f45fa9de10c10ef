// SPDX-License-Identifier: Apache-2.0
// A model of what survives the death of a daemon: the journal, the manager's store of descriptors,
// and the clients that resume. docs/assurance.md says what it shows.

#include "world.pml"

#include "ledger.pml"
#include "daemon.pml"
#include "calls.pml"
#include "client.pml"

// The connection ends: the client resumes, and the daemon sees the old socket's end before or after.
inline Cut(c) {
  connection[c] = c_broken;
  closed[c] = true;
  if
  :: release[c] != r_taken -> release[c] = r_none;
  :: else
  fi;
  if
  :: asks[c] == a_sent && answer[c] == 0 -> asks[c] = a_unanswered;
  :: else
  fi;
}

// --- The properties ---------------------------------------------------------------------------

// The books: the ledger of a daemon that serves, or the journal for the next one.
#define BOOK_LEASES (SERVES -> leases : j_leases)
#define BOOK_SEGMENTS (SERVES -> charged & ~(retained | doomed) : j_segments & j_made)
#define SESSION_LIVES(c) (alive[c] && connection[c] != c_over && !cut_off[c])

// No memory is in the daemon's or the manager's hands that is not charged.
#define Unaccounted() ((daemon == serving || daemon == parked) && ((in_daemon | in_store) & ~charged) != 0)

// All that a client holds is in the books, and neither reused nor on its way back.
#define TakenAway(c) \
  (!lossy && SESSION_LIVES(c) && ((held[c] & ~BOOK_LEASES) != 0 || client_lost[c] != 0))
// The same of all that it has mapped, also when its session has ended.
#define FreedUnder(c) (!lossy && SERVES && (mapped[c] & ~(charged & ~(retained | doomed))) != 0)
#define Kept() (!lossy && lost != 0)

#if CLIENTS > 1
#define GivenToTwo() ((mapped[0] & mapped[1]) != 0)
#else
#define GivenToTwo() false
#endif

// A charge whose memory is held by none, except on its way back.
#define Holdings() (in_daemon | in_store | mapped[0] | mapped[CLIENTS - 1])
#define ChargedForNothing() \
  (SERVES && !lossy && ((charged & made & ~doomed) & ~Holdings()) != 0)
#define TwiceGranted(a, b) \
  (HAS(leases, a) && HAS(leases, b) && lease_client[a] == lease_client[b] && lease_request[a] == lease_request[b])
#if LEASES > 3
#define Fourth() (TwiceGranted(0, 3) || TwiceGranted(1, 3) || TwiceGranted(2, 3))
#else
#define Fourth() false
#endif
#define ChargedTwice() \
  (SERVES && (TwiceGranted(0, 1) || TwiceGranted(0, 2) || TwiceGranted(1, 2) || Fourth()))

#define NobodyLeft() (!alive[0] && !alive[CLIENTS - 1])
#define AllDone() \
  (NobodyLeft() && daemon == serving && charged == 0 && in_daemon == 0 && in_store == 0 && leases == 0 && \
   session[0] == NO_SESSION && session[CLIENTS - 1] == NO_SESSION && \
   (lossy || (j_segments == 0 && j_leases == 0)))

// The manager: systemd, or gpumem-keeper.
proctype Manager() {
  byte which;
end:
  do
  // step: Keeper::HandleMessage (daemon/keeper/keeper.cc)
  // order: Keeper::HandleMessage (daemon/keeper/keeper.cc): sender != child_ < stored_.Remove( < stored_.Add(
  // step: StoredFds::Add (daemon/keeper/stored_fds.cc)
  // step: StoredFds::Remove (daemon/keeper/stored_fds.cc)
  :: atomic { manager_lives && messages?[m_store, _] -> messages?m_store, which; ADD(in_store, which); which = 0; }
  :: atomic { manager_lives && messages?[m_remove, _] -> messages?m_remove, which; DEL(in_store, which); which = 0; }
  :: atomic { manager_lives && messages?[m_crate, _] -> messages?m_crate, _; crate_stored = true; }
  :: atomic { manager_lives && messages?[m_journal, _] -> messages?m_journal, which; ADD(journals, which); which = 0; }
  :: atomic { manager_lives && messages?[m_no_journal, _] -> messages?m_no_journal, which; DEL(journals, which); which = 0; }
  // step: Keeper::Reap (daemon/keeper/keeper.cc)
  // order: Keeper::Reap (daemon/keeper/keeper.cc): HandleMessages(kAll) < waitpid(ended < OnExit(
  // step: Keeper::OnExit (daemon/keeper/keeper.cc)
  // step: Keeper::Start (daemon/keeper/keeper.cc)
#ifdef FAULT_QUEUE_DROPPED
  :: atomic {
      manager_lives && daemon == dead && !AllDone() ->
      do
      :: messages?_, _;
      :: empty(messages) -> break;
      od;
      in_store = (KEEPER || crate_stored -> in_store : 0);
      daemon = opening;
    }
#else
  :: atomic {
      manager_lives && daemon == dead && empty(messages) ->
#ifdef FAULT_STORE_FORGETS
      in_store = 0;
#endif
      daemon = opening;
    }
#endif
  // The manager was killed, and the daemon has ended: both are started again.
  :: atomic {
      !manager_lives && daemon == dead ->
      manager_lives = true;
      daemon = opening;
    }
  od
}

// What may happen at any moment.
proctype Faults() {
end:
  do
  :: atomic { kills > 0 && daemon != dead -> kills--; d_step { Die(); skip; } }
  :: atomic {
      manager_kills > 0 && manager_lives && KEEPER ->
      manager_kills--;
      manager_lives = false;
      lossy = true;
      in_store = 0;
      journals = 0;
      do
      :: messages?_, _;
      :: empty(messages) -> break;
      od;
    }
  :: atomic { crashes > 0 && alive[0] -> crashes--; d_step { Exit(0); } }
  :: atomic { cuts > 0 && UP(0) && SERVES -> cuts--; d_step { Cut(0); } }
#if CLIENTS > 1
  :: atomic { crashes > 0 && alive[1] -> crashes--; d_step { Exit(1); } }
  :: atomic { cuts > 0 && UP(1) && SERVES -> cuts--; d_step { Cut(1); } }
#endif
  od
}

proctype Monitor() {
  do
  :: atomic { ASKED(1) && Unaccounted() -> assert(1 == 0 /* memory without an account */); }
  :: atomic { ASKED(2) && (TakenAway(0) || TakenAway(CLIENTS - 1)) -> assert(2 == 0 /* a lease is lost */); }
  :: atomic { ASKED(3) && (FreedUnder(0) || FreedUnder(CLIENTS - 1)) -> assert(3 == 0 /* memory is free that is mapped */); }
  :: atomic { ASKED(4) && Kept() -> assert(4 == 0 /* a segment is lost */); }
  :: atomic { ASKED(5) && GivenToTwo() -> assert(5 == 0 /* memory is given to two */); }
  :: atomic { ASKED(6) && ChargedForNothing() -> assert(6 == 0 /* charged, and held by none */); }
  :: atomic { ASKED(7) && ChargedTwice() -> assert(7 == 0 /* one request is charged twice */); }
  // Nothing more happens.
  :: timeout ->
    if
    :: !ASKED(9) || AllDone() -> break;
    :: else -> assert(9 == 0 /* something is left at the end */);
    fi;
  od
}

init {
  atomic {
    d_step {
      for (i : 0 .. CLIENTS - 1) {
        alive[i] = true;
      }
      skip;
    }
    run Manager();
    run Life();
    run Disposal();
    run Faults();
    run Monitor();
    run Acquire(0);
    run Session(0);
    run Program(0);
    run Library(0);
#if CLIENTS > 1
    run Acquire(1);
    run Session(1);
    run Program(1);
    run Library(1);
#endif
  }
}
