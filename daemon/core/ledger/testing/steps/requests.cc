// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/requests.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/model/queue.h"
#include "daemon/core/ledger/testing/model/requests.h"
#include "daemon/core/ledger/testing/model/revocation.h"
#include "daemon/core/ledger/testing/model/tenants.h"
#include "daemon/core/ledger/testing/steps/course.h"
#include "daemon/core/ledger/testing/steps/leases.h"
#include "daemon/core/ledger/testing/steps/memory.h"
#include "daemon/core/ledger/testing/steps/sessions.h"

namespace gpumemd::steps {
namespace {

constexpr size_t kManyWaiters = 10;

void CoverGrant(Course& course, const AcquireSpec& spec, const Operation& operation) {
  course.Cover(absl::StrCat("granted ", KindName(operation.kind)));
  if (spec.most_free) course.Cover("granted where most is free");
  if (operation.revocable) course.Cover("granted as revocable");
  if (!spec.kind && operation.kind != course.devices[operation.device].kinds[0]) {
    course.Cover("granted of the tenant's kind");
  }
  if (!operation.items.front().reused) return;
  if (operation.kind == Kind::kMempool) course.Cover("reused of a pool");
  course.Cover(operation.items.back().fresh ? "reused and fresh" : "reused");
}

// Checks by the ledger's numbers that a grant exceeds no limit.
absl::Status WithinLimits(Course& course, SessionId session, size_t device) {
  for (const std::string& name :
       model::PathOf(course.model, course.model.sessions.at(session).tenant)) {
    const auto tenant = course.ledger.look().GetTenant(name);
    if (!tenant.ok()) return tenant.status();
    const bool within =
        tenant->devices[device].charged <= tenant->devices[device].limit &&
        (device == 2 || tenant->charged <= tenant->quota.total_limit_bytes.value_or(UINT64_MAX)) &&
        tenant->segments <= tenant->quota.max_segments.value_or(UINT32_MAX);
    if (!within) return absl::InternalError("granted beyond a limit");
  }
  return course.ledger.state().charged(device) <= course.devices[device].capacity_bytes &&
                 course.ledger.state().segments.size() <= course.bounds.max_segments
             ? absl::OkStatus()
             : absl::InternalError("granted beyond what there is");
}

absl::Status BeginAcquire(Course& course, SessionId session, const AcquireSpec& spec) {
  auto answer = course.ledger.admission().BeginAcquire(session, spec);
  std::string told = !answer.ok()        ? course.Describe(answer.status())
                     : answer->operation ? "granted"
                     : spec.waits        ? "waits"
                                         : "waits a moment";
  course.Cover(told);
  absl::Status result = model::BeginAcquire(course.model, session, spec, course.now, answer);
  if (answer.ok()) {
    course.admission = *answer;
    if (answer->waiter) {
      absl::StrAppend(&told, " as ", ToInt(*answer->waiter));
      if (course.ledger.endings().HasAny() && !spec.waits)
        course.Cover("waits while a session ends");
      if (course.ledger.state().waiters.at(*answer->waiter).revokes) course.Cover("revokes");
    } else {
      CoverGrant(course, spec, *answer->operation);
      if (result.ok()) result = WithinLimits(course, session, answer->operation->device);
    }
  }
  return course.After(result, "BeginAcquire ", ToInt(session), " ", spec.count, " x ", spec.bytes,
                      " on \"", spec.device_uuid, "\"", spec.waits ? ", waits" : "",
                      spec.revocable ? ", revocable" : "", " -> ", told);
}

}  // namespace

uint64_t NewRequest(Course& course) {
  return course.chance.In100(85) ? 10 + course.calls : course.chance.Below(3);
}

bool IsRevocableSession(const Course& course, SessionId session) {
  auto it = course.model.sessions.find(session);
  return it != course.model.sessions.end() && it->second.peer.pid % 2 == 0;
}

absl::Status Acquire(Course& course) {
  const SessionId session = course.AnySession();
  AcquireSpec spec = course.chance.Spec(course.devices);
  spec.request_id = NewRequest(course);
  if (course.chance.In100(80)) spec.revocable = IsRevocableSession(course, session);
  if (spec.revocable && spec.kind == Kind::kMempool && course.chance.In100(90)) spec.kind.reset();
  // Of one size, so that it finds segments that are idle in a pool.
  if (spec.kind == Kind::kMempool && course.chance.In100(50)) spec.bytes = 1;
  if (absl::Status asked = Acquire(course, session, spec); !asked.ok()) return asked;
  return course.admission.waiter && course.chance.In100(60) ? DestroyAll(course) : absl::OkStatus();
}

absl::Status Acquire(Course& course, SessionId session, const AcquireSpec& spec) {
  course.admission = {};
  const auto it = course.model.sessions.find(session);
  if (it != course.model.sessions.end() && it->second.live && it->second.calls == 0) {
    if (absl::Status called = BeginCall(course, session); !called.ok()) return called;
    if (CallsOf(course, session) == 0) return absl::OkStatus();  // it has too many
  }
  if (absl::Status asked = BeginAcquire(course, session, spec); !asked.ok()) return asked;
  if (CallsOf(course, session) == 0 || course.chance.In100(10)) return absl::OkStatus();
  return EndCall(course, session);
}

absl::Status FillDevice(Course& course, size_t device) {
  std::optional<SessionId> session;
  if (course.chance.In100(50)) {
    if (absl::Status s = NewProcess(course, course.chance.Tenant(), &session); !s.ok()) return s;
  }
  for (const auto& [id, entry] : course.model.sessions) {
    if (entry.live && IsRevocableSession(course, id) && (!session || course.chance.In100(20))) {
      session = id;
    }
  }
  const DeviceInfo& info = course.devices[device];
  for (uint64_t size = info.granularity_bytes * 4; session && size > 0;
       size -= info.granularity_bytes) {
    absl::Status asked = Acquire(course, *session,
                                 {.device_uuid = info.uuid,
                                  .bytes = size,
                                  .kind = info.kinds[0],
                                  .count = static_cast<uint32_t>(info.capacity_bytes / 3 / size),
                                  .revocable = true});
    if (!asked.ok()) return asked;
    if (!course.admission.operation) continue;
    course.Cover("crowded");
    if (course.chance.In100(20)) continue;  // its client has not received it yet
    if (absl::Status done = Finish(course, *course.admission.operation, kCommits); !done.ok()) {
      return done;
    }
  }
  return absl::OkStatus();
}

absl::Status EndWait(Course& course) {
  if (course.model.waiters.empty()) return absl::OkStatus();
  if (course.model.waiters.size() >= kManyWaiters) course.Cover("one of many gives up");
  return EndWait(course, course.chance.Of(course.model.waiters).first, course.chance.In100(50));
}

absl::Status EndWait(Course& course, WaiterId waiter, bool expired) {
  const absl::Status answer = course.ledger.admission().EndWait(waiter, expired);
  return course.After(model::EndWait(course.model, waiter, expired, answer), "EndWait ",
                      ToInt(waiter), " -> ", course.Describe(answer));
}

absl::Status ChangeQueue(Course& course) {
  const uint64_t die = course.chance.Below(100);
  if (course.model.waiters.size() < kManyWaiters || die < 50) return Acquire(course);
  if (die < 80) return EndWait(course);
  const SessionId session = course.chance.Of(course.model.waiters).second.session;
  course.Cover("a session ends while many wait");
  return die < 90 ? SocketClosed(course, session) : ProcessGone(course, session);
}

absl::Status LetTimePass(Course& course, absl::Duration time) {
  course.now += time;
  return course.After(absl::OkStatus(), "time passes");
}

absl::Status TakeOverdue(Course& course) {
  const bool any = course.ledger.revocations().NextOverdue() <= course.now;
  const std::vector<Revocations::Overdue> overdue = course.ledger.revocations().TakeOverdue();
  if (any && overdue.empty()) course.Cover("a revocation lapses, or waits on");
  absl::Status result =
      course.After(model::TakeOverdue(course.model, course.now, overdue), "TakeOverdue -> ",
                   absl::StrJoin(overdue, " ", [](std::string* out, const auto& o) {
                     absl::StrAppend(out, ToInt(o.session), o.kill ? "!" : "?");
                   }));
  for (const Revocations::Overdue& each : overdue) {
    course.Cover(each.kill ? "killed for others" : "asked to end for others");
    if (each.kill) course.killed.insert(each.session);
    if (!result.ok() || !course.chance.In100(each.kill ? 80 : 30)) continue;
    result = ProcessGone(course, each.session);
  }
  return result;
}

}  // namespace gpumemd::steps
