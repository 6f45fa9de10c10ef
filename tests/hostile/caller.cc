// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/caller.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace gpumem::hostile {

bool Over(const Orders& orders) { return absl::Now() >= orders.deadline; }

void Pause() { absl::SleepFor(absl::Milliseconds(5)); }

void HoldOn(const Orders& orders) { absl::SleepFor(orders.deadline - absl::Now()); }

absl::Time Patience(const Orders& orders) {
  return std::min(orders.deadline, absl::Now() + kTimeout);
}

std::optional<Caller> NewCaller(const Orders& orders, Tally* tally, bool reads) {
  absl::StatusOr<Seat> seat = TakeSeat(orders.runtime_dir);
  if (!seat.ok()) {
    ++(*tally)["refused_sessions"];
    Pause();
    return std::nullopt;
  }
  ++(*tally)["sessions"];
  Caller caller = {.seat = *std::move(seat)};
  caller.client = std::make_unique<Http2Client>(std::move(caller.seat.stream), caller.seat.token,
                                                reads ? caller.seat.session.get() : -1);
  return caller;
}

}  // namespace gpumem::hostile
