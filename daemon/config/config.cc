// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/config.h"

#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <set>
#include <sstream>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "common/quota_keys.h"
#include "common/unique_fd.h"
#include "daemon/config/audit.h"
#include "daemon/config/forms.h"
#include "daemon/config/host_memory.h"
#include "daemon/config/metrics.h"
#include "daemon/config/rules.h"
#include "daemon/config/tenants.h"
#include "daemon/config/toml_reader.h"

namespace gpumemd {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

// Host memory. A key of the tenant limits it, not a [[tenant.device]].
struct HostMemory {
  const char* uuid_prefix;
  const char* name;
  const char* limit;
};
constexpr HostMemory kHostMemory[] = {{"PINNED-", "pinned host memory", "pinned_limit"},
                                      {"TIER-", "the host tier", "tier_limit"}};

// ---- The sections -----------------------------------------------------------

void ReadDaemon(const toml::value& table, const NameLookup& names, Mistakes* mistakes,
                Config* config) {
  TableReader reader(table, "daemon", mistakes);
  reader.Read("runtime_dir", AbsolutePathForm(), &config->runtime_dir);
  reader.Read("state_dir", AbsolutePathForm(), &config->state_dir);
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
  reader.Read("max_sessions_per_uid", CountForm(1, 1'000'000), &config->max_sessions_per_uid);
  reader.Read("max_segments", CountForm(1, 10'000'000), &config->max_segments);
  reader.Read("session_socket_mode", ModeForm(), &config->session_socket_mode);
  // Of releases that had a separate socket for requests: a file that still has the key is good.
  mode_t without_effect = 0;
  reader.Read("api_socket_mode", ModeForm(), &without_effect);
  reader.Read("admin_socket_mode", ModeForm(), &config->admin_socket_mode);
  reader.Read("view_socket_mode", ModeForm(), &config->view_socket_mode);
  reader.Read("drain_timeout", DurationForm(), &config->drain_timeout);
  reader.Read("when_store_full", OneOfForm<bool>({{"warn", false}, {"refuse", true}}),
              &config->refuse_when_store_full);
  reader.Read("revocation_grace", DurationForm(), &config->revocation_grace);
  reader.Read("revocation_kill_after", DurationForm(), &config->revocation_kill_after);
  reader.Read("suspension_grace", DurationForm(), &config->suspension_grace);
  reader.Read("spin", SpinForm(), &config->spin);
  config->admin_gid = ReadGroup("admin_group", names, &reader);
  config->view_gid = ReadGroup("view_group", names, &reader);
  reader.Finish();
}

void ReadPrivacy(const toml::value& table, Mistakes* mistakes, PrivacyConfig* config) {
  TableReader reader(table, "privacy", mistakes);
  reader.Read("holders",
              OneOfForm<HoldersShown>({{"all", HoldersShown::kAll},
                                       {"own", HoldersShown::kOwn},
                                       {"none", HoldersShown::kNone}}),
              &config->holders);
  reader.Finish();
}

// Returns the line of `key`; 0 if it is absent.
uint64_t LineOf(TableReader* reader, const std::string& key) {
  const toml::value* value = reader->Find(key);
  return value == nullptr ? 0 : value->location().line();
}

void ReadDevice(const toml::value& table, const std::string& name, Mistakes* mistakes,
                std::set<std::string>* seen, QuotaConfig* quota, TenantConfig::Lines* lines) {
  TableReader device(table, absl::StrCat(name, ".device"), mistakes);
  std::string uuid;
  std::optional<SizeLimit> limit, guarantee;
  const Form<SizeLimit> size = SizeLimitForm("the device");
  device.Require("uuid", TextForm(), &uuid);
  device.Read("limit", size, &limit);
  device.Read("guarantee", size, &guarantee);
  device.Finish();
  const uint64_t limit_line = LineOf(&device, "limit");
  const uint64_t guarantee_line = LineOf(&device, "guarantee");
  if (limit_line == 0 && guarantee_line == 0) {
    device.Complain(table, "limit",
                    absl::StrCat("missing (expected ", size.expected, "; or a guarantee)"));
  }
  for (const auto& [prefix, memory, key] : kHostMemory) {
    if (!absl::StartsWith(uuid, prefix)) continue;
    device.Complain(*device.Find("uuid"), "uuid",
                    absl::StrCat(memory, " has a separate limit (", key,
                                 ", in the table of the tenant), and no guarantee"));
  }
  if (!uuid.empty() && !seen->insert(uuid).second) {
    device.Complain(*device.Find("uuid"), "uuid",
                    absl::StrCat("device \"", uuid, "\" is named twice"));
  }
  if (limit) {
    quota->device_limits[uuid] = *limit;
    lines->device_limits[uuid] = limit_line;
  }
  if (guarantee) {
    quota->device_guarantees[uuid] = *guarantee;
    lines->device_guarantees[uuid] = guarantee_line;
  }
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

// FormOf(): returns the form of a quota's key, by the type of its value.

Form<SizeLimit> FormOf(const gpumem::QuotaKey& key, const std::optional<SizeLimit>&) {
  return SizeLimitForm(key.share_of);
}
Form<uint64_t> FormOf(const gpumem::QuotaKey&, const std::optional<uint64_t>&) {
  return BytesForm();
}
Form<uint32_t> FormOf(const gpumem::QuotaKey&, const std::optional<uint32_t>&) {
  return CountForm(0, std::numeric_limits<uint32_t>::max());
}
Form<int32_t> FormOf(const gpumem::QuotaKey& key, const int32_t&) {
  return IntegerForm(key.least, key.most);
}
Form<bool> FormOf(const gpumem::QuotaKey&, const bool&) { return BoolForm(); }
Form<absl::Duration> FormOf(const gpumem::QuotaKey&, const absl::Duration&) {
  return DurationForm();
}
Form<std::string> FormOf(const gpumem::QuotaKey&, const std::string&) { return ParentForm(); }
Form<Kind> FormOf(const gpumem::QuotaKey&, const std::optional<Kind>&) { return KindForm(); }
Form<ReleasePolicy> FormOf(const gpumem::QuotaKey&, const ReleasePolicy&) { return ReleaseForm(); }
Form<PreloadMode> FormOf(const gpumem::QuotaKey&, const std::optional<PreloadMode>&) {
  return PreloadForm();
}

// Reads the keys that [tenant_defaults] and [[tenant]] share. `quota` holds the inherited values.
void ReadQuota(TableReader* reader, const std::string& name, Mistakes* mistakes, QuotaConfig* quota,
               TenantConfig::Lines* lines) {
  // The tenant's own limit is meant for all its devices, those in the defaults included.
  if (reader->Find("limit") != nullptr) quota->device_limits.clear();
  ForEachQuotaKey([&](const char* key, auto member, auto) {
    auto& value = quota->*member;
    if constexpr (!std::is_same_v<decltype(value), std::map<std::string, SizeLimit>&>) {
      reader->Read(key, FormOf(*gpumem::FindQuotaKey(key), value), &value);
    }
  });
  lines->limit = LineOf(reader, "limit");
  lines->guarantee = LineOf(reader, "guarantee");
  lines->parent = LineOf(reader, "parent");
  std::set<std::string> seen;
  for (const toml::value* table : reader->Tables("device")) {
    ReadDevice(*table, name, mistakes, &seen, quota, lines);
  }
  // If neither is set here, the mistake has been reported for the defaults.
  const char* last = reader->Find("revocable") != nullptr ? "revocable" : "kind";
  const bool conflict = quota->revocable && quota->kind && !TraitsOf(*quota->kind).revocable;
  if (conflict && reader->Find(last) != nullptr) {
    reader->Complain(*reader->Find(last), last,
                     absl::StrCat("memory of kind \"", KindName(*quota->kind),
                                  "\" cannot be taken back, so that a tenant with "
                                  "revocable = true needs another kind"));
  }
}

void ReadDefaults(const toml::value& table, Mistakes* mistakes, Config* config) {
  TableReader reader(table, "tenant_defaults", mistakes);
  TenantConfig::Lines lines;
  ReadQuota(&reader, "tenant_defaults", mistakes, &config->tenant_defaults, &lines);
  reader.Finish();
  config->defaults_parent_line = lines.parent;
  constexpr char kNoGuarantee[] =
      "the tenant of each user would get this guarantee, and users have no upper bound; set it in "
      "a [[tenant]]";
  if (lines.guarantee != 0) {
    mistakes->AddAt(lines.guarantee, "tenant_defaults.guarantee", kNoGuarantee);
  }
  for (const auto& [uuid, line] : lines.device_guarantees) {
    mistakes->AddAt(line, "tenant_defaults.device.guarantee", kNoGuarantee);
  }
}

void ReadTenant(const toml::value& table, Mistakes* mistakes, Config* config) {
  TableReader reader(table, "tenant", mistakes);
  TenantConfig tenant{.quota = config->tenant_defaults};
  reader.Require("name", TenantNameForm(), &tenant.name);
  ReadQuota(&reader, "tenant", mistakes, &tenant.quota, &tenant.lines);
  reader.Finish();
  tenant.lines.name = table.location().line();
  for (const TenantConfig& other : config->tenants) {
    if (!tenant.name.empty() && other.name == tenant.name) {
      reader.Complain(*reader.Find("name"), "name",
                      absl::StrCat("tenant \"", tenant.name, "\" is defined twice"));
    }
  }
  config->tenants.push_back(std::move(tenant));
}

void NoteUnusedTenants(Config* config) {
  std::set<absl::string_view> parents = {config->tenant_defaults.parent};
  for (const TenantConfig& tenant : config->tenants) parents.insert(tenant.quota.parent);
  for (const TenantConfig& tenant : config->tenants) {
    if (parents.contains(tenant.name)) continue;  // for its members
    if (!CanBeNamed(*config, tenant.name)) {
      config->notices.push_back(absl::StrCat(
          "tenant \"", tenant.name, "\" is configured, but no rule assigns processes to it"));
    }
  }
}

// Returns the first sentence of toml11's message, without its decoration.
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
  // toml11's messages about such bytes read outside the text.
  if (const std::optional<size_t> line = FirstLineNotUtf8(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ":", *line, ": not valid TOML: a byte that is not UTF-8"));
  }
  // toml11 parses by recursion, without a bound.
  if (const std::optional<size_t> line = FirstLineTooDeep(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ":", *line, ": nested deeper than ", kMostTomlLevels, " levels"));
  }
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
  config.tenant_defaults.max_waiting = 256;
  config.tenant_defaults.max_publications = 256;
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
  if (const toml::value* table = document.Table("pinned")) {
    ReadPinned(*table, &mistakes, &config.pinned_capacity);
  }
  if (const toml::value* table = document.Table("tier")) ReadTier(*table, &mistakes, &config.tier);
  if (const toml::value* table = document.Table("unbrokered")) {
    ReadUnbrokered(*table, &mistakes, &config.unbrokered);
  }
  if (const toml::value* table = document.Table("metrics")) {
    ReadMetrics(*table, names, &mistakes, &config.metrics);
  }
  if (const toml::value* table = document.Table("audit")) {
    ReadAudit(*table, &mistakes, &config.audit);
  }
  if (const toml::value* table = document.Table("privacy")) {
    ReadPrivacy(*table, &mistakes, &config.privacy);
  }
  if (const toml::value* table = document.Table("tenant_defaults")) {
    ReadDefaults(*table, &mistakes, &config);
  }
  // Wherever they stand in the file: tenants need the defaults, rules the tenants.
  for (const toml::value* table : document.Tables("tenant")) {
    ReadTenant(*table, &mistakes, &config);
  }
  for (const toml::value* table : document.Tables("rule")) {
    ReadRule(*table, names, &mistakes, &config);
  }
  document.Finish();
  SettleParents(&mistakes, &config);
  // Between tenants that are right each by itself.
  if (mistakes.status().ok()) CheckGuaranteesWritten(config, &mistakes);
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
          absl::StrCat(path, ": larger than 1 MiB, the most that gpumemd reads"));
    }
  }
  return ParseConfig(text, path, SystemNames());
}

}  // namespace gpumemd
