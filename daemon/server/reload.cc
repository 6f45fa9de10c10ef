// SPDX-License-Identifier: Apache-2.0
// The server's reloads: what a configuration file may change while the daemon runs.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/core/broker/operators.h"
#include "daemon/server/server.h"
#include "daemon/transport/peer/peer.h"
#include "spdlog/spdlog.h"

namespace gpumemd {
namespace {

// True if the daemon may end processes: for revocable memory, or for memory past the broker.
bool EndsProcesses(const Config& config) {
  return config.unbrokered.reaction == UnbrokeredReaction::kTerminate ||
         config.tenant_defaults.revocable ||
         std::any_of(config.tenants.begin(), config.tenants.end(),
                     [](const TenantConfig& tenant) { return tenant.quota.revocable; });
}

// The quotas of the configured tenants on these devices.
std::map<std::string, Quota> QuotasOf(const Config& config,
                                      const std::vector<DeviceInfo>& devices) {
  std::map<std::string, Quota> quotas;
  for (const TenantConfig& tenant : config.tenants) {
    quotas.emplace(tenant.name, ResolveQuota(tenant.quota, devices));
  }
  return quotas;
}

// True if the configurations differ in settings that only a restart applies.
bool NeedsRestart(const Config& from, const Config& to) {
  const auto fixed = [](const Config& c) {
    return std::tie(c.runtime_dir, c.state_dir, c.backend, c.max_sessions, c.max_sessions_per_uid,
                    c.max_segments, c.session_socket_mode, c.admin_socket_mode, c.admin_gid,
                    c.view_socket_mode, c.view_gid, c.host_devices, c.host_device_bytes,
                    c.pinned_capacity.bytes, c.pinned_capacity.percent, c.tier, c.drain_timeout,
                    c.refuse_when_store_full, c.revocation_grace, c.revocation_kill_after,
                    c.suspension_grace, c.spin, c.metrics, c.audit);
  };
  return fixed(from) != fixed(to);
}

constexpr char kNeedsRestart[] =
    "the configuration file changes what only a restart can apply (folders, backend, bounds, "
    "sockets, host devices, pinned memory, [tier], [metrics], [audit], or a time or "
    "when_store_full of "
    "[daemon]); the values of the last start hold";

constexpr char kMayNotSignal[] =
    "A process that does not release revoked memory keeps it: this daemon may not end processes "
    "of other users. It needs the capability CAP_KILL; with systemd, the drop-in kill.conf gives "
    "it.";

// Returns the answer to a reload, but for the notices.
gpumem::v1::ReloadResponse ResponseFor(const Config& from, const Config& to) {
  gpumem::v1::ReloadResponse response;
  response.set_config_file(to.file);
  for (std::string& change : ConfigChanges(from, to)) response.add_changes(std::move(change));
  return response;
}

}  // namespace

std::vector<std::string> Server::NoticesFor(const Config& config) const {
  std::vector<std::string> notices = device_notices_;
  for (const auto& more :
       {store_.notices(), config.notices, DeviceNotices(config, DeviceInfos())}) {
    notices.insert(notices.end(), more.begin(), more.end());
  }
  if (EndsProcesses(config) && !MaySignalOthers()) notices.emplace_back(kMayNotSignal);
  return notices;
}

void Server::ApplyTenants(const Config& config) {
  const std::vector<DeviceInfo> devices = DeviceInfos();
  const std::vector<std::string> skipped =
      quotas_->Configure(QuotasOf(config, devices), ResolveQuota(config.tenant_defaults, devices));
  for (const std::string& sentence : skipped) spdlog::warn("{}", sentence);
  broker_->operators().SetHoldersShown(config.privacy.holders);
  if (sessions_ != nullptr) sessions_->SetRules(config.rules);

  std::vector<std::string> notices = NoticesFor(config);
  if (!notices.empty() && notices.back() == kMayNotSignal) spdlog::warn("{}", kMayNotSignal);
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
               outcome->changes().empty() ? ": no changes" : "");
  for (const std::string& change : outcome->changes()) spdlog::info("reloaded: {}", change);
  return outcome;
}

absl::StatusOr<Config> Server::LoadForReload() const {
  if (reloading_.load == nullptr) {
    return absl::FailedPreconditionError(
        "there is no configuration file to reload: the daemon was started without one (--config)");
  }
  absl::StatusOr<Config> loaded = reloading_.load();
  if (!loaded.ok()) return loaded.status();
  const std::vector<DeviceInfo> devices = DeviceInfos();
  if (absl::Status kept = CheckGuarantees(*loaded, devices); !kept.ok()) return kept;
  absl::Status made = quotas_->CheckMade(QuotasOf(*loaded, devices),
                                         ResolveQuota(loaded->tenant_defaults, devices));
  if (!made.ok()) return made;
  return loaded;
}

absl::StatusOr<gpumem::v1::ReloadResponse> Server::CheckReload() {
  absl::MutexLock lock(&reload_mutex_);
  const absl::StatusOr<Config> config = LoadForReload();
  if (!config.ok()) return config.status();
  gpumem::v1::ReloadResponse response = ResponseFor(in_force_, *config);
  for (std::string& notice : NoticesFor(*config)) response.add_notices(std::move(notice));
  if (NeedsRestart(config_, *config)) response.add_notices(kNeedsRestart);
  const std::vector<DeviceInfo> devices = DeviceInfos();
  for (std::string& notice : quotas_->CheckConfigure(
           QuotasOf(*config, devices), ResolveQuota(config->tenant_defaults, devices))) {
    response.add_notices(std::move(notice));
  }
  return response;
}

absl::StatusOr<gpumem::v1::ReloadResponse> Server::TryReload() {
  const absl::StatusOr<Config> loaded = LoadForReload();
  if (!loaded.ok()) return loaded.status();
  const Config& config = *loaded;
  ApplyTenants(config);
  if (reloading_.done != nullptr) reloading_.done(config);
  if (monitor_ != nullptr) monitor_->Configure(config.unbrokered);
  gpumem::v1::ReloadResponse response = ResponseFor(in_force_, config);
  in_force_ = config;
  absl::MutexLock lock(&mutex_);
  if (NeedsRestart(config_, config)) {
    notices_.emplace_back(kNeedsRestart);
    spdlog::warn("{}", notices_.back());
  }
  for (const std::string& notice : notices_) response.add_notices(notice);
  for (const std::string& notice : quotas_->Skipped()) response.add_notices(notice);
  return response;
}

}  // namespace gpumemd
