// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/broker/tenants.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/broker/views.h"

namespace gpumemd {
namespace {

// How often a wait looks whether its operator is still there.
constexpr absl::Duration kLook = absl::Milliseconds(200);
// Sessions that an answer names.
constexpr size_t kSessionsNamed = 256;

}  // namespace

absl::StatusOr<TenantView> BrokerTenants::Create(const MadeTenantSpec& spec) {
  Broker::Update update(&broker_);
  absl::StatusOr<bool> made = broker_.ledger_.made_tenants().Create(spec);
  if (!made.ok()) return made.status();
  if (*made && broker_.observer_ != nullptr) broker_.observer_->QuotaChanged(spec.tenant);
  return broker_.ledger_.look().GetTenant(spec.tenant);
}

absl::StatusOr<TenantView> BrokerTenants::Update(absl::string_view tenant,
                                                 const std::optional<std::string>& owner,
                                                 const QuotaOverride& change,
                                                 absl::Span<const AuditOperator> by) {
  {
    Broker::Update update(&broker_);
    absl::Status changed = broker_.ledger_.made_tenants().Update(tenant, owner, change, by);
    if (!changed.ok()) return changed;
    if (broker_.observer_ != nullptr) broker_.observer_->QuotaChanged(tenant);
  }
  return broker_.views().GetTenant(tenant);  // includes requests that the change granted
}

absl::StatusOr<BrokerTenants::Held> BrokerTenants::End(const std::string& tenant,
                                                       const std::optional<std::string>& owner,
                                                       absl::Span<const AuditOperator> by,
                                                       absl::Time deadline,
                                                       absl::FunctionRef<bool()> cancelled) {
  std::optional<MadeTenantId> ended;
  {
    Broker::Update update(&broker_);
    const records::Tenant* found = broker_.ledger_.state().FindTenant(tenant);
    if (found != nullptr && found->made) ended = found->made->id;
    absl::Status ends = broker_.ledger_.made_tenants().End(tenant, owner, by);
    if (!ends.ok()) return ends;
  }
  // Another of the same name may be made meanwhile.
  const auto gone = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(broker_.mutex_) {
    return !broker_.ledger_.state().made_by_id.contains(*ended);
  };
  while (true) {
    {
      TimedLock lock(&broker_.mutex_);
      broker_.mutex_.AwaitWithDeadline(absl::Condition(&gone),
                                       std::min(deadline, broker_.now_() + kLook));
      if (gone()) return Held{.gone = true};
    }
    if (broker_.now_() >= deadline || cancelled()) return HeldBy(tenant);
  }
}

BrokerTenants::Held BrokerTenants::HeldBy(const std::string& tenant) const {
  const absl::StatusOr<TenantView> view = broker_.views().GetTenant(tenant);
  if (!view.ok()) return {.gone = true};
  Held held;
  for (const DeviceUsageView& device : view->devices) {
    if (device.charged > 0) held.by_device.emplace_back(device.device_uuid, device.charged);
  }
  held.session_count = view->sessions;
  if (held.session_count == 0) return held;
  absl::flat_hash_set<std::string> below;
  {
    TimedLock lock(&broker_.mutex_);
    std::vector<const records::Tenant*> left;
    const auto add = [&](const records::Tenant* each) {
      if (below.insert(each->name).second) left.push_back(each);
    };
    if (const records::Tenant* top = broker_.ledger_.state().FindTenant(tenant)) add(top);
    while (!left.empty()) {
      const records::Tenant* each = left.back();
      left.pop_back();
      for (const auto& [name, member] : each->children) add(member);
    }
  }
  const auto sessions = broker_.views().ListSessions("");
  for (const SessionView& session : *sessions) {
    if (!below.contains(session.tenant)) continue;
    held.sessions.emplace_back(session.id, session.details.peer.pid);
    if (held.sessions.size() == kSessionsNamed) break;
  }
  return held;
}

std::map<std::string, Quota> BrokerTenants::MadeQuotas(const Quota& defaults) const {
  TimedLock lock(&broker_.mutex_);
  return broker_.ledger_.tenants().MadeQuotas(defaults);
}

std::optional<Quota> BrokerTenants::MadeQuota(absl::string_view tenant) const {
  TimedLock lock(&broker_.mutex_);
  const records::Tenant* found = broker_.ledger_.state().FindTenant(tenant);
  if (found == nullptr || !found->made) return std::nullopt;
  return broker_.ledger_.tenants().QuotaOf(*found->made);
}

namespace {

// The same for tenants of others, which a session need not know of.
absl::Status NoUses(absl::string_view tenant) {
  return absl::NotFoundError(
      absl::StrCat("the daemon knows no tenant \"", tenant,
                   "\": it never had one for this user, or it ended before the daemon started, or ",
                   EndedTenants::kMost, " others have ended since"));
}

}  // namespace

absl::StatusOr<BrokerTenants::Uses> BrokerTenants::UsesOf(absl::string_view tenant) const {
  TimedLock lock(&broker_.mutex_);
  Uses uses{.ended = broker_.ledger_.state().last_ended.Find(tenant)};
  absl::StatusOr<TenantView> present = broker_.ledger_.look().GetTenant(tenant);
  if (present.ok()) uses.present = *std::move(present);
  if (!uses.present && uses.ended.empty()) return NoUses(tenant);
  return uses;
}

// --- Sessions --------------------------------------------------------------------------

absl::StatusOr<BrokerTenants::Uses> BrokerTenants::UsesFor(const BrokerCall& call,
                                                           absl::string_view tenant) const {
  std::string own;
  std::optional<uid_t> uid;
  {
    TimedLock lock(&broker_.mutex_);
    const auto session = broker_.ledger_.state().sessions.find(call.session());
    if (session == broker_.ledger_.state().sessions.end()) {
      return absl::AbortedError("the session has ended");
    }
    own = session->second->tenant->name;
    uid = session->second->details.peer.uid;
  }
  absl::StatusOr<Uses> uses = UsesOf(tenant);
  if (!uses.ok()) return uses.status();
  const auto theirs = [&](const std::optional<uid_t>& user) { return user != uid; };
  if (uses->present && tenant != own &&
      (!uses->present->made || theirs(uses->present->made->user))) {
    uses->present.reset();
  }
  std::erase_if(uses->ended, [&](const EndedTenantView& each) { return theirs(each.user); });
  if (!uses->present && uses->ended.empty()) return NoUses(tenant);
  return uses;
}

absl::StatusOr<TenantView> BrokerTenants::CreateChild(const BrokerCall& call,
                                                      absl::string_view name,
                                                      const QuotaOverride& quota, bool lasting) {
  Broker::Update update(&broker_);
  absl::StatusOr<std::string> made =
      broker_.ledger_.made_tenants().CreateChild(call.session(), name, quota, lasting);
  if (!made.ok()) return broker_.Denied(call.session(), "create-tenant", made.status());
  return broker_.ledger_.look().GetTenant(*made);
}

absl::StatusOr<TenantView> BrokerTenants::UpdateChild(const BrokerCall& call,
                                                      absl::string_view tenant,
                                                      const QuotaOverride& change) {
  {
    Broker::Update update(&broker_);
    absl::Status changed =
        broker_.ledger_.made_tenants().UpdateChild(call.session(), tenant, change);
    if (!changed.ok()) return changed;
    if (broker_.observer_ != nullptr) broker_.observer_->QuotaChanged(tenant);
  }
  return broker_.views().GetTenant(tenant);
}

absl::StatusOr<BrokerTenants::Held> BrokerTenants::EndChild(const BrokerCall& call,
                                                            const std::string& tenant) {
  {
    Broker::Update update(&broker_);
    absl::Status ended = broker_.ledger_.made_tenants().EndChild(call.session(), tenant);
    if (!ended.ok()) return ended;
  }
  TimedLock lock(&broker_.mutex_);
  const absl::StatusOr<TenantView> view = broker_.ledger_.look().GetTenant(tenant);
  if (!view.ok()) return Held{.gone = true};
  Held held{.session_count = view->sessions};
  for (const DeviceUsageView& device : view->devices) {
    if (device.charged > 0) held.by_device.emplace_back(device.device_uuid, device.charged);
  }
  return held;
}

absl::StatusOr<std::vector<TenantView>> BrokerTenants::ListChildren(const BrokerCall& call) const {
  absl::StatusOr<std::vector<std::string>> names;
  {
    TimedLock lock(&broker_.mutex_);
    names = broker_.ledger_.made_tenants().ListChildren(call.session());
  }
  if (!names.ok()) return names.status();
  // One at a time: a view of a tenant whose requests wait looks at all waiters.
  std::vector<TenantView> views;
  for (const std::string& name : *names) {
    absl::StatusOr<TenantView> view = broker_.views().GetTenant(name);
    if (view.ok() && view->made) views.push_back(*std::move(view));
  }
  return views;
}

// --- Who may begin in a tenant ---------------------------------------------------------

std::optional<std::string> BrokerTenants::RuledBy(absl::string_view tenant, uid_t uid) const {
  TimedLock lock(&broker_.mutex_);
  return broker_.ledger_.made_tenants().RuledBy(tenant, uid);
}

bool BrokerTenants::IsMadeByOperator(absl::string_view tenant) const {
  TimedLock lock(&broker_.mutex_);
  return broker_.ledger_.made_tenants().IsMadeByOperator(tenant);
}

std::string BrokerTenants::BooksOf(const std::string& tenant) const {
  TimedLock lock(&broker_.mutex_);
  const records::Tenant* found = broker_.ledger_.state().FindTenant(tenant);
  return found == nullptr ? tenant : found->books->name;
}

}  // namespace gpumemd
