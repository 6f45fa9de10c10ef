#include "daemon/config.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "daemon/config_forms.h"
#include "daemon/toml_reader.h"

namespace gpumemd {
namespace {

constexpr char kTenantForEachUser[] = "user-{uid}";
constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr char kPinnedUuid[] = "PINNED-";

// ---- The sections -----------------------------------------------------------

void ReadDaemon(const toml::value& table, const NameLookup& names, Mistakes* mistakes,
                Config* config) {
  TableReader reader(table, "daemon", mistakes);
  reader.Read("runtime_dir", AbsolutePathForm(), &config->runtime_dir);
  reader.Read("backend",
              OneOfForm<BackendChoice>({{"auto", BackendChoice::kAuto},
                                        {"cuda", BackendChoice::kCuda},
                                        {"host", BackendChoice::kHost}}),
              &config->backend);
  reader.Read("log_level",
              OneOfForm<LogLevel>({{"debug", LogLevel::kDebug},
                                   {"info", LogLevel::kInfo},
                                   {"warn", LogLevel::kWarn},
                                   {"error", LogLevel::kError}}),
              &config->log_level);
  reader.Read("max_sessions", CountForm(1, 1'000'000), &config->max_sessions);
  reader.Read("max_segments", CountForm(1, 10'000'000), &config->max_segments);
  reader.Read("session_socket_mode", ModeForm(), &config->session_socket_mode);
  reader.Read("api_socket_mode", ModeForm(), &config->api_socket_mode);
  reader.Read("admin_socket_mode", ModeForm(), &config->admin_socket_mode);
  reader.Read("drain_timeout", DurationForm(), &config->drain_timeout);
  std::string group;
  reader.Read("admin_group", TextForm(), &group);
  if (!group.empty()) {
    config->admin_gid = names.group(group);
    if (!config->admin_gid) {
      reader.Complain(*reader.Find("admin_group"), "admin_group",
                      absl::StrCat("this machine has no group \"", group, "\""));
    }
  }
  reader.Finish();
}

void ReadHost(const toml::value& table, Mistakes* mistakes, Config* config) {
  TableReader reader(table, "host", mistakes);
  reader.Read("devices", CountForm(1, 64), &config->host_devices);
  reader.Read("device_bytes", BytesForm(), &config->host_device_bytes);
  if (config->host_device_bytes == 0) {
    reader.Complain(*reader.Find("device_bytes"), "device_bytes", "a device has at least one byte");
  }
  reader.Finish();
}

void ReadPinned(const toml::value& table, Mistakes* mistakes, Config* config) {
  TableReader reader(table, "pinned", mistakes);
  reader.Read("capacity", SizeLimitForm("the machine's memory"), &config->pinned_capacity);
  reader.Finish();
}

void ReadUnbrokered(const toml::value& table, Mistakes* mistakes, UnbrokeredConfig* config) {
  TableReader reader(table, "unbrokered", mistakes);
  reader.Read("reaction",
              OneOfForm<UnbrokeredReaction>({{"report", UnbrokeredReaction::kReport},
                                             {"deny-new", UnbrokeredReaction::kDenyNew},
                                             {"terminate", UnbrokeredReaction::kTerminate}}),
              &config->reaction);
  reader.Read("tolerance", BytesForm(), &config->tolerance);
  reader.Read("context_allowance", BytesForm(), &config->context_allowance);
  reader.Read("interval", DurationForm(), &config->interval);
  // Each look asks the driver, which holds up other programs' calls meanwhile.
  if (config->interval > absl::ZeroDuration() && config->interval < absl::Milliseconds(10)) {
    reader.Complain(*reader.Find("interval"), "interval",
                    "too short (expected at least \"10ms\", or \"0s\" for never)");
  }
  reader.Finish();
}

// The keys that [tenant_defaults] and [[tenant]] share. `quota` holds what is inherited.
void ReadQuota(TableReader* reader, const std::string& name, Mistakes* mistakes,
               QuotaConfig* quota) {
  const auto count = CountForm(0, std::numeric_limits<uint32_t>::max());
  // The tenant's own limit is meant for all its devices, those in the defaults included.
  if (reader->Find("limit") != nullptr) quota->device_limits.clear();
  reader->Read("limit", SizeLimitForm("the device"), &quota->limit);
  reader->Read("total_limit", BytesForm(), &quota->total_limit_bytes);
  reader->Read("pinned_limit", SizeLimitForm("the pinned capacity"), &quota->pinned_limit);
  reader->Read("max_segments", count, &quota->max_segments);
  reader->Read("max_sessions", count, &quota->max_sessions);
  reader->Read("max_in_flight", count, &quota->max_in_flight);
  reader->Read("max_retained", SizeLimitForm("the device"), &quota->max_retained);
  reader->Read("release",
               OneOfForm<ReleasePolicy>(
                   {{"trust", ReleasePolicy::kTrust}, {"on-exit", ReleasePolicy::kOnExit}}),
               &quota->release);
  std::set<std::string> seen;
  for (const toml::value* table : reader->Tables("device")) {
    TableReader device(*table, absl::StrCat(name, ".device"), mistakes);
    std::string uuid;
    SizeLimit limit;
    device.Require("uuid", TextForm(), &uuid);
    device.Require("limit", SizeLimitForm("the device"), &limit);
    device.Finish();
    if (absl::StartsWith(uuid, kPinnedUuid)) {
      device.Complain(*device.Find("uuid"), "uuid",
                      "pinned host memory has a limit of its own (pinned_limit, in the table of "
                      "the tenant)");
    }
    if (!uuid.empty() && !seen.insert(uuid).second) {
      device.Complain(*device.Find("uuid"), "uuid",
                      absl::StrCat("device \"", uuid, "\" is named twice"));
    }
    quota->device_limits[uuid] = limit;
  }
}

void ReadTenant(const toml::value& table, Mistakes* mistakes, Config* config) {
  TableReader reader(table, "tenant", mistakes);
  TenantConfig tenant{.quota = config->tenant_defaults};
  reader.Require("name", TenantNameForm(), &tenant.name);
  ReadQuota(&reader, "tenant", mistakes, &tenant.quota);
  reader.Finish();
  for (const TenantConfig& other : config->tenants) {
    if (!tenant.name.empty() && other.name == tenant.name) {
      reader.Complain(*reader.Find("name"), "name",
                      absl::StrCat("tenant \"", tenant.name, "\" is there twice"));
    }
  }
  config->tenants.push_back(std::move(tenant));
}

void CheckTenantOfRule(TableReader* reader, const std::string& tenant, const Config& config) {
  std::set<std::string> configured;
  for (const TenantConfig& known : config.tenants) configured.insert(known.name);
  if (tenant.empty() || configured.contains(tenant) || absl::StrContains(tenant, kUidTemplate)) {
    return;
  }
  std::string nearest = Nearest(tenant, configured);
  reader->Complain(
      *reader->Find("tenant"), "tenant",
      absl::StrCat("no [[tenant]] is named \"", tenant, "\" (",
                   nearest.empty() ? std::string("add one, or write a name for each user: "
                                                 "\"user-{uid}\"")
                                   : absl::StrCat("did you mean \"", nearest, "\"?"),
                   ")"));
}

void ReadRule(const toml::value& table, const NameLookup& names, Mistakes* mistakes,
              Config* config) {
  TableReader reader(table, "rule", mistakes);
  Rule rule;
  reader.Require("tenant", TenantOrTemplateForm(), &rule.tenant);
  CheckTenantOfRule(&reader, rule.tenant, *config);

  bool conditional = false;  // also where the condition is malformed
  for (const char* key : {"uid", "user", "gid", "group", "cgroup"}) {
    conditional |= reader.Find(key) != nullptr;
  }
  std::vector<std::string> conditions;
  // A condition given by number or by name: "uid" or "user", "gid" or "group".
  auto read_id = [&](const std::string& id_key, const std::string& name_key, const auto& lookup,
                     auto* out) {
    reader.Read(id_key, CountForm(0, std::numeric_limits<uint32_t>::max() - 1), out);
    std::string name;
    reader.Read(name_key, TextForm(), &name);
    if (*out) conditions.push_back(absl::StrCat(id_key, " = ", **out));
    if (name.empty()) return;
    const toml::value& where = *reader.Find(name_key);
    conditions.push_back(absl::StrCat(name_key, " = ", name));
    if (reader.Find(id_key) != nullptr) {
      reader.Complain(where, name_key,
                      absl::StrCat("a rule has ", id_key, " or ", name_key, ", not both"));
    } else if (!(*out = lookup(name))) {
      reader.Complain(where, name_key,
                      absl::StrCat("this machine has no ", name_key, " \"", name, "\""));
    }
  };
  read_id("uid", "user", names.user, &rule.uid);
  read_id("gid", "group", names.group, &rule.gid);
  reader.Read("cgroup", TextForm(), &rule.cgroup);
  if (rule.cgroup) conditions.push_back(absl::StrCat("cgroup = ", *rule.cgroup));

  // Said in words, so that a forgotten condition does not open a tenant to everybody.
  bool everybody = false;
  reader.Read("default", BoolForm(), &everybody);
  reader.Finish();
  if (everybody && conditional) {
    reader.Complain(*reader.Find("default"), "default",
                    "a rule that is for everybody has no other condition");
  } else if (!everybody && !conditional) {
    mistakes->Add(table, "rule",
                  "no condition (expected uid, user, gid, group, cgroup, or "
                  "default = true for everybody)");
  }
  if (everybody) conditions.emplace_back("default");
  rule.description =
      absl::StrCat("rule ", config->rules.size() + 1, " (", absl::StrJoin(conditions, ", "), ")");
  config->rules.push_back(std::move(rule));
}

Rule EverybodyRule() {
  return {.tenant = kTenantForEachUser, .description = "built-in rule (a tenant for each user)"};
}

// True where some peer may get `tenant` by `rule`.
bool CanName(const Rule& rule, absl::string_view tenant) {
  if (!absl::StrContains(rule.tenant, kUidTemplate)) return rule.tenant == tenant;
  std::pair<std::string, std::string> around =
      absl::StrSplit(rule.tenant, absl::MaxSplits(kUidTemplate, 1));
  uint32_t uid = 0;
  return absl::ConsumePrefix(&tenant, around.first) &&
         absl::ConsumeSuffix(&tenant, around.second) && absl::SimpleAtoi(tenant, &uid);
}

void NoteUnusedTenants(Config* config) {
  for (const TenantConfig& tenant : config->tenants) {
    if (std::none_of(config->rules.begin(), config->rules.end(),
                     [&](const Rule& rule) { return CanName(rule, tenant.name); })) {
      config->notices.push_back(
          absl::StrCat("tenant \"", tenant.name, "\" is configured, but no rule makes anybody it"));
    }
  }
}

// The first sentence of what toml11 says, without its decoration.
std::string SyntaxMessage(absl::string_view what) {
  absl::string_view line = what.substr(0, what.find('\n'));
  absl::ConsumePrefix(&line, "[error] ");
  if (absl::StartsWith(line, "toml::")) {
    size_t colon = line.find(": ");
    if (colon != absl::string_view::npos) line.remove_prefix(colon + 2);
  }
  return std::string(line);
}

absl::StatusOr<toml::value> ParseToml(absl::string_view text, absl::string_view file) {
  std::istringstream stream{std::string(text)};
  try {
    return toml::parse(stream, std::string(file));
  } catch (const toml::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, ":", error.location().line(), ": not valid TOML: ", SyntaxMessage(error.what())));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": not valid TOML: ", SyntaxMessage(error.what())));
  }
}

absl::Status FileError(int error, absl::string_view path) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot read the configuration ", path));
}

}  // namespace

uint64_t SizeLimit::Of(uint64_t whole_bytes) const {
  if (!percent) return bytes;
  return static_cast<uint64_t>(static_cast<long double>(whole_bytes) * *percent / 100);
}

NameLookup SystemNames() {
  constexpr size_t kMostBytes = 64 * 1024;
  return {
      .user = [](const std::string& name) -> std::optional<uid_t> {
        passwd entry;
        passwd* found = nullptr;
        std::vector<char> buffer(kMostBytes);
        getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
        if (found == nullptr) return std::nullopt;
        return found->pw_uid;
      },
      .group = [](const std::string& name) -> std::optional<gid_t> {
        group entry;
        group* found = nullptr;
        std::vector<char> buffer(kMostBytes);
        getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
        if (found == nullptr) return std::nullopt;
        return found->gr_gid;
      },
  };
}

Config DefaultConfig() {
  Config config;
  // Memory is bounded by the devices; counts must be bounded here, or one user could
  // take all of the daemon's.
  config.tenant_defaults.max_segments = 4096;
  config.tenant_defaults.max_sessions = 256;
  config.tenant_defaults.max_in_flight = 64;
  config.rules.push_back(EverybodyRule());
  return config;
}

absl::StatusOr<Config> ParseConfig(absl::string_view text, absl::string_view file,
                                   const NameLookup& names) {
  absl::StatusOr<toml::value> parsed = ParseToml(text, file);
  if (!parsed.ok()) return parsed.status();

  Mistakes mistakes(file);
  Config config = DefaultConfig();
  config.file = std::string(file);
  config.rules.clear();
  TableReader document(*parsed, "", &mistakes);
  if (const toml::value* table = document.Table("daemon")) {
    ReadDaemon(*table, names, &mistakes, &config);
  }
  if (const toml::value* table = document.Table("host")) ReadHost(*table, &mistakes, &config);
  if (const toml::value* table = document.Table("pinned")) ReadPinned(*table, &mistakes, &config);
  if (const toml::value* table = document.Table("unbrokered")) {
    ReadUnbrokered(*table, &mistakes, &config.unbrokered);
  }
  if (const toml::value* table = document.Table("tenant_defaults")) {
    TableReader reader(*table, "tenant_defaults", &mistakes);
    ReadQuota(&reader, "tenant_defaults", &mistakes, &config.tenant_defaults);
    reader.Finish();
  }
  // Wherever they stand in the file: tenants need the defaults, rules the tenants.
  for (const toml::value* table : document.Tables("tenant")) {
    ReadTenant(*table, &mistakes, &config);
  }
  for (const toml::value* table : document.Tables("rule")) {
    ReadRule(*table, names, &mistakes, &config);
  }
  document.Finish();
  if (!mistakes.status().ok()) return mistakes.status();

  if (config.rules.empty()) config.rules.push_back(EverybodyRule());
  NoteUnusedTenants(&config);
  return config;
}

absl::StatusOr<Config> LoadConfigFile(const std::string& path) {
  gpumem::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return FileError(errno, path);
  std::string text;
  char buffer[4096];
  while (true) {
    ssize_t got = read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, path);
    if (got == 0) break;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMaxConfigBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": larger than 1 MiB, which is no configuration of gpumemd"));
    }
  }
  return ParseConfig(text, path, SystemNames());
}

absl::StatusOr<uint64_t> PinnedCapacity(const Config& config, uint64_t memory_bytes) {
  const uint64_t capacity = config.pinned_capacity.Of(memory_bytes);
  if (capacity > memory_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configuration wants ", gpumem::FormatBytes(capacity),
                     " of pinned memory, and this machine has ", gpumem::FormatBytes(memory_bytes),
                     " of memory; write a smaller [pinned] capacity, or a percentage"));
  }
  return capacity;
}

Quota ResolveQuota(const QuotaConfig& config, absl::Span<const DeviceInfo> devices) {
  Quota quota{.total_limit_bytes = config.total_limit_bytes,
              .max_segments = config.max_segments,
              .max_sessions = config.max_sessions,
              .max_in_flight = config.max_in_flight,
              .release = config.release};
  if (config.limit && !config.limit->percent) quota.limit_bytes = config.limit->bytes;
  if (config.max_retained && !config.max_retained->percent) {
    quota.max_retained_bytes = config.max_retained->bytes;
  }
  if (config.pinned_limit && !config.pinned_limit->percent) {
    quota.pinned_limit_bytes = config.pinned_limit->bytes;
  }
  for (const DeviceInfo& device : devices) {
    if (config.max_retained && config.max_retained->percent) {
      quota.device_max_retained[device.uuid] = config.max_retained->Of(device.capacity_bytes);
    }
    if (IsPinnedMemory(device)) {
      if (config.pinned_limit) {
        quota.pinned_limit_bytes = config.pinned_limit->Of(device.capacity_bytes);
      }
      continue;
    }
    auto own = config.device_limits.find(device.uuid);
    if (own != config.device_limits.end()) {
      quota.device_limits[device.uuid] = own->second.Of(device.capacity_bytes);
    } else if (config.limit && config.limit->percent) {
      quota.device_limits[device.uuid] = config.limit->Of(device.capacity_bytes);
    }
  }
  return quota;
}

const QuotaConfig& QuotaOf(const Config& config, absl::string_view tenant) {
  for (const TenantConfig& configured : config.tenants) {
    if (configured.name == tenant) return configured.quota;
  }
  return config.tenant_defaults;
}

std::vector<std::string> DeviceNotices(const Config& config, absl::Span<const DeviceInfo> devices) {
  std::set<std::string> named;
  for (const auto& [uuid, limit] : config.tenant_defaults.device_limits) named.insert(uuid);
  for (const TenantConfig& tenant : config.tenants) {
    for (const auto& [uuid, limit] : tenant.quota.device_limits) named.insert(uuid);
  }
  for (const DeviceInfo& device : devices) named.erase(device.uuid);
  std::vector<std::string> notices;
  for (const std::string& uuid : named) {
    notices.push_back(absl::StrCat("the configuration limits device ", uuid,
                                   ", which this daemon does not have"));
  }
  return notices;
}

}  // namespace gpumemd
