#include "daemon/core/broker/broker.h"

#include <algorithm>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/failpoint.h"

namespace gpumemd {
namespace {

bool MakesContextBound(const DeviceInfo& info) {
  return std::any_of(info.kinds.begin(), info.kinds.end(), IsContextBound);
}

// Bound how long a queue of thousands holds the mutex.
constexpr size_t kGrantsAtOnce = 16;
constexpr size_t kJudgedAtOnce = 128;

// Any session may list the devices, and the driver may be slow to answer.
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
      continuity_(options.continuity),
      audit_(options.audit),
      max_leases_per_session_(options.bounds.max_leases_per_session),
      now_(options.now),
      pulse_(std::move(options.pulse)),
      pulse_every_(options.pulse_every),
      pulse_pause_(options.pulse_pause),
      driver_free_(devices_.size(), 0),
      ledger_(InfosOf(devices_), options.bounds, std::move(options.now)),
      doomed_(1 + devices_.size()) {
  {
    TimedLock lock(&mutex_);
    ledger_.revocations().SetTimes(options.revocation);
    ledger_.SetAudit(audit_);
  }
  clock_ = std::thread([this] { WatchTheClock(); });
  ending_ = std::thread([this] { EndLoop(); });
  for (size_t lane = 0; lane < 1 + devices_.size(); ++lane) {
    const bool needed = lane == 0 || MakesContextBound(devices_[lane - 1]->info());
    if (needed) disposal_.emplace_back([this, lane] { DisposeLoop(lane); });
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    devices_[i]->OnContextLost([this, i] { CollectLost(i); });
  }
}

Broker::~Broker() {
  absl::flat_hash_map<SegmentId, std::unique_ptr<Allocation>> memory;
  {
    TimedLock lock(&mutex_);
    stopping_ = true;
    memory.swap(memory_);
  }
  // Clients keep the memory that they have open: nothing is freed under them. After this no hanging
  // context can block the steps below.
  for (const auto& device : devices_) device->EndContext();
  for (std::thread& lane : disposal_) lane.join();
  clock_.join();
  ending_.join();
  memory.clear();
  devices_.clear();  // no thread calls CollectLost after this
}

Broker::Call::~Call() {
  if (broker_ == nullptr) return;
  Update update(broker_);
  if (!watch_) --broker_->calls_;
  watch_ ? broker_->ledger_.sessions().EndWatch(session_)
         : broker_->ledger_.sessions().EndCall(session_);
}

absl::Status Broker::Call::BecomeWatch() {
  TimedLock lock(&broker_->mutex_);
  absl::Status become = broker_->ledger_.sessions().BecomeWatch(session_);
  watch_ = become.ok();
  if (watch_) --broker_->calls_;
  return broker_->Denied(session_, "watch", std::move(become));
}

void Broker::Record() {
  if (!survivable_) return;
  const std::vector<journal::Change> changes = ledger_.TakeChanges();
  if (changes.empty()) return;
  Failpoint("record-before");
  continuity_->Write(changes);
  Failpoint("record-after");
}

Broker::Update::~Update() {
  broker_->Settle();
  const std::vector<std::shared_ptr<const std::function<void()>>> resumed =
      std::exchange(broker_->resumed_, {});
  broker_->mutex_.Unlock();
  for (const auto& resume : resumed) (*resume)();
}

void Broker::Settle() {
  // Segments that were never made are gone at once, which may admit waiters.
  bool moved = true;
  while (std::exchange(moved, false)) {
    for (AdmissionControl::Admitted& admitted :
         ledger_.admission().AdmitWaiting(kGrantsAtOnce, kJudgedAtOnce)) {
      const std::shared_ptr<Acquisition> waited = TakeWaiting(admitted.waiter);
      if (!admitted.operation.ok()) {
        admitted.operation = Denied(waited->session, "acquire", admitted.operation.status());
      }
      Resume(waited, std::move(admitted.operation));
    }
    for (SegmentId id : Drain(ledger_.effects().doomed)) {
      auto it = memory_.find(id);
      if (it == memory_.end()) {
        ledger_.Destroyed(id);
        moved = true;
        continue;
      }
      doomed_[LaneOf(id)].push_back({id, std::move(it->second)});
      memory_.erase(it);
    }
  }
  ResumeAttaches();
  DropEndedPublications();
  // The clock's thread goes on with it, after other threads have had the mutex.
  times_changed_ |= ledger_.admission().QueueMoves();
  for (SessionId id : Drain(ledger_.effects().revoked)) {
    times_changed_ = true;
    if (observer_ != nullptr) observer_->Revoked(id);
  }
  for (SessionId id : Drain(ledger_.effects().orphaned)) {
    if (observer_ != nullptr) observer_->SegmentsLost(id);
  }
  for (SessionId id : Drain(ledger_.effects().forgotten)) {
    pools_sent_.erase(id);
    if (observer_ != nullptr) observer_->SessionForgotten(id);
  }
  Record();
  if (pulse_ != nullptr && !std::exchange(changed_, true)) times_changed_ = true;
}

void Broker::CollectLost(size_t device) {
  size_t count = 0;
  {
    Update update(this);
    std::vector<SegmentId> lost;
    for (const auto& [id, memory] : memory_) {
      if (ledger_.state().PlaceOf(id).device == device && memory->lost()) lost.push_back(id);
    }
    count = ledger_.segments().MarkLost(lost);
  }
  if (observer_ != nullptr) observer_->ContextLost(devices_[device]->info().uuid, count);
}

size_t Broker::LaneOf(SegmentId segment) const {
  const LedgerState::Place place = ledger_.state().PlaceOf(segment);
  return IsContextBound(place.kind) ? 1 + place.device : 0;
}

void Broker::DisposeLoop(size_t lane) {
  while (true) {
    std::vector<Doomed> batch;
    bool survivable = false;
    // Closed at the end of the round.
    std::vector<std::pair<PublicationId, std::shared_ptr<const Metadata>>> metadata;
    {
      TimedLock lock(&mutex_);
      const auto wake = [this, lane]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !doomed_[lane].empty() || (lane == 0 && !ended_metadata_.empty());
      };
      mutex_.Await(absl::Condition(&wake));
      if (stopping_ && doomed_[lane].empty()) return;
      batch = std::exchange(doomed_[lane], {});
      survivable = survivable_;
      if (lane == 0) metadata.swap(ended_metadata_);
    }
    if (survivable && !batch.empty()) {
      std::vector<SegmentId> ids;
      for (const Doomed& doomed : batch) ids.push_back(doomed.id);
      Failpoint("let-go-before");
      continuity_->LetGo(ids);
      Failpoint("let-go-after");
    }
    if (survivable) {
      for (const auto& [id, kept] : metadata) continuity_->LetGo(id);
    }
    for (Doomed& doomed : batch) {
      doomed.memory.reset();  // the driver call
      Update update(this);
      ledger_.Destroyed(doomed.id);
    }
  }
}

void Broker::EndLoop() {
  // Lets other threads take the mutex: a mutex that is retaken at once is seldom theirs.
  constexpr absl::Duration kPause = absl::Microseconds(200);
  while (true) {
    {
      TimedLock lock(&mutex_);
      const auto wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || (ledger_.endings().HasAny() && !frozen_);
      };
      mutex_.Await(absl::Condition(&wake));
      if (stopping_) return;
    }
    {
      Update update(this);
      if (!frozen_) ledger_.endings().Continue();
    }
    absl::SleepFor(kPause);
  }
}

// --- Sessions ------------------------------------------------------------------------

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
  return absl::UnauthenticatedError("no live session has this token: it has ended; connect again");
}

absl::StatusOr<Broker::Call> Broker::Authenticate(absl::string_view token) {
  TimedLock lock(&mutex_);
  absl::StatusOr<SessionId> session = FindSession(token);
  if (!session.ok()) return session.status();
  if (ledger_.state().sessions.at(*session)->presence != Presence::kHere) {
    return absl::UnauthenticatedError(
        "the session was begun with a daemon that is gone: its client has to come back for it "
        "first, with a Hello on the session socket and a Reconcile");
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

// --- Requests of clients -------------------------------------------------------------

// Makes the fresh segments of an operation. Those made before a failure stay in memory_ for the
// caller's Abort.
absl::Status Broker::Create(const Operation& operation, bool* refused) {
  *refused = false;
  for (const Operation::Item& item : operation.items) {
    if (!item.fresh) continue;
    CreateSpec spec;
    {
      TimedLock lock(&mutex_);
      spec = ledger_.operations().Creation(operation, item);
    }
    absl::StatusOr<std::unique_ptr<Allocation>> memory = devices_[operation.device]->Create(spec);
    if (!memory.ok()) return memory.status();
    if (continuity_ != nullptr && (*memory)->fd() >= 0) {
      Failpoint("keep-before");
      const absl::Status kept = continuity_->Keep(item.segment, (*memory)->fd());
      Failpoint("keep-after");
      if (!kept.ok()) {
        *refused = true;
        return kept;
      }
    }
    Update update(this);
    memory_.emplace(item.segment, *std::move(memory));
    ledger_.operations().Created(item.segment);
  }
  return absl::OkStatus();
}

void Broker::Abort(const Operation& operation, bool handed_over) {
  size_t next = 0;
  for (bool done = false; !done;) {
    Update update(this);
    done = ledger_.operations().Abort(operation, handed_over, next, kLeasesAtOnce);
  }
}

absl::Status Broker::Describe(const Operation& operation, size_t begin, Handover& handover,
                              absl::flat_hash_set<uint64_t>& pools) {
  auto sent = pools_sent_.find(operation.session);
  const size_t end = std::min(begin + kLeasesAtOnce, operation.items.size());
  for (size_t i = begin; i < end; ++i) {
    const Operation::Item& item = operation.items[i];
    const Allocation& memory = *memory_.at(item.segment);
    LeaseView lease = ledger_.look().Describe(item);
    lease.revocable = operation.revocable;
    const std::optional<ExportedPool> pool = memory.pool();
    // The session learns of later losses once it has its lease.
    if (memory.lost() || (lease.kind == Kind::kMempool && !pool)) {
      ledger_.segments().MarkLost({item.segment});
      return absl::FailedPreconditionError(
          "the segment is lost: the CUDA context that it lived in is gone");
    }
    lease.export_data = memory.export_data();
    if (pool) {
      lease.pool_id = pool->id;
      const bool has_it = sent != pools_sent_.end() && sent->second.contains(pool->id);
      if (!has_it && pools.insert(pool->id).second) handover.pools.push_back(*pool);
    }
    handover.items.push_back({std::move(lease), memory.fd()});
  }
  return absl::OkStatus();
}

Broker::HandedOver Broker::HandOver(const Operation& operation, Deliver deliver, bool may_block) {
  using Outcome = HandedOver::Outcome;
  Handover handover;
  absl::Cleanup rollback = [&] { Abort(operation, handover.partly_sent); };
  absl::flat_hash_set<uint64_t> pools;
  for (size_t begin = 0; begin < operation.items.size(); begin += kLeasesAtOnce) {
    Update update(this);  // journals that its process may map them
    absl::Status there = Describe(operation, begin, handover, pools);
    if (!there.ok()) return {Outcome::kLost, there};
  }
  Failpoint("deliver-before");
  if (absl::Status sent = deliver(handover); !sent.ok()) {
    const bool would_block = !may_block && absl::IsDeadlineExceeded(sent);
    return {would_block ? Outcome::kWouldBlock : Outcome::kFailed, sent};
  }
  Failpoint("deliver-after");
  std::move(rollback).Cancel();
  std::vector<LeaseView> leases;
  for (Handover::Item& item : handover.items) leases.push_back(std::move(item.lease));
  size_t next = 0;
  for (bool done = false; !done;) {
    Update update(this);
    if (next == 0) {
      for (const ExportedPool& pool : handover.pools) {
        pools_sent_[operation.session].insert(pool.id);
      }
      if (!handover.pools.empty()) ForgetOldPools(operation.session);
    }
    absl::StatusOr<bool> committed = ledger_.operations().Commit(operation, next, kLeasesAtOnce);
    if (!committed.ok()) return {Outcome::kFailed, committed.status()};
    done = *committed;
  }
  return {Outcome::kDone, std::move(leases)};
}

// Forgets pools that are gone: they come and go while a session lives.
void Broker::ForgetOldPools(SessionId session) {
  constexpr size_t kFew = 64;
  absl::flat_hash_set<uint64_t>& sent = pools_sent_[session];
  if (sent.size() <= kFew) return;
  absl::flat_hash_set<uint64_t> living;
  for (const auto& [id, memory] : memory_) {
    if (const std::optional<ExportedPool> pool = memory->pool()) living.insert(pool->id);
  }
  absl::erase_if(sent, [&](uint64_t id) { return !living.contains(id); });
}

absl::StatusOr<std::vector<LeaseView>> Broker::Open(const Call& call,
                                                    absl::Span<const Secret> tickets,
                                                    bool revocable, uint64_t request_id,
                                                    Deliver deliver) {
  absl::StatusOr<Operation> operation = [&]() -> absl::StatusOr<Operation> {
    Update update(this);
    const auto count = static_cast<uint32_t>(tickets.size());
    if (auto regrant = ledger_.reconciliation().Regrant(call.session(), request_id, count))
      return *regrant;
    auto begun = ledger_.operations().BeginOpen(call.session(), tickets, revocable, request_id);
    if (!begun.ok()) return Denied(call.session(), "open", begun.status());
    return begun;
  }();
  if (!operation.ok()) return operation.status();
  return HandOver(*operation, deliver, /*may_block=*/true).leases;
}

absl::StatusOr<Secret> Broker::Share(const Call& call, LeaseId lease, TicketScope scope) {
  const Secret candidate = random_();
  Update update(this);
  return ledger_.leases().Share(call.session(), lease, scope, candidate);
}

absl::Status Broker::CheckNamed(SessionId session, size_t leases, size_t requests) const {
  // A session may have more than the bound, if an earlier daemon's bound was higher.
  const size_t most = std::max(max_leases_per_session_, ledger_.look().LeaseCountOf(session));
  if (leases <= most && requests <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("this request names ", leases, " leases and ", requests,
                   " requests, and the session holds at most ", most, " leases"));
}

absl::Status Broker::Release(const Call& call, absl::Span<const LeaseId> leases,
                             absl::Span<const uint64_t> requests) {
  {
    TimedLock lock(&mutex_);
    absl::Status few = CheckNamed(call.session(), leases.size(), requests.size());
    if (!few.ok()) return few;
  }
  absl::Status released = ReleaseInParts(call.session(), {leases.begin(), leases.end()});
  if (!released.ok()) return released;
  while (!requests.empty()) {
    Update update(this);
    requests.remove_prefix(
        ledger_.reconciliation().DropRegrants(call.session(), requests, kLeasesAtOnce));
  }
  return absl::OkStatus();
}

absl::Status Broker::ReleaseInParts(SessionId session, std::vector<LeaseId> leases) {
  std::sort(leases.begin(), leases.end());
  leases.erase(std::unique(leases.begin(), leases.end()), leases.end());
  const bool in_one = leases.size() <= kLeasesAtOnce;
  absl::Span<const LeaseId> unchecked(leases);
  while (!in_one && !unchecked.empty()) {
    constexpr size_t kCheckedAtOnce = 4 * kLeasesAtOnce;
    TimedLock lock(&mutex_);
    absl::Status had = ledger_.leases().Check(session, unchecked.subspan(0, kCheckedAtOnce));
    if (!had.ok()) return had;
    unchecked.remove_prefix(std::min(unchecked.size(), kCheckedAtOnce));
  }
  absl::Span<const LeaseId> left(leases);
  do {
    Update update(this);
    absl::Status released = ledger_.leases().Release(session, left.subspan(0, kLeasesAtOnce));
    if (!released.ok()) return released;
    left.remove_prefix(std::min(left.size(), kLeasesAtOnce));
  } while (!left.empty());
  return absl::OkStatus();
}

absl::StatusOr<IpcEventId> Broker::RegisterEvent(const Call& call, const Events::Place& place,
                                                 absl::string_view device_uuid,
                                                 const ExportData& handle, uint64_t request_id) {
  Update update(this);
  absl::StatusOr<IpcEventId> id =
      ledger_.events().Register(call.session(), place, device_uuid, handle, request_id);
  if (!id.ok()) Denied(call.session(), "register-event", id.status()).IgnoreError();
  return id;
}

absl::StatusOr<std::vector<IpcEventView>> Broker::GetEvents(const Call& call,
                                                            const Events::Place& place) {
  Update update(this);
  return ledger_.events().Find(call.session(), place);
}

absl::StatusOr<bool> Broker::UnregisterEvent(const Call& call, IpcEventId event) {
  Update update(this);
  return ledger_.events().Unregister(call.session(), event);
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

// --- Looking -------------------------------------------------------------------------

std::vector<Broker::DeviceView> Broker::Devices(bool ask_driver) const {
  std::vector<DeviceView> views;
  for (const auto& device : devices_) {
    views.push_back({.index = static_cast<uint32_t>(views.size()),
                     .info = device->info(),
                     .context_pid = device->context_pid()});
  }
  if (ask_driver) {
    const std::vector<uint64_t> free = DriverFree();
    for (size_t i = 0; i < views.size(); ++i) views[i].driver_free = free[i];
  }
  TimedLock lock(&mutex_);
  for (size_t i = 0; i < views.size(); ++i) views[i].charged = ledger_.state().charged(i);
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
  TimedLock lock(&mutex_);
  return {.sessions = ledger_.state().sessions.size(),
          .tenants = ledger_.state().tenants.size(),
          .segments = ledger_.state().segments.size(),
          .draining = ledger_.state().draining};
}

BrokerLoad Broker::Load() const {
  BrokerLoad load{.sessions = ledger_.state().sessions.size(),
                  .waiting = waiting_.size() + attaching_.size(),
                  .draining = ledger_.state().draining};
  for (size_t i = 0; i < devices_.size(); ++i) {
    (IsPinnedMemory(devices_[i]->info()) ? load.pinned : load.charged) +=
        ledger_.state().charged(i);
  }
  return load;
}

absl::StatusOr<TenantView> Broker::GetTenant(absl::string_view tenant) const {
  TimedLock lock(&mutex_);
  return ledger_.look().GetTenant(tenant);
}

std::vector<TenantView> Broker::ListTenants() const {
  TimedLock lock(&mutex_);
  return ledger_.look().ListTenants();
}

absl::Status Broker::CheckInvariants() const {
  TimedLock lock(&mutex_);
  return ledger_.CheckInvariants();
}

}  // namespace gpumemd
