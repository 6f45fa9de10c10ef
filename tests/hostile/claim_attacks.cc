// SPDX-License-Identifier: Apache-2.0
// Attacks by claims on contents that are never published.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/gpumem/v1/broker.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/http2.h"

namespace gpumem::hostile {
namespace {

constexpr char kAttachOrClaim[] = "/gpumem.v1.Broker/AttachOrClaim";
constexpr char kReleaseClaim[] = "/gpumem.v1.Broker/ReleaseClaim";

constexpr uint64_t kMost = 64;  // claims of a session

v1::AttachOrClaimRequest Contents(uint64_t number, uint64_t request_id, uint64_t wait_ms) {
  v1::AttachOrClaimRequest request;
  request.set_name("contents");
  request.set_content_id(absl::StrCat(number));
  request.set_request_id(request_id);
  request.set_wait_ms(wait_ms);
  return request;
}

}  // namespace

// Claims all that it can. Has another session of the tenant wait for that, by numbers that are in
// use, too. Passes the claims on by releases, and by the end of a session with calls under way.
Tally ClaimStorm(const Orders& orders) {
  Tally tally;
  std::optional<Caller> holder;
  while (!Over(orders)) {
    if (!holder) holder = NewCaller(orders, &tally);
    if (!holder) continue;
    uint64_t claims = 0;
    for (uint64_t i = 0; i < kMost + 4 && !Over(orders); ++i) {
      const auto answer = Call<v1::AttachOrClaimResponse>(*holder, kAttachOrClaim,
                                                          Contents(i, i + 1, 0), Patience(orders));
      claims += answer.ok() && answer->claimed() ? 1 : 0;
    }
    tally["claims"] += claims;
    tally["over_limit"] += claims > kMost ? 1 : 0;
    std::optional<Caller> waiter = NewCaller(orders, &tally);
    if (!waiter) continue;
    // Each twice, and each number twice.
    Http2Client& client = *waiter->client;
    const uint64_t granted = client.granted();
    for (uint64_t i = 0; i < 2 * kMost; ++i) {
      client.Begin(kAttachOrClaim,
                   std::make_shared<const std::string>(
                       GrpcMessage(Contents(i % kMost, i / 2 + 1, 120'000).SerializeAsString())));
    }
    for (uint64_t i = 0; i < kMost / 2 && !Over(orders); ++i) {
      v1::ReleaseClaimRequest release;
      release.set_request_id(i + 1);
      const auto released =
          Call<v1::ReleaseClaimResponse>(*holder, kReleaseClaim, release, Patience(orders));
      tally["releases"] += released.ok() ? 1 : 0;
    }
    // The others come with the end of the session, or not before that of this one.
    holder.reset();
    client.Run([&] { return client.granted() > granted + 1; }, Patience(orders));
    tally["passed_on"] += client.granted() - granted;
    if (tally["claims"] % 2 == 0) holder = std::move(waiter);
  }
  return tally;
}

}  // namespace gpumem::hostile
