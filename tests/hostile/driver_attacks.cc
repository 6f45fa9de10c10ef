// SPDX-License-Identifier: Apache-2.0
// Attacks by charges for memory of a process's own driver (kind driver).
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/gpumem/v1/broker.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"

namespace gpumem::hostile {
namespace {

constexpr char kShareCharge[] = "/gpumem.v1.Broker/Share";
constexpr char kSuspendCharge[] = "/gpumem.v1.Broker/PrepareSuspend";

v1::AcquireRequest DriverRequest(uint64_t bytes, uint32_t count) {
  v1::AcquireRequest request;
  request.set_bytes(bytes);
  request.set_count(count);
  request.set_kind(v1::KIND_DRIVER);
  return request;
}

}  // namespace

// Charges itself as often as it may, and tries with the leases what needs memory: to share, publish
// and suspend them. Asks for the tag that only the daemon gives. Then its session ends.
Tally DriverStorm(const Orders& orders) {
  constexpr uint32_t kEach = 253;
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    std::vector<uint64_t> leases;
    while (!Over(orders)) {
      auto acquired =
          Call<v1::AcquireResponse>(*caller, kAcquire, DriverRequest(1, kEach), Patience(orders));
      if (!acquired.ok() || acquired->leases_size() == 0) break;
      tally["charges"] += static_cast<uint64_t>(acquired->leases_size());
      for (const v1::Lease& lease : acquired->leases()) {
        tally["with_memory"] += lease.export_data().empty() ? 0 : 1;
        leases.push_back(lease.lease_id());
      }
    }
    v1::AcquireRequest overhead = DriverRequest(1, 1);
    overhead.set_tag("(overhead)");
    tally["tagged"] +=
        Call<v1::AcquireResponse>(*caller, kAcquire, overhead, Patience(orders)).ok() ? 1 : 0;
    for (size_t i = 0; i < leases.size() && i < 20 && !Over(orders); ++i) {
      v1::ShareRequest share;
      share.set_lease_id(leases[i]);
      share.set_scope(i % 2 == 0 ? v1::TICKET_SCOPE_TENANT : v1::TICKET_SCOPE_ANY);
      tally["shared"] +=
          Call<v1::ShareResponse>(*caller, kShareCharge, share, Patience(orders)).ok() ? 1 : 0;
      v1::PublishRequest publish;
      publish.set_name("charge");
      publish.add_lease_ids(leases[i]);
      tally["published"] +=
          Call<v1::PublishResponse>(*caller, kPublish, publish, Patience(orders)).ok() ? 1 : 0;
      v1::PrepareSuspendRequest suspend;
      suspend.add_lease_ids(leases[i]);
      tally["suspended"] +=
          Call<v1::PrepareSuspendResponse>(*caller, kSuspendCharge, suspend, Patience(orders)).ok()
              ? 1
              : 0;
    }
    // Half of it is released, and the rest goes with the session.
    v1::ReleaseRequest release;
    for (size_t i = 0; i < leases.size() / 2; ++i) release.add_lease_ids(leases[i]);
    if (release.lease_ids_size() > 0)
      (void)Call<v1::ReleaseResponse>(*caller, kRelease, release, Patience(orders));
  }
  return tally;
}

}  // namespace gpumem::hostile
