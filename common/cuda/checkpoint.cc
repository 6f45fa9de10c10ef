// SPDX-License-Identifier: Apache-2.0
#include "common/cuda/checkpoint.h"

#include "absl/strings/str_cat.h"
#include "common/cuda/driver.h"

#if GPUMEM_WITH_CUDA && CUDA_VERSION >= 12080

#include <algorithm>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/start_thread.h"

namespace gpumem {
namespace {

// How much longer than the timeout given to the driver a call may take. The driver waits without a
// limit for a process that is stopped.
constexpr absl::Duration kAnswer = absl::Seconds(5);

// Calls `work`, which returns a CUresult, in a thread; nullopt if it has not returned in time. The
// thread then goes on: `work` owns what it uses.
template <typename Work>
std::optional<CUresult> Bounded(absl::Duration limit, Work work) {
  const auto task = std::make_shared<std::packaged_task<CUresult()>>(std::move(work));
  std::future<CUresult> result = task->get_future();
  absl::StatusOr<std::thread> thread = StartThread([task] { (*task)(); });
  if (!thread.ok()) {
    (*task)();  // without the limit: it may unlock a process
    return result.get();
  }
  thread->detach();
  if (result.wait_for(absl::ToChronoNanoseconds(limit)) != std::future_status::ready) {
    return std::nullopt;
  }
  return result.get();
}

absl::Status Silence(pid_t pid, absl::string_view what) {
  return absl::DeadlineExceededError(
      absl::StrCat(what, " process ", pid, ": no answer; is the process stopped?"));
}

class CudaCheckpointer final : public Checkpointer {
 public:
  explicit CudaCheckpointer(const CudaDriver& driver) : driver_(driver) {}

  absl::StatusOr<CheckpointState> State(pid_t pid) override {
    const auto state = std::make_shared<CUprocessState>();
    const std::optional<CUresult> result = Bounded(
        kAnswer,
        [ask = driver_.cuCheckpointProcessGetState, pid, state] { return ask(pid, state.get()); });
    if (!result) return Silence(pid, "asking for the state of");
    absl::Status status =
        driver_.Error(*result, absl::StrCat("asking for the state of process ", pid));
    if (!status.ok()) return status;
    switch (*state) {
      case CU_PROCESS_STATE_RUNNING:
        return CheckpointState::kRunning;
      case CU_PROCESS_STATE_LOCKED:
        return CheckpointState::kLocked;
      case CU_PROCESS_STATE_CHECKPOINTED:
        return CheckpointState::kCheckpointed;
      case CU_PROCESS_STATE_FAILED:
        return CheckpointState::kFailed;
    }
    return absl::InternalError(absl::StrCat("process ", pid, " is in a state that is not known"));
  }

  absl::Status Lock(pid_t pid, absl::Duration timeout) override {
    CUcheckpointLockArgs args = {};  // 0 would be without a limit
    args.timeoutMs = static_cast<unsigned>(std::clamp<int64_t>(
        absl::ToInt64Milliseconds(timeout), 1, absl::ToInt64Milliseconds(absl::Hours(24))));
    const std::optional<CUresult> result = Bounded(
        absl::Milliseconds(args.timeoutMs) + kAnswer,
        [lock = driver_.cuCheckpointProcessLock, pid, args]() mutable { return lock(pid, &args); });
    if (!result) return Silence(pid, "locking");
    if (*result == CUDA_ERROR_NOT_READY) {
      return absl::DeadlineExceededError(
          absl::StrCat("the GPU work of process ", pid, " has not ended in time"));
    }
    // "Process must be in the RUNNING state in order to be locked" (CUDA Driver API).
    if (*result == CUDA_ERROR_ILLEGAL_STATE) {
      return absl::FailedPreconditionError(
          absl::StrCat("process ", pid, " is locked already, by another program"));
    }
    return driver_.Error(*result, absl::StrCat("locking process ", pid));
  }

  absl::Status Checkpoint(pid_t pid) override {
    CUcheckpointCheckpointArgs args = {};
    return driver_.Error(driver_.cuCheckpointProcessCheckpoint(pid, &args),
                         absl::StrCat("checkpointing process ", pid));
  }

  absl::Status Restore(pid_t pid) override {
    CUcheckpointRestoreArgs args = {};
    return driver_.Error(driver_.cuCheckpointProcessRestore(pid, &args),
                         absl::StrCat("restoring process ", pid));
  }

  absl::Status Unlock(pid_t pid) override {
    const std::optional<CUresult> result =
        Bounded(kAnswer, [unlock = driver_.cuCheckpointProcessUnlock, pid] {
          CUcheckpointUnlockArgs args = {};
          return unlock(pid, &args);
        });
    if (!result) return Silence(pid, "unlocking");
    return driver_.Error(*result, absl::StrCat("unlocking process ", pid));
  }

 private:
  const CudaDriver& driver_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::ForCuda() {
  const absl::StatusOr<const CudaDriver*> driver = CudaDriver::Get();
  if (!driver.ok()) {
    return absl::UnimplementedError(
        absl::StrCat("a whole process is suspended by the NVIDIA driver, of CUDA 12.8 (570) or "
                     "newer: ",
                     driver.status().message()));
  }
  bool complete = true;
#define GPUMEM_CUDA_PRESENT(name) complete = complete && (*driver)->name != nullptr;
  GPUMEM_CUDA_OPTIONAL_FUNCTIONS(GPUMEM_CUDA_PRESENT)
#undef GPUMEM_CUDA_PRESENT
  if (!complete) {
    return absl::UnimplementedError(
        "the NVIDIA driver is too old to suspend a whole process: it has no "
        "cuCheckpointProcessLock; CUDA 12.8's (570) or newer will do");
  }
  return std::make_unique<CudaCheckpointer>(**driver);
}

}  // namespace gpumem

#else

namespace gpumem {

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::ForCuda() {
  return absl::UnimplementedError(
      "this build cannot suspend a whole process: that needs the toolkit of CUDA 12.8 or newer "
      "when it is built, and the NVIDIA driver of CUDA 12.8 (570) or newer when it runs");
}

}  // namespace gpumem

#endif
