// SPDX-License-Identifier: Apache-2.0
// Samples the memory that processes allocate without the broker, reports it to the broker, and
// applies the configured reaction (unbrokered.h computes the uses).
//
// One thread. It asks the driver without any lock, since a driver can hang. Only the destructor
// waits for it, and only for a short time. A thread that still hangs then is left behind, and no
// longer touches the daemon's objects when it returns.
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
  AuditSink* audit = nullptr;  // records processes that are ended; may be null
  // Returns a pidfd of a session's process (SessionServer::ProcessOf). Thread-safe; must not block.
  std::function<absl::StatusOr<gpumem::UniqueFd>(SessionId)> process_of;
  // Returns a number that changes while clients use the daemon; null: they always do. Thread-safe.
  std::function<uint64_t()> activity;
  absl::Duration kill_after = absl::Seconds(5);  // SIGTERM, SIGKILL
  absl::Duration patience = absl::Seconds(2);    // of the destructor
};

class UnbrokeredMonitor {
 public:
  // Starts the monitor. `broker` outlives this.
  //   RESOURCE_EXHAUSTED  no thread could be started
  static absl::StatusOr<std::unique_ptr<UnbrokeredMonitor>> Start(
      Broker* broker, std::shared_ptr<ProcessMemory> source, UnbrokeredMonitorOptions options);
  ~UnbrokeredMonitor();
  UnbrokeredMonitor(const UnbrokeredMonitor&) = delete;
  UnbrokeredMonitor& operator=(const UnbrokeredMonitor&) = delete;

  // Applies to the next sample, which starts at once. Thread-safe.
  void Configure(const UnbrokeredConfig& config);

  // Returns processes without a session that use a device, the largest first, without the daemon's
  // processes. Thread-safe.
  std::vector<DeviceProcess> Foreign() const;

 private:
  struct State;
  explicit UnbrokeredMonitor(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void Run(State& state);

  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace gpumemd
