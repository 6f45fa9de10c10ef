// SPDX-License-Identifier: Apache-2.0
// Attacks by tenants that sessions make under their own.
#include <unistd.h>

#include <cstdint>
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

constexpr uint64_t kMostTenants = 64;  // of one user

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
                                                     const std::string& name) {
  v1::CreateChildTenantRequest request;
  request.set_name(name);
  request.mutable_quota()->set_limit_bytes(1 << 20);
  return Call<v1::CreateChildTenantResponse>(caller, kCreateTenant, request, Patience(orders));
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
    for (const std::string& tenant : OfOthers()) {
      v1::UpdateChildTenantRequest update;
      update.set_tenant(tenant);
      update.mutable_quota()->set_limit_bytes(0);
      tally["others_changed"] +=
          Call<v1::CreateChildTenantResponse>(*caller, kUpdateTenant, update, Patience(orders)).ok()
              ? 1
              : 0;
      v1::EndChildTenantRequest end;
      end.set_tenant(tenant);
      tally["others_ended"] +=
          Call<v1::EndTenantResponse>(*caller, kEndTenant, end, Patience(orders)).ok() ? 1 : 0;
      tally["others_entered"] += TakeSeat(orders.runtime_dir, {}, tenant).ok() ? 1 : 0;
    }
    // One inside the other, as deep as it goes.
    for (int level = 0; level < 10 && !last.empty() && !Over(orders); ++level) {
      absl::StatusOr<Seat> seat = TakeSeat(orders.runtime_dir, {}, last);
      if (!seat.ok()) break;
      tally["inside"] += 1;
      v1::EndChildTenantRequest end;  // makes room for one more
      end.set_tenant(absl::StrCat("user-", getuid(), ":", getuid(), ".storm-", level));
      (void)Call<v1::EndTenantResponse>(*caller, kEndTenant, end, Patience(orders));
      Caller inner = {.seat = *std::move(seat)};
      inner.client = std::make_unique<Http2Client>(std::move(inner.seat.stream), inner.seat.token,
                                                   inner.seat.session.get());
      const auto answer = Create(orders, inner, "");
      last = answer.ok() ? answer->tenant() : "";
    }
  }
  return tally;
}

}  // namespace gpumem::hostile
