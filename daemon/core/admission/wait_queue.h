// SPDX-License-Identifier: Apache-2.0
// The order of requests that wait for memory, and which of them have to be checked again.
//
// Waiters are served in this order:
// 1. By guarantee: the tenant with most of its guarantee unused goes first, if that part covers the
//    request.
// 2. By the tenant's priority.
// 3. By arrival.
// A later waiter gets nothing that an earlier one waits for, so small requests do not starve a
// large one. A waiter claims what it asked for on each of its limits, up to the last one that
// blocks it. If a limit of its tenants blocks it, it claims only up to the first such limit: while
// a tenant waits for itself, memory of the device is free for others.
//
// The outcome is that of a sweep that checks every waiter, in order, after every change, and begins
// anew after every grant. But a change serves few waiters. So a sweep checks only waiters that are
// awake, and skips those whose decision cannot have changed. What can change a decision:
//
//   - A waiter that a limit of its tenants blocks depends on the accounts of its tenant's tree.
//     That tree is a topmost tenant and all tenants under it. The decision also depends on the
//     claims of earlier waiters in that tree (Tree).
//   - A waiter that the device blocks firmly depends on its tree's accounts. It sleeps while
//     firm use there, its request and the claims before it exceed the capacity; or while the
//     same sum of needs does. QueueLine knows these sums, and the first waiter that they no
//     longer keep out.
//   - All others wait for memory on its way back. They depend on their tree, and on every
//     change on their device (Limit::restless). Waiters that the daemon's limit of segments keeps
//     out depend on every change on any device.
//   - A waiter for which sessions could suspend also depends on SwapPolicy. It says when others can
//     be asked, and when no more is to be expected of those that were (WakeAwaitingSuspension).
//
// A waiter that comes, goes, or claims more or less changes the sums for those behind it. In its
// tree it wakes those behind it that sums alone do not keep asleep. It wakes others only if they
// are restless, or if the sums let them in now.
//
// A pass checks a bounded number of waiters; the next one continues from there. Meanwhile waiters
// that are awake keep their claims, so no other waiter gets that memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "daemon/core/admission/queue_line.h"
#include "daemon/core/admission/room.h"
#include "daemon/core/admission/standing.h"
#include "daemon/core/ids.h"
#include "daemon/core/ledger/records.h"
#include "daemon/core/ledger/state.h"
#include "daemon/core/ledger/tenants.h"

namespace gpumemd {

class WaitQueue {
 public:
  // All must outlive this. The queue alone changes state->waiters.
  WaitQueue(LedgerState* state, const Room* room, Tenants* tenants)
      : state_(*state), room_(*room), tenants_(*tenants), limits_(state_.devices.size() + 1) {}

  // Brings the order up to date after quotas have changed.
  void Refresh() {
    if (state_.queue_stale) PlaceAll();
  }
  // Adds a waiter. If it has asked to wait, its call is no longer in flight. `decision`: the one by
  // which it waits.
  void Add(WaiterId id, records::Waiter added, const Decision& decision);
  // Removes a waiter. If it had asked to wait, its call is in flight again. May forget the tenant
  // whose memory it waited for.
  void Remove(WaiterId id);
  // Records a new decision by which it waits, and which waiters have to be checked because of that.
  void SetDecision(WaiterId id, records::Waiter& waiter, const Decision& decision);

  // Return the claims of waiters before the place, assuming no reuse.
  // Requires that the order is up to date.
  Claims ClaimsBefore(const QueuePlace& place, const records::Request& request) const;
  Claims ClaimsBefore(WaiterId id) const;

  // Wakes waiters that no ending session keeps waiting any more.
  void WakeAwaitingEnd();

  // Wakes waiters for which sessions could suspend. AwaitsSuspension is true if there are any.
  void WakeAwaitingSuspension();
  bool AwaitsSuspension() const { return !await_suspension_.empty(); }

  // --- A pass over the waiters that are awake

  // True if a pass may find a waiter whose decision has changed.
  bool Moves() const;
  void BeginPass();
  // Returns the next waiter to check, if any.
  std::optional<QueuePlace> Next();
  // Begins the check of that waiter. Returns the claims of those before it, valid until the next
  // call.
  const Claims& Take(const QueuePlace& place);
  // Says that the waiter was granted its request, and is removed. Its tenant has less of its
  // guarantee unused now, and its process holds leases, firm or revocable. So other waiters may go
  // first, or some no longer, and those passed over claim other amounts: a new sweep begins, unless
  // none of that is possible.
  void Granted(const QueuePlace& place, const records::Request& request, SessionId session);
  // Wakes the waiters that the last check may serve.
  void Checked() { Wake(swept_); }
  // Ends the pass. `complete`: Next() had no more; else the next pass continues.
  void EndPass(bool complete) { moves_ = !complete; }

  // Part of Ledger::CheckInvariants (wait_queue_invariants.cc).
  absl::Status CheckInvariants() const;

 private:
  using Request = records::Request;
  using Session = records::Session;
  using Tenant = records::Tenant;
  using Waiter = records::Waiter;
  using ProcessKey = LedgerState::ProcessKey;

  // Waiters of a topmost tenant and of the tenants under it.
  struct Tree {
    absl::btree_set<QueuePlace> waiters;
    absl::btree_set<QueuePlace> loose;  // of these, all but those asleep at the device's limit
    uint64_t seen = 0;                  // VersionOf it when they were last woken
    std::optional<QueuePlace> changed;  // first that claims more or less, or has gone
    bool all_behind = false;            // check all behind `changed`, not only the loose ones
    // All behind this place were woken in sweep `woken_sweep`.
    std::optional<QueuePlace> woken;
    uint64_t woken_sweep = 0;
  };
  // Waiters that no limit of their tenants keeps out, at a limit without a tenant: a device's or,
  // as the last limit, the daemon's limit of segments.
  struct Limit {
    QueueLine line;
    absl::btree_set<QueuePlace> restless;  // of these, that any change there may serve
    uint64_t seen = 0;                     // VersionOf it when these were last woken
    std::optional<QueuePlace> changed;     // first that claims more or less, or has gone
  };
  // What earlier waiters claim of their tenants' limits, in the sweep under way.
  struct Sweep {
    Claims claims;
    absl::flat_hash_map<const Tenant*, QueuePlace> counted;  // last one counted, by tree
  };

  static ClaimKey DeviceKey(size_t device) { return {Denial::Cause::kCapacity, nullptr, device}; }
  static constexpr ClaimKey kSegmentsKey = {Denial::Cause::kDaemonLimit, nullptr, kAllDevices};

  static QueuePlace PlaceOf(WaiterId id, const Waiter& waiter) { return {waiter.rank, id}; }
  static uint64_t VersionOf(const Tenant& top);
  uint64_t VersionOf(size_t limit) const;  // a device's index, or devices.size(): the daemon's
  QueueLine::Left LeftAt(size_t limit) const;

  // Assigns each waiter's place anew after quotas have changed. All are to be checked.
  void PlaceAll();
  // Moves the waiter, and the data kept by its place, to the place of its present rank.
  void Move(WaiterId id, Waiter& waiter, const QueueRank& rank);
  // Removes the waiter from everything ordered by place except its tree.
  void TakeOut(const QueuePlace& place, const Waiter& waiter, Tree& tree);
  void SetEntry(size_t limit, const QueuePlace& place, const QueueLine::Entry& entry);
  void NoteChange(std::optional<QueuePlace>& changed, const QueuePlace& place);

  // Wakes the waiters that a change since the last call may serve. `at`: position of the sweep
  // under way. Waiters before it are checked again in the next sweep.
  void Wake(const std::optional<QueuePlace>& at);
  void WakeTree(const Tenant& top, Tree& tree, const std::optional<QueuePlace>& at);
  void WakeOne(const QueuePlace& place, const std::optional<QueuePlace>& at);
  // Wakes waiters of processes that hold firm leases and asked for revocable ones, or the reverse.
  void WakeHoldersOfOtherLeaseType();
  // Wakes waiters for suspended publications that have ended, or whose segments have moved.
  void WakeForPublications();
  // Returns the next waiter to check, behind swept_.
  std::optional<QueuePlace> NextAwake() const;
  void BeginSweep();
  // True if the grant to a waiter at this place changes nothing for those before it.
  bool WasAlone(const QueuePlace& place, const Request& request, SessionId session) const;

  LedgerState& state_;
  const Room& room_;
  Tenants& tenants_;

  absl::flat_hash_map<const Tenant*, Tree> trees_;
  std::vector<Limit> limits_;           // of the devices, and of the daemon
  absl::btree_set<QueuePlace> awake_;   // to be checked
  absl::btree_set<QueuePlace> roused_;  // woken by the sweep itself: for the next one
  std::optional<QueuePlace> swept_;     // up to here, if a sweep is under way
  Sweep sweep_;
  uint64_t sweeps_ = 0;    // that were begun
  uint64_t woken_at_ = 0;  // the sum of all devices' versions at the end of Wake
  bool changed_ = false;   // a tree or a limit has changed
  bool moves_ = false;     // a waiter has come, gone or woken, or a pass is unfinished
  absl::btree_set<WaiterId> await_end_;         // that an ending session keeps from a decision
  absl::btree_set<WaiterId> await_suspension_;  // Decision::awaits_suspension
  std::map<ProcessKey, absl::btree_set<WaiterId>> waiting_processes_;
  absl::btree_set<std::pair<PublicationId, WaiterId>> for_publications_;
};

}  // namespace gpumemd
