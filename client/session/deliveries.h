// The receiving end of the session socket: hands each Delivery to the call that it is
// for, and notices the end of the session.
//
// There is no thread behind it. The daemon sends a Delivery before the call that it
// belongs to is answered; whoever waits for one reads the socket for all, and parks
// what is for others. A Delivery may come in several messages. It belongs to a call that began
// before it arrived: once all of those have ended and none has taken it, it is abandoned. Its
// descriptors are closed, and TakeAbandoned() says which leases came with it. A call that waits in
// the daemon's queue may take hours, so it keeps none from being abandoned for longer than answers
// take to follow their Delivery.
//
// The descriptor of a memory pool comes with the first Delivery that needs it, whosever that is:
// it is kept here until somebody takes it. What comes of a pool while its descriptor is here or
// taken is closed.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
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
  // Lives from before a call that may be answered with a Delivery is sent until the
  // caller has collected it, or given up.
  class Call {
   public:
    // `waits`: for the daemon to have memory.
    explicit Call(Deliveries* deliveries, bool waits = false);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    // The descriptors of a Delivery that an answer named: one for each of its leases, in
    // order; not valid() for those without one.
    //   UNAVAILABLE         the session has ended
    //   DEADLINE_EXCEEDED   it did not come
    //   RESOURCE_EXHAUSTED  it came and was lost: this process may open no more files
    //   INTERNAL            it did not bring the descriptors that it said
    absl::StatusOr<std::vector<UniqueFd>> Collect(uint64_t delivery_id, absl::Time deadline);

   private:
    Deliveries* const deliveries_;
    const uint64_t number_;
  };

  // `socket` is connected and past Welcome. `answer_follows`: how long after its Delivery a call is
  // answered at the latest, unless the daemon is stopped in between.
  explicit Deliveries(UniqueFd socket, absl::Duration answer_follows = absl::Seconds(30))
      : socket_(std::move(socket)), answer_follows_(answer_follows) {}
  // Ends the session, also where a forked child has a copy of the socket.
  ~Deliveries();
  Deliveries(const Deliveries&) = delete;
  Deliveries& operator=(const Deliveries&) = delete;

  // Reads what has arrived, without waiting. UNAVAILABLE, with the daemon's reason,
  // once the session has ended.
  absl::Status Poll();
  // The same, waiting for the end until then.
  absl::Status AwaitEnd(absl::Time until);
  // Whether the session has ended for good. Else, where Poll() says that it has ended, the daemon
  // is gone, and the next one may know the session.
  bool over();

  // The descriptor of a pool that a Delivery has brought; it is not given twice, unless it is
  // returned, or forgotten and sent again.
  //   RESOURCE_EXHAUSTED  it came and was lost: this process could open no more files
  //   INTERNAL            it never came
  absl::StatusOr<UniqueFd> TakePool(uint64_t pool_id);

  // Whether a Delivery in several parts is on its way.
  bool HasPart();

  void ReturnPool(uint64_t pool_id, UniqueFd fd);
  void ForgetPool(uint64_t pool_id);

  // The leases of each Delivery that was abandoned since the last time; the caller
  // releases them.
  std::vector<std::vector<uint64_t>> TakeAbandoned();

 private:
  struct Parked {
    std::vector<uint64_t> lease_ids;
    absl::StatusOr<std::vector<UniqueFd>> fds;  // by lease
    uint64_t newest_call = 0;                   // the youngest that it can belong to
    absl::Time arrived;
    uint32_t parts_missing = 0;  // nobody collects it before all have come
  };

  uint64_t Begin(bool waits);
  void End(uint64_t call);
  absl::StatusOr<std::vector<UniqueFd>> Collect(uint64_t call, uint64_t delivery_id,
                                                absl::Time deadline);
  // Reads one message. Lets go of the mutex while it waits; reading_ keeps others away.
  // False when nothing came until the deadline, or ever will.
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
  absl::Status end_ ABSL_GUARDED_BY(mutex_);  // not OK: it has ended, and why
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t newest_call_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<uint64_t> calls_ ABSL_GUARDED_BY(mutex_);    // under way; but for
  std::set<uint64_t> waiting_ ABSL_GUARDED_BY(mutex_);  // those that wait for memory
  // Calls up to this one may have lost their Delivery: they do not wait for it.
  uint64_t lossy_until_ ABSL_GUARDED_BY(mutex_) = 0;
  // By pool id; not valid() for those that were taken.
  std::map<uint64_t, UniqueFd> pools_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Parked> parked_ ABSL_GUARDED_BY(mutex_);  // by delivery id
  std::vector<std::vector<uint64_t>> abandoned_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumem::internal
