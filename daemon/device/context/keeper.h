// SPDX-License-Identifier: Apache-2.0
// One device's context process, kept while there is memory in it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/unique_fd.h"
#include "daemon/device/context/process.h"
#include "daemon/device/device.h"
#include "daemon/device/socket_file.h"

namespace gpumemd {

// Thread-safe. Its functions are Device's. Its mutex is held during the start of a context and its
// work, so that requests run one at a time, but not while a context ends. `on_lost` may call
// anything but OnLost, and must not destroy the device.
class ContextKeeper : public std::enable_shared_from_this<ContextKeeper> {
 public:
  explicit ContextKeeper(ContextSpec spec) : spec_(std::move(spec)) {}
  // There is no Allocation left.
  ~ContextKeeper();

  // `pool_max` applies if the tenant has no pool as large. The Allocation keeps `reservation` until
  // its memory is free.
  absl::StatusOr<std::unique_ptr<Allocation>> Create(const CreateSpec& spec, uint64_t pool_max,
                                                     std::shared_ptr<void> reservation);
  absl::StatusOr<std::vector<PoolStatus>> Pools();
  absl::StatusOr<PoolStatus> SetPool(absl::string_view tenant, const PoolChange& change);
  absl::StatusOr<PoolStatus> TrimPool(absl::string_view tenant, uint64_t keep_bytes);
  pid_t pid() const { return pid_; }
  // Returns once no call of the previous `on_lost` is in progress.
  void OnLost(std::function<void()> on_lost);
  void End();

 private:
  class Memory;

  // One context from its start to its end. Thread-safe.
  class Life {
   public:
    bool lost() const { return lost_; }
    // Closes the remaining descriptors of its pools: their memory stays taken while any of them is
    // open.
    void Lose();
    // Null if the pool does not exist (any more).
    std::shared_ptr<const gpumem::UniqueFd> PoolFd(uint64_t pool) const;
    void AddPool(uint64_t pool, gpumem::UniqueFd fd);
    void RemovePool(uint64_t pool);

    std::atomic<int> allocations{0};

   private:
    std::atomic<bool> lost_{false};
    mutable absl::Mutex mutex_;
    std::map<uint64_t, std::shared_ptr<const gpumem::UniqueFd>> pools_ ABSL_GUARDED_BY(mutex_);
  };

  struct Pool {
    std::string tenant;
    uint64_t limit_bytes = 0;  // what it was made for
    uint64_t max_bytes = 0;    // the most that the driver lets it reserve; 0: no such cap
    uint32_t segments = 0;
    // True once memory of it was freed, which it keeps reserved. Nothing new is allocated from it,
    // so that it ends and the device regains that memory.
    bool retired = false;
  };
  using Pools_ = std::map<uint64_t, Pool>;

  // True if there is a context. If it has broken, marks its contents lost.
  bool Alive() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Both of the next two move an ended process into `dead`, which the caller destroys without the
  // mutex. Its thread may be calling on_lost, and its end can take long.
  //
  // Starts a context if there is none. A caller that waited while a start failed (it saw
  // `failed_starts` failures) gets that failure, since a start that hangs takes as long the next
  // time.
  absl::Status Start(uint64_t failed_starts, std::unique_ptr<ContextProcess>& dead)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndIfIdle(std::unique_ptr<ContextProcess>& dead) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::unique_ptr<Allocation>> CreateIpc(const CreateSpec& spec,
                                                        std::shared_ptr<void> reservation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::unique_ptr<Allocation>> CreateInPool(const CreateSpec& spec,
                                                           uint64_t pool_max,
                                                           std::shared_ptr<void> reservation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the tenant's newest pool if it is large enough and not retired, else a new one.
  absl::StatusOr<Pools_::iterator> FindOrMakePool(const std::string& tenant, uint64_t max_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DestroyIfEmpty(Pools_::iterator pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<PoolStatus> Read(const Pools_::value_type& pool)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Applies `work` to each pool of the tenant. Returns the newest pool's status.
  template <typename Work>
  absl::StatusOr<PoolStatus> ForEachPool(absl::string_view tenant, Work work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Free(const std::shared_ptr<Life>& life, uint64_t memory, uint64_t pool);
  void Died(Life& life, pid_t pid);

  const ContextSpec spec_;
  std::atomic<pid_t> pid_{0};
  std::atomic<uint64_t> failed_starts_{0};  // changed under mutex_

  absl::Mutex mutex_;
  absl::Status start_failure_ ABSL_GUARDED_BY(mutex_);  // the last one
  SocketFile socket_file_ ABSL_GUARDED_BY(mutex_);      // of the last context
  std::shared_ptr<Life> life_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ContextProcess> process_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_memory_ ABSL_GUARDED_BY(mutex_) = 1;
  Pools_ pools_ ABSL_GUARDED_BY(mutex_);  // by number: the newest last
  std::map<std::string, PoolChange, std::less<>> settings_ ABSL_GUARDED_BY(mutex_);  // by tenant

  absl::Mutex on_lost_mutex_;  // held during the callback; taken without mutex_
  std::function<void()> on_lost_ ABSL_GUARDED_BY(on_lost_mutex_);
};

}  // namespace gpumemd
