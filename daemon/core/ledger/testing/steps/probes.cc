// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/probes.h"

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/made/made_tenants.h"
#include "daemon/core/ledger/testing/model/guarantees.h"
#include "daemon/core/ledger/testing/model/records.h"
#include "daemon/core/ledger/testing/model/tenants.h"
#include "daemon/core/ledger/testing/steps/course.h"
#include "daemon/core/ledger/testing/steps/leases.h"
#include "daemon/core/ledger/testing/steps/memory.h"
#include "daemon/core/ledger/testing/steps/publications.h"
#include "daemon/core/ledger/testing/steps/requests.h"
#include "daemon/core/ledger/testing/steps/sessions.h"

namespace gpumemd::steps {
namespace {

// Commits all operations, and destroys doomed segments.
absl::Status Settle(Course& course) {
  while (!course.model.operations.empty()) {
    const Operation operation = course.model.operations.begin()->second;
    if (absl::Status done = Finish(course, operation, kCommits); !done.ok()) return done;
  }
  return DestroyAll(course);
}

// Asks for little, in a session that does not go before the large request.
absl::Status RequestLittle(Course& course, const model::Request& large) {
  model::Request request = {.tenant = course.chance.Tenant(), .device = large.device};
  if (!course.model.tenants.contains(request.tenant) ||
      model::QuotaOf(course.model, request.tenant).priority >
          model::QuotaOf(course.model, large.tenant).priority) {
    request.tenant = large.tenant;
  }
  const DeviceInfo& device = course.devices[large.device];
  request.bytes = device.granularity_bytes * (1 + course.chance.Below(3));
  const bool before = model::Deficit(course.model, request) > model::Deficit(course.model, large);
  std::optional<SessionId> session;
  if (absl::Status s = NewProcess(course, request.tenant, &session); !s.ok() || !session) return s;
  return Acquire(course, *session,
                 {.device_uuid = device.uuid,
                  .bytes = request.bytes,
                  .kind = large.kind,
                  .revocable = before || course.chance.In100(30),
                  .waits = course.chance.In100(60)});
}

}  // namespace

absl::Status GuaranteeProbe(Course& course) {
  if (course.ledger.state().draining) return absl::OkStatus();
  std::vector<model::Request> unused;
  for (const std::string& tenant : model::TenantNames(course.model)) {
    for (size_t d : {0, 1}) {
      const uint64_t granule = course.devices[d].granularity_bytes;
      model::Request request = {.tenant = tenant, .device = d};
      request.bytes = model::UnusedGuarantee(course.model, tenant, d) / granule * granule;
      if (request.bytes > 0 && !model::DeniedForUnbrokered(course.model, tenant) &&
          !model::QuotaOf(course.model, tenant).revocable &&
          model::Allowed(course.model, request, /*emptied=*/false)) {
        unused.push_back(request);
      }
    }
  }
  if (unused.empty()) return absl::OkStatus();
  const model::Request request = course.chance.Of(unused);
  if (course.chance.In100(80)) {
    if (absl::Status crowded = FillDevice(course, request.device); !crowded.ok()) return crowded;
    if (!model::Allowed(course.model, request, /*emptied=*/false)) return absl::OkStatus();
  }
  std::optional<SessionId> session;
  if (absl::Status s = NewProcess(course, request.tenant, &session); !s.ok() || !session) return s;
  absl::Status asked = Acquire(course, *session,
                               {.device_uuid = course.devices[request.device].uuid,
                                .bytes = request.bytes,
                                .kind = Kind::kVmm,
                                .waits = true});
  if (!asked.ok()) return asked;
  if (course.admission.operation) course.Cover("a guarantee is had at once");
  if (!course.admission.waiter) return absl::OkStatus();  // perhaps too many wait
  const WaiterId waiter = *course.admission.waiter;
  for (int round = 0; round < 20 && course.model.waiters.contains(waiter); ++round) {
    if (absl::Status s = Settle(course); !s.ok()) return s;
    if (absl::Status s = LetTimePass(course, absl::Milliseconds(20)); !s.ok()) return s;
    if (absl::Status s = TakeOverdue(course); !s.ok()) return s;
    for (SessionId killed : std::exchange(course.killed, {})) {
      if (absl::Status s = ProcessGone(course, killed); !s.ok()) return s;
    }
  }
  if (course.granted_waiters.contains(waiter)) {
    course.Cover("a guarantee is had after a wait");
    return absl::OkStatus();
  }
  // One that was made may have ended meanwhile, with its maker.
  if (!course.model.tenants.contains(request.tenant) ||
      model::HasEnded(course.model, request.tenant)) {
    return absl::OkStatus();
  }
  // No tenant is guaranteed a number of segments. Others of the tenant may have been first, or
  // hold or wait for the amount that its limits allow.
  const auto why = course.ledger.admission().BlockedBy(waiter);
  const bool of_number = why && why->asked == 1;
  const bool own_limit = why && why->limited_tenant.empty() &&
                         why->limit != course.devices[request.device].capacity_bytes;
  if (of_number || own_limit ||
      model::UnusedGuarantee(course.model, request.tenant, request.device) < request.bytes ||
      !model::Allowed(course.model, request, /*emptied=*/false)) {
    return EndWait(course, waiter, /*expired=*/true);
  }
  return absl::InternalError(
      absl::StrCat("what is guaranteed to ", request.tenant, " is not to be had"));
}

absl::Status StarvationProbe(Course& course) {
  if (course.ledger.state().draining || model::TenantNames(course.model).empty()) {
    return absl::OkStatus();
  }
  // Those that were made may end meanwhile, with their makers.
  std::vector<std::string> tenants = model::TenantNames(course.model);
  std::erase_if(tenants, [&](const std::string& name) {
    return course.model.tenants.at(name).made.has_value();
  });
  if (tenants.empty()) return absl::OkStatus();
  model::Request large = {.tenant = course.chance.Of(tenants), .device = course.chance.Below(3)};
  const DeviceInfo& device = course.devices[large.device];
  large.kind = device.kinds[0];
  large.revocable = course.chance.In100(20) || model::QuotaOf(course.model, large.tenant).revocable;
  large.bytes = device.capacity_bytes / device.granularity_bytes * device.granularity_bytes;
  while (large.bytes > 0 && !model::Allowed(course.model, large, /*emptied=*/true)) {
    large.bytes -= device.granularity_bytes;
  }
  std::optional<SessionId> session;
  if (large.bytes == 0 || model::DeniedForUnbrokered(course.model, large.tenant)) {
    return absl::OkStatus();
  }
  if (absl::Status s = NewProcess(course, large.tenant, &session); !s.ok() || !session) return s;
  absl::Status asked = Acquire(course, *session,
                               {.device_uuid = device.uuid,
                                .bytes = large.bytes,
                                .kind = large.kind,
                                .revocable = large.revocable,
                                .waits = true});
  if (!asked.ok() || !course.admission.waiter) return asked;
  const WaiterId waiter = *course.admission.waiter;
  for (int round = 0; round < 12 && course.model.waiters.contains(waiter); ++round) {
    const std::set<SessionId> old = Sessions(course);
    for (int i = 0; i < 3; ++i) {
      if (absl::Status s = RequestLittle(course, large); !s.ok()) return s;
    }
    for (SessionId each : old) {
      if (each == *session) continue;
      if (absl::Status s = ProcessGone(course, each); !s.ok()) return s;
      while (CallsOf(course, each) > 0) {
        if (absl::Status s = EndCall(course, each); !s.ok()) return s;
      }
    }
    if (absl::Status s = UnpublishAll(course); !s.ok()) return s;
    if (absl::Status s = Settle(course); !s.ok()) return s;
  }
  if (course.granted_waiters.contains(waiter)) {
    course.Cover("a large request is had after a wait");
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("waiter ", ToInt(waiter), " starves"));
}

}  // namespace gpumemd::steps
