// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/audit.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/audit/audit_output.h"

namespace gpumemd {
namespace {

absl::StatusOr<std::unique_ptr<AuditOutput>> OpenOutput(const AuditConfig& config) {
  switch (config.output) {
    case AuditTo::kOff:
      return nullptr;
    case AuditTo::kJournal:
      return AuditToJournal();
    case AuditTo::kAuto:
      if (StderrIsJournal()) return AuditToJournal();
      [[fallthrough]];
    case AuditTo::kJson:
      return config.path.empty() ? AuditToStderr() : OpenAuditFile(config.path);
  }
  return absl::InternalError("no such output of the audit");
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> StartAudit(const AuditConfig& config) {
  absl::StatusOr<std::unique_ptr<AuditOutput>> output = OpenOutput(config);
  if (!output.ok()) return output.status();
  return AuditLog::Start(*std::move(output),
                         {.filter = {.grants = config.grants, .per_second = config.per_second}});
}

void AuditInheritance(const Broker::Restored& restored, const JournalImage& image,
                      const std::map<SessionId, Survivor>& survivors, uint64_t generation,
                      AuditSink* sink) {
  const absl::Time now = absl::Now();
  sink->Record({.time = now,
                .event = AuditEvent::kRestored,
                .count = restored.segments,
                .sessions = restored.sessions,
                .gone = image.sessions.size() - survivors.size(),
                .publications = restored.publications,
                .generation = generation});
  // Segments held by ended processes.
  std::map<SessionId, std::map<SegmentId, uint64_t>> held;
  for (const auto& [id, lease] : image.leases) {
    auto segment = image.segments.find(lease.segment);
    if (segment != image.segments.end()) held[lease.session][lease.segment] = segment->second.bytes;
  }
  for (const auto& [id, session] : image.sessions) {
    if (survivors.contains(id)) continue;
    AuditRecord record{.time = now,
                       .event = AuditEvent::kSessionEnded,
                       .tenant = std::string(session.tenant.view()),
                       .session = id,
                       .pid = session.pid,
                       .uid = session.uid,
                       .client = std::string(session.client_name.view()),
                       .command = std::string(session.command.view()),
                       .bytes = 0,
                       .count = held[id].size(),
                       .why = "its process ended while no daemon ran"};
    for (const auto& [segment, bytes] : held[id]) *record.bytes += bytes;
    sink->Record(std::move(record));
  }
  for (const Restored::Lost& lost : restored.lost) {
    sink->Record({.time = now,
                  .event = AuditEvent::kLost,
                  .tenant = lost.tenant,
                  .device = lost.device_uuid,
                  .kind = std::string(KindName(lost.kind)),
                  .segments = {lost.segment},
                  .holders = lost.sessions,
                  .bytes = lost.bytes,
                  .count = 1,
                  .why = IsContextBound(lost.kind) ? "it was in the previous daemon's CUDA context"
                         : lost.kind == Kind::kTier
                             ? "this daemon does not have its contents, or its home device"
                             : "the service manager did not hand its memory over"});
  }
  for (const Restored::LostPublication& lost : restored.lost_publications) {
    sink->Record({.time = now,
                  .event = AuditEvent::kLost,
                  .tenant = lost.tenant,
                  .publication = absl::StrCat(lost.tenant, "/", lost.name),
                  .version = lost.version,
                  .segments = lost.segments,
                  .why = lost.segments.empty()
                             ? "the service manager did not hand its metadata over"
                             : "the service manager did not hand all of its segments over"});
  }
}

}  // namespace gpumemd
