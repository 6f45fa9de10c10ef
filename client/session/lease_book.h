// SPDX-License-Identifier: Apache-2.0
// The client's record of a session's state: the leases and claims that it holds, the requests
// without an answer yet, and its pending releases. It is the source of Reconcile, which restores
// the state of a daemon after a crash.
//
// A statement is a copy of the book for one Reconcile. It names the held leases and the requests
// that may be repeated; the daemon ends all other leases. A statement thereby completes the
// releases that were pending before it. Each pending therefore records the newest statement at its
// creation.
//
// Thread-safe; calls no other object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace gpumem::internal {

// True if leases may still be held after a release with that status. All other statuses are final:
// the leases have ended, now, before, or with the session.
bool MayStillHold(const absl::Status& release);

class LeaseBook {
 public:
  // Pending releases: leases and requests that the daemon must still be told to end.
  struct PendingRelease {
    std::vector<uint64_t> lease_ids;
    std::vector<uint64_t> request_ids;  // all leases granted to these
    std::vector<uint64_t> claims;       // of these requests
    uint64_t statement = 0;             // the newest at its creation

    bool empty() const { return lease_ids.empty() && request_ids.empty() && claims.empty(); }
  };

  struct Statement {
    uint64_t number = 0;
    std::vector<uint64_t> lease_ids;    // held
    std::vector<uint64_t> request_ids;  // in flight, or with a claim that is held
  };

  // What a claim is for: the name of a publication, and its content id.
  using Contents = std::pair<std::string, std::string>;

  // A request for leases or a claim, from before it is sent until its leases are held or it is
  // given up. If it is given up after a statement named it, it becomes a pending release: the
  // daemon keeps the leases that its predecessor granted to it.
  class Request {
   public:
    explicit Request(LeaseBook* book) : book_(book), id_(book->Begin()) {}
    ~Request() { book_->End(id_); }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    uint64_t id() const { return id_; }
    // Records its leases as held: they have arrived. Call at most once.
    void Granted(absl::Span<const uint64_t> lease_ids) { book_->Granted(id_, lease_ids); }
    // Records its claim on contents as held. Call at most once.
    void Claimed(Contents contents) { book_->Claimed(id_, std::move(contents)); }

   private:
    LeaseBook* const book_;
    const uint64_t id_;
  };

  // A call that may map memory ahead of its answer. Ends once the leases are held, or nothing of
  // them is mapped: to the daemon a segment that a statement does not name is not mapped.
  class EarlyMapping {
   public:
    explicit EarlyMapping(LeaseBook* book) : book_(book) { book_->CountEarly(1); }
    ~EarlyMapping() { End(); }
    EarlyMapping(const EarlyMapping&) = delete;
    EarlyMapping& operator=(const EarlyMapping&) = delete;

    // May be called again.
    void End() {
      if (book_ != nullptr) std::exchange(book_, nullptr)->CountEarly(-1);
    }

   private:
    LeaseBook* book_;
  };

  LeaseBook() = default;
  LeaseBook(const LeaseBook&) = delete;
  LeaseBook& operator=(const LeaseBook&) = delete;

  // Removes held leases and returns them as a pending release, without the lost ones.
  PendingRelease GiveUp(absl::Span<const uint64_t> lease_ids);

  // Removes a held claim and returns it as a pending release; empty if it has been published.
  PendingRelease GiveUpClaim(uint64_t request);
  // Returns a pending release of the claim that a request without an answer may have got.
  PendingRelease GiveUpUnheard(uint64_t request) const;
  // Returns the claims on these contents that are held.
  std::vector<uint64_t> ClaimsOn(const Contents& contents) const;
  // Records that these claims have ended by a publication.
  void Published(absl::Span<const uint64_t> claims);

  // Stores a pending release for a later flush, together with others of the same statement: so
  // many leases and requests at most.
  static constexpr size_t kMostTogether = 512;
  void AddPending(PendingRelease pending);
  // Takes the pending releases to flush to the daemon whose newest statement is `statement`. Drops
  // those that this statement completed.
  std::vector<PendingRelease> TakePending(uint64_t statement);
  // True if a pending release is for a later daemon than that of `statement`.
  bool HasPendingAfter(uint64_t statement) const;

  // Blocks until there is no EarlyMapping. Returns false if there still is one at `until`.
  bool AwaitEarlyMappings(absl::Time until) const;
  // Call AwaitEarlyMappings() first.
  Statement MakeStatement();
  // Records that the daemon did not know these leases of a statement. Those still held are lost.
  void Lost(absl::Span<const uint64_t> lease_ids);

  // Removes from the list the leases that are held.
  void DropHeld(std::vector<uint64_t>* lease_ids) const;
  bool IsLost(uint64_t lease_id) const;
  // Returns all leases that are lost and not given up.
  std::set<uint64_t> lost() const;

 private:
  uint64_t Begin();
  void Granted(uint64_t request, absl::Span<const uint64_t> lease_ids);
  void Claimed(uint64_t request, Contents contents);
  void End(uint64_t request);
  void CountEarly(int change);

  mutable absl::Mutex mutex_;
  uint64_t newest_request_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t newest_statement_ ABSL_GUARDED_BY(mutex_) = 0;
  int early_ ABSL_GUARDED_BY(mutex_) = 0;
  // In flight, with the last statement that named them; 0: none.
  std::map<uint64_t, uint64_t> requests_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> held_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Contents> claims_ ABSL_GUARDED_BY(mutex_);  // held, by request
  std::set<uint64_t> lost_ ABSL_GUARDED_BY(mutex_);
  std::vector<PendingRelease> pending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::internal
