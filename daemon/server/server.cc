// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/server.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/endpoints.h"
#include "common/version.h"
#include "daemon/core/broker/operators.h"
#include "daemon/core/broker/views.h"
#include "daemon/core/failpoint.h"
#include "daemon/device/context/tier_lock.h"
#include "daemon/device/self_test.h"
#include "daemon/server/audit.h"
#include "daemon/tier/tier_device.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

// Within which an answer is with its client.
constexpr absl::Duration kAnswerTime = absl::Milliseconds(250);
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

size_t CountDevices(const Devices& devices) {
  return static_cast<size_t>(
      std::count_if(devices.devices.begin(), devices.devices.end(),
                    [](const auto& device) { return !IsHostMemory(device->info()); }));
}

BrokerOptions BrokerOptionsOf(const Config& config, Devices devices, BrokerObserver* observer,
                              Continuity* continuity, AuditSink* audit, const FdStore* manager,
                              std::function<void(const BrokerLoad&)> heartbeat) {
  BrokerOptions options;
  options.devices = std::move(devices.devices);
  options.bounds = {.max_sessions = config.max_sessions,
                    .max_sessions_per_uid =
                        config.max_sessions_per_uid.value_or(std::max(1u, config.max_sessions / 4)),
                    .reserved_sessions = config.max_sessions / 16,
                    .max_segments = config.max_segments};
  options.swaps.grace = config.suspension_grace;
  options.revocation = {.grace = config.revocation_grace,
                        .kill_after = config.revocation_kill_after};
  options.random = RandomSecret;
  options.observer = observer;
  options.continuity = continuity;
  if (manager != nullptr) {
    options.heartbeat = std::move(heartbeat);
    // Two may be late before it makes a difference.
    if (manager->watchdog()) options.heartbeat_interval = *manager->watchdog() / 3;
  }
  options.audit = audit;
  return options;
}

// Adds the host tier as the last device if it has a capacity, or contents of an earlier daemon.
absl::Status AddTier(const TierConfig& config, uint64_t capacity_bytes, ContinuityStore* continuity,
                     Devices* devices) {
  TierOptions options{.capacity_bytes = capacity_bytes,
                      .huge_pages = config.huge_pages,
                      .prefault = config.prefault};
  if (continuity != nullptr) options.file = continuity->TakeTierFile();
  if (options.file.valid()) {
    // gpumem-keeper starts this daemon while copiers of the one before may still write.
    if (absl::Status ended = AwaitCopiers(options.file.get()); !ended.ok()) return ended;
  } else if (capacity_bytes == 0) {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<TierDevice>> tier = MakeTierDevice(std::move(options));
  if (!tier.ok()) return tier.status();
  const std::vector<std::string>& notices = (*tier)->notices();
  devices->notices.insert(devices->notices.end(), notices.begin(), notices.end());
  if (continuity != nullptr && !(*tier)->inherited()) continuity->KeepTierFile((*tier)->file());
  devices->devices.push_back(*std::move(tier));
  return absl::OkStatus();
}

void LogGroupNames() {
  const absl::StatusOr<std::string> group = FindGroupNames();
  if (!group.ok()) {
    spdlog::warn("{}", std::string(group.status().message()));
  } else if (!group->empty()) {
    spdlog::info("control groups have the names of the machine; the group of this daemon is {}",
                 *group);
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
      device_notices_(devices.notices),
      audit_(std::move(audit)),
      event_streams_(&audit_->ring()),
      view_streams_(&audit_->ring()),
      observer_(audit_->sink()),
      manager_(manager),
      store_(config_.state_dir),
      continuity_(std::move(continuity)),
      load_(CountDevices(devices), backend_, continuity_.get(), manager_),
      broker_(std::make_unique<Broker>(BrokerOptionsOf(
          config_, std::move(devices), &observer_, continuity_.get(), audit_->sink(), manager_,
          [this](const BrokerLoad& load) { load_.Heartbeat(load); }))),
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
  const absl::StatusOr<uint64_t> tier_bytes = TierCapacity(config, MemoryBytes());
  if (!tier_bytes.ok()) return tier_bytes.status();
  DeviceOptions options{.runtime_dir = config.runtime_dir,
                        .pinned_bytes = *pinned_bytes,
                        .tidies = true,
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
    devices->notices.push_back(
        absl::StrCat("Memory that is allocated past the broker is not detected: ",
                     process_memory.status().message(), "."));
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
  // Last: its contents survive with the state of the earlier daemon.
  const absl::Status tier = AddTier(config.tier, *tier_bytes, continuity.get(), &*devices);
  if (!tier.ok()) return tier;
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
        "the previous daemon ran in another PID namespace: the processes of its sessions cannot be "
        "identified, and no session is restored");
    // A living process may still map it.
    for (auto& [id, segment] : found.image.segments) segment.shared_out = true;
  } else {
    // Without an answer this daemon ends, and the next one asks again.
    absl::StatusOr<std::map<SessionId, Survivor>> survivors =
        FindSurvivors(found.image, config_.rules);
    if (!survivors.ok()) return survivors.status();
    survivors_ = *std::move(survivors);
  }
  for (const auto& [id, survivor] : survivors_) {
    inheritance.sessions.emplace(id, survivor.details);
  }
  inheritance.image = found.image;
  absl::StatusOr<Broker::Restored> restored = broker_->Restore(std::move(inheritance));
  if (!restored.ok()) return restored.status();
  // The overrides of tenants made at run time go on top of their quotas, which are known now.
  if (!found.image.made_tenants.empty()) ApplyTenants(config_);
  if (continuity_->generation() == 1) return absl::OkStatus();
  AuditInheritance(*restored, found.image, survivors_, continuity_->generation(), audit_->sink());
  const std::vector<std::string> told = DescribeInheritance(*restored, found.image, survivors_);
  spdlog::info("{}", told.front());
  for (size_t i = 1; i < told.size(); ++i) spdlog::warn("{}", told[i]);
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
    broker_->operators().Close();
  }
  if (api_servers_ != nullptr) api_servers_->StopConnecting();
  for (GrpcListener* listener : {admin_listener_.get(), view_listener_.get()}) {
    if (listener != nullptr) listener->StopAccepting();
  }
  event_streams_.EndAll();
  view_streams_.EndAll();
  traces_.EndAll();
  if (admin_service_ != nullptr) admin_service_->EndWaits();
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
  for (GrpcListener* listener : {admin_listener_.get(), view_listener_.get()}) {
    if (listener != nullptr) listener->Shutdown(answered);
  }
  admin_listener_.reset();
  view_listener_.reset();
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
  history_.reset();
  // The broker's threads still run for a while.
  sessions_.reset();
  Failpoint("stop-closed");
  api_servers_.reset();
  broker_service_.reset();
  admin_service_.reset();
  view_service_.reset();
  // With it the devices, which keep sockets of their own in the runtime folder. Until it is gone
  // a device may have news for the hub.
  broker_.reset();
  hub_.reset();
  if (serves_) Audit(std::move(stopped_));
}

void Server::HandOver() {
  // If nothing is kept, the calls would wait for a daemon that does not know of them.
  hands_over_ = continuity_ != nullptr && !manager_->lost() && continuity_->SeenToKeep();
}

BrokerViews Server::views() const { return broker_->views(); }

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

}  // namespace gpumemd
