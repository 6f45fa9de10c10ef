// Counts the frames in the byte stream that an HTTP/2 client sends (RFC 9113, section 4.1).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

namespace gpumemd {

struct FrameCounts {
  uint64_t calls = 0;   // HEADERS
  uint64_t resets = 0;  // RST_STREAM
  // Frames that cost the receiver work and carry next to nothing: all other types, and DATA of less
  // than kSmallData bytes.
  uint64_t control = 0;
  // Payload of DATA that does not end its request; and that of requests that were ended or reset,
  // as far as it was counted in `begun_bytes` before.
  uint64_t begun_bytes = 0;
  uint64_t ended_bytes = 0;

  FrameCounts& operator+=(const FrameCounts& more);
};

// Of one connection, from its first byte on. Not thread-safe.
class Http2Meter {
 public:
  static constexpr uint32_t kSmallData = 1024;

  // Returns the count of the frames whose header ends in `bytes`, which follow those of the call
  // before. What is not HTTP/2 is counted as frames of any kind.
  FrameCounts Feed(absl::Span<const char> bytes);
  // Of all frames so far, those of requests that have neither ended nor been reset.
  uint64_t begun_bytes() const { return begun_bytes_; }

 private:
  static constexpr size_t kPrefaceBytes = 24;
  static constexpr size_t kHeaderBytes = 9;

  // More requests at a time than a connection may have are not told apart: their bytes do not end.
  static constexpr size_t kMaxRequests = 1024;

  void Count(FrameCounts& counts);
  void Begin(uint32_t stream, uint32_t bytes);
  uint64_t End(uint32_t stream);

  size_t skip_ = kPrefaceBytes;  // bytes until the next frame's header
  std::array<uint8_t, kHeaderBytes> header_;
  size_t header_size_ = 0;
  absl::flat_hash_map<uint32_t, uint64_t> begun_;  // bytes by stream
  uint64_t begun_bytes_ = 0;
};

}  // namespace gpumemd
