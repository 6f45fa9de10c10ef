// SPDX-License-Identifier: Apache-2.0
// Sessions, and the calls that they have in flight.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"

namespace gpumemd {

BrokerCall::~BrokerCall() {
  if (broker_ == nullptr) return;
  Broker::Update update(broker_);
  if (!watch_) --broker_->calls_;
  watch_ ? broker_->ledger_.sessions().EndWatch(session_)
         : broker_->ledger_.sessions().EndCall(session_);
}

absl::Status BrokerCall::BecomeWatch() {
  TimedLock lock(&broker_->mutex_);
  absl::Status become = broker_->ledger_.sessions().BecomeWatch(session_);
  watch_ = become.ok();
  if (watch_) --broker_->calls_;
  return broker_->Denied(session_, "watch", std::move(become));
}

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
  ledger_.endings().SocketClosed(session);
}

void Broker::ProcessGone(SessionId session) {
  Update update(this);
  ledger_.endings().ProcessGone(session);
}

absl::StatusOr<SessionId> Broker::FindSession(absl::string_view token) const {
  Secret secret;
  if (token.size() != secret.size()) {
    return absl::UnauthenticatedError(
        token.empty() ? "this call carries no session token; connect to the session socket first"
                      : "this is not a session token");
  }
  std::memcpy(secret.data(), token.data(), secret.size());
  absl::StatusOr<SessionId> session = ledger_.sessions().FindByToken(secret);
  if (session.ok()) return session;
  return absl::UnauthenticatedError(
      "no live session has this token: the session has ended; connect again");
}

absl::StatusOr<Broker::Call> Broker::Authenticate(absl::string_view token) {
  TimedLock lock(&mutex_);
  absl::StatusOr<SessionId> session = FindSession(token);
  if (!session.ok()) return session.status();
  if (ledger_.state().sessions.at(*session)->presence != Presence::kHere) {
    return absl::UnauthenticatedError(
        "the session began with a previous daemon: its client must resume it first, with a Hello "
        "on the session socket and a Reconcile");
  }
  if (absl::Status begun = ledger_.sessions().BeginCall(*session); !begun.ok()) {
    return Denied(*session, "call", std::move(begun));
  }
  ++calls_;
  return Call(this, *session);
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
