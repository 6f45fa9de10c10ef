// SPDX-License-Identifier: Apache-2.0
// Attacks on Broker.Converse.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "proto/gpumem/v1/broker.pb.h"
#include "tests/hostile/attack_functions.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/http2.h"

namespace gpumem::hostile {
namespace {

constexpr char kConverse[] = "/gpumem.v1.Broker/Converse";

enum class Way {
  kPrompt,    // keeps the rules: a message for each answer, at once
  kPacked,    // thousands of empty messages in one frame
  kUnread,    // a message now and then, and never reads
  kGarbage,   // bytes that are no message, on one stream after the other
  kHalfOpen,  // as many streams as allowed, without a message, or with part of a large one
  kWays,
};

struct Line {
  Way way = Way::kPrompt;
  Seat seat;
  std::unique_ptr<Http2Client> client;
  uint32_t stream = 0;
  uint64_t heard = 0;  // of data_frames() or answered()
};

std::string GetUsage() {
  v1::SessionRequest request;
  request.mutable_get_usage();
  return GrpcMessage(request.SerializeAsString());
}

void Begin(Line& line) {
  static const auto nothing = std::make_shared<const std::string>();
  line.stream = line.client->Begin(kConverse, nothing, /*end=*/false);
  switch (line.way) {
    case Way::kPrompt:
    case Way::kUnread:
      return line.client->Say(line.stream, GetUsage());
    case Way::kPacked: {
      std::string messages;
      while (messages.size() < 16'000) messages += GrpcMessage("");
      return line.client->Say(line.stream, messages);
    }
    case Way::kGarbage:
      return line.client->Say(line.stream, GrpcMessage(std::string(1000, '\xff')));
    case Way::kHalfOpen:
      line.client->Say(line.stream, GrpcMessage(std::string(1'000'000, 'x')).substr(0, 16'000));
      for (int i = 0; i < 250; ++i) line.client->Begin(kConverse, nothing, /*end=*/false);
      return;
    case Way::kWays:
      return;
  }
}

void GoOn(const Orders& orders, Line& line, Tally* tally) {
  const auto until = [&](absl::Duration time) {
    return std::min(orders.deadline, absl::Now() + time);
  };
  switch (line.way) {
    case Way::kPrompt:
      for (int i = 0; i < 20 && !line.client->closed(); ++i) {
        const auto more = [&] { return line.client->data_frames() > line.heard; };
        if (!line.client->Run(more, until(absl::Milliseconds(1)))) return;
        line.heard = line.client->data_frames();
        ++(*tally)["answers"];
        line.client->Say(line.stream, GetUsage());
      }
      return;
    case Way::kGarbage:
      if (line.client->answered() > line.heard) {
        line.heard = line.client->answered();
        ++(*tally)["refused_messages"];
        Begin(line);
      }
      break;
    default:
      break;
  }
  line.client->Run([] { return false; }, until(absl::Milliseconds(1)));
}

}  // namespace

Tally LaneStorm(const Orders& orders) {
  constexpr size_t kConnections = 200;
  std::vector<Line> lines;
  std::vector<std::pair<Seat, std::string>> unread;
  uint64_t made = 0;
  absl::Time next_try = absl::Now();
  Tally tally;
  while (!Over(orders)) {
    if (lines.size() + unread.size() < kConnections && absl::Now() >= next_try) {
      absl::StatusOr<Seat> seat = TakeSeat(orders.runtime_dir);
      if (!seat.ok()) {
        ++tally["refused"];
        next_try = absl::Now() + absl::Milliseconds(20);
      } else if (const Way way = static_cast<Way>(made++ % static_cast<uint64_t>(Way::kWays));
                 way == Way::kUnread) {
        // The preface and the headers, and then messages.
        unread.emplace_back(*std::move(seat), "");
        auto& [own, out] = unread.back();
        out = std::string(kPreface) + Frame(kSettings, 0, 0, "") +
              CallHeaders(1, kConverse, own.token);
      } else {
        Line& line = lines.emplace_back();
        line.way = way;
        line.seat = *std::move(seat);
        line.client = std::make_unique<Http2Client>(std::move(line.seat.stream), line.seat.token,
                                                    line.seat.session.get());
        Begin(line);
        ++tally["connections"];
      }
    }
    for (auto& [seat, out] : unread) {
      if (out.size() < 1000) out += Frame(kData, 0, 1, GetUsage());
      const ssize_t sent = SendSome(seat.stream.get(), out);
      if (sent > 0) out.erase(0, static_cast<size_t>(sent));
      ++tally["unread_messages"];
    }
    for (size_t i = 0; i < lines.size();) {
      GoOn(orders, lines[i], &tally);
      if (!lines[i].client->closed()) {
        ++i;
        continue;
      }
      ++tally["closed"];
      std::swap(lines[i], lines.back());
      lines.pop_back();
    }
  }
  return tally;
}

}  // namespace gpumem::hostile
