// SPDX-License-Identifier: Apache-2.0
// Attacks by sessions: how they begin, how many there are, and what they do not read.
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "common/endpoints.h"
#include "common/unique_fd.h"
#include "proto/gpumem/v1/broker.pb.h"
#include "proto/gpumem/v1/session.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/door.h"
#include "tests/hostile/http2.h"

namespace gpumem::hostile {

// Greetings that are none, and connections to the operators' socket, each closed at once.
Tally BadGreetings(const Orders& orders) {
  v1::Hello hello;
  hello.set_protocol_version(77);
  const std::string wrong = hello.SerializeAsString();
  Tally tally;
  while (!Over(orders)) {
    for (const char* name : {kSessionSocket, kSessionSocket, kSessionSocket, kAdminSocket}) {
      absl::StatusOr<UniqueFd> socket = Dial(orders.runtime_dir, name);
      if (!socket.ok()) {
        ++tally["refused"];
        Pause();
        continue;
      }
      send(socket->get(), wrong.data(), wrong.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      ++tally[name == kAdminSocket ? "operators" : "greetings"];
    }
  }
  return tally;
}

// All sessions that it can get, up to 256, kept.
Tally TakeSessions(const Orders& orders) {
  constexpr size_t kMost = 256;
  std::vector<Seat> held;
  Tally tally;
  while (!Over(orders)) {
    if (held.size() == kMost) {
      HoldOn(orders);
      break;
    }
    absl::StatusOr<Seat> seat = TakeSeat(orders.runtime_dir);
    if (seat.ok()) {
      held.push_back(*std::move(seat));
    } else {
      ++tally["refused"];
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  tally["sessions"] = held.size();
  return tally;
}

// Moves its session to a new connection over and over, with calls under way on the old one.
Tally Resume(const Orders& orders) {
  const auto body = std::make_shared<const std::string>(GrpcMessage(""));
  std::string token;
  std::optional<Caller> caller;
  Tally tally;
  while (!Over(orders)) {
    absl::StatusOr<Seat> seat = TakeSeat(orders.runtime_dir, token);
    if (!seat.ok()) {
      ++tally["refused"];
      token.clear();
      Pause();
      continue;
    }
    ++tally[token.empty() ? "sessions" : "resumed"];
    token = seat->token;
    // The old socket stays open until here: to close it ends the session.
    caller.emplace(Caller{.seat = *std::move(seat)});
    caller->client =
        std::make_unique<Http2Client>(std::move(caller->seat.stream), caller->seat.token);
    for (int i = 0; i < 8; ++i) caller->client->Begin(kListDevices, body);
    caller->client->Run([] { return false; }, absl::Now() + absl::Milliseconds(1));
  }
  return tally;
}

// Makes as many calls at once as a tenant may have. For each, the daemon sends a descriptor on the
// session's socket, which is never read.
Tally NeverRead(const Orders& orders) {
  constexpr uint64_t kAtOnce = 64;
  v1::AcquireRequest acquire;
  acquire.set_bytes(4096);
  const auto body = std::make_shared<const std::string>(GrpcMessage(acquire.SerializeAsString()));
  Tally tally;
  while (!Over(orders)) {
    std::optional<Caller> caller = NewCaller(orders, &tally, /*reads=*/false);
    if (!caller) continue;
    Http2Client& client = *caller->client;
    // Until the daemon has ended the session: then everything is refused.
    for (uint64_t begun = 0; !Over(orders) && client.answered() == client.granted();) {
      for (; begun < client.answered() + kAtOnce; ++begun) client.Begin(kAcquire, body);
      const uint64_t before = client.answered();
      if (!client.Run([&] { return client.answered() > before; }, orders.deadline)) break;
    }
    tally["granted"] += client.granted();
    tally["refused"] += client.answered() - client.granted();
  }
  return tally;
}

// Connections that say nothing, on every socket that it can reach.
Tally SayNothing(const Orders& orders) {
  constexpr size_t kMost = 600;
  std::vector<Seat> held;
  Tally tally;
  while (!Over(orders)) {
    if (held.size() >= kMost) held.erase(held.begin(), held.begin() + kMost / 2);
    absl::StatusOr<UniqueFd> session = Dial(orders.runtime_dir, kSessionSocket);
    absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
    tally["connections"] += session.ok() + seat.ok();
    tally["refused"] += !session.ok() + !seat.ok();
    if (!session.ok() || !seat.ok()) Pause();
    if (session.ok()) held.push_back({.session = *std::move(session)});
    if (seat.ok()) held.push_back(*std::move(seat));
  }
  return tally;
}

// Bytes that mean nothing, in packets and in streams.
Tally Garbage(const Orders& orders) {
  uint64_t state = 1;
  std::string noise(60'000, '\0');
  Tally tally;
  while (!Over(orders)) {
    for (char& c : noise) {
      state = state * 6364136223846793005 + 1442695040888963407;
      c = static_cast<char>(state >> 56);
    }
    absl::StatusOr<UniqueFd> session = Dial(orders.runtime_dir, kSessionSocket);
    absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
    if (session.ok()) send(session->get(), noise.data(), 1 + state % noise.size(), MSG_NOSIGNAL);
    if (seat.ok()) {
      // Some of it behind a proper opening.
      if (state % 2 == 0) SendSome(seat->stream.get(), kPreface);
      tally["bytes"] +=
          static_cast<uint64_t>(std::max<ssize_t>(0, SendSome(seat->stream.get(), noise)));
    }
    tally["connections"] += session.ok() + seat.ok();
    if (!session.ok() || !seat.ok()) Pause();
  }
  return tally;
}

}  // namespace gpumem::hostile
