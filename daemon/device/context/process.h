// SPDX-License-Identifier: Apache-2.0
// A process with a context on one device, which executes its parent's requests.
//
// It is this program, run again, at the other end of a socket. It ends when its context breaks, or
// when the socket closes: at most some seconds later even if its driver hangs. Until then it may
// copy to the host tier, and has the tier's file locked (tier_lock.h).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "daemon/device/context/context.h"

namespace gpumemd {

struct ContextAnswer;
struct ContextRequest;

// A Context in a separate process. Thread-safe: requests run one at a time.
//
// Statuses are the Context's, or UNAVAILABLE. The latter is permanent: the process has ended, or
// has been killed after ten seconds without an answer (a minute for a copy).
class ContextProcess : public Context {
 public:
  // Starts the process and waits for its context. `on_death` is called, in a thread of this object,
  // when the process has ended by itself or been killed; it must not destroy this object.
  //   RESOURCE_EXHAUSTED  no memory for a context, or no processes, threads or descriptors left
  //   INTERNAL            any other error that prevented the start
  static absl::StatusOr<std::unique_ptr<ContextProcess>> Start(const ContextSpec& spec,
                                                               std::function<void(pid_t)> on_death);
  // Ends the process with all its memory, and blocks until it has ended.
  ~ContextProcess() override;

  pid_t pid() const { return pid_; }
  // Kills the process. Does not wait for a request in progress, which then fails.
  void Kill() const;
  // Blocks until the process has ended, and with it all its work on the device.
  void AwaitEnd() const;

  absl::StatusOr<ExportData> CreateIpc(uint64_t memory, uint64_t bytes) override;
  absl::StatusOr<ExportData> Allocate(uint64_t memory, uint64_t pool, uint64_t bytes) override;
  absl::Status Free(uint64_t memory) override;
  absl::StatusOr<MadePool> CreatePool(uint64_t pool, uint64_t max_bytes) override;
  absl::Status DestroyPool(uint64_t pool) override;
  absl::StatusOr<PoolNumbers> ReadPool(uint64_t pool) override;
  absl::Status SetPool(uint64_t pool, const PoolChange& change) override;
  absl::Status TrimPool(uint64_t pool, uint64_t keep_bytes) override;
  absl::Status StartCopy(const CopyBatch& batch) override;
  absl::Status FinishCopies() override;
  bool broken() const override { return gone_; }

 private:
  ContextProcess(pid_t pid, gpumem::UniqueFd pidfd, gpumem::UniqueFd socket,
                 std::function<void(pid_t)> on_death);

  absl::StatusOr<ContextAnswer> Ask(const ContextRequest& request, gpumem::UniqueFd* fd = nullptr);
  // Sends a request as bytes and descriptors, and returns its answer with the descriptor that may
  // come with it.
  absl::StatusOr<ContextAnswer> Exchange(absl::string_view bytes, absl::Span<const int> fds,
                                         absl::Duration timeout, gpumem::UniqueFd* fd);
  absl::Status Gone(absl::string_view how);
  void Watch();

  const pid_t pid_;
  const gpumem::UniqueFd pidfd_;
  const std::function<void(pid_t)> on_death_;
  std::atomic<bool> gone_{false};
  std::atomic<bool> ending_{false};
  absl::Mutex mutex_;
  gpumem::UniqueFd socket_ ABSL_GUARDED_BY(mutex_);
  std::thread watcher_;
};

// Makes the context of `spec`, in the context process.
using ContextFactory =
    std::function<absl::StatusOr<std::unique_ptr<Context>>(const ContextSpec& spec)>;

// Returns a CudaContext for GPUs, a HostContext for host devices.
absl::StatusOr<std::unique_ptr<Context>> MakeContext(const ContextSpec& spec);

// Must be called first in the main() of every program that opens devices. In a process started by
// ContextProcess::Start it serves until the other side is gone and returns the exit status.
std::optional<int> RunAsContextProcess(int argc, char** argv,
                                       const ContextFactory& make = MakeContext);

}  // namespace gpumemd
