// SPDX-License-Identifier: Apache-2.0
// Attacks by tenants that sessions make under their own.
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/gpumem/v1/broker.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/door.h"

namespace gpumem::hostile {
namespace {

constexpr char kCreateTenant[] = "/gpumem.v1.Broker/CreateTenant";
constexpr char kUpdateTenant[] = "/gpumem.v1.Broker/UpdateTenant";
constexpr char kEndTenant[] = "/gpumem.v1.Broker/EndTenant";

constexpr char kListTenants[] = "/gpumem.v1.Broker/ListTenants";

constexpr uint64_t kMostTenants = 64;  // of one user
constexpr uint64_t kMostLasting = 32;

// Names that no tenant may have, and names of other tenants.
const std::vector<std::string>& OddNames() {
  static const auto& names = *new std::vector<std::string>{"a/b",
                                                           "a:b",
                                                           "../x",
                                                           " ",
                                                           "\n",
                                                           "\x01",
                                                           "{uid}",
                                                           "*",
                                                           std::string(64, 'a'),
                                                           std::string(1 << 16, 'a')};
  return names;
}

// Tenants that other users may have, and how they may be spelled.
std::vector<std::string> OfOthers() {
  std::vector<std::string> names = {"user-0", "user-0:0.run", ":", "::", "user-0:", "root"};
  for (uid_t uid = getuid() + 1; uid < getuid() + 4; ++uid) {
    names.push_back(absl::StrCat("user-", uid));
    names.push_back(absl::StrCat("user-", uid, ":", uid, ".storm-0"));
    names.push_back(absl::StrCat("user-", getuid(), ":", uid, ".storm-0"));
  }
  return names;
}

absl::StatusOr<v1::CreateChildTenantResponse> Create(const Orders& orders, Caller& caller,
                                                     const std::string& name, bool lasting = false,
                                                     uint64_t limit = 1 << 20) {
  v1::CreateChildTenantRequest request;
  request.set_name(name);
  request.set_lasting(lasting);
  request.mutable_quota()->set_limit_bytes(limit);
  return Call<v1::CreateChildTenantResponse>(caller, kCreateTenant, request, Patience(orders));
}

bool Update(const Orders& orders, Caller& caller, const std::string& tenant, uint64_t limit) {
  v1::UpdateChildTenantRequest update;
  update.set_tenant(tenant);
  update.mutable_quota()->set_limit_bytes(limit);
  return Call<v1::CreateChildTenantResponse>(caller, kUpdateTenant, update, Patience(orders)).ok();
}

bool End(const Orders& orders, Caller& caller, const std::string& tenant) {
  v1::EndChildTenantRequest end;
  end.set_tenant(tenant);
  return Call<v1::EndTenantResponse>(caller, kEndTenant, end, Patience(orders)).ok();
}

// Counts the tenants of others that the caller could change, end or begin in.
void ReachForOthers(const Orders& orders, Caller& caller, Tally& tally) {
  for (const std::string& tenant : OfOthers()) {
    tally["others_changed"] += Update(orders, caller, tenant, 0) ? 1 : 0;
    tally["others_ended"] += End(orders, caller, tenant) ? 1 : 0;
    tally["others_entered"] += TakeSeat(orders.runtime_dir, {}, tenant).ok() ? 1 : 0;
  }
}

// Begins a session in the tenant.
std::optional<Caller> Enter(const Orders& orders, const std::string& tenant) {
  absl::StatusOr<Seat> seat = TakeSeat(orders.runtime_dir, {}, tenant);
  if (!seat.ok()) return std::nullopt;
  Caller inner = {.seat = *std::move(seat)};
  inner.client = std::make_unique<Http2Client>(std::move(inner.seat.stream), inner.seat.token,
                                               inner.seat.session.get());
  return inner;
}

// Asks for what the parent's rules forbid a lasting tenant. Returns how often it got it.
uint64_t AskForMore(const Orders& orders, Caller& caller) {
  v1::Quota wishes[3];
  wishes[0].set_guarantee_bytes(1 << 20);
  wishes[1].set_priority(1 << 30);
  wishes[2].set_max_in_flight(1 << 30);
  uint64_t got = 0;
  for (const v1::Quota& wish : wishes) {
    v1::CreateChildTenantRequest request;
    request.set_name("more");
    request.set_lasting(true);
    *request.mutable_quota() = wish;
    got +=
        Call<v1::CreateChildTenantResponse>(caller, kCreateTenant, request, Patience(orders)).ok()
            ? 1
            : 0;
  }
  return got;
}

}  // namespace

// Makes all tenants that it can, under each other, too. Asks for names that it may not have, and
// for others' tenants: to begin in them, to change and to end them. Then its session ends.
Tally TenantStorm(const Orders& orders) {
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    uint64_t made = 0;
    std::string last;
    for (uint64_t i = 0; i < kMostTenants + 8 && !Over(orders); ++i) {
      const auto answer = Create(orders, *caller, absl::StrCat("storm-", i));
      if (!answer.ok()) continue;
      ++made;
      last = answer->tenant();
    }
    tally["made"] += made;
    tally["over_limit"] += made > kMostTenants ? 1 : 0;
    for (const std::string& name : OddNames()) {
      tally["odd_names"] += Create(orders, *caller, name).ok() ? 1 : 0;
    }
    ReachForOthers(orders, *caller, tally);
    // One inside the other, as deep as it goes.
    for (int level = 0; level < 10 && !last.empty() && !Over(orders); ++level) {
      std::optional<Caller> inner = Enter(orders, last);
      if (!inner) break;
      tally["inside"] += 1;
      // Makes room for one more.
      End(orders, *caller, absl::StrCat("user-", getuid(), ":", getuid(), ".storm-", level));
      const auto answer = Create(orders, *inner, "");
      last = answer.ok() ? answer->tenant() : "";
    }
  }
  return tally;
}

// Makes all lasting tenants that it can, which its sessions leave behind, and asks for more than
// they may have. Begins in one, widens it from inside, ends it and makes it anew while the session
// is there. In each second round it ends them all.
Tally LastingTenantStorm(const Orders& orders) {
  Tally tally;
  for (uint64_t round = 0; !Over(orders); ++round) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    uint64_t there = 0;
    std::string last;
    for (uint64_t i = 0; i < kMostLasting + 8 && !Over(orders); ++i) {
      const auto answer = Create(orders, *caller, absl::StrCat("kept-", i), /*lasting=*/true);
      if (!answer.ok()) continue;
      ++there;
      last = answer->tenant();
    }
    tally["made"] += there;
    tally["over_limit"] += there > kMostLasting ? 1 : 0;
    for (const std::string& name : OddNames()) {
      tally["odd_names"] += Create(orders, *caller, name, true).ok() ? 1 : 0;
    }
    tally["odd_names"] += Create(orders, *caller, "", true).ok() ? 1 : 0;
    tally["more"] += AskForMore(orders, *caller);
    if (!last.empty()) {
      const std::string name = last.substr(last.rfind('.') + 1);
      tally["changed_by_create"] += Create(orders, *caller, name, true, 2 << 20).ok() ? 1 : 0;
      if (std::optional<Caller> inner = Enter(orders, last)) {
        tally["inside"] += 1;
        tally["widened"] += Update(orders, *inner, last, 1 << 30) ? 1 : 0;
        tally["widened"] += End(orders, *inner, last) ? 1 : 0;
        if (End(orders, *caller, last)) {
          tally["reborn"] += Create(orders, *caller, name, true).ok() ? 1 : 0;
          tally["entered_ended"] += Enter(orders, last).has_value() ? 1 : 0;
        }
      }
    }
    ReachForOthers(orders, *caller, tally);
    const auto listed = Call<v1::ListChildTenantsResponse>(
        *caller, kListTenants, v1::ListChildTenantsRequest(), Patience(orders));
    if (!listed.ok()) continue;
    tally["over_limit"] += static_cast<uint64_t>(listed->tenants_size()) > kMostTenants ? 1 : 0;
    for (const v1::TenantInfo& tenant : listed->tenants()) {
      tally["others_listed"] += tenant.made().uid() != getuid() ? 1 : 0;
      if (round % 2 == 1) End(orders, *caller, tenant.usage().tenant());
    }
  }
  return tally;
}

}  // namespace gpumem::hostile
