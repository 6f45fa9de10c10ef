// SPDX-License-Identifier: Apache-2.0
// The receiving end of the session socket: passes each Delivery to its call, and detects the end of
// the session.
//
// It has no thread. The daemon sends a Delivery before it answers the call. A thread that waits for
// a Delivery reads the socket for all calls and parks the Deliveries of other calls. A Delivery may
// come in several messages. It belongs to a call that began before it arrived. If all of those
// calls have ended without taking it, it is abandoned: its descriptors are closed, and
// TakeAbandoned() returns its leases. A call that waits in the daemon's queue may take hours. It
// therefore delays this only for as long as an answer may take to follow its Delivery.
//
// The descriptor of a memory pool comes with the first Delivery that needs it, of any call. It is
// kept here until TakePool(). Duplicates that arrive while it is kept or taken are closed.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "proto/gpumem/v1/session.pb.h"

namespace gpumem::internal {

class Deliveries {
 public:
  // Must be created before a call is sent that may be answered with a Delivery, and live until the
  // caller has collected it or given up.
  class Call {
   public:
    // `waits`: true if the call waits for the daemon to have memory.
    explicit Call(Deliveries* deliveries, bool waits = false);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // Blocks until the Delivery that an answer named has arrived. Returns its descriptors: one for
    // each lease, in order; not valid() for leases without one.
    //   UNAVAILABLE         the session has ended
    //   DEADLINE_EXCEEDED   it did not come
    //   RESOURCE_EXHAUSTED  it came and was lost: this process may open no more files
    //   INTERNAL            its descriptors do not match its description
    absl::StatusOr<std::vector<UniqueFd>> Collect(uint64_t delivery_id, absl::Time deadline);

    // A Delivery that describes its leases (session.proto).
    struct Arrival {
      uint64_t delivery_id = 0;
      std::vector<v1::Lease> leases;
      std::vector<UniqueFd> fds;  // as of Collect
    };
    // Takes the Delivery for this request, if it has arrived whole and describes its leases. Reads
    // the socket, without blocking; if another thread is reading it, waits for that thread until
    // then.
    std::optional<Arrival> TakeArrived(uint64_t request_id, absl::Time until);

   private:
    Deliveries* const deliveries_;
    const uint64_t number_;
  };

  // `socket` is connected and past Welcome. `answer_follows`: the maximum time from a Delivery to
  // the answer of its call, unless the daemon is stopped in between.
  explicit Deliveries(UniqueFd socket, absl::Duration answer_follows = absl::Seconds(30))
      : socket_(std::move(socket)), answer_follows_(answer_follows) {}
  // Ends the session, even if a forked child has a copy of the socket.
  ~Deliveries();
  Deliveries(const Deliveries&) = delete;
  Deliveries& operator=(const Deliveries&) = delete;

  // Reads the messages that have arrived, without blocking. Returns UNAVAILABLE, with the daemon's
  // reason, once the session has ended.
  absl::Status Poll();
  // As Poll(), but blocks for the end of the session until that time.
  absl::Status AwaitEnd(absl::Time until);
  // Blocks until the session socket or `other` can be read, or has ended.
  enum class Readable { kNone, kSession, kOther, kBoth };
  Readable AwaitReadable(int other, absl::Time until) const;
  // True if the session has ended for good. False after Poll() failed: the daemon is gone, and the
  // next one may know the session.
  bool over();

  // Takes the descriptor of a pool that a Delivery has brought. It can be taken once, unless it is
  // returned, or forgotten and sent again.
  //   RESOURCE_EXHAUSTED  it came and was lost: this process could open no more files
  //   INTERNAL            it never came
  absl::StatusOr<UniqueFd> TakePool(uint64_t pool_id);

  // Takes the descriptor of a page of memory (OpenMemoryPage) that a Delivery has brought last.
  // Not valid() if it came and was lost.
  UniqueFd TakeMemoryPage();

  // True if a Delivery has arrived in part.
  bool HasPart();

  void ReturnPool(uint64_t pool_id, UniqueFd fd);
  void ForgetPool(uint64_t pool_id);

  // Returns the leases of each Delivery abandoned since the last call. The caller releases them.
  std::vector<std::vector<uint64_t>> TakeAbandoned();

 private:
  struct Parked {
    std::vector<uint64_t> lease_ids;
    absl::StatusOr<std::vector<UniqueFd>> fds;  // by lease
    uint64_t newest_call = 0;                   // the newest call that it can belong to
    absl::Time arrived;
    uint32_t parts_missing = 0;        // 0: it can be collected
    uint64_t request_id = 0;           // if it describes its leases
    std::vector<v1::Lease> described;  // likewise, else empty
  };

  uint64_t Begin(bool waits);
  void End(uint64_t call);
  absl::StatusOr<std::vector<UniqueFd>> Collect(uint64_t call, uint64_t delivery_id,
                                                absl::Time deadline);
  std::optional<Call::Arrival> TakeArrived(uint64_t call, uint64_t request_id, absl::Time until);
  std::optional<Call::Arrival> FindArrived(uint64_t call, uint64_t request_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads one message. Releases the mutex while it blocks; reading_ excludes other readers. False
  // if no message came by the deadline, or none can come any more.
  bool ReadOne(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Take(UnixMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Park(const v1::Delivery& delivery, std::vector<UniqueFd> fds)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPart(const v1::Delivery& delivery, Parked part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const UniqueFd socket_;
  const absl::Duration answer_follows_;
  absl::Mutex mutex_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);  // not OK: the session has ended, and why
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t newest_call_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<uint64_t> calls_ ABSL_GUARDED_BY(mutex_);    // in flight, except
  std::set<uint64_t> waiting_ ABSL_GUARDED_BY(mutex_);  // those that wait for memory
  // Calls up to this number may have lost their Delivery: they do not wait for it.
  uint64_t lossy_until_ ABSL_GUARDED_BY(mutex_) = 0;
  // By pool id; not valid() for descriptors that were taken.
  std::map<uint64_t, UniqueFd> pools_ ABSL_GUARDED_BY(mutex_);
  UniqueFd memory_page_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Parked> parked_ ABSL_GUARDED_BY(mutex_);  // by delivery id
  std::vector<std::vector<uint64_t>> abandoned_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::internal
