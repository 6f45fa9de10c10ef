// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/audit/audit.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"

namespace gpumemd {
namespace {

using gpumem::FormatBytes;

std::string Count(uint64_t n, absl::string_view noun) {
  return absl::StrCat(n, " ", noun, n == 1 ? "" : absl::EndsWith(noun, "s") ? "es" : "s");
}

// Collects the fields that are present.
class Fields {
 public:
  void Text(absl::string_view name, const std::string& value) {
    if (!value.empty()) fields_.push_back({.name = name, .values = {value}});
  }
  template <typename T>
  void Number(absl::string_view name, const std::optional<T>& value) {
    if (!value) return;
    fields_.push_back(
        {.name = name, .number = true, .values = {absl::StrCat(static_cast<uint64_t>(*value))}});
  }
  template <typename T, typename Value>
  void Numbers(absl::string_view name, const std::vector<T>& values, Value value) {
    if (values.empty()) return;
    AuditField& field = fields_.emplace_back();
    field.name = name;
    field.number = field.list = true;
    for (const T& each : values) field.values.push_back(absl::StrCat(value(each)));
  }
  void Texts(absl::string_view name, const std::vector<std::string>& values) {
    if (values.empty()) return;
    fields_.push_back({.name = name, .list = true, .values = values});
  }
  std::vector<AuditField> Take() { return std::move(fields_); }

 private:
  std::vector<AuditField> fields_;
};

// "tenant a, session 5, pid 12 (python)"
std::string Who(const AuditRecord& record) {
  std::vector<std::string> parts;
  if (!record.tenant.empty()) parts.push_back(absl::StrCat("tenant ", record.tenant));
  if (record.session) parts.push_back(absl::StrCat("session ", ToInt(*record.session)));
  if (record.pid) {
    parts.push_back(
        absl::StrCat("pid ", *record.pid,
                     record.command.empty() ? "" : absl::StrCat(" (", record.command, ")")));
  }
  return absl::StrJoin(parts, ", ");
}

// "64.00 MiB of kind vmm on host-0, 2 segments"
std::string What(const AuditRecord& record) {
  std::string what = FormatBytes(record.bytes.value_or(0));
  if (!record.kind.empty()) absl::StrAppend(&what, " of kind ", record.kind);
  if (!record.device.empty()) absl::StrAppend(&what, " on ", record.device);
  if (record.count) absl::StrAppend(&what, ", ", Count(*record.count, "segment"));
  return what;
}

// ", and 2.00 MiB that did not move"
std::string Resident(const AuditRecord& record) {
  if (record.resident.value_or(0) == 0) return "";
  return absl::StrCat(", and ", FormatBytes(*record.resident), " that did not move");
}

std::string Publication(const AuditRecord& record) {
  return absl::StrCat("publication ", record.publication, ", version ", record.version.value_or(0));
}

// "contents 0a1b of publication a/weights"
std::string Contents(const AuditRecord& record) {
  return absl::StrCat("contents ", record.content, " of publication ", record.publication);
}

// ", by uid 0 (pid 12)"
std::string By(const AuditRecord& record) {
  if (record.by.empty()) return "";
  const auto append = [](std::string* text, const AuditOperator& by) {
    absl::StrAppend(text, "uid ", by.uid, " (pid ", by.pid, ")");
  };
  return absl::StrCat(", by ", record.by.size() > 1 ? "one of " : "",
                      absl::StrJoin(record.by, ", ", append));
}

std::string Why(const AuditRecord& record) {
  return record.why.empty() ? "" : absl::StrCat(": ", record.why);
}

std::string Changes(const AuditRecord& record) {
  return record.changes.empty() ? "" : absl::StrCat(": ", absl::StrJoin(record.changes, "; "));
}

// A tenant that was made at run time: "job-7"; "a:5.run by trainer (pid 9) of tenant a".
std::string Made(const AuditRecord& record) {
  return record.session ? absl::StrCat(record.owner, " by ", Who(record)) : record.tenant;
}

// The operation, tenant and device that an operator named, if any.
std::string Where(const AuditRecord& record) {
  return absl::StrCat(
      record.tenant.empty() ? "all tenants" : absl::StrCat("tenant ", record.tenant),
      record.device.empty() ? "" : absl::StrCat(" on ", record.device));
}

}  // namespace

std::vector<AuditField> FieldsOf(const AuditRecord& record) {
  const auto id = [](auto each) { return ToInt(each); };
  Fields fields;
  fields.Text("tenant", record.tenant);
  fields.Number("session", record.session);
  fields.Number("pid", record.pid);
  fields.Number("uid", record.uid);
  fields.Text("client", record.client);
  fields.Text("command", record.command);
  fields.Text("rule", record.rule);
  fields.Text("call", record.call);
  fields.Text("owner", record.owner);
  fields.Text("device", record.device);
  fields.Text("kind", record.kind);
  fields.Text("publication", record.publication);
  fields.Number("version", record.version);
  fields.Text("content", record.content);
  fields.Number("bytes", record.bytes);
  fields.Number("count", record.count);
  fields.Number("resident", record.resident);
  fields.Numbers("lease", record.leases, id);
  fields.Numbers("segment", record.segments, id);
  fields.Numbers("holder", record.holders, id);
  fields.Text("of", record.of);
  fields.Text("cause", record.cause);
  fields.Number("asked", record.asked);
  fields.Number("used", record.used);
  fields.Number("limit", record.limit);
  fields.Text("limited", record.limited);
  fields.Text("signal", record.signal);
  fields.Text("daemon_version", record.version_of_daemon);
  fields.Text("backend", record.backend);
  fields.Text("config", record.config);
  fields.Number("generation", record.generation);
  fields.Number("sessions", record.sessions);
  fields.Number("gone", record.gone);
  fields.Number("publications", record.publications);
  fields.Texts("change", record.changes);
  fields.Text("why", record.why);
  fields.Numbers("by_uid", record.by, [](const AuditOperator& by) { return by.uid; });
  fields.Numbers("by_pid", record.by, [](const AuditOperator& by) { return by.pid; });
  return fields.Take();
}

std::string Tell(const AuditRecord& record) {
  switch (record.event) {
    case AuditEvent::kStarted:
      return absl::StrCat("gpumemd ", record.version_of_daemon, " started, ", record.backend,
                          " backend");
    case AuditEvent::kRestored:
      return absl::StrCat(
          "restored from the previous daemon: ", Count(record.sessions.value_or(0), "session"),
          ", ", Count(record.count.value_or(0), "segment"), ", ",
          Count(record.publications.value_or(0), "publication"), "; ",
          Count(record.gone.value_or(0), "process"), " ended");
    case AuditEvent::kStopped:
      return absl::StrCat("gpumemd stopped", Why(record), By(record));
    case AuditEvent::kReloaded:
      return absl::StrCat("configuration read again",
                          record.changes.empty() ? ": no changes" : Changes(record), By(record));
    case AuditEvent::kReloadRefused:
      return absl::StrCat("configuration rejected", By(record), Why(record));
    case AuditEvent::kQuotaSet:
      return absl::StrCat("quota of tenant ", record.tenant, " set", By(record), Changes(record));
    case AuditEvent::kQuotaUnset:
      return absl::StrCat("quota of tenant ", record.tenant, " reset to the configuration",
                          By(record), Changes(record));
    case AuditEvent::kDraining:
      return absl::StrCat("draining: new requests are refused", By(record));
    case AuditEvent::kAdmitting:
      return absl::StrCat("requests are admitted again", By(record));
    case AuditEvent::kTrimmed:
      return absl::StrCat("retained memory returned to the driver: ",
                          FormatBytes(record.bytes.value_or(0)), " of ", Where(record), By(record));
    case AuditEvent::kPoolSet:
      return absl::StrCat("memory pool of ", Where(record), " changed", By(record),
                          Changes(record));
    case AuditEvent::kPoolTrimmed:
      return absl::StrCat("memory pool of ", Where(record), " trimmed", By(record));
    case AuditEvent::kLeasesSuspended:
      return absl::StrCat("suspended on request: ", Who(record), ", ", What(record), By(record));
    case AuditEvent::kLeasesResumed:
      return absl::StrCat("resumed on request: ", Who(record), ", ", What(record), By(record));
    case AuditEvent::kLeasesDemoted:
      return absl::StrCat("demoted on request: ", Who(record), ", ", What(record), By(record));
    case AuditEvent::kLeasesPromoted:
      return absl::StrCat("promoted on request: ", Who(record), ", ", What(record), By(record));
    case AuditEvent::kPublicationSuspended:
      return absl::StrCat(Publication(record), " suspended: ", What(record), By(record));
    case AuditEvent::kTenantMade:
      return absl::StrCat("tenant ", Made(record), " made", By(record), Changes(record));
    case AuditEvent::kTenantChanged:
      return absl::StrCat("tenant ", Made(record), " changed", By(record), Changes(record));
    case AuditEvent::kTenantEnded:
      return absl::StrCat("tenant ", Made(record), " ended", By(record), Why(record));
    case AuditEvent::kSuspensionAsked:
      return absl::StrCat("asked to suspend ", FormatBytes(record.bytes.value_or(0)), ": ",
                          Who(record), Why(record));
    case AuditEvent::kSuspensionEnded:
      return absl::StrCat("no longer asked to suspend: ", Who(record), ", maps ",
                          FormatBytes(record.bytes.value_or(0)), Why(record));
    case AuditEvent::kRefused:
      return absl::StrCat("refused ", Who(record), Why(record));
    case AuditEvent::kSessionOpened:
      return absl::StrCat("session opened: ", Who(record), ", by ", record.rule);
    case AuditEvent::kSessionResumed:
      return absl::StrCat("session resumed: ", Who(record));
    case AuditEvent::kSessionEnded:
      return absl::StrCat("session ended: ", Who(record), " held ", What(record), Why(record));
    case AuditEvent::kGranted:
      return absl::StrCat("granted to ", Who(record), ": ", What(record), " (", record.call, ")");
    case AuditEvent::kReleased:
      return absl::StrCat("released by ", Who(record), ": ", What(record), Why(record));
    case AuditEvent::kSuspended:
      return absl::StrCat("suspended by ", Who(record), ": ", What(record), Resident(record),
                          Why(record));
    case AuditEvent::kResumed:
      return absl::StrCat("resumed by ", Who(record), ": ", What(record), Resident(record));
    case AuditEvent::kMoved:
      return absl::StrCat("moved to the host tier, of tenant ", record.tenant, ": ", What(record),
                          Why(record));
    case AuditEvent::kDemoted:
      return absl::StrCat("demoted by ", Who(record), ": ", What(record));
    case AuditEvent::kPromoted:
      return absl::StrCat("promoted by ", Who(record), ": ", What(record));
    case AuditEvent::kPublicationResumed:
      return absl::StrCat(Publication(record), " resumed",
                          record.session ? absl::StrCat(" for ", Who(record)) : "", ": ",
                          What(record), By(record));
    case AuditEvent::kDenied:
      return absl::StrCat("denied to ", Who(record), " (", record.cause, ")", Why(record));
    case AuditEvent::kPublished:
      return absl::StrCat(Publication(record), " published by ", Who(record), ": ", What(record));
    case AuditEvent::kPublicationEnded:
      return absl::StrCat(Publication(record), " ended: ", What(record), Why(record), By(record));
    case AuditEvent::kClaimed:
      return absl::StrCat("claimed by ", Who(record), ": ", Contents(record), Why(record));
    case AuditEvent::kClaimEnded:
      return absl::StrCat("claim of ", Who(record), " ended: ", Contents(record), Why(record));
    case AuditEvent::kLost:
      return absl::StrCat("lost by ", Who(record), ": ",
                          record.publication.empty() ? What(record) : Publication(record),
                          Why(record));
    case AuditEvent::kRevoking:
      return absl::StrCat("being taken back from tenant ", record.tenant, ": ", What(record),
                          Why(record));
    case AuditEvent::kSignalled:
      return absl::StrCat(record.signal, " to ", Who(record), Why(record));
    case AuditEvent::kRevoked:
      return absl::StrCat("taken back from tenant ", record.tenant, ": ", What(record),
                          Why(record));
    case AuditEvent::kRevocationEnded:
      return absl::StrCat("no longer taken back from tenant ", record.tenant, ": ", What(record),
                          Why(record));
    case AuditEvent::kReclaimed:
      return absl::StrCat("reclaimed from ", Who(record), ", which has ended: ", What(record));
    case AuditEvent::kSuppressed:
      return absl::StrCat(
          record.count.value_or(0), " more records of ", record.of, " of ",
          record.uid ? absl::StrCat("uid ", *record.uid) : absl::StrCat("tenant ", record.tenant),
          " were left out", record.bytes ? absl::StrCat(": ", FormatBytes(*record.bytes)) : "");
    case AuditEvent::kMissed:
      return absl::StrCat(Count(record.count.value_or(0), "record"),
                          " of the audit lost: they came faster than they could be written");
  }
  return std::string(NameOf(record.event));
}

absl::string_view NameOf(AuditEvent event) { return KindOf(event).name; }

const AuditKind& KindOf(AuditEvent event) { return AuditKinds()[static_cast<size_t>(event)]; }

}  // namespace gpumemd
