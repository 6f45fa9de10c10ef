#include "daemon/server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/counted.h"
#include "common/cuda/toolkit.h"
#include "common/endpoints.h"
#include "common/version.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/failpoint.h"
#include "daemon/device/self_test.h"
#include "daemon/server/audit.h"
#include "daemon/transport/peer/peer.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

// The largest request is a Publish of 1 MiB of metadata and 4096 leases. Operators' are small.
constexpr int kMaxRequestBytes = (1 << 20) + 128 * 1024;
constexpr int kMaxAdminRequestBytes = 64 * 1024;
constexpr int kMaxStreamsPerConnection = 256;
constexpr int kReadChunkBytes = 8 * 1024;
constexpr int kHandshakeTimeoutMs = 5000;
// Within which an answer is with its client.
constexpr absl::Duration kAnswerTime = absl::Milliseconds(250);
// For the services that keep a thread for each call: Admin and, from gRPC, reflection.
constexpr int kMaxThreads = 64;
// Memory quota of gRPC for all operators; and for the sessions of one uid and tenant, of which some
// 50 can publish at a time with the largest request.
constexpr size_t kMaxAdminTransportBytes = size_t{256} << 20;
constexpr size_t kMaxApiTransportBytes = size_t{64} << 20;

// The ledger adds up sizes, times the segments of a request and over devices: no sum of
// them may wrap around.
constexpr uint64_t kMaxHostDeviceBytes = uint64_t{1} << 54;

Secret RandomSecret() {
  Secret secret;
  // Never fails for so few bytes once the kernel's generator is seeded (getrandom(2)). Without it
  // there is no safe way to continue.
  if (getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) abort();
  return secret;
}

// Returns the machine's memory.
uint64_t MemoryBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// True if the daemon may end processes: for revocable memory, or for memory past the broker.
bool EndsProcesses(const Config& config) {
  return config.unbrokered.reaction == UnbrokeredReaction::kTerminate ||
         config.tenant_defaults.revocable ||
         std::any_of(config.tenants.begin(), config.tenants.end(),
                     [](const TenantConfig& tenant) { return tenant.quota.revocable; });
}

size_t CountDevices(const Devices& devices) {
  return static_cast<size_t>(
      std::count_if(devices.devices.begin(), devices.devices.end(),
                    [](const auto& device) { return !IsPinnedMemory(device->info()); }));
}

BrokerOptions BrokerOptionsOf(const Config& config, Devices devices, BrokerObserver* observer,
                              Continuity* continuity, AuditSink* audit, const FdStore* manager,
                              std::function<void(const BrokerLoad&)> pulse) {
  BrokerOptions options;
  options.devices = std::move(devices.devices);
  options.bounds = {.max_sessions = config.max_sessions,
                    .max_sessions_per_uid =
                        config.max_sessions_per_uid.value_or(std::max(1u, config.max_sessions / 4)),
                    .reserved_sessions = config.max_sessions / 16,
                    .max_segments = config.max_segments};
  options.revocation = {.grace = config.revocation_grace,
                        .kill_after = config.revocation_kill_after};
  options.random = RandomSecret;
  options.observer = observer;
  options.continuity = continuity;
  if (manager != nullptr) {
    options.pulse = std::move(pulse);
    // Two may be late before it makes a difference.
    if (manager->watchdog()) options.pulse_every = *manager->watchdog() / 3;
  }
  options.audit = audit;
  return options;
}

// `transport_bytes` are this server's alone.
void SetLimits(grpc::ServerBuilder& builder, const char* name, size_t transport_bytes,
               int max_request_bytes) {
  grpc::ResourceQuota quota(name);
  quota.Resize(transport_bytes).SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  // Not one for each core, which may be more than there may be threads.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetMaxReceiveMessageSize(max_request_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
}

void LogGroupNames() {
  const absl::StatusOr<std::string> group = FindGroupNames();
  if (!group.ok()) {
    spdlog::warn("{}", std::string(group.status().message()));
  } else if (!group->empty()) {
    spdlog::info("control groups are named as by the machine, where this daemon's is {}", *group);
  }
}

}  // namespace

Server::Server(Config config, Devices devices, Reloading reloading,
               std::unique_ptr<ContinuityStore> continuity, std::unique_ptr<AuditLog> audit,
               FdStore* manager)
    : config_(std::move(config)),
      backend_(devices.backend),
      started_(absl::Now()),
      reloading_(std::move(reloading)),
      in_force_(config_),
      device_count_(CountDevices(devices)),
      device_notices_(devices.notices),
      audit_(std::move(audit)),
      event_streams_(&audit_->ring()),
      manager_(manager),
      store_(config_.state_dir),
      continuity_(std::move(continuity)),
      broker_(std::make_unique<Broker>(
          BrokerOptionsOf(config_, std::move(devices), this, continuity_.get(), audit_->sink(),
                          manager_, [this](const BrokerLoad& load) { Pulse(load); }))),
      quotas_(std::make_unique<QuotaControl>(
          broker_.get(), DeviceInfos(), store_.remembered(),
          [this](const Overrides& overrides) { return store_.Save(overrides); })) {
  for (const std::string& notice : store_.notices()) spdlog::error("{}", notice);
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config, Reloading reloading,
                                                      FdStore* store) {
  LogGroupNames();
  if (config.host_device_bytes > kMaxHostDeviceBytes) {
    return absl::InvalidArgumentError(
        "a host device has at most 16 PiB; choose a smaller device_bytes (--host-device-bytes)");
  }
  absl::StatusOr<uint64_t> pinned_bytes = PinnedCapacity(config, MemoryBytes());
  if (!pinned_bytes.ok()) return pinned_bytes.status();
  DeviceOptions options{.runtime_dir = config.runtime_dir,
                        .pinned_bytes = *pinned_bytes,
                        .host_devices = config.host_devices,
                        .host_device_bytes = config.host_device_bytes};
  if (config.backend == BackendChoice::kCuda) options.backend = Backend::kCuda;
  if (config.backend == BackendChoice::kHost) options.backend = Backend::kHost;
  absl::StatusOr<Devices> devices = OpenDevices(options);
  if (!devices.ok()) return devices.status();
  std::vector<DeviceInfo> infos;
  for (const auto& device : devices->devices) infos.push_back(device->info());
  if (absl::Status kept = CheckGuarantees(config, infos); !kept.ok()) return kept;
  for (const auto& device : devices->devices) {
    const absl::Status tested = SelfTest(*device);
    if (absl::IsResourceExhausted(tested)) {
      spdlog::warn("{}", std::string(tested.message()));  // others have it, perhaps for a while
    } else if (!tested.ok()) {
      return tested;
    }
  }
  absl::StatusOr<std::shared_ptr<ProcessMemory>> process_memory =
      devices->backend == Backend::kCuda
          ? MakeNvmlProcessMemory()
          : MakeHostProcessMemory(gpumem::SocketPath(config.runtime_dir, kHostProcessMemoryFile));
  if (!process_memory.ok()) {
    devices->notices.push_back(absl::StrCat(
        "Memory that is taken past gpumemd is not seen: ", process_memory.status().message(), "."));
  }
  std::vector<NamedFd> handed_over;
  if (store != nullptr) handed_over = store->TakeListeners();
  absl::StatusOr<std::unique_ptr<AuditLog>> audit = StartAudit(config.audit);
  if (!audit.ok()) return audit.status();
  std::unique_ptr<ContinuityStore> continuity;
  if (store != nullptr && store->present()) {
    absl::StatusOr<std::unique_ptr<ContinuityStore>> opened = ContinuityStore::Open(
        store, config.refuse_when_store_full ? WhenStoreFull::kRefuse : WhenStoreFull::kWarn);
    if (!opened.ok()) return opened.status();
    continuity = *std::move(opened);
  }
  auto server = std::unique_ptr<Server>(
      new Server(config, *std::move(devices), std::move(reloading), std::move(continuity),
                 *std::move(audit), store != nullptr && store->present() ? store : nullptr));
  if (process_memory.ok()) server->process_memory_ = *std::move(process_memory);
  server->ApplyTenants(config);
  AuditRecord started{
      .event = AuditEvent::kStarted,
      .version_of_daemon = GPUMEM_VERSION,
      .backend = server->backend_ == Backend::kCuda ? "cuda" : "host",
      .config = config.file,
  };
  if (server->continuity_ != nullptr) started.generation = server->continuity_->generation();
  server->Audit(std::move(started));
  if (absl::Status inherited = server->Inherit(); !inherited.ok()) return inherited;
  if (absl::Status listening = server->Listen(std::move(handed_over)); !listening.ok()) {
    return listening;
  }
  server->serves_ = true;
  server->listeners_.Serves();
  return server;
}

absl::Status Server::Inherit() {
  if (continuity_ == nullptr) return absl::OkStatus();
  ContinuityStore::Found found = continuity_->TakeFound();
  Inheritance inheritance{.memory = std::move(found.memory), .metadata = std::move(found.metadata)};
  if (found.strange_pids) {
    spdlog::warn(
        "the daemon before this one ran in another PID namespace: which of its sessions' processes "
        "live cannot be known, and none is taken over");
    // A living process may still map it.
    for (auto& [id, segment] : found.image.segments) segment.shared_out = true;
  } else {
    survivors_ = FindSurvivors(found.image, config_.rules);
  }
  for (const auto& [id, survivor] : survivors_) {
    inheritance.sessions.emplace(id, survivor.details);
  }
  inheritance.image = found.image;
  absl::StatusOr<Broker::Restored> restored = broker_->Restore(std::move(inheritance));
  if (!restored.ok()) return restored.status();
  if (continuity_->generation() == 1) return absl::OkStatus();
  AuditInheritance(*restored, found.image, survivors_, continuity_->generation(), audit_->sink());
  const std::vector<std::string> told = DescribeInheritance(*restored, found.image, survivors_);
  spdlog::info("{}", told.front());
  for (size_t i = 1; i < told.size(); ++i) spdlog::warn("{}", told[i]);
  return absl::OkStatus();
}

absl::Status Server::Listen(std::vector<NamedFd> handed_over) {
  const bool kept = manager_ != nullptr && manager_->keeper_pid() != 0;
  absl::StatusOr<Listeners> listeners = Listeners::Open(config_, std::move(handed_over), kept);
  if (!listeners.ok()) return listeners.status();
  listeners_ = *std::move(listeners);
  if (kept) {
    if (absl::Status stored = listeners_.KeepIn(*manager_); !stored.ok()) {
      spdlog::warn(
          "gpumem-keeper does not keep the sockets ({}): no connection waits in them while "
          "a daemon is started again",
          std::string(stored.message()));
    }
  }
  if (!listeners_.notices.empty()) {
    device_notices_.insert(device_notices_.end(), listeners_.notices.begin(),
                           listeners_.notices.end());
    absl::MutexLock lock(&mutex_);
    for (const std::string& notice : listeners_.notices) {
      spdlog::warn("{}", notice);
      notices_.push_back(notice);
    }
  }

  hub_ = std::make_unique<WatchHub>(broker_.get());
  hub_for_observer_.Set(hub_.get());
  grpc::EnableDefaultHealthCheckService(true);
  // For operators; but gRPC's library adds it to every server as soon as it is linked.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  api_servers_ = std::make_unique<ApiServers>([this](grpc::ServerBuilder& builder) {
    SetLimits(builder, "api", kMaxApiTransportBytes, kMaxRequestBytes);
    // Whatever a peer has sent, others have their turn after so much of it.
    for (const char* chunk : {GRPC_ARG_TCP_READ_CHUNK_SIZE, GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE,
                              GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE}) {
      builder.AddChannelArgument(chunk, kReadChunkBytes);
    }
    builder.RegisterService(broker_service_.get());
  });
  sessions_ = std::make_unique<SessionServer>(
      std::move(listeners_.session), broker_.get(), config_.rules,
      [this](SessionId ended) { hub_->SessionEnded(ended); },
      SessionServerOptions{.generation = continuity_ == nullptr ? 0 : continuity_->generation(),
                           .audit = audit_->sink(),
                           .connect_api = [this](uid_t uid, const std::string& tenant) {
                             return api_servers_->Connect(uid, tenant);
                           }});
  sessions_for_observer_.Set(sessions_.get());
  const auto known = broker_->views().ListSessions("");
  for (const SessionView& view : *known) {
    auto survivor = survivors_.find(view.id);
    if (survivor == survivors_.end()) continue;
    sessions_->Adopt(view.id, std::move(survivor->second.peer), survivor->second.match);
  }
  survivors_.clear();
  broker_service_ = std::make_unique<BrokerService>(broker_.get(), sessions_.get(), hub_.get());
  admin_service_ = std::make_unique<AdminService>(
      broker_.get(), quotas_.get(),
      AdminService::Hooks{
          .fill_status = [this](gpumem::v1::GetStatusResponse& status) { FillStatus(status); },
          .reload = [this](const std::vector<AuditOperator>& by) { return Reload(by); },
          .who = [this](const std::string& peer) { return admin_peers_.Find(peer); },
          .audit = audit_->sink(),
          .events = &event_streams_});

  const auto healthy = [](grpc::Server& server) {
    server.GetHealthCheckService()->SetServingStatus(true);
    server.GetHealthCheckService()->SetServingStatus("gpumem.v1.Admin", true);
  };
  // Also if the socket's mode would admit others.
  const auto admits = [group = config_.admin_gid](int socket, const PeerIdentity& peer) {
    if (peer.uid != 0 && peer.uid != geteuid() && !(group && Matches({.gid = *group}, peer))) {
      return absl::PermissionDeniedError(
          "the admin socket is for root, the daemon's user and its admin group");
    }
    // Root in a container is not therefore an operator of the machine.
    return CheckPidNamespace(socket);
  };
  admin_listener_ = std::make_unique<GrpcListener>(
      std::move(listeners_.admin),
      [service = admin_service_.get()](grpc::ServerBuilder& builder) {
        SetLimits(builder, "admin", kMaxAdminTransportBytes, kMaxAdminRequestBytes);
        builder.RegisterService(service);
      },
      healthy,
      GrpcListenerOptions{
          .admits = admits,
          .on_connected =
              [this](uint64_t connection, int socket, const PeerIdentity& peer) {
                admin_peers_.Connected(connection, socket, peer);
              },
          .on_ended = [this](uint64_t connection) { admin_peers_.Ended(connection); },
          .on_refused =
              [this](const PeerIdentity& peer, const absl::Status& why) {
                Audit({.event = AuditEvent::kRefused,
                       .pid = peer.pid,
                       .uid = peer.uid,
                       .call = "admin",
                       .why = std::string(why.message())});
              }});
  sessions_->Start();
  if (absl::Status started = StartMonitor(); !started.ok()) return started;
  StartMetrics();
  admin_listener_->Start();
  return absl::OkStatus();
}

absl::Status Server::StartMonitor() {
  if (process_memory_ == nullptr) return absl::OkStatus();
  auto monitor =
      UnbrokeredMonitor::Start(broker_.get(), process_memory_,
                               {.config = config_.unbrokered,
                                .audit = audit_->sink(),
                                .process_of = [sessions = sessions_.get()](SessionId id) {
                                  return sessions->ProcessOf(id);
                                }});
  if (!monitor.ok()) return monitor.status();
  monitor_ = *std::move(monitor);
  return absl::OkStatus();
}

Server::~Server() {
  metrics_.reset();
  Failpoint("stop-begins");
  if (hands_over_) {
    // Sessions first: one begun now could not continue.
    if (sessions_ != nullptr) sessions_->Park();
    Failpoint("stop-no-sessions");
    if (broker_service_ != nullptr) broker_service_->Park();
    broker_->Park();
    Failpoint("stop-parked");
  } else {
    broker_->operators().SetDraining(true);
  }
  if (api_servers_ != nullptr) api_servers_->StopConnecting();
  if (admin_listener_ != nullptr) admin_listener_->StopAccepting();
  event_streams_.EndAll();
  // Deadline for calls in flight; calls that still wait after it are cancelled. The last part of
  // the time is for the steps that follow.
  const absl::Time deadline = absl::Now() + config_.drain_timeout * 0.8;
  broker_->AwaitCalls(deadline);
  Failpoint("stop-answered");
  // The following steps end this process, and not its sessions. A client that sees its gRPC
  // connection end closes its socket as well, to resume the session with the next daemon.
  if (continuity_ != nullptr && sessions_ != nullptr) sessions_->LeaveSessions();
  // Not before: a client with a watch begins another as long as it is answered.
  if (hub_ != nullptr) hub_->EndAll();
  // Only answers are in flight now. gRPC waits for every client to notice the shutdown, which
  // clients do only in a call: a client without a call would take all of the time.
  const absl::Time answered = std::min(deadline, absl::Now() + kAnswerTime);
  if (api_servers_ != nullptr) api_servers_->Shutdown(answered);
  if (admin_listener_ != nullptr) admin_listener_->Shutdown(answered);
  admin_listener_.reset();
  Failpoint("stop-unconnected");
  // Its thread may hold the last reference to a watch, whose end reaches the sessions.
  if (hub_ != nullptr) hub_->Stop();
  if (continuity_ != nullptr) broker_->Freeze();
  Failpoint("stop-frozen");
  if (hands_over_) listeners_.LeaveForNext();
  // Before the listeners close: a daemon that starts now makes new ones.
  listeners_.RemoveFiles();
  Failpoint("stop-no-files");
  monitor_.reset();
  // The broker's threads still run for a while.
  sessions_for_observer_.Clear();
  sessions_.reset();
  Failpoint("stop-closed");
  api_servers_.reset();
  broker_service_.reset();
  admin_service_.reset();
  // With it the devices, which keep sockets of their own in the runtime folder. Until it is gone
  // a device may have news for the hub.
  broker_.reset();
  hub_for_observer_.Clear();
  hub_.reset();
  if (serves_) Audit(std::move(stopped_));
}

void Server::HandOver() {
  // If nothing is kept, the calls would wait for a daemon that does not know of them.
  hands_over_ = continuity_ != nullptr && !manager_->lost() && continuity_->SeenToKeep();
}

void Server::Audit(AuditRecord record) const {
  record.time = absl::Now();
  audit_->sink()->Record(std::move(record));
}

void Server::Stopping(const std::string& why, const std::vector<AuditOperator>& by) {
  stopped_.why = why;
  stopped_.by = by;
}

std::vector<DeviceInfo> Server::DeviceInfos() const {
  std::vector<DeviceInfo> infos;
  for (BrokerViews::DeviceView& device : broker_->views().Devices(/*ask_driver=*/false)) {
    infos.push_back(std::move(device.info));
  }
  return infos;
}

void Server::ApplyTenants(const Config& config) {
  const std::vector<DeviceInfo> devices = DeviceInfos();
  std::map<std::string, Quota> quotas;
  for (const TenantConfig& tenant : config.tenants) {
    quotas.emplace(tenant.name, ResolveQuota(tenant.quota, devices));
  }
  const std::vector<std::string> skipped =
      quotas_->Configure(std::move(quotas), ResolveQuota(config.tenant_defaults, devices));
  for (const std::string& sentence : skipped) spdlog::warn("{}", sentence);
  broker_->operators().SetHoldersShown(config.privacy.holders);
  if (sessions_ != nullptr) sessions_->SetRules(config.rules);

  std::vector<std::string> notices = device_notices_;
  for (const auto& more : {store_.notices(), config.notices, DeviceNotices(config, devices)}) {
    notices.insert(notices.end(), more.begin(), more.end());
  }
  if (const bool ends_processes = EndsProcesses(config); ends_processes && !MaySignalOthers()) {
    notices.emplace_back(
        "Memory can be taken back from its holders' processes only where they give it up: this "
        "daemon may not end processes of other users. It needs the capability CAP_KILL; with "
        "systemd, the drop-in kill.conf gives it.");
    spdlog::warn("{}", notices.back());
  }
  absl::MutexLock lock(&mutex_);
  notices_ = std::move(notices);
}

absl::StatusOr<gpumem::v1::ReloadResponse> Server::Reload(const std::vector<AuditOperator>& by) {
  absl::MutexLock lock(&reload_mutex_);
  audit_->Reopen();
  absl::StatusOr<gpumem::v1::ReloadResponse> outcome = TryReload();
  if (!outcome.ok()) {
    spdlog::error("reload: {}; the configuration in force stays",
                  std::string(outcome.status().message()));
    Audit({.event = AuditEvent::kReloadRefused,
           .why = std::string(outcome.status().message()),
           .by = by});
    return outcome;
  }
  Audit({.event = AuditEvent::kReloaded,
         .config = outcome->config_file(),
         .by = by,
         .changes = {outcome->changes().begin(), outcome->changes().end()}});
  spdlog::info("reloaded {}{}", outcome->config_file(),
               outcome->changes().empty() ? ": nothing is different" : "");
  for (const std::string& change : outcome->changes()) spdlog::info("reloaded: {}", change);
  return outcome;
}

absl::StatusOr<gpumem::v1::ReloadResponse> Server::TryReload() {
  if (reloading_.load == nullptr) {
    return absl::FailedPreconditionError(
        "there is no configuration file to read again: the daemon was started without one "
        "(--config)");
  }
  absl::StatusOr<Config> loaded = reloading_.load();
  if (!loaded.ok()) return loaded.status();
  const Config& config = *loaded;
  if (absl::Status kept = CheckGuarantees(config, DeviceInfos()); !kept.ok()) return kept;
  ApplyTenants(config);
  if (reloading_.done != nullptr) reloading_.done(config);
  if (monitor_ != nullptr) monitor_->Configure(config.unbrokered);
  const auto fixed = [](const Config& c) {
    return std::tie(c.runtime_dir, c.state_dir, c.backend, c.max_sessions, c.max_sessions_per_uid,
                    c.max_segments, c.session_socket_mode, c.admin_socket_mode, c.admin_gid,
                    c.host_devices, c.host_device_bytes, c.pinned_capacity.bytes,
                    c.pinned_capacity.percent, c.drain_timeout, c.refuse_when_store_full,
                    c.revocation_grace, c.revocation_kill_after, c.metrics, c.audit);
  };
  gpumem::v1::ReloadResponse response;
  response.set_config_file(config.file);
  for (std::string& change : ConfigChanges(in_force_, config)) {
    response.add_changes(std::move(change));
  }
  in_force_ = config;
  absl::MutexLock lock(&mutex_);
  if (fixed(config) != fixed(config_)) {
    notices_.emplace_back(
        "the configuration file changes what only a restart can apply (folders, backend, bounds, "
        "sockets, host devices, pinned memory, [metrics], [audit], or a time or when_store_full of "
        "[daemon]); the values of the last start hold");
    spdlog::warn("{}", notices_.back());
  }
  for (const std::string& notice : notices_) response.add_notices(notice);
  for (const std::string& notice : quotas_->Skipped()) response.add_notices(notice);
  return response;
}

void Server::FillStatus(gpumem::v1::GetStatusResponse& status) const {
  status.set_version(GPUMEM_VERSION);
  status.set_cuda_toolkit(gpumem::CudaToolkit());
  status.set_pid(static_cast<uint32_t>(getpid()));
  status.set_backend(backend_ == Backend::kCuda ? gpumem::v1::BACKEND_CUDA
                                                : gpumem::v1::BACKEND_HOST);
  status.set_uptime_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Now() - started_)));
  status.set_config_file(config_.file);
  status.set_runtime_dir(config_.runtime_dir);
  status.set_keeps_memory(continuity_ != nullptr && continuity_->keeps_memory());
  status.set_store_full(continuity_ != nullptr && continuity_->full());
  status.set_generation(continuity_ == nullptr ? 1 : continuity_->generation());
  if (continuity_ != nullptr) {
    status.set_unkept_segments(static_cast<uint32_t>(continuity_->unkept()));
  }
  if (monitor_ != nullptr) {
    for (const DeviceProcess& process : monitor_->Foreign()) {
      gpumem::v1::ForeignProcess& foreign = *status.add_foreign_processes();
      foreign.set_device_uuid(process.device_uuid);
      foreign.set_pid(process.pid);
      foreign.set_command(process.command);
      foreign.set_bytes(process.bytes.value_or(0));
    }
  }
  for (std::string& notice : Notices()) status.add_notices(std::move(notice));
}

std::vector<std::string> Server::Notices() const {
  std::vector<std::string> notices;
  {
    absl::MutexLock lock(&mutex_);
    notices = notices_;
  }
  const auto add = [&](std::vector<std::string> more) {
    for (std::string& notice : more) notices.push_back(std::move(notice));
  };
  add(quotas_->Skipped());
  if (continuity_ != nullptr) add(continuity_->Notices());
  if (!metrics_notice_.empty()) notices.push_back(metrics_notice_);
  if (const absl::Status written = audit_->status(); !written.ok()) {
    notices.push_back(std::string(written.message()));
  }
  return notices;
}

std::string Server::Summary() const {
  std::string devices;
  for (const DeviceInfo& device : DeviceInfos()) {
    absl::StrAppend(&devices, devices.empty() ? "" : ", ", device.name, " (", device.uuid, ")");
  }
  return absl::StrCat("gpumemd ", GPUMEM_VERSION,
                      " ready: ", backend_ == Backend::kCuda ? "CUDA" : "host", " backend, ",
                      devices, "; sockets in ", config_.runtime_dir);
}

std::string Server::StatusLine() const {
  absl::MutexLock lock(&mutex_);
  std::string line = absl::StrCat(
      gpumem::Counted(device_count_, backend_ == Backend::kCuda ? "device" : "host device"), ", ",
      gpumem::Counted(load_.sessions, "session"), ", ", gpumem::FormatBytes(load_.charged),
      " charged");
  if (load_.pinned > 0) absl::StrAppend(&line, ", ", gpumem::FormatBytes(load_.pinned), " pinned");
  if (load_.waiting > 0) absl::StrAppend(&line, ", ", load_.waiting, " waiting");
  if (load_.draining) absl::StrAppend(&line, ", draining");
  if (continuity_ != nullptr && (!continuity_->keeps_memory() || continuity_->unkept() > 0)) {
    absl::StrAppend(&line, "; a crash would lose memory, see gpumemctl status");
  }
  return line;
}

void Server::Pulse(const BrokerLoad& load) {
  {
    absl::MutexLock lock(&mutex_);
    load_ = load;
  }
  std::string line = StatusLine();
  {
    absl::MutexLock lock(&mutex_);
    if (line == told_status_) line.clear();
  }
  // One that finds the queue full is made up for by the next.
  const absl::Status told = manager_->NotifyAlive(line);
  if (line.empty() || !told.ok()) return;
  absl::MutexLock lock(&mutex_);
  told_status_ = std::move(line);
}

void Server::SessionForgotten(SessionId session) {
  sessions_for_observer_.With([&](SessionServer& sessions) { sessions.Forget(session); });
}

void Server::QuotaChanged(absl::string_view tenant) {
  hub_for_observer_.With([&](WatchHub& hub) { hub.QuotaChanged(tenant); });
}

void Server::DrainingChanged(bool) {
  hub_for_observer_.With([](WatchHub& hub) { hub.DrainingChanged(); });
}

void Server::SegmentsLost(SessionId session) {
  hub_for_observer_.With([&](WatchHub& hub) { hub.SegmentsLost(session); });
}

void Server::Pressed(const Pressure& pressure) {
  hub_for_observer_.With([&](WatchHub& hub) { hub.Pressed(pressure); });
}

void Server::Revoked(SessionId session) {
  hub_for_observer_.With([&](WatchHub& hub) { hub.Revoked(session); });
}

void Server::EndProcess(SessionId session, bool kill) {
  absl::StatusOr<SessionServer::Recognition> who;
  absl::Status sent;
  const bool there = sessions_for_observer_.With([&](SessionServer& sessions) {
    who = sessions.WhoIs(session);
    sent = sessions.Signal(session, kill ? SIGKILL : SIGTERM);
  });
  if (!there) return;
  AuditRecord record{
      .event = AuditEvent::kSignalled,
      .session = session,
      .signal = kill ? "SIGKILL" : "SIGTERM",
      .why = absl::StrCat("it did not give up in time what is taken back",
                          sent.ok() ? "" : absl::StrCat("; in vain: ", sent.message()))};
  if (who.ok()) {
    record.tenant = who->match.tenant;
    record.pid = who->peer.pid;
    record.uid = who->peer.uid;
  }
  Audit(std::move(record));
  spdlog::warn("revocation: {} did not give up in time what is taken back: it was {}{}",
               who.ok() ? absl::StrCat("process ", who->peer.pid, " of tenant ", who->match.tenant,
                                       " (session ", ToInt(session), ")")
                        : absl::StrCat("the process of session ", ToInt(session)),
               kill ? "ended (SIGKILL)" : "asked to end (SIGTERM)",
               sent.ok() ? "" : absl::StrCat(", in vain: ", sent.message()));
}

void Server::ContextLost(const std::string& device_uuid, size_t segments) {
  spdlog::warn(
      "the context process on {} has ended: {} segments of kinds mempool and ipc are lost; their "
      "holders are told, and the next request starts another",
      device_uuid, segments);
}

}  // namespace gpumemd
