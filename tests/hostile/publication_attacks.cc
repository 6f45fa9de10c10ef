// SPDX-License-Identifier: Apache-2.0
// Attacks by publications that an operator suspends, and that sessions bring back. Only operators
// can suspend them: PublicationStorm tries to, and SuspendPublications does.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/broker.pb.h"
#include "proto/gpumem/v1/publication.pb.h"
#include "proto/gpumem/v1/suspend.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/door.h"
#include "tests/hostile/http2.h"

namespace gpumem::hostile {
namespace {

constexpr char kListAttachable[] = "/gpumem.v1.Broker/ListPublications";
constexpr char kListAll[] = "/gpumem.v1.Admin/ListPublications";
constexpr char kSuspendPublication[] = "/gpumem.v1.Admin/SuspendPublication";
constexpr char kResumePublication[] = "/gpumem.v1.Admin/ResumePublication";

constexpr char kStormName[] = "storm";
constexpr uint32_t kStormSegments = 4;  // of 2 MiB each

std::shared_ptr<const std::string> StormBody(const std::string& message) {
  return std::make_shared<const std::string>(GrpcMessage(message));
}

// Publishes new memory, which no session has a lease of then.
bool PublishMemory(Caller& caller, const Orders& orders) {
  v1::AcquireRequest acquire;
  acquire.set_bytes(4096);
  acquire.set_count(kStormSegments);
  auto acquired = Call<v1::AcquireResponse>(caller, kAcquire, acquire, Patience(orders));
  if (!acquired.ok()) return false;
  v1::PublishRequest publish;
  publish.set_name(kStormName);
  publish.set_access(v1::PUBLICATION_ACCESS_ANY);
  publish.set_ephemeral(true);
  v1::ReleaseRequest release;
  for (const v1::Lease& lease : acquired->leases()) {
    publish.add_lease_ids(lease.lease_id());
    release.add_lease_ids(lease.lease_id());
  }
  return Call<v1::PublishResponse>(caller, kPublish, publish, Patience(orders)).ok() &&
         Call<v1::ReleaseResponse>(caller, kRelease, release, Patience(orders)).ok();
}

// Returns the full names of the publications that are suspended, as this session sees them.
std::vector<std::string> SuspendedNames(Caller& caller, const Orders& orders) {
  std::vector<std::string> names;
  auto listed = Call<v1::ListPublicationsResponse>(caller, kListAttachable,
                                                   v1::ListPublicationsRequest(), Patience(orders));
  if (!listed.ok()) return names;
  for (const v1::PublicationInfo& each : listed->publications()) {
    if (each.suspended_segments() > 0) {
      names.push_back(absl::StrCat(each.tenant(), "/", each.name()));
    }
  }
  return names;
}

// Attaches to each of these with and without a wait, and asks for what operators alone may ask.
std::vector<std::pair<const char*, std::shared_ptr<const std::string>>> StormRequests(
    const std::vector<std::string>& names) {
  std::vector<std::pair<const char*, std::shared_ptr<const std::string>>> requests;
  for (const std::string& name : names) {
    v1::AttachRequest attach;
    attach.set_name(name);
    requests.emplace_back(kAttach, StormBody(attach.SerializeAsString()));
    attach.set_wait_ms(120'000);
    requests.emplace_back(kAttach, StormBody(attach.SerializeAsString()));
    v1::SuspendPublicationRequest suspend;
    suspend.set_name(name);
    requests.emplace_back(kSuspendPublication, StormBody(suspend.SerializeAsString()));
    requests.emplace_back(kResumePublication,
                          StormBody(suspend.SerializeAsString()));  // the same field
  }
  return requests;
}

}  // namespace

// Publishes memory, waits until it is suspended, and attaches to all that is, 32 calls at once. The
// session ends with calls under way, and what it has published with it.
Tally PublicationStorm(const Orders& orders) {
  constexpr uint64_t kAtOnce = 32;
  constexpr uint64_t kCalls = 300;  // of one session
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally);
    if (!caller || !PublishMemory(*caller, orders)) continue;
    ++tally["published"];
    for (const char* method : {kSuspendPublication, kResumePublication}) {
      v1::SuspendPublicationRequest request;
      request.set_name(kStormName);
      const auto answer =
          caller->client->Call(method, request.SerializeAsString(), Patience(orders));
      tally["done_as_operator"] += answer.ok() ? 1 : 0;
    }
    std::vector<std::string> names;
    while (names.empty() && !Over(orders) && !caller->client->closed()) {
      names = SuspendedNames(*caller, orders);
    }
    if (names.empty()) break;
    const auto requests = StormRequests(names);
    Http2Client& client = *caller->client;
    const uint64_t first = client.answered(), granted = client.granted();
    for (uint64_t begun = 0; !Over(orders) && !client.closed() && begun < kCalls;) {
      for (; begun < client.answered() - first + kAtOnce; ++begun) {
        const auto& [method, body] = requests[begun % requests.size()];
        client.Begin(method, body);
      }
      const uint64_t before = client.answered();
      client.Run([&] { return client.answered() > before; }, orders.deadline);
    }
    tally["attached"] += client.granted() - granted;
  }
  return tally;
}

// As an operator: suspends each publication that is not, as fast as the daemon answers.
Tally SuspendPublications(const Orders& orders) {
  Tally tally;
  absl::StatusOr<UniqueFd> socket = Dial(orders.runtime_dir, "admin.sock");
  if (!socket.ok()) return tally;
  Http2Client client(*std::move(socket), /*token=*/"");
  while (!Over(orders) && !client.closed()) {
    auto answer =
        client.Call(kListAll, v1::ListPublicationsRequest().SerializeAsString(), Patience(orders));
    v1::ListPublicationsResponse listed;
    if (!answer.ok() || !listed.ParseFromString(*answer)) continue;
    for (const v1::PublicationInfo& each : listed.publications()) {
      if (each.suspended_segments() == each.segments()) continue;
      v1::SuspendPublicationRequest request;
      request.set_name(absl::StrCat(each.tenant(), "/", each.name()));
      answer = client.Call(kSuspendPublication, request.SerializeAsString(), Patience(orders));
      v1::SuspendPublicationResponse suspended;
      if (!answer.ok() || !suspended.ParseFromString(*answer)) continue;  // it is in use
      tally["moved_segments"] += suspended.moved_segments();
    }
  }
  return tally;
}

}  // namespace gpumem::hostile
