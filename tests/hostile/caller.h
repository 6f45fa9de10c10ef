// SPDX-License-Identifier: Apache-2.0
// The steps that attacks share: when to stop, and a session that makes calls over HTTP/2.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/hostile/attacks.h"
#include "tests/hostile/door.h"
#include "tests/hostile/http2.h"

namespace gpumem::hostile {

inline constexpr char kListDevices[] = "/gpumem.v1.Broker/ListDevices";
inline constexpr char kAcquire[] = "/gpumem.v1.Broker/Acquire";
inline constexpr char kRelease[] = "/gpumem.v1.Broker/Release";
inline constexpr char kPublish[] = "/gpumem.v1.Broker/Publish";
inline constexpr char kAttach[] = "/gpumem.v1.Broker/Attach";

// What attacks that fill the first device (16 GiB) hold of it.
inline constexpr uint64_t kMostOfDevice = uint64_t{12} << 30;

// --- Time ---------------------------------------------------------------------------------------

// True if the attack's time is over.
bool Over(const Orders& orders);
// Sleeps between attempts that the daemon refuses at once.
void Pause();
// Keeps the attack's resources until its end.
void HoldOn(const Orders& orders);
// Returns the deadline of a call that may not be answered before the attack is over.
absl::Time Patience(const Orders& orders);

// --- Calls --------------------------------------------------------------------------------------

// A session that makes calls.
struct Caller {
  Seat seat;
  std::unique_ptr<Http2Client> client;
};

// Connects, and counts the session in `tally`. Nothing after a refusal, which it counts, too.
// `reads`: true if calls drop what arrives on the session's socket; else it is left there.
std::optional<Caller> NewCaller(const Orders& orders, Tally* tally, bool reads = true);

// Statuses as of Http2Client::Call.
//   DATA_LOSS  the answer is no Response
template <typename Response, typename Request>
absl::StatusOr<Response> Call(Caller& caller, const char* method, const Request& request,
                              absl::Time deadline) {
  absl::StatusOr<std::string> answer =
      caller.client->Call(method, request.SerializeAsString(), deadline);
  if (!answer.ok()) return answer.status();
  Response response;
  if (!response.ParseFromString(*answer)) return absl::DataLossError("no such message");
  return response;
}

}  // namespace gpumem::hostile
