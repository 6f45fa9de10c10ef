// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/observer_relay.h"

#include <csignal>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

namespace gpumemd {

void ObserverRelay::SessionForgotten(SessionId session) {
  sessions_.With([&](SessionServer& sessions) { sessions.Forget(session); });
}

void ObserverRelay::QuotaChanged(absl::string_view tenant) {
  hub_.With([&](WatchHub& hub) { hub.QuotaChanged(tenant); });
}

void ObserverRelay::DrainingChanged(bool) {
  hub_.With([](WatchHub& hub) { hub.DrainingChanged(); });
}

void ObserverRelay::SegmentsLost(SessionId session) {
  hub_.With([&](WatchHub& hub) { hub.SegmentsLost(session); });
}

void ObserverRelay::Pressed(const Pressure& pressure) {
  hub_.With([&](WatchHub& hub) { hub.Pressed(pressure); });
}

void ObserverRelay::Revoked(SessionId session) {
  hub_.With([&](WatchHub& hub) { hub.Revoked(session); });
}

void ObserverRelay::SuspensionRequested(SessionId session) {
  hub_.With([&](WatchHub& hub) { hub.SuspensionRequested(session); });
}

void ObserverRelay::EndProcess(SessionId session, bool kill) {
  absl::StatusOr<SessionServer::Recognition> who;
  absl::Status sent;
  const bool there = sessions_.With([&](SessionServer& sessions) {
    who = sessions.WhoIs(session);
    sent = sessions.Signal(session, kill ? SIGKILL : SIGTERM);
  });
  if (!there) return;
  AuditRecord record{
      .time = absl::Now(),
      .event = AuditEvent::kSignalled,
      .session = session,
      .signal = kill ? "SIGKILL" : "SIGTERM",
      .why = absl::StrCat("it did not release the revoked memory in time",
                          sent.ok() ? "" : absl::StrCat("; the signal failed: ", sent.message()))};
  if (who.ok()) {
    record.tenant = who->match.tenant;
    record.pid = who->peer.pid;
    record.uid = who->peer.uid;
  }
  audit_->Record(std::move(record));
  spdlog::warn("revocation: {} did not release the revoked memory in time: it was {}{}",
               who.ok() ? absl::StrCat("process ", who->peer.pid, " of tenant ", who->match.tenant,
                                       " (session ", ToInt(session), ")")
                        : absl::StrCat("the process of session ", ToInt(session)),
               kill ? "ended (SIGKILL)" : "asked to end (SIGTERM)",
               sent.ok() ? "" : absl::StrCat(", but the signal failed: ", sent.message()));
}

void ObserverRelay::ContextLost(const std::string& device_uuid, size_t segments) {
  spdlog::warn(
      "the context process on {} has ended: {} segments of kinds mempool and ipc are lost; their "
      "holders are told, and the next request starts another context process",
      device_uuid, segments);
}

}  // namespace gpumemd
