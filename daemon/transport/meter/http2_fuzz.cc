// SPDX-License-Identifier: Apache-2.0
// The bytes of HTTP/2 connections, as the meters see them: what they count does not depend on how
// the bytes are split.
//
//   each step   who (1 byte: 1 the server, 2 in pieces), then the bytes (length: 2)
#include <algorithm>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/testing/fuzz/input.h"
#include "daemon/transport/meter/frame_budget.h"
#include "daemon/transport/meter/http2_meter.h"

namespace gpumemd {
namespace {

using gpumem::testing::FuzzInput;

FrameCounts FeedPieces(Http2Meter& meter, absl::Span<const char> bytes, size_t piece) {
  FrameCounts counts;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    counts += meter.Feed(bytes.subspan(at, piece));
  }
  return counts;
}

// One violation is as bad as several, so their number may differ.
bool Equal(const FrameCounts& a, const FrameCounts& b) {
  return a.streams == b.streams && a.calls == b.calls && a.requests == b.requests &&
         a.resets == b.resets && a.control == b.control && a.begun_bytes == b.begun_bytes &&
         a.ended_bytes == b.ended_bytes && (a.violations > 0) == (b.violations > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  Http2Meter whole, pieces;
  AnswerMeter server;
  FrameBudget budget{FrameBudgetOptions()};
  AnswerMeter server_in_pieces;
  FrameCounts all, all_in_pieces;
  uint64_t begun = 0, ended = 0;
  constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const absl::Span<const char> preface(kPreface, FrameScanner::kPrefaceBytes);
  all += whole.Feed(preface);
  all_in_pieces += pieces.Feed(preface);
  int64_t ns = 0;
  while (!input.empty()) {
    const uint8_t how = input.Byte();
    const absl::string_view text = input.Word(4000);
    const absl::Span<const char> bytes(text.data(), text.size());
    if ((how & 1) != 0) {
      const AnswerMeter::Answers answers = server.Feed(bytes, whole);
      AnswerMeter::Answers sum;
      const size_t piece = 1 + how / 2;
      for (size_t at = 0; at < bytes.size(); at += piece) {
        const auto part = server_in_pieces.Feed(bytes.subspan(at, piece), pieces);
        sum.calls += part.calls;
        sum.messages += part.messages;
      }
      FUZZ_CHECK(sum.calls == answers.calls && sum.messages == answers.messages);
    } else {
      const FrameCounts counts = whole.Feed(bytes);
      begun += counts.begun_bytes;
      ended += counts.ended_bytes;
      all += counts;
      all_in_pieces += FeedPieces(pieces, bytes, 1 + how / 2);
      (void)budget.Charge(counts, absl::FromUnixNanos(ns += 1000));
    }
    FUZZ_CHECK(whole.bytes_to_come() == pieces.bytes_to_come());
    FUZZ_CHECK(whole.begun_bytes() == pieces.begun_bytes());
  }
  const FrameCounts last = whole.Feed({});
  all += last;
  all_in_pieces += pieces.Feed({});
  FUZZ_CHECK(Equal(all, all_in_pieces));
  FUZZ_CHECK(begun >= ended + last.ended_bytes);
  FUZZ_CHECK(begun - ended - last.ended_bytes == whole.begun_bytes());
  return 0;
}

}  // namespace gpumemd
