// SPDX-License-Identifier: Apache-2.0
// Sessions: how they begin, and questions about them.
#include <algorithm>
#include <utility>

#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"

namespace gpumemd {

absl::StatusOr<Broker::NewSession> Broker::OpenSession(absl::string_view tenant,
                                                       const SessionDetails& details) {
  const Secret token = random_();
  Update update(this);
  absl::StatusOr<SessionId> id = ledger_.OpenSession(tenant, details, token);
  if (!id.ok()) AuditNoSession(tenant, details, id.status());
  if (!id.ok()) return id.status();
  return NewSession{*id, token};
}

absl::Status Broker::CheckRoomForSession(absl::string_view tenant, const SessionDetails& details) {
  TimedLock lock(&mutex_);
  absl::Status room = ledger_.sessions().CheckRoom(tenant, details);
  if (!room.ok()) AuditNoSession(tenant, details, room);
  return room;
}

void Broker::AuditNoSession(absl::string_view tenant, const SessionDetails& details,
                            const absl::Status& why) const {
  AuditDenial({.tenant = std::string(tenant),
               .pid = details.peer.pid,
               .uid = details.peer.uid,
               .client = details.client_name,
               .command = details.command},
              "connect", why);
}

void Broker::SocketClosed(SessionId session) {
  Update update(this);
  ledger_.endings().SocketClosed(session, leases_at_once_);
}

void Broker::ProcessGone(SessionId session) {
  Update update(this);
  ledger_.endings().ProcessGone(session, leases_at_once_);
}

bool Broker::AwaitCalls(absl::Time deadline) const {
  TimedLock lock(&mutex_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return calls_ <= parked_; };
  return mutex_.AwaitWithDeadline(absl::Condition(&none), deadline);
}

bool Broker::IsLive(absl::string_view token) const {
  TimedLock lock(&mutex_);
  return FindSession(token).ok();
}

absl::StatusOr<SessionId> Broker::SessionOf(absl::string_view token) const {
  TimedLock lock(&mutex_);
  return FindSession(token);
}

absl::StatusOr<TenantView> Broker::Usage(const Call& call) const {
  TimedLock lock(&mutex_);
  absl::StatusOr<std::string> tenant = ledger_.look().TenantOf(call.session());
  if (!tenant.ok()) return tenant.status();
  return ledger_.look().GetTenant(*tenant);
}

absl::StatusOr<std::string> Broker::TenantOf(const Call& call) const {
  TimedLock lock(&mutex_);
  return ledger_.look().TenantOf(call.session());
}

}  // namespace gpumemd
