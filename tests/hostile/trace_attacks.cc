// SPDX-License-Identifier: Apache-2.0
// Attacks by operators who trace the daemon, and by users who try to.
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/gpumem/v1/admin.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/door.h"

namespace gpumem::hostile {
namespace {

constexpr char kTrace[] = "/gpumem.v1.Admin/Trace";

std::string Of(absl::Duration duration) {
  v1::TraceRequest request;
  request.set_duration_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(duration)));
  return request.SerializeAsString();
}

}  // namespace

// Begins a long trace that it does not read, asks for others beside it, leaves it, and takes a
// short one in full.
Tally TraceStorm(const Orders& orders) {
  Tally tally;
  const auto longest = std::make_shared<const std::string>(GrpcMessage(Of(absl::Seconds(60))));
  while (!Over(orders)) {
    absl::StatusOr<UniqueFd> left = Dial(orders.runtime_dir, "admin.sock");
    absl::StatusOr<UniqueFd> socket = Dial(orders.runtime_dir, "admin.sock");
    if (!left.ok() || !socket.ok()) {
      ++tally["turned_away"];
      Pause();
      continue;
    }
    auto unread = std::make_unique<Http2Client>(*std::move(left), /*token=*/"");
    unread->Begin(kTrace, longest);
    unread->Run([] { return false; }, absl::Now() + absl::Milliseconds(5));
    Http2Client client(*std::move(socket), /*token=*/"");
    for (const absl::Duration duration :
         {absl::Seconds(1), absl::Milliseconds(5), absl::Hours(1), absl::ZeroDuration()}) {
      const bool traced = client.Call(kTrace, Of(duration), Patience(orders)).ok();
      ++tally[traced ? "traced" : "refused"];
    }
    absl::SleepFor(absl::Milliseconds(50));  // it is traced, and not read
    unread.reset();
    // The daemon sees soon that it has gone; but another of these may trace.
    for (bool traced = false; !traced && !Over(orders) && !client.closed();) {
      traced = client.Call(kTrace, Of(absl::Milliseconds(20)), Patience(orders)).ok();
      ++tally[traced ? "traced" : "refused"];
      if (!traced) Pause();
    }
  }
  return tally;
}

}  // namespace gpumem::hostile
