// SPDX-License-Identifier: Apache-2.0
// Attacks on the HTTP/2 connections.
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/door.h"
#include "tests/hostile/http2.h"
#include "tests/hostile/senders.h"

namespace gpumem::hostile {
namespace {

constexpr uint32_t kStreams = 250;  // on one connection; the daemon allows 256

// Connections that send `frame` again and again for as long as the daemon takes it, and never read.
Tally FloodUnread(const Orders& orders, absl::string_view frame, bool half_close) {
  constexpr size_t kMostHeld = 1500;
  constexpr size_t kMostSent = size_t{1} << 20;
  std::string flood;
  while (flood.size() < 64 * 1024) absl::StrAppend(&flood, frame);
  const std::string opening = absl::StrCat(kPreface, Frame(kSettings, 0, 0, ""), flood);
  std::vector<Seat> held;
  Tally tally;
  while (!Over(orders)) {
    absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
    if (!seat.ok()) {
      ++tally["refused"];
      // Another takes the place of the oldest.
      if (!held.empty()) held.erase(held.begin());
      Pause();
      continue;
    }
    ++tally["connections"];
    const int socket = seat->stream.get();
    absl::string_view left = opening;
    for (size_t total = 0; total < kMostSent && !Over(orders);) {
      const ssize_t sent = SendSome(socket, left);
      if (sent <= 0) break;  // it takes no more, or is closed
      total += static_cast<size_t>(sent);
      left.remove_prefix(static_cast<size_t>(sent));
      if (left.empty()) left = flood;
    }
    if (half_close) shutdown(socket, SHUT_WR);
    held.push_back(*std::move(seat));
    if (held.size() > kMostHeld) held.erase(held.begin());
  }
  return tally;
}

// Calls of `method` that are reset at once.
Source ResetsOf(absl::string_view method) {
  constexpr uint32_t kPairs = 64;
  return [method, stream = uint32_t{1}](const Seat& seat, Tally& tally) mutable {
    std::string out;
    if (stream == 1) out = absl::StrCat(kPreface, Frame(kSettings, 0, 0, ""));
    for (uint32_t pair = 0; pair < kPairs; ++pair, stream += 2) {
      out += CallHeaders(stream, method, seat.token);
      out += Frame(kRstStream, 0, stream, BigEndian(8, 4));  // CANCEL
    }
    tally["resets"] += kPairs;
    return out;
  };
}

}  // namespace

// Eight connections, on each 250 requests of 1 MiB that lack their last byte.
Tally HalfSent(const Orders& orders) {
  struct Line {
    Seat seat;
    std::unique_ptr<Http2Client> client;
  };
  std::string message = GrpcMessage(std::string(size_t{1} << 20, '\x7f'));
  message.pop_back();
  const auto body = std::make_shared<const std::string>(std::move(message));
  std::vector<Line> lines(8);
  Tally tally;
  while (!Over(orders)) {
    for (Line& line : lines) {
      if (line.client == nullptr || line.client->closed()) {
        line = {};
        absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
        if (!seat.ok()) {
          ++tally["refused"];
          Pause();
          continue;
        }
        line.seat = *std::move(seat);
        line.client = std::make_unique<Http2Client>(std::move(line.seat.stream), line.seat.token);
        for (uint32_t i = 0; i < kStreams; ++i) line.client->Begin(kAcquire, body, /*end=*/false);
        ++tally["connections"];
      }
      const uint64_t before = line.client->unsent();
      line.client->Run([&] { return line.client->unsent() == 0; },
                       std::min(orders.deadline, absl::Now() + absl::Milliseconds(20)));
      tally["bytes"] += before - line.client->unsent();
    }
    if (std::all_of(lines.begin(), lines.end(), [](const Line& line) {
          return line.client != nullptr && line.client->unsent() == 0;
        })) {
      Pause();
    }
  }
  return tally;
}

Tally SettingsFlood(const Orders& orders) {
  return FloodUnread(orders, Frame(kSettings, 0, 0, ""), /*half_close=*/true);
}

Tally PingFlood(const Orders& orders) {
  return FloodUnread(orders, Frame(kPing, 0, 0, "whatever"), /*half_close=*/false);
}

// CVE-2023-44487: as many connections as the daemon allows, on each calls that are reset at once.
Tally RapidReset(const Orders& orders) {
  return SendOnMany(orders, /*connections=*/200, [] { return ResetsOf(kListDevices); });
}

// The same by viewers, who have more connections than one budget would be enough for.
Tally ViewReset(const Orders& orders) {
  return SendOnMany(
      orders, /*connections=*/128, [] { return ResetsOf("/gpumem.v1.Admin/ListTenants"); },
      [](const std::string& runtime_dir) -> absl::StatusOr<Seat> {
        absl::StatusOr<UniqueFd> stream = Dial(runtime_dir, "view.sock");
        if (!stream.ok()) return stream.status();
        return Seat{.stream = *std::move(stream)};
      });
}

// As many calls as allowed at a time, on as many connections as allowed, each answered and made
// again.
Tally CallStorm(const Orders& orders) {
  constexpr size_t kConnections = 200;
  struct Line {
    Seat seat;
    std::unique_ptr<Http2Client> client;
    uint64_t begun = 0;
  };
  const auto body = std::make_shared<const std::string>(GrpcMessage(""));
  std::vector<Line> lines;
  absl::Time next_try = absl::Now();
  Tally tally;
  while (!Over(orders)) {
    if (lines.size() < kConnections && absl::Now() >= next_try) {
      absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
      if (seat.ok()) {
        Line& line = lines.emplace_back();
        line.seat = *std::move(seat);
        line.client = std::make_unique<Http2Client>(std::move(line.seat.stream), line.seat.token);
        ++tally["connections"];
      } else {
        ++tally["refused"];
        next_try = absl::Now() + absl::Milliseconds(20);
      }
    }
    for (size_t i = 0; i < lines.size();) {
      Line& line = lines[i];
      const uint64_t before = line.client->answered();
      for (; line.begun < before + kStreams; ++line.begun) line.client->Begin(kListDevices, body);
      line.client->Run([&] { return line.client->answered() > before; },
                       std::min(orders.deadline, absl::Now() + absl::Milliseconds(1)));
      tally["answered"] += line.client->answered() - before;
      if (line.client->closed()) {
        ++tally["closed"];
        std::swap(line, lines.back());
        lines.pop_back();
      } else {
        ++i;
      }
    }
  }
  return tally;
}

}  // namespace gpumem::hostile
