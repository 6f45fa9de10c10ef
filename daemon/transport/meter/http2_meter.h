// SPDX-License-Identifier: Apache-2.0
// Counts the frames in the byte streams of an HTTP/2 connection (RFC 9113, section 4.1), and gRPC's
// messages in them.
//
// A message of a stream that goes on after it is a call (Broker.Converse): its answer is
// the next message of the server on that stream. A client that waits for its answers has one
// message without an answer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

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

  // Calls `show` for each frame whose header ends in `bytes`, which continue the previous call's;
  // and `payload` with the parts of the payload of the frame that was shown last.
  void Feed(absl::Span<const char> bytes, absl::FunctionRef<void(const Frame&)> show,
            absl::FunctionRef<void(absl::Span<const char>)> payload);
  // Returns the bytes before the header of the next frame.
  size_t bytes_to_come() const { return skip_; }

 private:
  size_t skip_;  // bytes until the next frame's header
  std::array<uint8_t, 9> header_;
  size_t header_size_ = 0;
  bool in_frame_ = false;  // false: before the first one
};

// Finds the ends of gRPC's messages in the DATA of one stream. Not thread-safe.
class MessageScanner {
 public:
  // Returns how many messages end in `bytes`, which continue the previous call's.
  uint64_t Feed(absl::Span<const char> bytes);
  // Returns the bytes so far of a message that has not ended.
  uint64_t begun() const { return begun_; }

 private:
  std::array<uint8_t, 5> prefix_;
  size_t prefix_size_ = 0;
  uint64_t left_ = 0;
  uint64_t begun_ = 0;
};

struct FrameCounts {
  uint64_t streams = 0;   // HEADERS
  uint64_t calls = 0;     // streams, and messages of streams that go on
  uint64_t requests = 0;  // that ended: gRPC can answer them
  uint64_t resets = 0;    // RST_STREAM
  // Frames that cost the receiver work and carry next to nothing: all other types, and DATA of less
  // than kSmallData bytes.
  uint64_t control = 0;
  // Unfinished requests: payload of DATA, and kCallBytes for each HEADERS. `ended_bytes` is the
  // part of earlier `begun_bytes` whose requests were ended or reset.
  uint64_t begun_bytes = 0;
  uint64_t ended_bytes = 0;
  // What no client does that obeys the rules: more than kMostUnanswered messages sent ahead of
  // their answers, more than kMaxRequests requests open, or more than kMostHeaderBytes of header
  // fields in one block.
  uint64_t violations = 0;

  FrameCounts& operator+=(const FrameCounts& more);
};

// Meters what the client of one connection sends, from its first byte. Not thread-safe.
class Http2Meter {
 public:
  static constexpr uint32_t kSmallData = 1024;
  // Messages of a stream without an answer. A client sends one, and may have read its answer before
  // Answered() is called.
  static constexpr uint32_t kMostUnanswered = 4;
  // Encoded header fields of one block. gRPC takes 8 KiB, decoded. Of a block or a field that does
  // not end, it keeps all bytes, and looks at them again at each further frame (CVE-2023-33953).
  static constexpr uint64_t kMostHeaderBytes = 16 * 1024;
  // Memory that gRPC needs for a call before its request is there.
  static constexpr uint32_t kCallBytes = 32 * 1024;

  // Returns the count of the frames whose header ends in `bytes`, which continue the previous
  // call's. Input that is not HTTP/2 counts as arbitrary frames.
  FrameCounts Feed(absl::Span<const char> bytes);
  // Of the frame whose header was fed last.
  size_t bytes_to_come() const { return scanner_.bytes_to_come(); }
  // Returns the bytes, over all frames so far, of requests that have neither ended nor been reset.
  uint64_t begun_bytes() const { return begun_bytes_; }

  // The server has sent a message on this stream. True if it answers one of a stream that goes on.
  // The next Feed() counts the bytes that have ended.
  bool Answered(uint32_t stream);
  // The server has ended or reset the stream. As Answered() for bytes.
  void Closed(uint32_t stream);

 private:
  // Requests beyond the number that a connection may have are not tracked: their bytes never end.
  static constexpr size_t kMaxRequests = 1024;

  // A request that has not ended.
  struct Begun {
    uint64_t bytes = 0;
    MessageScanner scanner;
    uint64_t messages = 0;
    uint64_t unanswered = 0;  // of them
  };

  void Count(const FrameScanner::Frame& frame, FrameCounts& counts);
  void CountHeader(uint32_t bytes, FrameCounts& counts);
  void CountMessages(absl::Span<const char> payload, FrameCounts& counts);
  void Begin(uint32_t stream, uint32_t bytes, FrameCounts& counts);
  // Returns what was known of the request.
  Begun End(uint32_t stream, FrameCounts& counts);

  FrameScanner scanner_{FrameScanner::kPrefaceBytes};
  absl::flat_hash_map<uint32_t, Begun> begun_;  // by stream
  uint64_t begun_bytes_ = 0;
  uint64_t ended_bytes_ = 0;   // since the last Feed()
  uint64_t header_bytes_ = 0;  // of the newest header block
  // Of the present frame, if it is DATA.
  uint32_t data_stream_ = 0;
  std::optional<Begun> last_data_;  // of a request that ends with it
};

// Meters what the server of one connection sends, from its first byte. Not thread-safe.
class AnswerMeter {
 public:
  struct Answers {
    uint64_t calls = 0;     // streams that have ended; not those that the server resets
    uint64_t messages = 0;  // of streams that go on (Http2Meter::Answered)
  };
  // Returns the answers that begin or end in `bytes`, which continue the previous call's, and tells
  // `client` of them.
  Answers Feed(absl::Span<const char> bytes, Http2Meter& client);

 private:
  FrameScanner scanner_{0};
};

}  // namespace gpumemd
