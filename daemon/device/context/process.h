// A process that has a context on one device, and does what it is told.
//
// It is this very program, run again, at the other end of a socket. It ends when the socket
// closes, at the latest some seconds later even if its driver hangs, so it does not outlive its
// parent; and when its context breaks.
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
#include "absl/synchronization/mutex.h"
#include "common/unique_fd.h"
#include "daemon/device/context/context.h"

namespace gpumemd {

struct ContextAnswer;
struct ContextRequest;

// A Context in a process of its own. Thread-safe: requests go one by one.
//
// Statuses are the Context's; or UNAVAILABLE where the process is gone, which is for good: it
// has ended, or not answered for ten seconds and been killed.
class ContextProcess : public Context {
 public:
  // Runs the process and waits for its context. `on_death` is called, in a thread of this
  // object, when the process has ended by itself or been killed; it must not destroy this
  // object.
  //   RESOURCE_EXHAUSTED  no memory for a context, or no processes, threads or descriptors left
  //   INTERNAL            anything else that kept it from starting
  static absl::StatusOr<std::unique_ptr<ContextProcess>> Start(const ContextSpec& spec,
                                                               std::function<void(pid_t)> on_death);
  // Ends the process with all its memory, and waits for that.
  ~ContextProcess() override;

  pid_t pid() const { return pid_; }

  absl::StatusOr<ExportData> CreateIpc(uint64_t memory, uint64_t bytes) override;
  absl::StatusOr<ExportData> Allocate(uint64_t memory, uint64_t pool, uint64_t bytes) override;
  absl::Status Free(uint64_t memory) override;
  absl::StatusOr<MadePool> CreatePool(uint64_t pool, uint64_t max_bytes) override;
  absl::Status DestroyPool(uint64_t pool) override;
  absl::StatusOr<PoolNumbers> ReadPool(uint64_t pool) override;
  absl::Status SetPool(uint64_t pool, const PoolChange& change) override;
  absl::Status TrimPool(uint64_t pool, uint64_t keep_bytes) override;
  bool broken() const override { return gone_; }

 private:
  ContextProcess(pid_t pid, gpumem::UniqueFd pidfd, gpumem::UniqueFd socket,
                 std::function<void(pid_t)> on_death);

  absl::StatusOr<ContextAnswer> Ask(const ContextRequest& request, gpumem::UniqueFd* fd = nullptr);
  absl::Status Gone(absl::string_view how);
  void Watch();
  void Kill() const;

  const pid_t pid_;
  const gpumem::UniqueFd pidfd_;
  const std::function<void(pid_t)> on_death_;
  std::atomic<bool> gone_{false};
  std::atomic<bool> ending_{false};
  absl::Mutex mutex_;
  gpumem::UniqueFd socket_ ABSL_GUARDED_BY(mutex_);
  std::thread watcher_;
};

// Makes the context of `spec`, in the process that is to have it.
using ContextFactory =
    std::function<absl::StatusOr<std::unique_ptr<Context>>(const ContextSpec& spec)>;

// A CudaContext for GPUs, a HostContext for host devices.
absl::StatusOr<std::unique_ptr<Context>> MakeContext(const ContextSpec& spec);

// To be called first in the main() of every program that opens devices: where this program
// was run by ContextProcess::Start, serves until the other side is gone and returns the
// exit status.
std::optional<int> RunAsContextProcess(int argc, char** argv,
                                       const ContextFactory& make = MakeContext);

}  // namespace gpumemd
