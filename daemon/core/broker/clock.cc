// SPDX-License-Identifier: Apache-2.0
// The broker's clock: one thread that ends waits and revocations in time, asks again for memory on
// behalf of requests that wait, and gives the sign of life.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/core/broker/broker.h"
#include "daemon/core/broker/update.h"
#include "daemon/core/denial.h"
#include "daemon/core/mutant.h"

namespace gpumemd {
namespace {

// Interval at which sessions that could help are asked again while a request waits. The broker
// itself asks less and less often (pressure.cc).
constexpr absl::Duration kPressAgain = absl::Milliseconds(250);

// Interval at which the clock checks whether memory on its way has come.
constexpr absl::Duration kLookAgain = absl::Milliseconds(20);

// Bounds how long a queue of thousands holds the mutex: the clock looks at kDueAtOnce waiters at a
// time. For each tenant and device, one waiter in each kPressPause finds out which tenant to press.
// If there is no tenant to press for it, the next one tries.
constexpr size_t kDueAtOnce = 64;
constexpr absl::Duration kPressPause = absl::Milliseconds(20);
constexpr absl::Duration kLookPause = absl::Milliseconds(5);
constexpr size_t kQuietRemembered = 256;
// Waiters of one tenant that come at the same time spread their next turns over this many times.
constexpr uint64_t kPressTurns = 8;

}  // namespace

absl::Time Broker::NextTime() const {
  return std::min({ledger_.revocations().NextOverdue(), ledger_.publications().NextExpiry(),
                   ledger_.admission().NextSwap(), acquiring_.NextDue(), attaching_.NextDue(),
                   NextHeartbeat(), ask_driver_again_});
}

absl::Time Broker::NextHeartbeat() const {
  if (heartbeat_ == nullptr) return absl::InfiniteFuture();
  return last_heartbeat_ +
         (changed_ ? std::min(heartbeat_pause_, heartbeat_interval_) : heartbeat_interval_);
}

bool Broker::AwaitNextTimer() {
  TimedLock lock(&mutex_);
  while (!stopping_) {
    times_changed_ = false;
    watched_expiry_ = ledger_.publications().NextExpiry();
    watched_swap_ = ledger_.admission().NextSwap();
    const auto wake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return stopping_ || times_changed_;
    };
    const absl::Duration pause =
        ledger_.admission().QueueMoves() ? absl::ZeroDuration() : NextTime() - now_();
    if (pause <= absl::ZeroDuration()) return true;
    if (!mutex_.AwaitWithTimeout(absl::Condition(&wake), pause)) return true;
  }
  return false;
}

BrokerLoad Broker::Load() const {
  BrokerLoad load{.sessions = ledger_.state().sessions.size(),
                  .waiting = acquiring_.size() + attaching_.size(),
                  .draining = ledger_.state().draining};
  for (size_t i = 0; i < devices_.size(); ++i) {
    const DeviceInfo& info = devices_[i]->info();
    (IsHostTier(info)     ? load.tier
     : IsHostMemory(info) ? load.pinned
                          : load.charged) += ledger_.state().charged(i);
  }
  return load;
}

void Broker::TimerLoop() {
  while (AwaitNextTimer()) {
    std::vector<Revocations::Overdue> overdue;
    {
      Update update(this);
      overdue = RunDueTimers();
    }
    std::optional<BrokerLoad> load;
    {
      TimedLock lock(&mutex_);
      if (const absl::Time now = now_(); NextHeartbeat() <= now) {
        load = Load();
        last_heartbeat_ = now;
        changed_ = false;
      }
    }
    for (const Revocations::Overdue& each : overdue) {
      if (observer_ != nullptr) observer_->EndProcess(each.session, each.kill);
    }
    if (load) heartbeat_(*load);
    // Let other threads take the mutex, even if more is due at once.
    BrokerThread::Yield(threads_);
  }
}

void Broker::PressFor(WaiterId id, Acquisition& it, absl::Time now) {
  if (quiet_until_.size() > kQuietRemembered) {
    absl::erase_if(quiet_until_, [now](const auto& entry) { return entry.second <= now; });
  }
  absl::Time& until = quiet_until_[{ledger_.look().TenantOf(it.session).value_or(""),
                                    ledger_.state().waiters.at(id).request.device}];
  if (now < until && until <= now + kPressPause) {  // else the clock was set back
    // Look again soon, out of step with the waiter that was looked at.
    it.press_again = now + kPressPause * (1 + ToInt(id) % kPressTurns);
    return;
  }
  it.press_again = now + kPressAgain;
  const std::optional<Denial> why = ledger_.admission().BlockedBy(id);
  until = now + (why ? kPressPause : kLookPause);
  if (why) Press(*why, it.give_up);
}

std::vector<Revocations::Overdue> Broker::RunDueTimers() {
  const absl::Time now = now_();
  std::vector<WaiterId> over;
  // After this many, the clock's thread first lets other threads take the mutex.
  for (size_t looked = 0; looked < kDueAtOnce; ++looked) {
    const std::optional<WaiterId> due = acquiring_.FirstDue(now);
    if (!due) break;
    const WaiterId id = *due;
    Acquisition& waiting = acquiring_.at(id);
    if (waiting.give_up <= now && !Mutant(Fault::kWaitsForever)) {
      // Revoked memory comes when its holders are gone.
      if (ledger_.state().waiters.at(id).revokes &&
          !std::exchange(waiting.counts_on_revocation, true)) {
        const Revocations::Times& times = ledger_.revocations().times();
        // The policy may have asked others to suspend first.
        waiting.release_deadline =
            std::max(waiting.release_deadline, ledger_.state().waiters.at(id).swap_until) +
            times.grace + times.kill_after;
      }
      // A request that asked to wait still gets memory that is on its way, as others do.
      if (now < waiting.release_deadline && !ledger_.admission().IsBlocked(id)) {
        waiting.give_up = std::min(waiting.release_deadline, now + kLookAgain);
      } else {
        over.push_back(id);
        acquiring_.SetDue(id, absl::InfiniteFuture());  // its wait ends below
        continue;
      }
    } else {
      PressFor(id, waiting, now);
    }
    acquiring_.SetDue(id, waiting.Due());
  }
  const std::vector<absl::Status> denials = ledger_.admission().EndExpiredWaits(over);
  for (size_t i = 0; i < over.size(); ++i) {
    const std::shared_ptr<Acquisition> waiting = acquiring_.Take(over[i]);
    Resume(waiting, Denied(*waiting, denials[i]));
  }
  if (ask_driver_again_ <= now) {
    ask_driver_again_ = absl::InfiniteFuture();
    ledger_.operations().ForgetElsewhere();
  }
  EndOverduePublications(now);
  ledger_.admission().RunSwaps();
  return ledger_.revocations().TakeOverdue();
}

}  // namespace gpumemd
