#include "daemon/core/broker.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace gpumemd {
namespace {

// Two requests that each get half of what the driver has would try for ever.
constexpr int kDriverAttempts = 4;

// Anybody may ask for the devices, and the driver may be slow to answer.
constexpr absl::Duration kDriverAnswerHolds = absl::Milliseconds(100);

std::vector<DeviceInfo> InfosOf(const std::vector<std::unique_ptr<Device>>& devices) {
  std::vector<DeviceInfo> infos;
  for (const auto& device : devices) infos.push_back(device->info());
  return infos;
}

}  // namespace

Broker::Broker(BrokerOptions options)
    : devices_(std::move(options.devices)),
      random_(std::move(options.random)),
      observer_(options.observer),
      now_(options.now),
      driver_free_(devices_.size(), 0),
      ledger_(InfosOf(devices_), options.bounds, std::move(options.now)),
      disposal_([this] { DisposeLoop(); }) {}

Broker::~Broker() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  disposal_.join();
}

Broker::Call::~Call() {
  if (broker_ == nullptr) return;
  absl::MutexLock lock(&broker_->mutex_);
  broker_->ledger_.EndCall(session_);
  broker_->Pump();
}

void Broker::Pump() {
  for (SegmentId id : ledger_.TakeDoomed()) {
    auto it = memory_.find(id);
    if (it == memory_.end()) {  // never made: nothing to wait for
      ledger_.Destroyed(id);
      ++disposals_;
      continue;
    }
    doomed_.push_back({id, std::move(it->second)});
    memory_.erase(it);
  }
  for (SessionId id : ledger_.TakeForgotten()) {
    if (observer_ != nullptr) observer_->SessionForgotten(id);
  }
}

void Broker::DisposeLoop() {
  while (true) {
    std::vector<Doomed> batch;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(
          +[](Broker* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) {
            return self->stopping_ || !self->doomed_.empty();
          },
          this));
      if (doomed_.empty()) return;
      batch = std::exchange(doomed_, {});
    }
    for (Doomed& doomed : batch) {
      doomed.memory.reset();  // the driver call
      absl::MutexLock lock(&mutex_);
      ledger_.Destroyed(doomed.id);
      ++disposals_;
      Pump();
    }
  }
}

// --- Sessions ------------------------------------------------------------------------

absl::StatusOr<Broker::NewSession> Broker::OpenSession(absl::string_view tenant,
                                                       SessionDetails details) {
  const Secret token = random_();
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<SessionId> id = ledger_.OpenSession(tenant, std::move(details), token);
  if (!id.ok()) return id.status();
  return NewSession{*id, token};
}

void Broker::SocketClosed(SessionId session) {
  absl::MutexLock lock(&mutex_);
  ledger_.SocketClosed(session);
  Pump();
}

void Broker::ProcessGone(SessionId session) {
  absl::MutexLock lock(&mutex_);
  ledger_.ProcessGone(session);
  Pump();
}

absl::StatusOr<Broker::Call> Broker::Authenticate(absl::string_view token) {
  Secret secret;
  if (token.size() != secret.size()) {
    return absl::UnauthenticatedError(
        token.empty() ? "this call carries no session token; connect to the session socket first"
                      : "this is not a session token");
  }
  std::memcpy(secret.data(), token.data(), secret.size());
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<SessionId> session = ledger_.FindByToken(secret);
  if (!session.ok()) {
    return absl::UnauthenticatedError(
        "no live session has this token: it has ended; connect again");
  }
  if (absl::Status begun = ledger_.BeginCall(*session); !begun.ok()) return begun;
  return Call(this, *session);
}

bool Broker::IsLive(absl::string_view token) const {
  Secret secret;
  if (token.size() != secret.size()) return false;
  std::memcpy(secret.data(), token.data(), secret.size());
  absl::MutexLock lock(&mutex_);
  return ledger_.FindByToken(secret).ok();
}

// --- Requests of clients -------------------------------------------------------------

absl::StatusOr<Operation> Broker::Reserve(SessionId session, const AcquireSpec& spec,
                                          absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  bool patient = true;
  while (true) {
    const uint64_t seen = disposals_;
    absl::StatusOr<std::optional<Operation>> begun = ledger_.BeginAcquire(session, spec, patient);
    Pump();
    if (!begun.ok()) return begun.status();
    if (*begun) return **std::move(begun);
    auto disposed = [this, seen]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return disposals_ != seen; };
    patient = mutex_.AwaitWithDeadline(absl::Condition(&disposed), deadline);
  }
}

// Makes the fresh segments of an operation. What was made before a failure stays in
// memory_ for the caller's Abort.
absl::Status Broker::Create(const Operation& operation) {
  for (const Operation::Item& item : operation.items) {
    if (!item.fresh) continue;
    uint64_t bytes;
    {
      absl::MutexLock lock(&mutex_);
      bytes = ledger_.Describe(item).bytes;
    }
    absl::StatusOr<std::unique_ptr<Allocation>> memory =
        devices_[operation.device]->Create(operation.kind, bytes);
    if (!memory.ok()) return memory.status();
    absl::MutexLock lock(&mutex_);
    memory_.emplace(item.segment, *std::move(memory));
  }
  return absl::OkStatus();
}

void Broker::Abort(const Operation& operation) {
  absl::MutexLock lock(&mutex_);
  ledger_.Abort(operation, /*handed_over=*/false);
  Pump();
}

absl::StatusOr<std::vector<LeaseView>> Broker::HandOver(const Operation& operation,
                                                        Deliver deliver) {
  absl::Cleanup rollback = [&] { Abort(operation); };
  std::vector<Handover> handovers;
  {
    absl::MutexLock lock(&mutex_);
    for (const Operation::Item& item : operation.items) {
      handovers.push_back({ledger_.Describe(item), memory_.at(item.segment)->fd()});
    }
  }
  if (absl::Status sent = deliver(handovers); !sent.ok()) return sent;
  std::move(rollback).Cancel();
  std::vector<LeaseView> leases;
  for (Handover& handover : handovers) leases.push_back(std::move(handover.lease));
  absl::MutexLock lock(&mutex_);
  absl::Status committed = ledger_.Commit(operation);
  Pump();
  if (!committed.ok()) return committed;
  return leases;
}

absl::StatusOr<std::vector<LeaseView>> Broker::Acquire(const Call& call, const AcquireSpec& spec,
                                                       absl::Time deadline, Deliver deliver) {
  for (int attempt = 1;; ++attempt) {
    absl::StatusOr<Operation> operation = Reserve(call.session(), spec, deadline);
    if (!operation.ok()) return operation.status();
    absl::Status created = Create(*operation);
    if (created.ok()) return HandOver(*operation, deliver);

    absl::MutexLock lock(&mutex_);
    uint64_t asked = 0;
    for (const Operation::Item& item : operation->items) asked += ledger_.Describe(item).bytes;
    ledger_.Abort(*operation, /*handed_over=*/false);
    Pump();
    if (!absl::IsResourceExhausted(created)) return created;
    // The ledger had room, the driver has none: others allocate past the broker, or the
    // driver is still clearing. Give it what is only retained, and try again once it has
    // all that is on its way.
    const size_t device = operation->device;
    const bool more = ledger_.MakeRoomOnDevice(call.session(), device, asked);
    Pump();
    auto given_back = [this, device]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return ledger_.releasing(device) == 0;
    };
    if (!more || attempt == kDriverAttempts ||
        !mutex_.AwaitWithDeadline(absl::Condition(&given_back), deadline)) {
      return ledger_.DriverDenial(call.session(), device, asked, created.message());
    }
  }
}

absl::StatusOr<std::optional<std::vector<LeaseView>>> Broker::TryAcquire(const Call& call,
                                                                         const AcquireSpec& spec,
                                                                         Deliver deliver) {
  absl::StatusOr<std::optional<Operation>> operation = [&] {
    absl::MutexLock lock(&mutex_);
    auto begun = ledger_.BeginAcquire(call.session(), spec, /*patient=*/true);
    if (begun.ok() && *begun &&
        std::any_of((*begun)->items.begin(), (*begun)->items.end(),
                    [](const auto& item) { return item.fresh; })) {
      ledger_.Abort(**begun, /*handed_over=*/false);  // nobody has seen it
      begun = std::nullopt;
    }
    Pump();
    return begun;
  }();
  if (!operation.ok()) return operation.status();
  if (!*operation) return std::nullopt;
  return HandOver(**operation, deliver);
}

absl::StatusOr<std::vector<LeaseView>> Broker::Open(const Call& call,
                                                    absl::Span<const Secret> tickets,
                                                    Deliver deliver) {
  absl::StatusOr<Operation> operation = [&] {
    absl::MutexLock lock(&mutex_);
    return ledger_.BeginOpen(call.session(), tickets);
  }();
  if (!operation.ok()) return operation.status();
  return HandOver(*operation, deliver);
}

absl::StatusOr<Secret> Broker::Share(const Call& call, LeaseId lease, TicketScope scope) {
  const Secret candidate = random_();
  absl::MutexLock lock(&mutex_);
  return ledger_.Share(call.session(), lease, scope, candidate);
}

absl::Status Broker::Release(const Call& call, absl::Span<const LeaseId> leases) {
  absl::MutexLock lock(&mutex_);
  absl::Status released = ledger_.Release(call.session(), leases);
  Pump();
  return released;
}

absl::StatusOr<TenantView> Broker::Usage(const Call& call) const {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<std::string> tenant = ledger_.TenantOf(call.session());
  if (!tenant.ok()) return tenant.status();
  return ledger_.GetTenant(*tenant);
}

absl::StatusOr<std::string> Broker::TenantOf(const Call& call) const {
  absl::MutexLock lock(&mutex_);
  return ledger_.TenantOf(call.session());
}

// --- Requests of operators -----------------------------------------------------------

void Broker::Configure(const std::map<std::string, Quota>& tenants, const Quota& defaults) {
  absl::MutexLock lock(&mutex_);
  ledger_.Configure(tenants, defaults);
  Pump();
  if (observer_ != nullptr) observer_->QuotaChanged("");
}

absl::Status Broker::ChangeQuota(absl::string_view tenant,
                                 absl::FunctionRef<absl::Status(Quota&)> change) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<Quota> quota = ledger_.GetQuota(tenant);
  if (!quota.ok()) return quota.status();
  if (absl::Status changed = change(*quota); !changed.ok()) return changed;
  if (absl::Status set = ledger_.SetQuota(tenant, *quota); !set.ok()) return set;
  Pump();
  if (observer_ != nullptr) observer_->QuotaChanged(tenant);
  return absl::OkStatus();
}

absl::StatusOr<Broker::Trimmed> Broker::Trim(absl::string_view tenant, absl::string_view device,
                                             uint64_t keep_bytes) {
  absl::MutexLock lock(&mutex_);
  absl::StatusOr<std::vector<SegmentId>> doomed = ledger_.Trim(tenant, device, keep_bytes);
  if (!doomed.ok()) return doomed.status();
  Trimmed trimmed;
  for (SegmentId id : *doomed) {
    trimmed.bytes += ledger_.Describe({.segment = id}).bytes;
    ++trimmed.segments;
  }
  Pump();
  auto gone = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::none_of(doomed->begin(), doomed->end(),
                        [&](SegmentId id) { return ledger_.HasSegment(id); });
  };
  mutex_.Await(absl::Condition(&gone));
  return trimmed;
}

void Broker::SetDraining(bool draining) {
  absl::MutexLock lock(&mutex_);
  if (ledger_.draining() == draining) return;
  ledger_.SetDraining(draining);
  Pump();
  if (observer_ != nullptr) observer_->DrainingChanged(draining);
}

// --- Looking -------------------------------------------------------------------------

std::vector<Broker::DeviceView> Broker::Devices(bool ask_driver) const {
  std::vector<DeviceView> views;
  for (const auto& device : devices_) {
    views.push_back({.index = static_cast<uint32_t>(views.size()), .info = device->info()});
  }
  if (ask_driver) {
    const std::vector<uint64_t> free = DriverFree();
    for (size_t i = 0; i < views.size(); ++i) views[i].driver_free = free[i];
  }
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < views.size(); ++i) views[i].charged = ledger_.charged(i);
  return views;
}

std::vector<uint64_t> Broker::DriverFree() const {
  {
    absl::MutexLock lock(&driver_mutex_);
    if (driver_asking_ || now_() - driver_asked_ < kDriverAnswerHolds) return driver_free_;
    driver_asking_ = true;
  }
  std::vector<uint64_t> free;
  for (const auto& device : devices_) free.push_back(device->DriverFreeBytes().value_or(0));
  absl::MutexLock lock(&driver_mutex_);
  driver_asking_ = false;
  driver_asked_ = now_();
  driver_free_ = free;
  return free;
}

Broker::Counts Broker::Count() const {
  absl::MutexLock lock(&mutex_);
  return {.sessions = ledger_.session_count(),
          .tenants = ledger_.tenant_count(),
          .segments = ledger_.segment_count(),
          .draining = ledger_.draining()};
}

absl::StatusOr<TenantView> Broker::GetTenant(absl::string_view tenant) const {
  absl::MutexLock lock(&mutex_);
  return ledger_.GetTenant(tenant);
}

std::vector<TenantView> Broker::ListTenants() const {
  absl::MutexLock lock(&mutex_);
  return ledger_.ListTenants();
}

absl::StatusOr<std::vector<SessionView>> Broker::ListSessions(absl::string_view tenant) const {
  absl::MutexLock lock(&mutex_);
  return ledger_.ListSessions(tenant);
}

absl::StatusOr<std::vector<SegmentView>> Broker::ListSegments(absl::string_view tenant,
                                                              absl::string_view device) const {
  absl::MutexLock lock(&mutex_);
  return ledger_.ListSegments(tenant, device);
}

absl::Status Broker::CheckInvariants() const {
  absl::MutexLock lock(&mutex_);
  return ledger_.CheckInvariants();
}

}  // namespace gpumemd
