// SPDX-License-Identifier: Apache-2.0
#include "client/c_api/default_pools.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/c_api/handles.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"
#include "common/kind.h"
#include "gpumem/client.h"
#include "gpumem/pool.h"

namespace gpumem::c_api {
namespace {

constexpr int kMaxDevices = 256;
// After a call has waited for a daemon in vain, later calls do not wait during this time.
constexpr std::chrono::minutes kNoFurtherWait(1);

// Returns the variable's value; nullopt if it is unset or empty.
std::optional<std::string> Variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

// Returns INVALID_ARGUMENT for a variable whose value is invalid.
absl::Status Wrong(absl::string_view variable, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("the environment's ", variable, ": ", why));
}

// Each Read function stores the variable's value. If the variable is unset or empty, it changes
// nothing and returns OK.
absl::Status ReadBytes(const char* variable, uint64_t* bytes) {
  const std::optional<std::string> text = Variable(variable);
  if (!text) return absl::OkStatus();
  absl::StatusOr<uint64_t> amount = ParseBytes(*text);
  if (!amount.ok()) return Wrong(variable, amount.status().message());
  *bytes = *amount;
  return absl::OkStatus();
}

absl::Status ReadKind(Kind* kind) {
  constexpr char kVariable[] = "GPUMEM_POOL_KIND";
  const std::optional<std::string> text = Variable(kVariable);
  if (!text) return absl::OkStatus();
  const KindTraits* const row = FindKind(*text);
  if (row == nullptr || !GivesMemory(*row)) {
    return Wrong(kVariable, absl::StrCat("\"", *text, "\" is not ", ListKinds(", ", " or ")));
  }
  *kind = static_cast<Kind>(row->kind);
  return absl::OkStatus();
}

absl::Status ReadWait(absl::Duration* wait) {
  constexpr char kVariable[] = "GPUMEM_POOL_WAIT";
  const std::optional<std::string> text = Variable(kVariable);
  if (!text || (absl::ParseDuration(*text, wait) && *wait >= absl::ZeroDuration())) {
    return absl::OkStatus();
  }
  return Wrong(kVariable,
               absl::StrCat("\"", *text, "\" is not a duration such as \"30s\" or \"500ms\""));
}

absl::Status ReadBool(const char* variable, bool* value) {
  const std::optional<std::string> text = Variable(variable);
  if (!text || absl::SimpleAtob(*text, value)) return absl::OkStatus();
  return Wrong(variable, absl::StrCat("\"", *text, "\" is not 1 or 0"));
}

// Returns the options that the environment sets, or the error of the first invalid variable.
absl::StatusOr<PoolOptions> OptionsFor(int device) {
  PoolOptions options = {.device = absl::StrCat(device)};
  absl::Status status = ReadKind(&options.kind);
  status.Update(ReadBytes("GPUMEM_POOL_RELEASE_THRESHOLD", &options.release_threshold_bytes));
  status.Update(ReadBytes("GPUMEM_POOL_GROW", &options.grow_bytes));
  status.Update(ReadWait(&options.wait));
  status.Update(ReadBool("GPUMEM_POOL_PER_THREAD_STREAM", &options.per_thread_default_stream));
  bool keeps = false;
  status.Update(ReadBool("GPUMEM_POOL_KEEPS_UNDER_PRESSURE", &keeps));
  options.gives_under_pressure = !keeps;
  if (!status.ok()) return status;
  return options;
}

// Sets the pool's limit from the environment. Needs the pool: a percentage is a share of the memory
// that it reports.
absl::Status SetLimit(Pool& pool) {
  constexpr char kVariable[] = "GPUMEM_POOL_LIMIT";
  const std::optional<std::string> text = Variable(kVariable);
  if (!text) return absl::OkStatus();
  absl::StatusOr<MemInfo> info = pool.MemGetInfo();
  if (!info.ok()) return info.status();
  absl::StatusOr<uint64_t> bytes = ParseBytesOrPercent(*text, info->total_bytes);
  if (!bytes.ok()) return Wrong(kVariable, bytes.status().message());
  return pool.SetLimit(*bytes);
}

class DefaultPools {
 public:
  // Never destroyed: memory can still be freed while the process exits.
  static DefaultPools& Get() {
    static auto* const pools = new DefaultPools;
    return *pools;
  }

  absl::StatusOr<gpumem_pool*> Of(int device) {
    if (device < 0 || device >= kMaxDevices) {
      return absl::InvalidArgumentError(absl::StrCat("there is no device ", device));
    }
    std::atomic<gpumem_pool*>& slot = slots_[static_cast<size_t>(device)];
    // In a forked child this returns the parent's pool: its functions refuse to work there.
    if (gpumem_pool* const existing = slot.load(std::memory_order_acquire)) return existing;
    // Before the lock. At fork() a thread of the parent may have held it, and that thread does not
    // exist in the child: the child would block forever.
    if (absl::Status status = ClaimProcess(); !status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    if (gpumem_pool* const existing = slot.load(std::memory_order_relaxed)) return existing;
    absl::StatusOr<std::unique_ptr<Pool>> pool = Make(device);
    if (!pool.ok()) {
      // Its session may have ended: the next call connects again. Existing pools keep the client
      // that they have.
      client_.reset();
      return pool.status();
    }
    // No thread of a pool may call the driver while the process unloads it. The static variable
    // makes the registration happen once.
    static const int registered = std::atexit([] { Get().EndThreads(); });
    (void)registered;
    auto* const made = new gpumem_pool{*std::move(pool), /*is_default=*/true, client_};
    slot.store(made, std::memory_order_release);
    return made;
  }

  absl::StatusOr<gpumem_pool*> Find(int device) const {
    gpumem_pool* const pool =
        device < 0 || device >= kMaxDevices
            ? nullptr
            : slots_[static_cast<size_t>(device)].load(std::memory_order_acquire);
    if (pool != nullptr) return pool;
    return absl::NotFoundError(
        absl::StrCat("this process has no default pool for device ", device, " yet"));
  }

  // Stops the pools' calls on their listener threads, and blocks until one in progress has
  // returned. The pools stay, so that memory can still be freed.
  void EndThreads() {
    for (const auto& slot : slots_) {
      gpumem_pool* const pool = slot.load(std::memory_order_acquire);
      if (pool != nullptr) pool->pool->SetGivesUnderPressure(false);
    }
  }

 private:
  DefaultPools() = default;

  // Makes this process the owner of the default pools.
  //   FAILED_PRECONDITION  an ancestor of this forked process is the owner
  absl::Status ClaimProcess() {
    pid_t owner = 0;  // expected value; on a failed exchange the actual one
    if (owner_.compare_exchange_strong(owner, getpid()) || owner == getpid()) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        "this process was forked from one that uses gpumem's default pools, which it cannot share: "
        "start it with exec (in Python: multiprocessing's \"spawn\")");
  }

  absl::StatusOr<std::unique_ptr<Pool>> Make(int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::StatusOr<PoolOptions> options = OptionsFor(device);
    if (!options.ok()) return options.status();
    if (client_ == nullptr) {
      const auto now = std::chrono::steady_clock::now();
      // Connect may wait for a daemon while this thread holds the lock. All threads that request
      // memory then wait behind it, so a wait in vain is not repeated soon.
      const bool waits = !no_daemon_at_ || now - *no_daemon_at_ > kNoFurtherWait;
      absl::StatusOr<std::unique_ptr<Client>> client =
          Client::Connect({.tenant = Variable("GPUMEM_TENANT").value_or(""), .wait = waits});
      if (absl::IsUnavailable(client.status()) && waits) {
        no_daemon_at_ = std::chrono::steady_clock::now();
      }
      if (!client.ok()) return client.status();
      no_daemon_at_.reset();
      client_ = *std::move(client);
    }
    absl::StatusOr<std::unique_ptr<Pool>> pool = Pool::Create(client_, *options);
    if (!pool.ok()) return pool.status();
    if (absl::Status status = SetLimit(**pool); !status.ok()) return status;
    return pool;
  }

  std::atomic<pid_t> owner_ = 0;  // the process of the first request for a pool; 0: none yet
  std::array<std::atomic<gpumem_pool*>, kMaxDevices> slots_ = {};  // by ordinal; null: not made yet
  absl::Mutex mutex_;
  std::shared_ptr<Client> client_ ABSL_GUARDED_BY(mutex_);
  // The last time that a wait for a daemon failed.
  std::optional<std::chrono::steady_clock::time_point> no_daemon_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<gpumem_pool*> DefaultPool(int device) { return DefaultPools::Get().Of(device); }

absl::StatusOr<gpumem_pool*> FindDefaultPool(int device) {
  return DefaultPools::Get().Find(device);
}

#if GPUMEM_WITH_CUDA

int CurrentDevice() {
  absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  CUdevice current = 0;
  if (!driver.ok() || (*driver)->cuCtxGetDevice(&current) != CUDA_SUCCESS) return 0;
  int ordinal = 0;
  for (const CudaDriver::VisibleDevice& device : (*driver)->devices()) {
    if (device.handle == current) return ordinal;
    ++ordinal;
  }
  return 0;
}

#else

int CurrentDevice() { return 0; }

#endif

}  // namespace gpumem::c_api
