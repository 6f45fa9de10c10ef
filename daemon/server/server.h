// The daemon's parts, put together: devices, broker, session socket, gRPC servers.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
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
#include "daemon/device/devices.h"
#include "daemon/device/process_memory.h"
#include "daemon/restart/continuity_store.h"
#include "daemon/restart/fd_store/fd_store.h"
#include "daemon/restart/inherit.h"
#include "daemon/restart/override_store.h"
#include "daemon/server/listeners.h"
#include "daemon/server/metrics_endpoint.h"
#include "daemon/server/part_relay.h"
#include "daemon/transport/api_servers.h"
#include "daemon/transport/grpc_listener.h"
#include "daemon/transport/peer/peer_book.h"
#include "daemon/transport/service/admin_service.h"
#include "daemon/transport/service/broker_service.h"
#include "daemon/transport/service/event_stream.h"
#include "daemon/transport/service/watch_hub.h"
#include "daemon/transport/session_server.h"
#include "daemon/unbrokered/unbrokered_monitor.h"

namespace gpumemd {

// How a running server gets at the configuration anew.
struct Reloading {
  // Reads it; absent where there is no file to be read.
  std::function<absl::StatusOr<Config>()> load;
  // It has been taken over.
  std::function<void(const Config&)> done;
};

// Runs from Start() until it is destroyed. Its functions may be called from any thread.
class Server final : private BrokerObserver {
 public:
  // Opens the devices, makes the runtime folder and its sockets, and serves.
  //   ALREADY_EXISTS    another daemon serves there
  //   INVALID_ARGUMENT  the configuration makes no sense with the devices
  //   others            what a device, a folder or a socket answered, in a sentence
  // Memory was made, shared and given back on each device by then; a device that cannot is an
  // error, unless it is only full.
  // With a `store` whose manager is there, what another such daemon has left in it is taken over,
  // and this one is survived; the manager hears that it lives, and how. Sockets that were handed
  // over are used instead of new ones. It outlives the server; null: none.
  //   DATA_LOSS, FAILED_PRECONDITION  what is in it cannot be gone on with, and was not touched
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config,
                                                       Reloading reloading = {},
                                                       FdStore* store = nullptr);

  // Admits nothing new, waits up to the configured drain time for the calls in flight,
  // says Goodbye, and removes the sockets. Clients keep what they have mapped; where there is a
  // store, their sessions go on with the next daemon. After HandOver() it refuses nothing.
  ~Server() override;

  // Another daemon follows: calls that come while this one ends wait for that one. Without a store
  // that is seen to keep things, no daemon can take over, and this changes nothing.
  void HandOver();

  // Reads the configuration again and takes over tenants, rules and quotas, at once and together.
  // `by` whom: for the audit.
  // What only a restart can change (sockets, backend, bounds) stays, with a notice. Logs what
  // came of it. Statuses as gpumem.v1.Admin.Reload; on errors nothing is changed.
  absl::StatusOr<gpumem::v1::ReloadResponse> Reload(const std::vector<AuditOperator>& by = {})
      ABSL_LOCKS_EXCLUDED(reload_mutex_);

  // What its end is to be told of in the audit, by whom and why; else it is said to have ended.
  void Stopping(const std::string& why, const std::vector<AuditOperator>& by);

  // One line for the log: backend, devices, folder.
  std::string Summary() const;
  // One line for who asks the service manager: "2 devices, 12 sessions, 3.2 GiB charged, 1
  // waiting".
  std::string StatusLine() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Server(Config config, Devices devices, Reloading reloading,
         std::unique_ptr<ContinuityStore> continuity, std::unique_ptr<AuditLog> audit,
         FdStore* manager);
  void Audit(AuditRecord record) const;
  // Goes on where the daemon before this one stopped.
  absl::Status Inherit();
  absl::Status Listen(std::vector<NamedFd> handed_over);
  // The broker lives: tells the service manager.
  void Pulse(const BrokerLoad& load) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status StartMonitor();
  // Nobody goes without memory because nobody can look: where it fails, a notice says so.
  void StartMetrics();
  void FillStatus(gpumem::v1::GetStatusResponse& status) const;
  // What an operator should know, one sentence each.
  std::vector<std::string> Notices() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<DeviceInfo> DeviceInfos() const;
  void ApplyTenants(const Config& config);
  absl::StatusOr<gpumem::v1::ReloadResponse> TryReload()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(reload_mutex_);

  // BrokerObserver
  void SessionForgotten(SessionId session) override;
  void QuotaChanged(absl::string_view tenant) override;
  void DrainingChanged(bool draining) override;
  void SegmentsLost(SessionId session) override;
  void Pressed(const Pressure& pressure) override;
  void Revoked(SessionId session) override;
  void EndProcess(SessionId session, bool kill) override;
  void ContextLost(const std::string& device_uuid, size_t segments) override;

  const Config config_;  // as it was at the start; what Reload may change is not read here
  const Backend backend_;
  const absl::Time started_;
  const Reloading reloading_;
  absl::Mutex reload_mutex_;  // one reload at a time
  Config in_force_ ABSL_GUARDED_BY(reload_mutex_);
  mutable absl::Mutex mutex_;
  std::vector<std::string> notices_ ABSL_GUARDED_BY(mutex_);
  const size_t device_count_;                        // but for pinned memory
  BrokerLoad load_ ABSL_GUARDED_BY(mutex_);          // as of the last pulse
  std::string told_status_ ABSL_GUARDED_BY(mutex_);  // that the manager was last told
  std::vector<std::string> device_notices_;          // changed by Listen alone

  const std::unique_ptr<AuditLog> audit_;
  EventStreams event_streams_;
  AuditRecord stopped_{.event = AuditEvent::kStopped};
  bool serves_ = false;
  bool hands_over_ = false;

  // In the order of their making; each may use those above it. The broker's threads call its
  // observer before the hub and the sessions are made and until after they have ended.
  FdStore* const manager_;  // null: there is none
  Listeners listeners_;     // their files; the sockets themselves are passed on
  PartRelay<WatchHub> hub_for_observer_;
  PartRelay<SessionServer> sessions_for_observer_;
  OverrideStore store_;
  const std::unique_ptr<ContinuityStore> continuity_;  // null: nothing survives this process
  std::map<SessionId, Survivor> survivors_;            // until they are watched
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<QuotaControl> quotas_;
  std::unique_ptr<WatchHub> hub_;
  std::unique_ptr<SessionServer> sessions_;
  std::shared_ptr<ProcessMemory> process_memory_;  // null where nobody counts
  std::unique_ptr<UnbrokeredMonitor> monitor_;     // null as well
  std::unique_ptr<BrokerService> broker_service_;
  std::unique_ptr<AdminService> admin_service_;
  PeerBook admin_peers_;
  std::unique_ptr<ApiServers> api_servers_;
  std::unique_ptr<GrpcListener> admin_listener_;
  std::string metrics_notice_;                // why there are none; set once, before any is asked
  std::unique_ptr<MetricsEndpoint> metrics_;  // null: off, or see the notice
};

}  // namespace gpumemd
