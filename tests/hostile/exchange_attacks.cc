// SPDX-License-Identifier: Apache-2.0
// Attacks by exchanges of leases: of leases that fit, that do not, and that are not the session's.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/gpumem/v1/broker.pb.h"
#include "proto/gpumem/v1/suspend.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/http2.h"

namespace gpumem::hostile {
namespace {

constexpr char kExchangeLeases[] = "/gpumem.v1.Broker/ExchangeLeases";
constexpr uint32_t kOfEachKind = 4;  // segments

using Body = std::shared_ptr<const std::string>;
using Leases = std::vector<v1::Lease>;

Body BodyOf(const std::string& message) {
  return std::make_shared<const std::string>(GrpcMessage(message));
}

void Add(const v1::Lease& lease, const v1::Lease& other, v1::ExchangeLeasesRequest* request) {
  v1::ExchangeLeasesRequest::Pair* const pair = request->add_pairs();
  pair->set_lease_id(lease.lease_id());
  pair->set_other_lease_id(other.lease_id());
  pair->set_segment_id(lease.segment_id());
  pair->set_other_segment_id(other.segment_id());
}

// Exchanges of all leases, there and back; checks; and wrong and huge requests.
std::vector<Body> Requests(const Leases& device, const Leases& host) {
  std::vector<Body> bodies;
  v1::ExchangeLeasesRequest there, back, mixed;
  for (size_t i = 0; i < device.size(); ++i) {
    Add(device[i], host[i], &there);
    v1::Lease demoted = device[i], spare = host[i];
    demoted.set_segment_id(host[i].segment_id());
    spare.set_segment_id(device[i].segment_id());
    Add(demoted, spare, &back);
    // One of these does not fit.
    Add(device[i], i == 0 ? device.back() : host[i], &mixed);
  }
  for (const v1::ExchangeLeasesRequest& request : {there, there, back, mixed}) {
    bodies.push_back(BodyOf(request.SerializeAsString()));
    v1::ExchangeLeasesRequest check = request;
    check.set_check_only(true);
    bodies.push_back(BodyOf(check.SerializeAsString()));
  }
  v1::ExchangeLeasesRequest twice = there;
  twice.MergeFrom(back);
  bodies.push_back(BodyOf(twice.SerializeAsString()));
  bodies.push_back(BodyOf(""));
  for (size_t count : {1, 253, 254, 1000, 200'000, 500'000}) {
    // Of empty pairs, two bytes each, and of the leases of others.
    std::string empty;
    for (size_t i = 0; i < count; ++i) empty.append("\x0a\x00", 2);
    bodies.push_back(BodyOf(empty));
    v1::ExchangeLeasesRequest foreign;
    for (size_t i = 0; i < count && i < 50'000; ++i) {
      v1::ExchangeLeasesRequest::Pair* const pair = foreign.add_pairs();
      pair->set_lease_id(1 + 2 * i);
      pair->set_other_lease_id(2 + 2 * i);
      pair->set_segment_id(UINT64_MAX);
    }
    bodies.push_back(BodyOf(foreign.SerializeAsString()));
  }
  return bodies;
}

}  // namespace

// Exchanges what it has, back and forth, beside many such calls that are wrong. Each session ends
// with calls under way.
Tally ExchangeFlood(const Orders& orders) {
  constexpr uint64_t kAtOnce = 32;
  constexpr uint64_t kCalls = 500;  // of one session
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    Leases leases[2];
    for (v1::Kind kind : {v1::KIND_VMM, v1::KIND_HOST}) {
      v1::AcquireRequest acquire;
      acquire.set_bytes(uint64_t{2} << 20);
      acquire.set_count(kOfEachKind);
      acquire.set_kind(kind);
      auto acquired = Call<v1::AcquireResponse>(*caller, kAcquire, acquire, Patience(orders));
      if (!acquired.ok()) break;
      leases[kind == v1::KIND_HOST].assign(acquired->leases().begin(), acquired->leases().end());
    }
    if (leases[0].empty() || leases[1].empty()) {
      Pause();
      continue;
    }
    v1::ExchangeLeasesRequest first_pair;
    Add(leases[0].front(), leases[1].front(), &first_pair);
    if (Call<v1::ExchangeLeasesResponse>(*caller, kExchangeLeases, first_pair, Patience(orders))
            .ok()) {
      ++tally["exchanged"];
    }
    const std::vector<Body> bodies = Requests(leases[0], leases[1]);
    Http2Client& client = *caller->client;
    const uint64_t first = client.answered();
    for (uint64_t begun = 0; !Over(orders) && !client.closed() && begun < kCalls;) {
      for (; begun < client.answered() - first + kAtOnce; ++begun) {
        client.Begin(kExchangeLeases, bodies[begun % bodies.size()]);
      }
      const uint64_t before = client.answered();
      client.Run([&] { return client.answered() > before; }, orders.deadline);
    }
    tally["calls"] += client.answered() - first;
    tally["granted"] += client.granted();
  }
  return tally;
}

}  // namespace gpumem::hostile
