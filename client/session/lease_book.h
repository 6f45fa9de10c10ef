// What a session has of its daemon, as the client knows it: the leases that it holds, the requests
// whose answers it has not heard, and what it still has to give back. From this it can tell a
// daemon that comes after a crash what is true (Reconcile).
//
// A statement is a copy of the book for one Reconcile. It names what is held and who may ask again;
// what it does not name ends with it. So what was to be given back before a statement is given back
// by it: debts say before which statement they were made.
//
// Thread-safe; calls nobody.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace gpumem::internal {

class LeaseBook {
 public:
  // What is to be given back to the daemon.
  struct Debt {
    std::vector<uint64_t> lease_ids;
    std::vector<uint64_t> request_ids;  // whatever these were granted
    uint64_t statement = 0;             // the newest when it was made

    bool empty() const { return lease_ids.empty() && request_ids.empty(); }
  };

  struct Statement {
    uint64_t number = 0;
    std::vector<uint64_t> lease_ids;    // held
    std::vector<uint64_t> request_ids;  // under way
  };

  // A request for leases, from before it is sent until its leases are held or it is given up. One
  // that is given up after a statement has named it becomes a debt: the daemon keeps for it what it
  // was granted by the one before.
  class Request {
   public:
    explicit Request(LeaseBook* book) : book_(book), id_(book->Begin()) {}
    ~Request() { book_->End(id_); }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    uint64_t id() const { return id_; }
    // Its leases have arrived: they are held from here on. Once.
    void Granted(absl::Span<const uint64_t> lease_ids) { book_->Granted(id_, lease_ids); }

   private:
    LeaseBook* const book_;
    const uint64_t id_;
  };

  LeaseBook() = default;
  LeaseBook(const LeaseBook&) = delete;
  LeaseBook& operator=(const LeaseBook&) = delete;

  // These are held no longer. Those that are lost are no debt.
  Debt GiveUp(absl::Span<const uint64_t> lease_ids);

  // Keeps a debt for later.
  void Owe(Debt debt);
  // The debts to be paid to the daemon that has heard this statement and no younger one. Those that
  // it has made good are gone.
  std::vector<Debt> TakeOwed(uint64_t statement);

  Statement MakeStatement();
  // The daemon did not know these of a statement. Those of them that are held are lost.
  void Lost(absl::Span<const uint64_t> lease_ids);

  bool IsLost(uint64_t lease_id) const;
  // All that are lost and not given up.
  std::set<uint64_t> lost() const;

 private:
  uint64_t Begin();
  void Granted(uint64_t request, absl::Span<const uint64_t> lease_ids);
  void End(uint64_t request);

  mutable absl::Mutex mutex_;
  uint64_t newest_request_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t newest_statement_ ABSL_GUARDED_BY(mutex_) = 0;
  // Under way, with the statement that named them last; 0: none.
  std::map<uint64_t, uint64_t> requests_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> held_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> lost_ ABSL_GUARDED_BY(mutex_);
  std::vector<Debt> owed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::internal
