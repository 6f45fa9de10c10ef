// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/attacks.h"

#include <map>
#include <string>

#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"

namespace gpumem::hostile {
namespace {

// Takes processor time, and leaves the daemon alone.
Tally Spin(const Orders& orders) {
  Tally tally;
  while (!Over(orders)) ++tally["rounds"];
  return tally;
}

}  // namespace

Attack FindAttack(const std::string& name) {
  static const std::map<std::string, Attack> all = {
      {"attach", AttachMany},
      {"bad-greetings", BadGreetings},
      {"call-storm", CallStorm},
      {"claim-storm", ClaimStorm},
      {"compressed-requests", CompressedRequests},
      {"exchange", ExchangeFlood},
      {"fact-flood", FactFlood},
      {"garbage", Garbage},
      {"driver-storm", DriverStorm},
      {"endless-headers", EndlessHeaders},
      {"half-sent", HalfSent},
      {"ignore-suspensions", IgnoreSuspensions},
      {"lane-storm", LaneStorm},
      {"lasting-tenant-storm", LastingTenantStorm},
      {"leases", LeaseFlood},
      {"never-read", NeverRead},
      {"page-storm", PageStorm},
      {"ping-flood", PingFlood},
      {"publication-storm", PublicationStorm},
      {"rapid-reset", RapidReset},
      {"reconcile", ReconcileFlood},
      {"release", ReleaseFlood},
      {"release-slowly", ReleaseSlowly},
      {"report-flood", ReportFlood},
      {"resume", Resume},
      {"say-nothing", SayNothing},
      {"settings-flood", SettingsFlood},
      {"spin", Spin},
      {"suspend", SuspendFlood},
      {"suspend-publications", SuspendPublications},
      {"take-sessions", TakeSessions},
      {"tell-pods", TellPods},
      {"tenant-storm", TenantStorm},
      {"trace-storm", TraceStorm},
      {"view-hang-up", ViewHangUp},
      {"view-reset", ViewReset},
      {"view-storm", ViewStorm},
      {"tickle", Tickle},
      {"wait", Wait},
      {"wrong-headers", WrongHeaders},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace gpumem::hostile
