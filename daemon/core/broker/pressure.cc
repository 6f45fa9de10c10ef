// SPDX-License-Identifier: Apache-2.0
// Selects the sessions that are asked to give memory back after a denial.
#include <algorithm>
#include <utility>

#include "daemon/core/admission/refusals.h"
#include "daemon/core/broker/broker.h"
#include "daemon/core/denial.h"

namespace gpumemd {
namespace {

// Back-off: a tenant that is denied again and again presses its neighbours less and less often. A
// quiet period resets it.
constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
constexpr absl::Duration kQuiet = absl::Seconds(3);

}  // namespace

void Broker::AuditDenial(AuditRecord record, absl::string_view call,
                         const absl::Status& denial) const {
  if (audit_ == nullptr) return;
  const std::optional<Denial> why = DenialOf(denial);
  if (!why && !absl::IsPermissionDenied(denial)) return;  // the request makes no sense
  record.event = AuditEvent::kRefused;
  record.time = now_();
  record.call = std::string(call);
  record.why = std::string(denial.message());
  if (why) {
    record.event = AuditEvent::kDenied;
    record.cause = NameOf(why->cause);
    record.asked = why->asked;
    record.used = why->used;
    record.limit = why->limit;
    record.device = why->device_uuid;
    record.limited = why->limited_tenant;
  }
  audit_->Record(std::move(record));
}

absl::Status Broker::Denied(SessionId session, absl::string_view call, absl::Status denial) const {
  const bool told = DenialOf(denial).has_value() || absl::IsPermissionDenied(denial);
  if (!told) return denial;
  if (audit_ != nullptr) {
    AuditDenial(ledger_.look().AuditOf(AuditEvent::kDenied, session), call, denial);
  }
  return WithoutOthers(session, std::move(denial));
}

absl::Status Broker::WithoutOthers(SessionId session, absl::Status denial) const {
  std::optional<Denial> why = DenialOf(denial);
  if (!why || why->holders.empty()) return denial;
  HideHolders(ledger_.state(), session, holders_shown_, *why);
  return DenialError(*why);
}

absl::Status Broker::Denied(const Acquisition& acquisition, absl::Status denial) {
  const AcquireSpec& spec = acquisition.spec;
  const std::optional<Denial> why = DenialOf(denial);
  if (why && !spec.without_pressure) Press(*why, absl::InfiniteFuture());
  return Denied(acquisition.session, NameOf(acquisition), std::move(denial));
}

void Broker::Press(const Denial& why, absl::Time until) {
  if (observer_ == nullptr) return;
  Pressure pressure = {.tenant = {}, .device_uuid = why.device_uuid, .until = until};
  switch (why.cause) {
    case Denial::Cause::kDeviceLimit:
    case Denial::Cause::kTotalLimit:
      pressure.tenant = why.limited_tenant.empty() ? why.tenant : why.limited_tenant;
      break;
    case Denial::Cause::kCapacity:
    case Denial::Cause::kGuarantees:
    case Denial::Cause::kQueue:
    case Denial::Cause::kDriver:
      break;
    default:
      return;  // of counts
  }
  if (why.asked > why.limit) return;  // no session could make room for that
  // The driver has none left, whatever the limit says.
  const bool none_left = why.cause == Denial::Cause::kDriver;
  // The missing bytes are also unknown if a claim or a guarantee blocks the request, not used
  // bytes.
  const uint64_t wanted = why.used + why.asked;
  pressure.bytes = none_left || wanted <= why.limit ? why.asked : wanted - why.limit;
  const absl::Time now = now_();
  absl::erase_if(pressed_, [now](const auto& entry) {
    return entry.second.last + kQuiet <= now || entry.second.last > now;  // the clock was set
  });
  const auto [entry, first] = pressed_.try_emplace(
      {why.tenant, pressure.tenant, pressure.device_uuid}, Pressed{now, kFirstPause});
  if (!first) {
    Pressed& pressed = entry->second;
    if (now < pressed.last + pressed.pause) return;
    pressed = {now, std::min(2 * pressed.pause, kLongestPause)};
  }
  observer_->Pressed(pressure);
}

}  // namespace gpumemd
