// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/model/answers.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/core/denial.h"
#include "daemon/core/ledger/testing/made/made_tenants.h"
#include "daemon/core/ledger/testing/model/model.h"
#include "daemon/core/ledger/testing/model/segments.h"
#include "daemon/core/ledger/testing/model/tenants.h"

namespace gpumemd::model {

absl::Status ExpectCode(const absl::Status& answer, absl::StatusCode code) {
  if (answer.code() == code) return absl::OkStatus();
  return Wrong("expected ", absl::StatusCodeToString(code), ", got ", answer.ToString());
}

absl::Status CheckDenial(const LedgerModel& model, const Denial& denial, const std::string& tenant,
                         const Expected& expected) {
  const LimitName& name = expected.name;
  const std::string device =
      name.device < model.devices.size() ? model.devices[name.device].uuid : "";
  const std::string limited = name.whose == tenant ? "" : name.whose;
  if (denial.cause == name.cause && denial.tenant == tenant && denial.device_uuid == device &&
      denial.limited_tenant == limited && denial.asked == expected.asked &&
      denial.used == expected.used && denial.limit == expected.limit &&
      denial.queued_at == expected.queued_at &&
      (!denial.help.empty() || name.cause == Denial::Cause::kUnbrokered)) {
    // Each named holder holds it; the largest come first.
    uint64_t last = UINT64_MAX;
    for (const Denial::Holder& holder : denial.holders) {
      if (!model.tenants.contains(holder.tenant) || !IsUnder(model, holder.tenant, name.whose) ||
          holder.used > last || holder.used == 0 ||
          holder.used != SumOf(model, holder.tenant, name.device, Which::kHeld).bytes) {
        return Wrong("a denial names the wrong holder: ", DenialError(denial).ToString());
      }
      last = holder.used;
    }
    return absl::OkStatus();
  }
  return Wrong("expected a denial of ", tenant, " by ", NameOf(name.cause), " of \"", limited,
               "\" on \"", device, "\", asked ", expected.asked, ", used ", expected.used,
               ", limit ", expected.limit, "; got ", DenialError(denial).ToString());
}

absl::Status ExpectDenial(LedgerModel& model, const absl::Status& answer, const std::string& tenant,
                          const Expected& expected) {
  ++model.tenants.at(tenant).denials;
  const std::optional<Denial> denial = DenialOf(answer);
  if (!absl::IsResourceExhausted(answer) || !denial) {
    return Wrong("expected a denial by ", NameOf(expected.name.cause), ", got ", answer.ToString());
  }
  return CheckDenial(model, *denial, tenant, expected);
}

absl::Status ExpectUnbrokered(LedgerModel& model, const Request& request,
                              const absl::Status& answer) {
  const size_t device = *DeviceUsedPastBroker(model, request.tenant);
  return ExpectDenial(model, answer, request.tenant,
                      {{Denial::Cause::kUnbrokered, request.tenant, device},
                       request.in_all(),
                       Unbrokered(model, request.tenant, device),
                       0});
}

std::optional<absl::Status> NoRoomToWait(LedgerModel& model, const std::string& tenant,
                                         const absl::Status& answer) {
  for (const std::string& each : PathOf(model, tenant)) {
    const uint64_t waiting = WaitingOf(model, each);
    const uint64_t limit = model.tenants.at(each).quota.max_waiting.value_or(UINT32_MAX);
    if (waiting < limit) continue;
    return ExpectDenial(model, answer, tenant,
                        {{Denial::Cause::kMaxWaiting, each, kEverywhere}, 1, waiting, limit});
  }
  const uint64_t of_all = model.waiters.size() + model.attach_waiters.size();
  if (of_all < model.bounds.max_waiting) return std::nullopt;
  return ExpectDenial(
      model, answer, tenant,
      {{Denial::Cause::kDaemonLimit, tenant, kEverywhere}, 1, of_all, model.bounds.max_waiting});
}

uint64_t WaitingOf(const LedgerModel& model, const std::string& tenant) {
  const auto waiting =
      std::count_if(model.waiters.begin(), model.waiters.end(), [&](const auto& entry) {
        return entry.second.asked_to && IsUnder(model, entry.second.request.tenant, tenant);
      });
  const auto attaching = std::count_if(
      model.attach_waiters.begin(), model.attach_waiters.end(), [&](const auto& entry) {
        return IsUnder(model, model.sessions.at(entry.second.session).tenant, tenant);
      });
  return static_cast<uint64_t>(waiting + attaching);
}

std::optional<absl::Status> NoRoomForLeases(LedgerModel& model, SessionId session, uint64_t more,
                                            const absl::Status& answer) {
  const std::string& tenant = model.sessions.at(session).tenant;
  const std::string books = BooksOf(model, tenant);
  // Leases that operations are about to give also count.
  uint64_t own = 0, tenants = 0, all = 0;
  const auto add = [&](SessionId holder, uint64_t count) {
    all += count;
    tenants += BooksOf(model, model.sessions.at(holder).tenant) == books ? count : 0;
    own += holder == session ? count : 0;
  };
  for (const auto& [id, lease] : model.leases) add(lease.session, 1);
  for (const auto& [id, operation] : model.operations) {
    if (!operation.regrant) add(operation.session, operation.items.size());
  }
  for (const auto& [used, limit] : {std::pair(own, model.bounds.max_leases_per_session),
                                    std::pair(tenants, model.bounds.max_leases_per_tenant),
                                    std::pair(all, model.bounds.max_leases)}) {
    if (used + more <= limit) continue;
    return ExpectDenial(model, answer, tenant,
                        {{Denial::Cause::kDaemonLimit, "", kEverywhere}, more, used, limit});
  }
  return std::nullopt;
}

std::optional<uint64_t> AnswerTo(const LedgerModel& model, SessionId session, uint64_t request) {
  auto answers = model.answered.find(session);
  if (request == 0 || answers == model.answered.end()) return std::nullopt;
  for (const auto& [answered, number] : answers->second) {
    if (answered == request) return number;
  }
  return std::nullopt;
}

void Answered(LedgerModel& model, SessionId session, uint64_t request, uint64_t number) {
  if (request == 0) return;
  std::vector<std::pair<uint64_t, uint64_t>>& answers = model.answered[session];
  answers.emplace_back(request, number);
  if (answers.size() > 64) answers.erase(answers.begin());
}

}  // namespace gpumemd::model
