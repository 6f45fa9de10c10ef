// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/keeper.h"

#include <utility>

#include "absl/status/status.h"

namespace gpumemd {
namespace {

// Numbers of pools, among all devices of this process.
uint64_t NextPool() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

// Adds the attributes of `change` to `settings`.
void Merge(const PoolChange& change, PoolChange& settings) {
  const auto set = [](const auto& from, auto& to) {
    if (from.has_value()) to = from;
  };
  set(change.release_threshold_bytes, settings.release_threshold_bytes);
  set(change.reuse_follow_event_dependencies, settings.reuse_follow_event_dependencies);
  set(change.reuse_allow_opportunistic, settings.reuse_allow_opportunistic);
  set(change.reuse_allow_internal_dependencies, settings.reuse_allow_internal_dependencies);
}

}  // namespace

// Memory in a context.
class ContextKeeper::Memory : public Allocation {
 public:
  // `pool` is 0 for memory of none.
  Memory(std::shared_ptr<ContextKeeper> keeper, std::shared_ptr<Life> life, uint64_t memory,
         const ExportData& data, uint64_t pool, std::shared_ptr<void> reservation)
      : keeper_(std::move(keeper)),
        life_(std::move(life)),
        memory_(memory),
        data_(data),
        pool_(pool),
        reservation_(std::move(reservation)) {
    ++life_->allocations;
  }
  ~Memory() override { keeper_->Free(life_, memory_, pool_); }

  std::optional<ExportData> export_data() const override { return data_; }
  std::optional<ExportedPool> pool() const override {
    std::shared_ptr<const gpumem::UniqueFd> fd = life_->PoolFd(pool_);
    if (fd == nullptr) return std::nullopt;
    const int number = fd->get();
    return ExportedPool{.id = pool_, .fd = number, .open = std::move(fd)};
  }
  bool lost() const override { return life_->lost(); }

 private:
  const std::shared_ptr<ContextKeeper> keeper_;
  const std::shared_ptr<Life> life_;
  const uint64_t memory_;
  const ExportData data_;
  const uint64_t pool_;
  const std::shared_ptr<void> reservation_;
};

void ContextKeeper::Life::Lose() {
  absl::MutexLock lock(&mutex_);
  lost_ = true;
  pools_.clear();
}

std::shared_ptr<const gpumem::UniqueFd> ContextKeeper::Life::PoolFd(uint64_t pool) const {
  absl::MutexLock lock(&mutex_);
  const auto found = pools_.find(pool);
  return found == pools_.end() ? nullptr : found->second;
}

void ContextKeeper::Life::AddPool(uint64_t pool, gpumem::UniqueFd fd) {
  absl::MutexLock lock(&mutex_);
  if (!lost_) pools_[pool] = std::make_shared<const gpumem::UniqueFd>(std::move(fd));
}

void ContextKeeper::Life::RemovePool(uint64_t pool) {
  absl::MutexLock lock(&mutex_);
  pools_.erase(pool);
}

ContextKeeper::~ContextKeeper() {
  absl::MutexLock lock(&mutex_);
  process_.reset();
  socket_file_.Remove();  // left behind if the process was killed
}

void ContextKeeper::OnLost(std::function<void()> on_lost) {
  absl::MutexLock lock(&on_lost_mutex_);
  on_lost_ = std::move(on_lost);
}

// In the process's thread; must not take mutex_, which is held while that thread is joined.
void ContextKeeper::Died(Life& life, pid_t pid) {
  life.Lose();
  pid_.compare_exchange_strong(pid, 0);
  if (life.allocations == 0) return;
  absl::MutexLock lock(&on_lost_mutex_);
  if (on_lost_ != nullptr) on_lost_();
}

bool ContextKeeper::Alive() {
  if (process_ == nullptr) return false;
  if (process_->broken()) life_->Lose();  // its thread may not have come to it yet
  return !life_->lost();
}

absl::Status ContextKeeper::Start(uint64_t failed_starts, std::unique_ptr<ContextProcess>& dead) {
  if (Alive()) return absl::OkStatus();
  if (failed_starts != failed_starts_) return start_failure_;
  dead = std::move(process_);
  pools_.clear();
  life_ = std::make_shared<Life>();
  absl::StatusOr<std::unique_ptr<ContextProcess>> started =
      ContextProcess::Start(spec_, [this, life = life_](pid_t pid) { Died(*life, pid); });
  if (!started.ok()) {
    start_failure_ = started.status();
    ++failed_starts_;
    return start_failure_;
  }
  process_ = *std::move(started);
  if (!spec_.socket_path.empty()) socket_file_ = SocketFile::At(spec_.socket_path);
  pid_ = process_->pid();
  if (process_->broken()) pid_ = 0;  // it died before its number was set
  return absl::OkStatus();
}

void ContextKeeper::EndIfIdle(std::unique_ptr<ContextProcess>& dead) {
  if (!Alive() || life_->allocations > 0) return;
  pid_ = 0;
  dead = std::move(process_);
  pools_.clear();
}

void ContextKeeper::End() {
  std::unique_ptr<ContextProcess> dead;
  absl::MutexLock lock(&mutex_);
  if (!Alive()) return;
  life_->Lose();
  pid_ = 0;
  dead = std::move(process_);
  pools_.clear();
}

absl::StatusOr<std::unique_ptr<Allocation>> ContextKeeper::Create(
    const CreateSpec& spec, uint64_t pool_max, std::shared_ptr<void> reservation) {
  const uint64_t failed_starts = failed_starts_;  // before it waits for the mutex
  // They outlive the lock, as the made segment does.
  std::unique_ptr<ContextProcess> dead, idle;
  absl::StatusOr<std::unique_ptr<Allocation>> made;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = Start(failed_starts, dead); !status.ok()) return status;
    absl::StatusOr<std::unique_ptr<Allocation>> memory =
        TraitsOf(spec.kind).pooled ? CreateInPool(spec, pool_max, std::move(reservation))
                                   : CreateIpc(spec, std::move(reservation));
    EndIfIdle(idle);
    if (!memory.ok()) return memory;
    made = *std::move(memory);
  }
  // on_lost may have been told before there was any memory to lose.
  if ((*made)->lost()) {
    return absl::UnavailableError("the context process ended after it made the memory; try again");
  }
  return made;
}

absl::StatusOr<std::unique_ptr<Allocation>> ContextKeeper::CreateIpc(
    const CreateSpec& spec, std::shared_ptr<void> reservation) {
  const uint64_t memory = next_memory_++;
  const absl::StatusOr<ExportData> data = process_->CreateIpc(memory, spec.bytes);
  if (!data.ok()) return data.status();
  return std::make_unique<Memory>(shared_from_this(), life_, memory, *data, /*pool=*/0,
                                  std::move(reservation));
}

absl::StatusOr<std::unique_ptr<Allocation>> ContextKeeper::CreateInPool(
    const CreateSpec& spec, uint64_t pool_max, std::shared_ptr<void> reservation) {
  const absl::StatusOr<Pools_::iterator> pool = FindOrMakePool(spec.tenant, pool_max);
  if (!pool.ok()) return pool.status();
  const uint64_t memory = next_memory_++;
  const absl::StatusOr<ExportData> data = process_->Allocate(memory, (*pool)->first, spec.bytes);
  if (!data.ok()) {
    DestroyIfEmpty(*pool);
    return data.status();
  }
  ++(*pool)->second.segments;
  return std::make_unique<Memory>(shared_from_this(), life_, memory, *data, (*pool)->first,
                                  std::move(reservation));
}

absl::StatusOr<ContextKeeper::Pools_::iterator> ContextKeeper::FindOrMakePool(
    const std::string& tenant, uint64_t max_bytes) {
  for (auto pool = pools_.end(); pool != pools_.begin();) {
    --pool;
    if (pool->second.tenant != tenant) continue;
    if (pool->second.limit_bytes >= max_bytes && !pool->second.retired) return pool;
    break;
  }
  const uint64_t number = NextPool();
  absl::StatusOr<MadePool> made = process_->CreatePool(number, max_bytes);
  absl::Status status = made.status();
  if (const auto settings = settings_.find(tenant); status.ok() && settings != settings_.end()) {
    status = process_->SetPool(number, settings->second);
  }
  if (!status.ok()) {
    // The pool may exist even so, if there was no room for its descriptor here. If not, nothing is
    // lost.
    process_->DestroyPool(number).IgnoreError();
    return status;
  }
  life_->AddPool(number, std::move(made->fd));
  return pools_
      .emplace(number,
               Pool{.tenant = tenant, .limit_bytes = max_bytes, .max_bytes = made->max_bytes})
      .first;
}

void ContextKeeper::DestroyIfEmpty(Pools_::iterator pool) {
  if (pool->second.segments > 0) return;
  // It fails only if the context is lost, and the pool with it.
  process_->DestroyPool(pool->first).IgnoreError();
  life_->RemovePool(pool->first);
  pools_.erase(pool);
}

void ContextKeeper::Free(const std::shared_ptr<Life>& life, uint64_t memory, uint64_t pool) {
  std::unique_ptr<ContextProcess> idle;
  absl::MutexLock lock(&mutex_);
  --life->allocations;
  if (life != life_ || !Alive()) return;  // it went with its process
  // As above.
  process_->Free(memory).IgnoreError();
  if (const auto found = pools_.find(pool); found != pools_.end()) {
    --found->second.segments;
    found->second.retired = true;
    DestroyIfEmpty(found);
  }
  EndIfIdle(idle);
}

absl::StatusOr<PoolStatus> ContextKeeper::Read(const Pools_::value_type& pool) {
  const absl::StatusOr<PoolNumbers> numbers = process_->ReadPool(pool.first);
  if (!numbers.ok()) return numbers.status();
  return PoolStatus{
      .tenant = pool.second.tenant,
      .segments = pool.second.segments,
      .max_bytes = pool.second.max_bytes,
      .reserved_bytes = numbers->reserved_bytes,
      .reserved_peak_bytes = numbers->reserved_peak_bytes,
      .used_bytes = numbers->used_bytes,
      .used_peak_bytes = numbers->used_peak_bytes,
      .release_threshold_bytes = numbers->release_threshold_bytes,
      .reuse_follow_event_dependencies = numbers->reuse_follow_event_dependencies,
      .reuse_allow_opportunistic = numbers->reuse_allow_opportunistic,
      .reuse_allow_internal_dependencies = numbers->reuse_allow_internal_dependencies,
  };
}

absl::StatusOr<std::vector<PoolStatus>> ContextKeeper::Pools() {
  std::vector<PoolStatus> pools;
  if (pid_ == 0) return pools;  // nor does it wait for one that starts
  absl::MutexLock lock(&mutex_);
  if (!Alive()) return pools;
  for (const auto& pool : pools_) {
    absl::StatusOr<PoolStatus> status = Read(pool);
    if (!status.ok()) return status.status();
    pools.push_back(*std::move(status));
  }
  return pools;
}

template <typename Work>
absl::StatusOr<PoolStatus> ContextKeeper::ForEachPool(absl::string_view tenant, Work work) {
  const Pools_::value_type* newest = nullptr;
  if (Alive()) {
    for (const auto& pool : pools_) {
      if (pool.second.tenant != tenant) continue;
      if (absl::Status status = work(*process_, pool.first); !status.ok()) return status;
      newest = &pool;
    }
  }
  if (newest == nullptr) return absl::NotFoundError("the tenant has no pool here");
  return Read(*newest);
}

absl::StatusOr<PoolStatus> ContextKeeper::SetPool(absl::string_view tenant,
                                                  const PoolChange& change) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<PoolStatus> status = ForEachPool(
      tenant,
      [&change](ContextProcess& process, uint64_t pool) { return process.SetPool(pool, change); });
  if (status.ok()) Merge(change, settings_[std::string(tenant)]);
  return status;
}

absl::StatusOr<PoolStatus> ContextKeeper::TrimPool(absl::string_view tenant, uint64_t keep_bytes) {
  absl::MutexLock lock(&mutex_);
  return ForEachPool(tenant, [keep_bytes](ContextProcess& process, uint64_t pool) {
    return process.TrimPool(pool, keep_bytes);
  });
}

}  // namespace gpumemd
