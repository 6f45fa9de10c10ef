// Who may have more: every check that can deny a request, and the making of room.
//
// A request is measured against five limits. For each, what is used counts in two parts:
// what only its holders can give up, and what comes back without them (retained
// segments, which can be doomed at once, and releasing ones, which the driver is about to
// take). A request is denied where the first part alone leaves too little room. Else it
// fits, now or soon; retained segments are doomed until it does, the requester's own
// before other tenants', the oldest first.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "common/denial.h"
#include "daemon/core/ledger.h"

namespace gpumemd {
namespace {

using gpumem::FormatBytes;
using gpumem::v1::Denial;

constexpr uint64_t kUnlimited = UINT64_MAX;

// What of an account comes back without its holders.
uint64_t Recoverable(const Account& account) {
  return account.bytes(SegmentState::kRetained) + account.bytes(SegmentState::kReleasing);
}

uint64_t RecoverableSegments(const Account& account) {
  return account.segments(SegmentState::kRetained) + account.segments(SegmentState::kReleasing);
}

// What stays where nobody gives anything up: all but what is releasing.
uint64_t Staying(const Account& account) {
  return account.charged() - account.bytes(SegmentState::kReleasing);
}

uint64_t StayingSegments(const Account& account) {
  return account.segments() - account.segments(SegmentState::kReleasing);
}

template <typename Measure>
uint64_t SumOver(const std::vector<Account>& accounts, Measure measure) {
  uint64_t sum = 0;
  for (const Account& account : accounts) sum += measure(account);
  return sum;
}

// Over all devices but pinned memory, which limits on devices do not count.
template <typename Measure>
uint64_t SumUnpinned(const std::vector<DeviceInfo>& devices, const std::vector<Account>& accounts,
                     Measure measure) {
  uint64_t sum = 0;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!IsPinnedMemory(devices[i])) sum += measure(accounts[i]);
  }
  return sum;
}

std::string KindNames(const std::vector<Kind>& kinds) {
  return absl::StrJoin(kinds, ", ",
                       [](std::string* out, Kind kind) { absl::StrAppend(out, KindName(kind)); });
}

// One limit and how a request stands to it. All in bytes, or all in counts.
struct Standing {
  Denial::Cause cause;
  uint64_t used;
  uint64_t recoverable;
  uint64_t asked;
  uint64_t limit;

  bool fits() const { return asked <= limit && used <= limit - asked; }
  bool fits_soon() const { return asked <= limit && used - recoverable <= limit - asked; }
};

}  // namespace

uint64_t Ledger::TotalCharged(const Tenant& tenant) const {
  return SumUnpinned(devices_, tenant.accounts,
                     [](const Account& account) { return account.charged(); });
}

uint64_t Ledger::TotalSegments(const Tenant& tenant) {
  return SumOver(tenant.accounts, [](const Account& account) { return account.segments(); });
}

uint64_t Ledger::LimitOn(const Tenant& tenant, size_t device) const {
  const uint64_t capacity = devices_[device].capacity_bytes;
  if (IsPinnedMemory(devices_[device])) {
    return std::min(tenant.quota.pinned_limit_bytes.value_or(capacity), capacity);
  }
  auto it = tenant.quota.device_limits.find(devices_[device].uuid);
  if (it != tenant.quota.device_limits.end()) return std::min(it->second, capacity);
  return std::min(tenant.quota.limit_bytes.value_or(capacity), capacity);
}

uint64_t Ledger::MaxRetainedOn(const Tenant& tenant, size_t device) const {
  auto it = tenant.quota.device_max_retained.find(devices_[device].uuid);
  if (it != tenant.quota.device_max_retained.end()) return it->second;
  return tenant.quota.max_retained_bytes.value_or(kUnlimited);
}

bool Ledger::WithinLimits(const Tenant& tenant, size_t device) const {
  return Staying(tenant.accounts[device]) <= LimitOn(tenant, device) &&
         (IsPinnedMemory(devices_[device]) ||
          SumUnpinned(devices_, tenant.accounts, Staying) <=
              tenant.quota.total_limit_bytes.value_or(kUnlimited)) &&
         SumOver(tenant.accounts, StayingSegments) <=
             tenant.quota.max_segments.value_or(kUnlimited);
}

absl::Status Ledger::Draining() {
  return absl::UnavailableError(
      "the daemon is draining: it admits nothing new; what is held stays held");
}

absl::Status Ledger::NoSuchTenant(absl::string_view name) {
  return absl::NotFoundError(
      absl::StrCat("no tenant \"", name, "\" is configured, holds memory or has a session"));
}

absl::Status Ledger::Deny(Tenant& tenant, const gpumem::v1::Denial& denial) {
  ++tenant.denials;
  return gpumem::DenialError(denial);
}

absl::Status Ledger::DenyCount(Tenant& tenant, Denial::Cause cause, uint64_t asked, uint64_t used,
                               uint64_t limit, absl::string_view help) {
  Denial denial;
  denial.set_cause(cause);
  denial.set_tenant(tenant.name);
  denial.set_asked(asked);
  denial.set_used(used);
  denial.set_limit(limit);
  denial.set_help(std::string(help));
  return Deny(tenant, denial);
}

absl::StatusOr<size_t> Ledger::FindDevice(absl::string_view uuid) const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].uuid == uuid) return i;
  }
  return absl::NotFoundError(
      absl::StrCat("this node has no device \"", uuid, "\"; gpumemctl devices lists those it has"));
}

bool Ledger::Makes(size_t device, Kind kind) const {
  const std::vector<Kind>& kinds = devices_[device].kinds;
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

absl::Status Ledger::DoesNotMake(size_t device, Kind kind) const {
  std::string help = absl::StrCat("it makes ", KindNames(devices_[device].kinds));
  for (size_t other = 0; other < devices_.size(); ++other) {
    if (!Makes(other, kind)) continue;
    absl::StrAppend(&help, "; ", devices_[other].uuid, " makes that kind");
    break;
  }
  return absl::UnimplementedError(absl::StrCat("device ", devices_[device].uuid,
                                               " does not make segments of kind ", KindName(kind),
                                               "; ", help));
}

uint64_t Ledger::Obtainable(const Tenant& tenant, size_t device) const {
  const auto held = [](const Account& account) { return account.charged() - Recoverable(account); };
  const auto left = [](uint64_t limit, uint64_t used) { return limit - std::min(limit, used); };
  const uint64_t total = IsPinnedMemory(devices_[device])
                             ? kUnlimited
                             : left(tenant.quota.total_limit_bytes.value_or(kUnlimited),
                                    SumUnpinned(devices_, tenant.accounts, held));
  return std::min({left(LimitOn(tenant, device), held(tenant.accounts[device])),
                   left(devices_[device].capacity_bytes, held(device_accounts_[device])), total});
}

// The device that a request names, or means.
absl::StatusOr<size_t> Ledger::ChooseDevice(const Tenant& tenant, const AcquireSpec& spec) const {
  if (devices_.empty()) return absl::NotFoundError("this node has no device");
  if (!spec.device_uuid.empty()) {
    if (spec.most_free) {
      return absl::InvalidArgumentError(
          "a request names a device or asks for the one with most free memory, not both");
    }
    absl::StatusOr<size_t> device = FindDevice(spec.device_uuid);
    if (device.ok() && spec.kind && !Makes(*device, *spec.kind)) {
      return DoesNotMake(*device, *spec.kind);
    }
    return device;
  }
  for (const std::string& uuid : spec.among) {
    if (absl::StatusOr<size_t> device = FindDevice(uuid); !device.ok()) return device;
  }
  const Kind kind = spec.kind.value_or(devices_.front().kinds.front());
  std::optional<size_t> chosen;
  for (size_t device = 0; device < devices_.size(); ++device) {
    if (!Makes(device, kind)) continue;
    const bool among =
        std::find(spec.among.begin(), spec.among.end(), devices_[device].uuid) != spec.among.end();
    if (spec.most_free && !spec.among.empty() && !among) continue;
    if (!chosen || (spec.most_free && Obtainable(tenant, device) > Obtainable(tenant, *chosen))) {
      chosen = device;
    }
  }
  if (!chosen)
    return DoesNotMake(*FindDevice(spec.among.empty() ? devices_[0].uuid : spec.among[0]), kind);
  return *chosen;
}

absl::StatusOr<Ledger::AcquireTerms> Ledger::CheckSpec(const Tenant& tenant,
                                                       const AcquireSpec& spec) const {
  AcquireTerms terms;
  absl::StatusOr<size_t> device = ChooseDevice(tenant, spec);
  if (!device.ok()) return device.status();
  terms.device = *device;
  const DeviceInfo& info = devices_[terms.device];
  // With no kind said, any of the chosen device would do: the first is the default.
  terms.kind = spec.kind.value_or(info.kinds.front());
  if (spec.count < 1 || spec.count > kMaxSegmentsPerCall) {
    return absl::InvalidArgumentError(absl::StrCat("one Acquire makes 1 to ", kMaxSegmentsPerCall,
                                                   " segments; this asks for ", spec.count));
  }
  if (spec.bytes == 0) {
    return absl::InvalidArgumentError(
        "a segment of 0 bytes cannot be acquired; ask for at least 1");
  }
  if (spec.bytes > info.capacity_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a segment of ", spec.bytes,
                                                   " bytes is more than device ", info.uuid,
                                                   " has (", info.capacity_bytes, " bytes)"));
  }
  absl::StatusOr<uint64_t> rounded = gpumem::RoundUp(spec.bytes, GranularityOf(info, terms.kind));
  if (!rounded.ok()) return rounded.status();
  terms.bytes = *rounded;
  return terms;
}

absl::Status Ledger::CheckSessionCount(Tenant& tenant, uint32_t replaced) {
  const uint64_t tenant_limit = tenant.quota.max_sessions.value_or(UINT32_MAX);
  const uint64_t of_tenant = tenant.sessions - replaced;
  const uint64_t of_all = sessions_.size() - replaced;
  const bool tenant_full = of_tenant >= tenant_limit;
  if (!tenant_full && of_all < bounds_.max_sessions) return absl::OkStatus();
  if (tenant_full) {
    return DenyCount(tenant, Denial::CAUSE_MAX_SESSIONS, 1, of_tenant, tenant_limit,
                     "close sessions that are not needed (gpumemctl ps lists them)");
  }
  return DenyCount(tenant, Denial::CAUSE_DAEMON_LIMIT, 1, of_all, bounds_.max_sessions,
                   "the daemon has as many sessions as it is configured for (daemon.max_sessions)");
}

absl::Status Ledger::CheckInFlight(Tenant& tenant) {
  const uint64_t limit = tenant.quota.max_in_flight.value_or(UINT32_MAX);
  if (tenant.in_flight < limit) return absl::OkStatus();
  return DenyCount(tenant, Denial::CAUSE_MAX_IN_FLIGHT, 1, tenant.in_flight, limit,
                   "wait for an answer before the next call, or put more segments into one call");
}

absl::Status Ledger::CheckLeaseCount(Session& session, size_t more) {
  if (session.leases.size() + more <= bounds_.max_leases_per_session) return absl::OkStatus();
  return DenyCount(*session.tenant, Denial::CAUSE_DAEMON_LIMIT, more, session.leases.size(),
                   bounds_.max_leases_per_session,
                   "a session holds only so many leases; release those that are not needed");
}

absl::StatusOr<Ledger::Room> Ledger::MakeRoom(Tenant& tenant, size_t device, uint64_t bytes,
                                              uint32_t fresh, uint32_t reused, bool patient) {
  const uint32_t count = fresh + reused;
  const Account& own = tenant.accounts[device];
  const Account& all = device_accounts_[device];
  // No overflow: bytes is at most a device's capacity, count at most 253.
  const uint64_t asked = bytes * count;
  // What is reused is charged already. It counts as asked for, so not as used.
  const uint64_t taken = bytes * reused;
  const uint64_t capacity = devices_[device].capacity_bytes;
  const uint64_t limit = LimitOn(tenant, device);
  const bool pinned = IsPinnedMemory(devices_[device]);
  const auto charged = [](const Account& account) { return account.charged(); };
  const auto segments = [](const Account& account) { return account.segments(); };
  const Standing standings[] = {
      // Where it is the capacity that limits the tenant, the capacity shall be the cause.
      {Denial::CAUSE_DEVICE_LIMIT, own.charged() - taken, Recoverable(own), asked,
       limit < capacity ? limit : kUnlimited},
      {Denial::CAUSE_TOTAL_LIMIT,
       pinned ? 0 : SumUnpinned(devices_, tenant.accounts, charged) - taken,
       pinned ? 0 : SumUnpinned(devices_, tenant.accounts, Recoverable), asked,
       pinned ? kUnlimited : tenant.quota.total_limit_bytes.value_or(kUnlimited)},
      {Denial::CAUSE_MAX_SEGMENTS, SumOver(tenant.accounts, segments) - reused,
       SumOver(tenant.accounts, RecoverableSegments), count,
       tenant.quota.max_segments.value_or(kUnlimited)},
      {Denial::CAUSE_CAPACITY, all.charged() - taken, Recoverable(all), asked, capacity},
      {Denial::CAUSE_DAEMON_LIMIT, SumOver(device_accounts_, segments) - reused,
       SumOver(device_accounts_, RecoverableSegments), count, bounds_.max_segments},
  };
  bool now = true;
  for (const Standing& standing : standings) {
    now = now && standing.fits();
    if (patient ? standing.fits_soon() : standing.fits()) continue;
    Denial denial;
    denial.set_cause(standing.cause);
    denial.set_tenant(tenant.name);
    if (standing.cause == Denial::CAUSE_DEVICE_LIMIT || standing.cause == Denial::CAUSE_CAPACITY) {
      denial.set_device_uuid(devices_[device].uuid);
    }
    denial.set_asked(standing.asked);
    denial.set_limit(standing.limit);
    if (standing.fits_soon()) {
      denial.set_used(standing.used);
      denial.set_help("memory that makes room for it is on its way back to the driver; ask again");
    } else {
      denial.set_used(standing.used - standing.recoverable);
      denial.set_help(HelpFor(tenant, denial));
    }
    return Deny(tenant, denial);
  }
  if (now) return Room::kFits;
  TrimForShortfall(tenant, device, bytes * fresh, fresh);
  return Room::kSoon;
}

std::string Ledger::HelpFor(const Tenant& tenant, const gpumem::v1::Denial& denial) const {
  switch (denial.cause()) {
    case Denial::CAUSE_DEVICE_LIMIT:
    case Denial::CAUSE_TOTAL_LIMIT: {
      const auto device = FindDevice(denial.device_uuid());
      const bool pinned = device.ok() && IsPinnedMemory(devices_[*device]);
      const std::string raise =
          absl::StrCat("ask an operator for a higher limit (gpumemctl quota set ", tenant.name,
                       denial.cause() == Denial::CAUSE_TOTAL_LIMIT ? " --total-limit"
                       : pinned                                    ? " --pinned-limit"
                                                                   : " --limit",
                       " SIZE)");
      if (denial.asked() > denial.limit()) return absl::StrCat("ask for less, or ", raise);
      const uint64_t idle =
          IdleInPools(tenant, device.ok() ? std::optional<size_t>(*device) : std::nullopt);
      return absl::StrCat(
          "release ", FormatBytes(denial.used() - (denial.limit() - denial.asked())), ", or ",
          idle == 0 ? ""
                    : absl::StrCat("end the processes that have used kind mempool (CUDA keeps ",
                                   FormatBytes(idle), " that were released until then), or "),
          raise);
    }
    case Denial::CAUSE_MAX_SEGMENTS:
      return absl::StrCat(
          "use fewer and larger segments, or ask an operator for more (gpumemctl "
          "quota set ",
          tenant.name, " --max-segments N)");
    case Denial::CAUSE_CAPACITY:
      if (denial.asked() > denial.limit()) {
        return "ask for less, or spread it over several devices";
      }
      return "release memory, or wait until other tenants do (gpumemctl segments shows who holds "
             "it), or "
             "use another device";
    default:
      return "the daemon has as many segments as it is configured for (daemon.max_segments)";
  }
}

// Dooms retained segments until `bytes` in `count` segments would fit once they, and what
// is releasing already, are destroyed. The caller has seen that they are enough.
void Ledger::TrimForShortfall(Tenant& tenant, size_t device, uint64_t bytes, uint32_t count) {
  const auto over = [](uint64_t used, uint64_t more, uint64_t limit) {
    return more > limit || used > limit - more;
  };
  const auto doom_anywhere = [this](Tenant& from, bool pinned_too = true) {
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (!pinned_too && IsPinnedMemory(devices_[d])) continue;
      if (DoomOldest(from, d)) return true;
    }
    return false;
  };

  while (over(Staying(tenant.accounts[device]), bytes, LimitOn(tenant, device)) &&
         DoomOldest(tenant, device)) {
  }
  const uint64_t total_limit = tenant.quota.total_limit_bytes.value_or(kUnlimited);
  while (!IsPinnedMemory(devices_[device]) &&
         over(SumUnpinned(devices_, tenant.accounts, Staying), bytes, total_limit) &&
         doom_anywhere(tenant, /*pinned_too=*/false)) {
  }
  const uint64_t max_segments = tenant.quota.max_segments.value_or(kUnlimited);
  while (over(SumOver(tenant.accounts, StayingSegments), count, max_segments) &&
         doom_anywhere(tenant)) {
  }
  const uint64_t capacity = devices_[device].capacity_bytes;
  while (over(Staying(device_accounts_[device]), bytes, capacity)) {
    if (DoomOldest(tenant, device)) continue;
    Tenant* other = RichestRetainer(device);
    if (other == nullptr) break;
    DoomOldest(*other, device);
  }
  while (over(SumOver(device_accounts_, StayingSegments), count, bounds_.max_segments)) {
    if (doom_anywhere(tenant)) continue;
    Tenant* other = nullptr;
    for (size_t d = 0; d < devices_.size() && other == nullptr; ++d) other = RichestRetainer(d);
    if (other == nullptr || !doom_anywhere(*other)) break;
  }
}

Ledger::Tenant* Ledger::RichestRetainer(size_t device) {
  Tenant* richest = nullptr;
  uint64_t most = 0;
  for (auto& [name, tenant] : tenants_) {
    const uint64_t retained = tenant->accounts[device].bytes(SegmentState::kRetained);
    if (retained > most) {
      most = retained;
      richest = tenant.get();
    }
  }
  return richest;
}

bool Ledger::MakeRoomOnDevice(SessionId session, size_t device, uint64_t bytes) {
  auto it = sessions_.find(session);
  Tenant& tenant = *it->second->tenant;  // there: the caller's call is in flight
  const Account& account = device_accounts_[device];
  while (account.bytes(SegmentState::kReleasing) < bytes) {
    if (DoomOldest(tenant, device)) continue;
    Tenant* other = RichestRetainer(device);
    if (other == nullptr) break;
    DoomOldest(*other, device);
  }
  return account.bytes(SegmentState::kReleasing) > 0;
}

absl::Status Ledger::DriverDenial(SessionId session, size_t device, uint64_t bytes,
                                  absl::string_view driver_says) {
  Tenant& tenant = *sessions_.at(session)->tenant;
  Denial denial;
  denial.set_cause(Denial::CAUSE_DRIVER);
  denial.set_tenant(tenant.name);
  denial.set_device_uuid(devices_[device].uuid);
  denial.set_asked(bytes);
  denial.set_used(device_accounts_[device].charged());
  denial.set_limit(devices_[device].capacity_bytes);
  denial.set_help(absl::StrCat("the driver has no memory left for it (", driver_says,
                               "): processes that allocate past the broker may hold it "
                               "(nvidia-smi shows them)"));
  return Deny(tenant, denial);
}

}  // namespace gpumemd
