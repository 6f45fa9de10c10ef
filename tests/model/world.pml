// SPDX-License-Identifier: Apache-2.0
// The world of the model: its size, its memory, and what each part knows of it. check_steps.py explains
// the comments "step:" and "order:".
//
// Sets of segments, and of leases, are bytes with a bit for each.

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef SEGMENTS
#define SEGMENTS 3
#endif
#ifndef LEASES
#define LEASES 3
#endif
#ifndef REQUESTS
#define REQUESTS 1 /* of each client */
#endif
#ifndef CAPACITY
#define CAPACITY 2 /* segments that the device has room for */
#endif
#ifndef KILLS
#define KILLS 1 /* of the daemon */
#endif
#ifndef STOPS
#define STOPS 0 /* orderly restarts of the daemon */
#endif
#ifndef CRASHES
#define CRASHES 0 /* of clients */
#endif
#ifndef CUTS
#define CUTS 0 /* connections that end between a living client and a living daemon */
#endif
#ifndef GIVE_UPS
#define GIVE_UPS 0 /* requests whose time is over before the answer */
#endif
#ifndef MANAGER_KILLS
#define MANAGER_KILLS 0 /* of gpumem-keeper; systemd does not die */
#endif
#ifndef KEEPER
#define KEEPER 0 /* 1: gpumem-keeper, which stores each descriptor; 0: systemd, which stores crates */
#endif
#ifndef UPGRADES
#define UPGRADES 0 /* 1: a starting daemon may have another form of the journal */
#endif
#ifndef ONLY
#define ONLY 0 /* the one property to check; 0: all */
#endif
#define ASKED(property) (ONLY == 0 || ONLY == property)
#ifndef RETAINS
#define RETAINS 1 /* 1: memory without holders is kept for its tenant */
#endif
#ifndef TRUSTS
#define TRUSTS 1 /* 1: release = "trust"; 0: "on-exit" */
#endif

#define BIT(i) (1 << (i))
#define HAS(set, i) (((set) >> (i)) & 1)
#define ADD(set, i) set = set | BIT(i)
#define DEL(set, i) set = set & ~BIT(i)

// --- The kernel: who has a descriptor of which segment's memory ----------------------------

byte in_daemon;           // segments
byte in_store;            // segments: the manager has it, directly or in a crate
byte mapped[CLIENTS];     // segments that the process has open
byte in_socket[CLIENTS];  // leases: Deliveries that the client has yet to read
bool alive[CLIENTS];

// --- The manager: its queue of messages, and what it stores beside memory ------------------

mtype = {m_store, m_remove, m_crate, m_journal, m_no_journal};
chan messages = [5] of {mtype, byte};
bool manager_lives = true;
bool crate_stored;
byte journals;  // of two: the second is made by a daemon that writes another form
bool lossy;     // the manager was killed: the next death of the daemon costs memory

// --- The journal: the state that the next daemon finds -------------------------------------

byte journal;            // which of the two has the state
bool journal_complete;
byte j_segments, j_made, j_leases;
byte j_exposed[CLIENTS];
byte j_session[CLIENTS];
byte j_next_segment, j_next_lease;

// --- The daemon's ledger: lost with it ------------------------------------------------------

#define NO_SESSION 0
#define LIVE 1
#define ENDED 2
#define AWAY 0
#define RETURNING 1
#define HERE 2

bool survivable;
byte charged, made, lost, retained, doomed, pinned;  // segments
byte leases, regrants;                               // leases; those that a repeated request gets
byte exposed[CLIENTS];                               // segments
byte session[CLIENTS], presence[CLIENTS];
byte next_segment, next_lease;

// What a lease is for; set once.
byte lease_client[LEASES], lease_request[LEASES], lease_segment[LEASES];

// --- The daemon's threads: where each call is, and each round of disposal -------------------

mtype = {dead, opening, restoring, letting_go, finishing, serving, parked, frozen};
mtype daemon = dead;
bool other_form;  // this daemon writes another form of the journal than it found
bool crate_made;
byte inherited;   // segments whose descriptors it got at the start

mtype = {idle, reserved, created, kept, entered, delivered, committed};
mtype call[CLIENTS] = idle;  // an Acquire
byte call_lease[CLIENTS];
bool cancelled[CLIENTS];  // by the client, which hears no answer
bool late[CLIENTS];  // of faults: a step of the call is yet to be made
bool call_fresh[CLIENTS], call_regrants[CLIENTS];

mtype = {r_none, r_asked, r_taken, r_done, r_unknown};
mtype release[CLIENTS] = r_none;
byte release_lease[CLIENTS];    // LEASES: of a request
mtype statement[CLIENTS] = r_none;

mtype = {d_idle, d_letting_go, d_waiting, d_closing, d_refunding};
mtype disposal = d_idle;
byte batch, to_remove;  // segments

// --- The clients ----------------------------------------------------------------------------

mtype = {c_new, c_hello, c_opened, c_up, c_broken, c_resumes, c_welcomed, c_states, c_over};
mtype connection[CLIENTS] = c_new;
bool closed[CLIENTS];              // the daemon has yet to see that the socket is closed
bool cut_off[CLIENTS];             // its session has ended by that
byte statements[CLIENTS];          // the number of the newest
byte told[CLIENTS];                // the number of the connection's statement
byte named_leases[CLIENTS], named_request[CLIENTS];  // in the statement under way
byte unknown[CLIENTS];             // leases of it that the daemon did not know

mtype = {a_none, a_booked, a_sent, a_unanswered};
mtype asks[CLIENTS] = a_none;      // the request in flight
byte request[CLIENTS];             // its number; requests before it are over
byte request_named[CLIENTS];       // the newest statement that names it; 0: none
byte sent_after[CLIENTS];          // the statement of the connection that it was sent on
byte answer[CLIENTS];              // 0: none; lease + 1; REFUSED
#define REFUSED 100
bool on_lane[CLIENTS];             // the call may map ahead of its answer
byte early[CLIENTS];               // lease + 1: mapped before the answer
byte held[CLIENTS], pending[CLIENTS];  // leases
byte pending_after[LEASES];        // the newest statement when the lease was given up
byte pending_request[CLIENTS], pending_request_after[CLIENTS];
byte client_lost[CLIENTS];         // leases that the daemon said it does not know

// --- Bounds -----------------------------------------------------------------------------------

byte kills = KILLS, stops = STOPS, crashes = CRASHES, cuts = CUTS, give_ups = GIVE_UPS;
byte manager_kills = MANAGER_KILLS;

// For the steps' own use.
hidden byte i, k, s, count;
hidden byte is_leased, is_exposed, any_live;
hidden byte kept_mapped;
