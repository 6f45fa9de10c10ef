// SPDX-License-Identifier: Apache-2.0
#include "tests/hostile/senders.h"

#include <sys/types.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "tests/hostile/caller.h"
#include "tests/hostile/http2.h"

namespace gpumem::hostile {

Tally SendOnMany(const Orders& orders, size_t connections, absl::FunctionRef<Source()> make_source,
                 Entrance connect) {
  struct Line {
    Seat seat;
    Source source;
    std::string out;
  };
  std::vector<Line> lines;
  absl::Time next_try = absl::Now();
  Tally tally;
  while (!Over(orders)) {
    if (lines.size() < connections && absl::Now() >= next_try) {
      absl::StatusOr<Seat> seat = connect(orders.runtime_dir);
      if (seat.ok()) {
        lines.push_back({.seat = *std::move(seat), .source = make_source()});
        ++tally["connections"];
      } else {
        ++tally["refused"];
        next_try = absl::Now() + absl::Milliseconds(20);
      }
    }
    bool idle = true;
    for (size_t i = 0; i < lines.size();) {
      Line& line = lines[i];
      if (line.out.empty()) line.out = line.source(line.seat, tally);
      const int socket = line.seat.stream.get();
      const ssize_t sent = SendSome(socket, line.out);
      if (sent > 0) {
        line.out.erase(0, static_cast<size_t>(sent));
        tally["bytes"] += static_cast<uint64_t>(sent);
      }
      idle = idle && sent == 0;
      if (sent < 0 || !DropInput(socket)) {
        ++tally["closed"];
        std::swap(line, lines.back());
        lines.pop_back();
      } else {
        ++i;
      }
    }
    if (idle) absl::SleepFor(absl::Milliseconds(1));
  }
  return tally;
}

}  // namespace gpumem::hostile
