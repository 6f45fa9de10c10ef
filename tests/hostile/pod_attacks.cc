// SPDX-License-Identifier: Apache-2.0
// Attacks by facts of Kubernetes' pods, which only operators may tell.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/gpumem/v1/pod.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/door.h"

namespace gpumem::hostile {
namespace {

constexpr char kSetPods[] = "/gpumem.v1.Admin/SetPods";
constexpr char kListPods[] = "/gpumem.v1.Admin/ListPods";
constexpr int kMostPods = 2048;

// Pods with so many labels each. All lists have other uids.
v1::SetPodsRequest ListOf(uint64_t round, int pods, int labels) {
  v1::SetPodsRequest request;
  request.set_owner(absl::StrCat("flood-", round % 3));
  request.set_revision(absl::StrCat(round));
  for (int number = 0; number < pods; ++number) {
    v1::PodFacts& pod = *request.add_pods();
    pod.set_uid(absl::StrFormat("%08x-%04x-45ad-af94-d91eb81a87e9", number, round % 65536));
    pod.set_namespace_("team");
    pod.set_name(absl::StrCat("pod-", number));
    for (int i = 0; i < labels; ++i) {
      v1::PodLabel& label = *pod.add_labels();
      label.set_key(absl::StrCat("example.com/label-", i));
      label.set_value("value");
    }
  }
  return request;
}

// Returns the list that this round tells: as large as may be, or too large, or without sense.
v1::SetPodsRequest OddList(uint64_t round) {
  switch (round % 6) {
    case 0:
      return ListOf(round, kMostPods + 1, 0);
    case 1:
      return ListOf(round, 1, 10'000);
    case 2: {
      v1::SetPodsRequest twice = ListOf(round, 1000, 2);
      *twice.add_pods() = twice.pods(0);
      return twice;
    }
    case 3: {
      v1::SetPodsRequest no_uuid = ListOf(round, 10, 2);
      no_uuid.mutable_pods(9)->set_uid("../../../etc");
      return no_uuid;
    }
    default:
      return ListOf(round, kMostPods, 5);
  }
}

}  // namespace

// Tells of pods at the socket of operators, which turns it away, and on its session's connection,
// which has no such call.
Tally FactFlood(const Orders& orders) {
  Tally tally;
  const std::string body = ListOf(0, 500, 5).SerializeAsString();
  while (!Over(orders)) {
    ++tally["tried"];
    if (absl::StatusOr<UniqueFd> socket = Dial(orders.runtime_dir, "admin.sock"); socket.ok()) {
      Http2Client client(*std::move(socket), /*token=*/"");
      for (const char* method : {kSetPods, kListPods}) {
        tally["told"] += client.Call(method, body, Patience(orders)).ok() ? 1 : 0;
      }
    }
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    for (const char* method : {kSetPods, kListPods}) {
      tally["told"] += caller->client->Call(method, body, Patience(orders)).ok() ? 1 : 0;
    }
  }
  return tally;
}

// As an operator: replaces lists of pods as fast as the daemon answers. Some make no sense.
Tally TellPods(const Orders& orders) {
  Tally tally;
  for (uint64_t round = 0; !Over(orders);) {
    absl::StatusOr<UniqueFd> socket = Dial(orders.runtime_dir, "admin.sock");
    if (!socket.ok()) continue;
    Http2Client client(*std::move(socket), /*token=*/"");
    while (!Over(orders) && !client.closed()) {
      const auto answer =
          client.Call(kSetPods, OddList(round).SerializeAsString(), Patience(orders));
      ++tally[answer.ok() ? "told" : "refused"];
      tally["nonsense"] += answer.ok() && round % 6 < 4 ? 1 : 0;
      ++round;
    }
  }
  return tally;
}

}  // namespace gpumem::hostile
