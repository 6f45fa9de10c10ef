// Looks at what processes take past the broker, over and over, tells the broker, and does what
// the configuration says about it (unbrokered.h has the reckoning).
//
// One thread. It asks the driver without any lock, since a driver can hang; nobody ever waits
// for it but the destructor, and that for a short time only: a thread that hangs then is left
// behind, and touches nothing of the daemon's any more when it comes back.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"
#include "daemon/config/config.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/broker.h"
#include "daemon/device/process_memory.h"
#include "daemon/unbrokered/unbrokered.h"

namespace gpumemd {

struct UnbrokeredMonitorOptions {
  UnbrokeredConfig config;
  AuditSink* audit = nullptr;  // told of processes that are ended; null: nobody is
  // A pidfd of a session's process (SessionServer::ProcessOf). Thread-safe; must not block.
  std::function<absl::StatusOr<gpumem::UniqueFd>(SessionId)> process_of;
  absl::Duration kill_after = absl::Seconds(5);  // SIGTERM, SIGKILL
  absl::Duration patience = absl::Seconds(2);    // of the destructor
};

class UnbrokeredMonitor {
 public:
  // `broker` outlives this.
  //   RESOURCE_EXHAUSTED  no thread could be started
  static absl::StatusOr<std::unique_ptr<UnbrokeredMonitor>> Start(
      Broker* broker, std::shared_ptr<ProcessMemory> source, UnbrokeredMonitorOptions options);
  ~UnbrokeredMonitor();
  UnbrokeredMonitor(const UnbrokeredMonitor&) = delete;
  UnbrokeredMonitor& operator=(const UnbrokeredMonitor&) = delete;

  // From the next look on, which is at once. Thread-safe.
  void Configure(const UnbrokeredConfig& config);

  // Processes without a session that use a device, the largest first; the daemon's own are not
  // among them. Thread-safe.
  std::vector<DeviceProcess> Foreign() const;

 private:
  struct State;
  explicit UnbrokeredMonitor(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void Run(State& state);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace gpumemd
