// SPDX-License-Identifier: Apache-2.0
// The daemon's parts, put together: devices, broker, session socket, gRPC servers.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "daemon/audit/audit_log.h"
#include "daemon/config/config.h"
#include "daemon/core/audit/audit.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/quota_control.h"
#include "daemon/core/identity/pods.h"
#include "daemon/device/devices.h"
#include "daemon/device/process_memory.h"
#include "daemon/restart/continuity_store.h"
#include "daemon/restart/fd_store/fd_store.h"
#include "daemon/restart/inherit.h"
#include "daemon/restart/override_store.h"
#include "daemon/server/history_sampler.h"
#include "daemon/server/listeners.h"
#include "daemon/server/load_report.h"
#include "daemon/server/metrics_endpoint.h"
#include "daemon/server/observer_relay.h"
#include "daemon/server/part_relay.h"
#include "daemon/transport/api_servers.h"
#include "daemon/transport/grpc_listener.h"
#include "daemon/transport/peer/peer_book.h"
#include "daemon/transport/service/admin_service.h"
#include "daemon/transport/service/broker_service.h"
#include "daemon/transport/service/event_stream.h"
#include "daemon/transport/service/view_service.h"
#include "daemon/transport/service/watch_hub.h"
#include "daemon/transport/session_server.h"
#include "daemon/unbrokered/unbrokered_monitor.h"

namespace gpumemd {

// How a running server reloads the configuration.
struct Reloading {
  // Reads it; absent if there is no file to read.
  std::function<absl::StatusOr<Config>()> load;
  // It has been taken over.
  std::function<void(const Config&)> done;
};

// Serves from Start() until it is destroyed. Thread-safe.
class Server final {
 public:
  // Opens the devices, makes the runtime folder and its sockets, and serves. On return memory was
  // made, shared and given back on each device; a device that cannot do that is an error, unless it
  // is only full.
  // `store` outlives the server; null: none. If its manager is there, the server takes over the
  // state of an earlier daemon, stores this one's, and reports its status to the manager. Uses
  // sockets that were handed over instead of new ones.
  //   ALREADY_EXISTS    another daemon serves there
  //   INVALID_ARGUMENT  the configuration makes no sense with the devices
  //   others            the error of a device, a folder or a socket, in a sentence
  //   DATA_LOSS, FAILED_PRECONDITION  the stored state is unusable, and was not touched
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config,
                                                       Reloading reloading = {},
                                                       FdStore* store = nullptr);

  // Admits nothing new, waits up to the configured drain time for the calls in flight, says
  // Goodbye, and removes the sockets. Clients keep their mappings; with a store, their sessions
  // continue with the next daemon. After HandOver() it refuses nothing.
  ~Server();

  // Leaves calls that arrive during the shutdown to the next daemon. Has no effect without a store
  // that is seen to keep descriptors, since no daemon can take over then.
  void HandOver();

  // Reloads the configuration and applies tenants, rules and quotas, at once and together. `by`:
  // the operators, for the audit. Settings that only a restart can change (sockets, backend,
  // bounds) stay, with a notice. Logs the result. Statuses as gpumem.v1.Admin.Reload; on errors
  // nothing is changed.
  absl::StatusOr<gpumem::v1::ReloadResponse> Reload(const std::vector<AuditOperator>& by = {})
      ABSL_LOCKS_EXCLUDED(reload_mutex_);

  // Returns what Reload would, and changes nothing: no log, no audit. Statuses as Reload.
  absl::StatusOr<gpumem::v1::ReloadResponse> CheckReload() ABSL_LOCKS_EXCLUDED(reload_mutex_);

  // Sets the reason and the operators of its end, for the audit; by default it is said to have
  // ended.
  void Stopping(const std::string& why, const std::vector<AuditOperator>& by);

  // Returns one line for the log: backend, devices, folder.
  std::string Summary() const;
  // Returns one line for the service manager's status: "2 devices, 12 sessions, 3.2 GiB charged, 1
  // waiting".
  std::string StatusLine() const { return load_.Line(); }
  // Returns what operators are shown, without a call; for tests.
  BrokerViews views() const;

 private:
  Server(Config config, Devices devices, Reloading reloading,
         std::unique_ptr<ContinuityStore> continuity, std::unique_ptr<AuditLog> audit,
         FdStore* manager);
  void Audit(AuditRecord record) const;
  // Takes over the state of the previous daemon.
  absl::Status Inherit();
  absl::Status Listen(std::vector<NamedFd> handed_over);
  // Returns the hooks of the calls that show something.
  AdminService::Hooks ShowingHooks(EventStreams* events);
  // Make the services of the admin and view sockets, and their listeners.
  void ListenForOperators();
  void ListenForViewers();
  absl::Status StartMonitor();
  // Starts the metrics. A failure causes a notice only: memory is served without metrics, too.
  void StartMetrics();
  void FillStatus(gpumem::v1::GetStatusResponse& status) const;
  // Returns facts for the operator, one sentence each.
  std::vector<std::string> Notices() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<DeviceInfo> DeviceInfos() const;
  void ApplyTenants(const Config& config);
  // Returns the sentences for operators that a configuration causes, with those of the devices.
  std::vector<std::string> NoticesFor(const Config& config) const;
  // Reads the file and checks it with the devices. Statuses as Reload.
  absl::StatusOr<Config> LoadForReload() const;
  absl::StatusOr<gpumem::v1::ReloadResponse> TryReload()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mutex_);

  const Config config_;  // as it was at the start; what Reload may change is not read here
  const Backend backend_;
  const absl::Time started_;
  const Reloading reloading_;
  absl::Mutex reload_mutex_;  // one reload at a time
  Config in_force_ ABSL_GUARDED_BY(reload_mutex_);
  mutable absl::Mutex mutex_;
  std::vector<std::string> notices_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> device_notices_;  // changed by Listen alone

  const std::unique_ptr<AuditLog> audit_;
  EventStreams event_streams_;
  EventStreams view_streams_;
  TraceStreams traces_;
  AuditRecord stopped_{.event = AuditEvent::kStopped};
  bool serves_ = false;
  bool hands_over_ = false;

  // In the order of construction; each may use those above it.
  ObserverRelay observer_;
  FdStore* const manager_;  // null: there is none
  Listeners listeners_;     // their files; the sockets themselves are passed on
  OverrideStore store_;
  const std::unique_ptr<ContinuityStore> continuity_;  // null: nothing survives this process
  LoadReport load_;
  PodBook pods_;
  std::map<SessionId, Survivor> survivors_;  // until they are watched
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<QuotaControl> quotas_;
  RelayedPart<WatchHub> hub_{observer_.hub()};
  RelayedPart<SessionServer> sessions_{observer_.sessions()};
  std::shared_ptr<ProcessMemory> process_memory_;  // null if there is no source of counts
  std::unique_ptr<UnbrokeredMonitor> monitor_;     // null as well
  std::unique_ptr<HistorySampler> history_;
  std::unique_ptr<BrokerService> broker_service_;
  std::unique_ptr<AdminService> admin_service_;
  PeerBook admin_peers_;
  std::unique_ptr<ApiServers> api_servers_;
  std::unique_ptr<GrpcListener> admin_listener_;
  std::unique_ptr<ViewService> view_service_;
  std::unique_ptr<GrpcListener> view_listener_;
  std::string metrics_notice_;                // why there are none; set once, before the first use
  std::unique_ptr<MetricsEndpoint> metrics_;  // null: off, or see the notice
};

}  // namespace gpumemd
