// SPDX-License-Identifier: Apache-2.0
// Attacks by suspended leases: calls that copy, and calls that only look as if they did. Also by
// tags and scratch memory, which are there for suspension.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/gpumem/v1/broker.pb.h"
#include "proto/gpumem/v1/suspend.pb.h"
#include "proto/gpumem/v1/watch.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/http2.h"

namespace gpumem::hostile {
namespace {

constexpr char kPrepareSuspend[] = "/gpumem.v1.Broker/PrepareSuspend";
constexpr char kSuspend[] = "/gpumem.v1.Broker/Suspend";
constexpr char kCancelSuspend[] = "/gpumem.v1.Broker/CancelSuspend";
constexpr char kResume[] = "/gpumem.v1.Broker/Resume";

constexpr char kWatch[] = "/gpumem.v1.Broker/Watch";
constexpr char kReportActivity[] = "/gpumem.v1.Broker/ReportActivity";

constexpr uint32_t kSegments = 12;

// A request for events of a session that the daemon may ask to suspend.
std::shared_ptr<const std::string> WatchOfSwappable() {
  v1::WatchRequest watch;
  watch.set_accepts_suspension(true);
  watch.set_swappable(true);
  watch.set_serves_demotion(true);
  return std::make_shared<const std::string>(GrpcMessage(watch.SerializeAsString()));
}

struct Request {
  const char* method;
  std::shared_ptr<const std::string> body;
};

// Adds a request for each of the calls that name leases.
void AddForAll(const std::vector<uint64_t>& leases, std::vector<Request>* requests) {
  v1::SuspendRequest message;
  message.mutable_lease_ids()->Add(leases.begin(), leases.end());
  // Field 1 of all three.
  const auto body = std::make_shared<const std::string>(GrpcMessage(message.SerializeAsString()));
  for (const char* method : {kPrepareSuspend, kSuspend, kResume}) {
    requests->push_back({method, body});
  }
}

// Adds requests for memory with wrong tags, and for scratch memory that there is not.
void AddWrongAcquires(std::vector<Request>* requests) {
  const auto add = [&](const std::string& bytes) {
    requests->push_back({kAcquire, std::make_shared<const std::string>(GrpcMessage(bytes))});
  };
  v1::AcquireRequest acquire;
  acquire.set_bytes(4096);
  for (const std::string& tag :
       {std::string(33, 'x'), std::string(1 << 20, 'x'), std::string("a/../b"),
        std::string("a\0b", 3), std::string("\n"), std::string("\xc3\xa4")}) {
    acquire.set_tag(tag);
    add(acquire.SerializeAsString());
  }
  // No UTF-8, which the library would complain about: field 11, of two bytes.
  acquire.clear_tag();
  add(acquire.SerializeAsString() + "\x5a\x02\xff\xfe");
  acquire.set_scratch(true);
  for (v1::Kind kind : {v1::KIND_MEMPOOL, v1::KIND_IPC, v1::KIND_PINNED, v1::KIND_TIER}) {
    acquire.set_kind(kind);
    add(acquire.SerializeAsString());
  }
}

// Right ones, wrong ones and huge ones, in turns.
std::vector<Request> Requests(const std::vector<uint64_t>& leases) {
  constexpr uint64_t kForeign = 1 << 14;  // ids of three bytes
  std::vector<Request> requests;
  AddForAll(leases, &requests);
  for (uint64_t lease : leases) AddForAll({lease}, &requests);
  AddForAll({}, &requests);
  AddForAll({0, UINT64_MAX}, &requests);
  AddForAll(std::vector<uint64_t>(1024, leases.front()), &requests);
  for (size_t count : {1024, 1025, 250'000, 1'000'000}) {
    std::vector<uint64_t> foreign(count);
    for (size_t i = 0; i < count; ++i) foreign[i] = kForeign + i;
    AddForAll(foreign, &requests);
  }
  v1::ResumeRequest waits;
  waits.mutable_lease_ids()->Add(leases.begin(), leases.end());
  waits.set_wait_ms(120'000);
  requests.push_back(
      {kResume, std::make_shared<const std::string>(GrpcMessage(waits.SerializeAsString()))});
  for (uint64_t id : {uint64_t{0}, uint64_t{1}, uint64_t{7}, UINT64_MAX}) {
    v1::CancelSuspendRequest cancel;
    cancel.set_suspension_id(id);
    requests.push_back({kCancelSuspend, std::make_shared<const std::string>(
                                            GrpcMessage(cancel.SerializeAsString()))});
  }
  AddWrongAcquires(&requests);
  // Leases that are suspended, resumed and prepared again beside each other.
  AddForAll(leases, &requests);
  return requests;
}

}  // namespace

// Suspends and resumes what it has, beside many such calls that are wrong. Each session ends with
// calls under way.
Tally SuspendFlood(const Orders& orders) {
  constexpr uint64_t kAtOnce = 32;
  constexpr uint64_t kCalls = 500;  // of one session
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    v1::AcquireRequest acquire;
    acquire.set_bytes(4096);
    acquire.set_count(kSegments);
    auto acquired = Call<v1::AcquireResponse>(*caller, kAcquire, acquire, Patience(orders));
    if (!acquired.ok()) continue;
    acquire.set_count(kSegments / 2);
    acquire.set_scratch(true);
    acquire.set_tag(std::string(32, 'x'));
    auto scratch = Call<v1::AcquireResponse>(*caller, kAcquire, acquire, Patience(orders));
    if (!scratch.ok()) continue;
    v1::SuspendRequest suspend;
    std::vector<uint64_t> leases;
    for (const v1::Lease& lease : acquired->leases()) leases.push_back(lease.lease_id());
    for (const v1::Lease& lease : scratch->leases()) leases.push_back(lease.lease_id());
    suspend.mutable_lease_ids()->Add(leases.begin(), leases.end());
    auto suspended = Call<v1::SuspendResponse>(*caller, kSuspend, suspend, Patience(orders));
    if (suspended.ok()) tally["moved_bytes"] += suspended->moved_bytes();

    const std::vector<Request> requests = Requests(leases);
    Http2Client& client = *caller->client;
    const uint64_t first = client.answered();
    for (uint64_t begun = 0; !Over(orders) && !client.closed() && begun < kCalls;) {
      for (; begun < client.answered() - first + kAtOnce; ++begun) {
        const Request& request = requests[begun % requests.size()];
        client.Begin(request.method, request.body);
      }
      const uint64_t before = client.answered();
      client.Run([&] { return client.answered() > before; }, orders.deadline);
    }
    tally["calls"] += client.answered() - first;
    tally["granted"] += client.granted();
  }
  return tally;
}

// Holds memory, says that it can be suspended, and reports activity as fast as the daemon answers.
Tally ReportFlood(const Orders& orders) {
  constexpr uint64_t kAtOnce = 32;
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    v1::AcquireRequest acquire;
    acquire.set_bytes(4096);
    if (!Call<v1::AcquireResponse>(*caller, kAcquire, acquire, Patience(orders)).ok()) continue;
    Http2Client& client = *caller->client;
    client.Begin(kWatch, WatchOfSwappable());
    const auto empty = std::make_shared<const std::string>(GrpcMessage(""));
    const uint64_t first = client.answered(), granted = client.granted();
    for (uint64_t begun = 0; !Over(orders) && !client.closed();) {
      for (; begun < client.answered() - first + kAtOnce; ++begun) {
        client.Begin(kReportActivity, empty);
      }
      const uint64_t before = client.answered();
      client.Run([&] { return client.answered() > before; }, orders.deadline);
    }
    tally["reports"] += client.granted() - granted;  // refusals do not count
  }
  return tally;
}

// Holds the most of the first device (16 GiB), says that it can be suspended, and does nothing when
// it is asked.
Tally IgnoreSuspensions(const Orders& orders) {
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller) continue;
    v1::AcquireRequest acquire;
    acquire.set_bytes(kMostOfDevice);
    if (!Call<v1::AcquireResponse>(*caller, kAcquire, acquire, Patience(orders)).ok()) {
      Pause();
      continue;
    }
    ++tally["holds"];
    caller->client->Begin(kWatch, WatchOfSwappable());
    caller->client->Run([&] { return caller->client->closed(); }, orders.deadline);
  }
  return tally;
}

}  // namespace gpumem::hostile
