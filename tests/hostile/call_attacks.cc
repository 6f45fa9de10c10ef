// SPDX-License-Identifier: Apache-2.0
// Attacks by calls of a session: leases, publications, floods of ids, waits.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/gpumem/v1/broker.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/http2.h"

namespace gpumem::hostile {
namespace {

constexpr char kOpen[] = "/gpumem.v1.Broker/Open";
constexpr char kShare[] = "/gpumem.v1.Broker/Share";
constexpr char kReconcile[] = "/gpumem.v1.Broker/Reconcile";

constexpr uint32_t kBatch = 253;  // segments in one call, as the protocol allows

// A number as protobuf writes it.
std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value > 0x7f; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

// Sends as many ids as one request carries, of leases that the session does not have.
Tally IdFlood(const Orders& orders, const char* method) {
  constexpr uint32_t kIds = 380'000;
  constexpr uint64_t kFirst = 1 << 14;  // of three bytes each
  std::string ids;
  for (uint64_t id = kFirst; id < kFirst + kIds; ++id) ids += Varint(id);
  const auto body = std::make_shared<const std::string>(
      GrpcMessage(absl::StrCat("\x0a", Varint(ids.size()), ids)));  // field 1, packed
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    Http2Client& client = *caller->client;
    uint64_t begun = 0;
    while (!Over(orders) && !client.closed()) {
      constexpr uint64_t kAtOnce = 8;
      for (; begun < client.answered() + kAtOnce; ++begun) client.Begin(method, body);
      const uint64_t before = client.answered();
      client.Run([&] { return client.answered() > before; }, orders.deadline);
    }
    tally["calls"] += client.answered();
  }
  return tally;
}

}  // namespace

// Makes the cheapest call again and again, each as late as the daemon still spins for it.
Tally Tickle(const Orders& orders) {
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    Http2Client& client = *caller->client;
    const auto body = std::make_shared<const std::string>(GrpcMessage(""));
    while (!Over(orders) && !client.closed()) {
      const uint64_t before = client.answered();
      client.Begin(kListDevices, body);
      client.Run([&] { return client.answered() > before; }, orders.deadline);
      const absl::Time next = absl::Now() + absl::Microseconds(30);
      while (absl::Now() < next) {
      }
    }
    tally["calls"] += client.answered();
  }
  return tally;
}

// One segment, one ticket, and that opened 253 times in each call, until it is refused; then with
// the next session.
Tally LeaseFlood(const Orders& orders) {
  Tally tally;
  std::vector<Caller> full;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    v1::AcquireRequest acquire;
    acquire.set_bytes(4096);
    auto acquired = Call<v1::AcquireResponse>(*caller, kAcquire, acquire, Patience(orders));
    if (!acquired.ok()) continue;
    v1::ShareRequest share;
    share.set_lease_id(acquired->leases(0).lease_id());
    auto shared = Call<v1::ShareResponse>(*caller, kShare, share, Patience(orders));
    if (!shared.ok()) continue;
    v1::OpenRequest open;
    for (uint32_t i = 0; i < kBatch; ++i) open.add_tickets(shared->ticket());
    while (!Over(orders)) {
      auto opened = Call<v1::OpenResponse>(*caller, kOpen, open, Patience(orders));
      if (!opened.ok()) {
        ++tally["refused_opens"];
        break;
      }
      tally["leases"] += kBatch;
    }
    // It keeps its resources, and the next session goes on.
    full.push_back(*std::move(caller));
  }
  return tally;
}

// A publication of 1,012 segments, attached and released again and again.
Tally AttachMany(const Orders& orders) {
  Tally tally;
  std::optional<Caller> caller;
  while (!caller && !Over(orders)) caller = NewCaller(orders, &tally);
  if (!caller) return tally;
  v1::PublishRequest publish;
  publish.set_name("many");
  publish.set_ephemeral(true);
  for (int batch = 0; batch < 4; ++batch) {
    v1::AcquireRequest acquire;
    acquire.set_bytes(4096);
    acquire.set_count(kBatch);
    auto acquired = Call<v1::AcquireResponse>(*caller, kAcquire, acquire, orders.deadline);
    if (!acquired.ok()) return tally;
    for (const v1::Lease& lease : acquired->leases()) publish.add_lease_ids(lease.lease_id());
  }
  if (!Call<v1::PublishResponse>(*caller, kPublish, publish, orders.deadline).ok()) return tally;
  tally["segments"] = static_cast<uint64_t>(publish.lease_ids_size());
  while (!Over(orders)) {
    v1::AttachRequest attach;
    attach.set_name("many");
    const absl::Time begin = absl::Now();
    auto attached = Call<v1::AttachResponse>(*caller, kAttach, attach, orders.deadline);
    if (!attached.ok()) break;
    ++tally["attached"];
    uint64_t& longest = tally["longest_ms"];
    longest = std::max<uint64_t>(
        longest, static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Now() - begin)));
    v1::ReleaseRequest release;
    for (const v1::Lease& lease : attached->leases()) release.add_lease_ids(lease.lease_id());
    if (!Call<v1::ReleaseResponse>(*caller, kRelease, release, orders.deadline).ok()) break;
  }
  return tally;
}

Tally ReleaseFlood(const Orders& orders) { return IdFlood(orders, kRelease); }
Tally ReconcileFlood(const Orders& orders) { return IdFlood(orders, kReconcile); }

// 256 requests that wait for more than there will be on the first device.
Tally Wait(const Orders& orders) {
  constexpr int kWaiting = 256;
  v1::AcquireRequest acquire;
  acquire.set_bytes(uint64_t{8} << 30);
  acquire.set_wait_ms(120'000);
  acquire.set_without_pressure(true);
  const auto body = std::make_shared<const std::string>(GrpcMessage(acquire.SerializeAsString()));
  Tally tally;
  std::optional<Caller> caller;
  while (!caller && !Over(orders)) caller = NewCaller(orders, &tally);
  if (!caller) return tally;
  // Starts once ReleaseSlowly has taken most of the device, in another process.
  for (bool taken = false; !taken && !Over(orders);) {
    auto listed = Call<v1::ListDevicesResponse>(*caller, kListDevices, v1::ListDevicesRequest(),
                                                orders.deadline);
    taken = listed.ok() && listed->devices_size() > 0 &&
            listed->devices(0).charged_bytes() >= kMostOfDevice;
  }
  for (int i = 0; i < kWaiting; ++i) caller->client->Begin(kAcquire, body);
  caller->client->Run([] { return false; }, orders.deadline);
  tally["answered"] = caller->client->answered();
  tally["waiting"] = kWaiting - tally["answered"];
  return tally;
}

// Holds the most of the first device (16 GiB), and releases a little of it again and again.
Tally ReleaseSlowly(const Orders& orders) {
  Tally tally;
  std::optional<Caller> caller;
  while (!caller && !Over(orders)) caller = NewCaller(orders, &tally);
  if (!caller) return tally;
  v1::AcquireRequest acquire;
  acquire.set_bytes(4096);
  acquire.set_count(kBatch);
  auto small = Call<v1::AcquireResponse>(*caller, kAcquire, acquire, Patience(orders));
  acquire.set_bytes(kMostOfDevice);
  acquire.set_count(1);
  auto large = Call<v1::AcquireResponse>(*caller, kAcquire, acquire, Patience(orders));
  if (!small.ok() || !large.ok()) return tally;
  tally["holds"] = 1;
  for (const v1::Lease& lease : small->leases()) {
    if (Over(orders)) break;
    v1::ReleaseRequest release;
    release.add_lease_ids(lease.lease_id());
    tally["releases"] +=
        Call<v1::ReleaseResponse>(*caller, kRelease, release, orders.deadline).ok();
    absl::SleepFor(absl::Milliseconds(20));
  }
  HoldOn(orders);
  return tally;
}

}  // namespace gpumem::hostile
