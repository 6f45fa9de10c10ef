// SPDX-License-Identifier: Apache-2.0
// Counts the frames in the byte streams of an HTTP/2 connection (RFC 9113, section 4.1).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace gpumemd {

// Finds the frames of one direction. Not thread-safe.
class FrameScanner {
 public:
  struct Frame {
    uint32_t bytes;  // of its payload
    uint8_t type;
    uint8_t flags;
    uint32_t stream;
  };

  // `bytes_before` precede the first frame: kPrefaceBytes from a client, none from a server (RFC
  // 9113, section 3.4).
  static constexpr size_t kPrefaceBytes = 24;
  explicit FrameScanner(size_t bytes_before) : skip_(bytes_before) {}

  // Calls `show` for each frame whose header ends in `bytes`, which continue the previous call's.
  void Feed(absl::Span<const char> bytes, absl::FunctionRef<void(const Frame&)> show);
  // Returns the bytes before the header of the next frame.
  size_t bytes_to_come() const { return skip_; }

 private:
  size_t skip_;  // bytes until the next frame's header
  std::array<uint8_t, 9> header_;
  size_t header_size_ = 0;
};

struct FrameCounts {
  uint64_t calls = 0;     // HEADERS
  uint64_t requests = 0;  // HEADERS or DATA frames that end a request: gRPC can answer it
  uint64_t resets = 0;    // RST_STREAM
  // Frames that cost the receiver work and carry next to nothing: all other types, and DATA of less
  // than kSmallData bytes.
  uint64_t control = 0;
  // Unfinished requests: payload of DATA, and kCallBytes for each HEADERS. `ended_bytes` is the
  // part of earlier `begun_bytes` whose requests were ended or reset.
  uint64_t begun_bytes = 0;
  uint64_t ended_bytes = 0;

  FrameCounts& operator+=(const FrameCounts& more);
};

// Meters what the client of one connection sends, from its first byte. Not thread-safe.
class Http2Meter {
 public:
  static constexpr uint32_t kSmallData = 1024;
  // Memory that gRPC needs for a call before its request is there.
  static constexpr uint32_t kCallBytes = 32 * 1024;

  // Returns the count of the frames whose header ends in `bytes`, which continue the previous
  // call's. Input that is not HTTP/2 counts as arbitrary frames.
  FrameCounts Feed(absl::Span<const char> bytes);
  // Of the frame whose header was fed last.
  size_t bytes_to_come() const { return scanner_.bytes_to_come(); }
  // Returns the bytes, over all frames so far, of requests that have neither ended nor been reset.
  uint64_t begun_bytes() const { return begun_bytes_; }

 private:
  // Requests beyond the number that a connection may have are not tracked: their bytes never end.
  static constexpr size_t kMaxRequests = 1024;

  void Count(const FrameScanner::Frame& frame, FrameCounts& counts);
  void Begin(uint32_t stream, uint32_t bytes, FrameCounts& counts);
  void End(uint32_t stream, FrameCounts& counts);

  FrameScanner scanner_{FrameScanner::kPrefaceBytes};
  absl::flat_hash_map<uint32_t, uint64_t> begun_;  // bytes by stream
  uint64_t begun_bytes_ = 0;
};

// Meters what the server of one connection sends, from its first byte. Not thread-safe.
class AnswerMeter {
 public:
  // Returns how many calls end in `bytes`, which continue the previous call's. Calls that the
  // server resets do not count.
  uint64_t Feed(absl::Span<const char> bytes);

 private:
  FrameScanner scanner_{0};
};

}  // namespace gpumemd
