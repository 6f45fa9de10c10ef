// SPDX-License-Identifier: Apache-2.0
// The daemon's configuration: TOML text to one validated struct.
//
// ParseConfig() is pure: it reads nothing but its arguments, so that plain text tests every mistake
// of an operator. Each error is one sentence with file, line, key and the expected value. Nothing
// is ignored silently, least of all an unknown key. deploy/gpumemd.toml is the commented example.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/spin/spin.h"
#include "daemon/core/identity/rules.h"
#include "daemon/core/quota/quota.h"
#include "daemon/device/device.h"

namespace gpumemd {

// Bytes ("40GiB"), or a share ("50%") of a whole: for most keys, of each device's capacity.
struct SizeLimit {
  uint64_t bytes = 0;             // where percent is absent
  std::optional<double> percent;  // above 0, at most 100

  uint64_t Of(uint64_t whole_bytes) const;
  bool operator==(const SizeLimit&) const = default;
};

// A Quota as the file has it, before the devices are known. Absent fields set no limit.
struct QuotaConfig {
  // Host memory (pinned memory, the host tier) has separate limits: these three do not count it.
  std::optional<SizeLimit> limit;                  // on any one device
  std::map<std::string, SizeLimit> device_limits;  // by UUID; goes before limit
  std::optional<uint64_t> total_limit_bytes;       // over all devices
  std::optional<SizeLimit> pinned_limit;           // of the pinned capacity
  std::optional<SizeLimit> tier_limit;             // of the host tier's capacity
  std::optional<uint32_t> max_segments;
  std::optional<uint32_t> max_sessions;
  std::optional<uint32_t> max_in_flight;
  std::optional<SizeLimit> max_retained;  // on any one device, host memory included
  std::optional<SizeLimit> guarantee;     // on any one GPU; never one of tenant_defaults
  std::map<std::string, SizeLimit> device_guarantees;  // by UUID; overrides guarantee
  int32_t priority = 0;
  std::optional<uint32_t> max_waiting;
  std::optional<uint32_t> max_publications;
  std::optional<Kind> kind;
  bool scrub = false;
  bool revocable = false;
  bool swappable = false;
  absl::Duration min_residence = absl::Seconds(10);
  absl::Duration idle_suspend = absl::ZeroDuration();
  std::string parent;  // the name of a [[tenant]]; empty: none
  ReleasePolicy release = ReleasePolicy::kTrust;
  std::optional<PreloadMode> preload;

  bool operator==(const QuotaConfig&) const = default;
};

// Calls visit(KEY, MEMBER, QUOTA_MEMBER) for each member of a QuotaConfig, in the order of a
// reload's changes. KEY is its name in the file and in common/quota_keys.h; QUOTA_MEMBER is the
// member of a Quota that it becomes. "device" is there twice, since [[tenant.device]] has both.
template <typename Visit>
constexpr void ForEachQuotaKey(Visit visit) {
  visit("limit", &QuotaConfig::limit, &Quota::limit_bytes);
  visit("guarantee", &QuotaConfig::guarantee, &Quota::guarantee_bytes);
  visit("device", &QuotaConfig::device_limits, &Quota::device_limits);
  visit("device", &QuotaConfig::device_guarantees, &Quota::device_guarantees);
  visit("total_limit", &QuotaConfig::total_limit_bytes, &Quota::total_limit_bytes);
  visit("pinned_limit", &QuotaConfig::pinned_limit, &Quota::pinned_limit_bytes);
  visit("tier_limit", &QuotaConfig::tier_limit, &Quota::tier_limit_bytes);
  visit("max_segments", &QuotaConfig::max_segments, &Quota::max_segments);
  visit("max_sessions", &QuotaConfig::max_sessions, &Quota::max_sessions);
  visit("max_in_flight", &QuotaConfig::max_in_flight, &Quota::max_in_flight);
  visit("max_waiting", &QuotaConfig::max_waiting, &Quota::max_waiting);
  visit("max_publications", &QuotaConfig::max_publications, &Quota::max_publications);
  visit("max_retained", &QuotaConfig::max_retained, &Quota::max_retained_bytes);
  visit("priority", &QuotaConfig::priority, &Quota::priority);
  visit("kind", &QuotaConfig::kind, &Quota::kind);
  visit("scrub", &QuotaConfig::scrub, &Quota::scrub);
  visit("revocable", &QuotaConfig::revocable, &Quota::revocable);
  visit("swappable", &QuotaConfig::swappable, &Quota::swappable);
  visit("min_residence", &QuotaConfig::min_residence, &Quota::min_residence);
  visit("idle_suspend", &QuotaConfig::idle_suspend, &Quota::idle_suspend);
  visit("parent", &QuotaConfig::parent, &Quota::parent);
  visit("release", &QuotaConfig::release, &Quota::release);
  visit("preload", &QuotaConfig::preload, &Quota::preload);
}

struct TenantConfig {
  std::string name;
  QuotaConfig quota;  // complete: missing fields are taken from tenant_defaults

  // Line numbers in the file, for later checks. 0: not in the file.
  struct Lines {
    uint64_t name = 0;
    uint64_t limit = 0;
    uint64_t guarantee = 0;
    uint64_t parent = 0;
    std::map<std::string, uint64_t> device_limits, device_guarantees;  // by UUID
  };
  Lines lines;

  // Ignores the lines: equal contents in different places are equal.
  bool operator==(const TenantConfig& other) const {
    return name == other.name && quota == other.quota;
  }
};

enum class BackendChoice { kAuto, kCuda, kHost };
enum class LogLevel { kDebug, kInfo, kWarn, kError };

// The reaction to memory that a tenant's process allocated without the broker.
enum class UnbrokeredReaction {
  kReport,     // it is shown
  kDenyNew,    // and its tenant gets nothing new until it is gone
  kTerminate,  // and the process is ended
};

struct UnbrokeredConfig {
  UnbrokeredReaction reaction = UnbrokeredReaction::kReport;
  // For each process on each device: tolerated bytes, beside those of a CUDA context and its
  // libraries. A bare context takes 0.5 GiB of an H200.
  uint64_t tolerance = uint64_t{64} << 20;
  uint64_t context_allowance = uint64_t{1} << 30;
  absl::Duration interval = absl::Seconds(1);  // zero: no checks

  bool operator==(const UnbrokeredConfig&) const = default;
};

// The listener for Prometheus; at most one of the first two.
struct MetricsConfig {
  std::string unix_path;
  std::string address;  // of IP, version 4 or 6; both empty: nowhere
  uint16_t port = 0;    // of the address; 0: any
  mode_t socket_mode = 0660;
  std::optional<gid_t> socket_gid;
  uint32_t max_tenants = 200;  // that are shown by name

  bool enabled() const { return !unix_path.empty() || !address.empty(); }
  bool operator==(const MetricsConfig&) const = default;
};

// Where the audit is written.
enum class AuditTo {
  kAuto,     // the journal where standard error is the journal's, else kJson
  kJournal,  // systemd's
  kJson,     // lines of JSON
  kOff,
};

struct AuditConfig {
  AuditTo output = AuditTo::kAuto;
  std::string path;    // of the lines of JSON; empty: standard error
  bool grants = true;  // also grants and releases
  // For each event of each tenant; further ones are only counted. 0: no limit.
  uint32_t per_second = 20;

  bool operator==(const AuditConfig&) const = default;
};

// Facts about other tenants that workers get.
struct PrivacyConfig {
  HoldersShown holders = HoldersShown::kOwn;

  bool operator==(const PrivacyConfig&) const = default;
};

// The host tier, for the contents of suspended memory.
struct TierConfig {
  SizeLimit capacity;      // of the machine's memory; zero: no tier
  bool huge_pages = true;  // where the machine has them
  bool prefault = false;   // its pages are allocated from the start

  bool operator==(const TierConfig&) const = default;
};

struct Config {
  std::string file;         // the file's path; empty: built-in defaults
  std::string runtime_dir;  // empty: not set; see gpumem::DaemonRuntimeDir()
  std::string state_dir;    // empty: not set; see gpumem::DaemonStateDir()
  BackendChoice backend = BackendChoice::kAuto;
  LogLevel log_level = LogLevel::kInfo;

  // Over all tenants.
  uint32_t max_sessions = 4096;
  std::optional<uint32_t> max_sessions_per_uid;  // absent: a quarter of max_sessions
  uint32_t max_segments = 100000;

  mode_t session_socket_mode = 0666;
  mode_t admin_socket_mode = 0660;
  std::optional<gid_t> admin_gid;  // its members may use the admin socket
  mode_t view_socket_mode = 0660;
  std::optional<gid_t> view_gid;  // its members may use the view socket
  absl::Duration drain_timeout = absl::Seconds(10);
  // If the service manager's store has no place for a new segment: refuse it, or make it with a
  // warning.
  bool refuse_when_store_full = false;
  // Time for holders to give up revoked leases; and then, asked to end, to do so.
  absl::Duration revocation_grace = absl::Seconds(10);
  absl::Duration revocation_kill_after = absl::Seconds(5);
  // Time for sessions to suspend when other requests need their memory.
  absl::Duration suspension_grace = absl::Seconds(30);
  // How gRPC's threads wait for calls.
  gpumem::SpinOptions spin;

  // For the host backend alone.
  uint32_t host_devices = 1;
  uint64_t host_device_bytes = uint64_t{8} << 30;

  // Host memory for segments of kinds pinned and host, of the machine's memory. Zero: none.
  SizeLimit pinned_capacity{.percent = 25};
  TierConfig tier;

  UnbrokeredConfig unbrokered;
  MetricsConfig metrics;
  AuditConfig audit;
  PrivacyConfig privacy;

  QuotaConfig tenant_defaults;        // of tenants that no [[tenant]] describes
  uint64_t defaults_parent_line = 0;  // of the parent in tenant_defaults
  std::vector<TenantConfig> tenants;
  std::vector<Rule> rules;  // never empty

  // Allowed but probably unintended settings, one sentence each: for the log and GetStatus.
  std::vector<std::string> notices;
};

// Maps names to ids. nullopt: no such name.
struct NameLookup {
  std::function<std::optional<uid_t>(const std::string&)> user;
  std::function<std::optional<gid_t>(const std::string&)> group;
};

// Returns the system's lookup: getpwnam_r(3), getgrnam_r(3).
NameLookup SystemNames();

// Returns the configuration without a file: every user is a separate tenant, "user-UID", with the
// devices' capacity for a limit and the default counts.
Config DefaultConfig();

// Parses the text. `file` is only named in errors.
//   INVALID_ARGUMENT  the text is no valid configuration
absl::StatusOr<Config> ParseConfig(absl::string_view text, absl::string_view file,
                                   const NameLookup& names);

// Reads and parses the file.
//   NOT_FOUND, PERMISSION_DENIED, …  the file cannot be read
//   INVALID_ARGUMENT                 its text is no valid configuration
absl::StatusOr<Config> LoadConfigFile(const std::string& path);

// Returns the bytes of host memory for segments of kinds pinned and host, on a machine with
// `memory_bytes`; 0: the daemon makes none.
//   INVALID_ARGUMENT  more than the machine has
absl::StatusOr<uint64_t> PinnedCapacity(const Config& config, uint64_t memory_bytes);
// Returns the bytes of the host tier in the same way.
absl::StatusOr<uint64_t> TierCapacity(const Config& config, uint64_t memory_bytes);

// Returns the quota in bytes on the present devices.
Quota ResolveQuota(const QuotaConfig& config, absl::Span<const DeviceInfo> devices);

// Checks that all guarantees can be kept on these devices, and that no tenant's limit exceeds its
// parent's.
//   INVALID_ARGUMENT  with file and line, like ParseConfig()'s errors, which knows the percentages
//                     but not the capacities
absl::Status CheckGuarantees(const Config& config, absl::Span<const DeviceInfo> devices);

// Returns the quota of `tenant`, or else the defaults.
const QuotaConfig& QuotaOf(const Config& config, absl::string_view tenant);

// Returns the differences that a running daemon applies, one sentence each.
std::vector<std::string> ConfigChanges(const Config& from, const Config& to);

// Returns a sentence for each device that the configuration limits and the node lacks. The same
// file may serve several nodes, but a mistyped UUID limits nothing.
std::vector<std::string> DeviceNotices(const Config& config, absl::Span<const DeviceInfo> devices);

}  // namespace gpumemd
