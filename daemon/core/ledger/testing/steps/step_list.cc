// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/ledger/testing/steps/step_list.h"

#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "daemon/core/ledger/ledger.h"
#include "daemon/core/ledger/testing/steps/claims.h"
#include "daemon/core/ledger/testing/steps/events.h"
#include "daemon/core/ledger/testing/steps/leases.h"
#include "daemon/core/ledger/testing/steps/made_tenants.h"
#include "daemon/core/ledger/testing/steps/memory.h"
#include "daemon/core/ledger/testing/steps/operators.h"
#include "daemon/core/ledger/testing/steps/probes.h"
#include "daemon/core/ledger/testing/steps/publications.h"
#include "daemon/core/ledger/testing/steps/requests.h"
#include "daemon/core/ledger/testing/steps/restart.h"
#include "daemon/core/ledger/testing/steps/sessions.h"

namespace gpumemd::steps {
namespace {

absl::Status OpenAnySession(Course& course) {
  return OpenSession(course, AnyTenant(course), course.chance.Process());
}
absl::Status CloseAnySocket(Course& course) { return SocketClosed(course, course.SessionToEnd()); }
absl::Status EndAnyProcess(Course& course) { return ProcessGone(course, course.SessionToEnd()); }
absl::Status EndProcessOfEnded(Course& course) { return ProcessGone(course, course.SessionOver()); }

// Closes a socket and ends its process, in either order.
absl::Status EndSocketAndProcess(Course& course) {
  const SessionId session = course.SessionToEnd();
  const bool socket_first = course.chance.In100(50);
  absl::Status first = socket_first ? SocketClosed(course, session) : ProcessGone(course, session);
  if (!first.ok()) return first;
  return socket_first ? ProcessGone(course, session) : SocketClosed(course, session);
}

absl::Status LetSomeTimePass(Course& course) {
  return LetTimePass(course, absl::Milliseconds(course.chance.Below(15)));
}
absl::Status UseUnbrokered(Course& course) {
  return SetUnbrokered(course, course.chance.In100(35));
}
absl::Status FillAnyDevice(Course& course) { return FillDevice(course, course.chance.Below(3)); }
absl::Status ProbeGuarantee(Course& course) { return WithoutEnding(course, GuaranteeProbe); }
absl::Status ProbeStarvation(Course& course) { return WithoutEnding(course, StarvationProbe); }
absl::Status BeginDraining(Course& course) { return SetDraining(course, true); }

using StepFunction = absl::Status (*)(Course&);

// One of `share` in 1000 steps takes it; if `one_in` is set, one in so many of those that take none
// of the steps before.
struct Step {
  uint64_t share;
  StepFunction take;
  uint64_t one_in = 0;
};

// In the order in which they are drawn. The remaining share destroys segments.
constexpr Step kSteps[] = {
    {50, OpenAnySession},
    {8, Reconnect},
    {9, CloseAnySocket},
    {5, EndAnyProcess},
    {12, EndProcessOfEnded},
    {6, EndSocketAndProcess},
    {8, BeginCall},
    {27, EndCall},
    {157, Acquire},
    {17, EndWait},
    {25, TakeOverdue},
    {15, LetSomeTimePass},
    {10, UseUnbrokered},
    {6, FillAnyDevice},
    {10, ProbeGuarantee},
    {0, ProbeStarvation, /*one_in=*/400},
    {85, BeginOpen},
    {32, Publish},
    {38, Attach},
    {5, EndAttachWait},
    {20, AttachOrClaim},
    {8, ReleaseClaim},
    {5, Unpublish},
    {6, ExpirePublications},
    {171, FinishOperation},
    {60, Release},
    {30, Share},
    {14, Exchange},
    {10, SetQuota},
    {3, Configure},
    {5, CreateTenant},
    {2, UpdateTenant},
    {2, EndTenant},
    {1, BeginDraining},
    {8, Trim},
    {30, TakeDoomed},
    {10, DriverIsFull},
    {4, MarkLost},
    {26, RegisterEvent},
    {24, GetEvents},
    {8, UnregisterEvent},
    {15, CompareSome},
    {7, MakeSome},
    {1, Reconcile},  // of a session that was never away
};

// Of sessions whose requests from before a restart may be granted once more.
absl::Status ComeBack(Course& course) {
  const uint64_t drawn = course.chance.Below(100);
  if (drawn < 5) return RegrantAttach(course);
  return drawn < 55   ? Regrant(course)
         : drawn < 75 ? Reconcile(course)
         : drawn < 90 ? Resume(course)
                      : DropRegrants(course);
}

}  // namespace

absl::Status TakeStep(Course& course) {
  Chance& chance = course.chance;
  // Steps that depend on the state come first.
  if (course.model.operations.size() > 6) return FinishOperation(course);
  if (course.ledger.state().draining && chance.In100(10)) return SetDraining(course, false);
  if (chance.long_queues()) {
    if (chance.In100(25)) return ChangeQueue(course);
    if (chance.Below(2000) == 0) return Restart(course);  // no request waits after it
  } else if (chance.Below(350) == 0 || IsRareMoment(course)) {
    return Restart(course);
  }
  if (course.ledger.endings().HasAny() && chance.In100(25)) return ContinueEnding(course);
  if (AnyAttachToRegrant(course) && chance.In100(10)) return RegrantAttach(course);
  if (!course.model.regrants.empty() && chance.In100(5)) return ComeBack(course);

  uint64_t drawn = chance.Below(1000);
  for (const Step& step : kSteps) {
    const bool taken = step.one_in > 0 ? chance.Below(step.one_in) == 0 : drawn < step.share;
    if (taken) return step.take(course);
    drawn -= step.share;
  }
  return Destroyed(course);
}

absl::Status EndAllSessions(Course& course) {
  absl::Status status;
  const auto next = [&](absl::Status step) {
    status = std::move(step);
    return status.ok();
  };
  while (!course.model.operations.empty() || !course.model.sessions.empty()) {
    const uint64_t drawn = course.chance.Below(5);
    if (drawn == 4 && course.ledger.endings().HasAny() && !next(ContinueEnding(course)))
      return status;
    if (drawn == 0 && !next(FinishOperation(course))) return status;
    if (drawn == 1 && !next(EndCall(course))) return status;
    if (drawn == 2 && !next(CloseAnySocket(course))) return status;
    if (drawn == 3 && !next(EndAnyProcess(course))) return status;
  }
  if (!course.model.waiters.empty()) return absl::InternalError("a waiter outlived its session");
  if (!course.model.attach_waiters.empty()) return absl::InternalError("a wait to attach lasts");
  if (!next(UnpublishAll(course))) return status;
  if (!next(TakeDoomed(course))) return status;
  while (!course.model.in_destruction.empty()) {
    if (!next(Destroyed(course))) return status;
  }
  const LedgerState& state = course.ledger.state();
  if (!state.segments.empty() || !state.sessions.empty() || state.charged(0) != 0 ||
      state.charged(1) != 0 || state.charged(2) != 0 || !course.model.events.empty()) {
    return absl::InternalError("everybody is gone, and something is left");
  }
  return absl::OkStatus();
}

}  // namespace gpumemd::steps
