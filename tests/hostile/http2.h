// SPDX-License-Identifier: Apache-2.0
// HTTP/2 (RFC 9113) spoken by hand, by a client that may break its rules.
//
// It speaks the preface and the frames DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE and
// CONTINUATION.
// Header fields are HPACK literals, unindexed and without Huffman coding (RFC 7541, 6.2.2). The
// header blocks of answers are not decoded: a call either brings a message, or was refused.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumem::hostile {

// --- Frames -------------------------------------------------------------------------------------

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kRstStream = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
inline constexpr uint8_t kAck = 1;
inline constexpr uint8_t kEndStream = 1;
inline constexpr uint8_t kEndHeaders = 4;
inline constexpr size_t kFrameHeaderBytes = 9;

// The first bytes of a client. A SETTINGS frame has to follow.
extern const char kPreface[];

// Returns `value` in `bytes` bytes, the most significant one first.
std::string BigEndian(uint64_t value, int bytes);
std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload);
// Returns a header field. Each part has less than 127 bytes.
std::string HeaderField(absl::string_view name, absl::string_view value);
// Returns the HEADERS of a gRPC call. `token`: the session's, "" for none. `more`: further fields.
std::string CallHeaders(uint32_t stream, absl::string_view method, absl::string_view token,
                        absl::string_view more = {});
// Returns `message` with the prefix that gRPC puts before each.
std::string GrpcMessage(absl::string_view message);

// Sends as much as the socket takes now. Returns the number of bytes, -1 if it is closed.
ssize_t SendSome(int socket, absl::string_view bytes);
// Reads all available input, and drops it. False if the peer has closed.
bool DropInput(int socket);

// --- A connection -------------------------------------------------------------------------------

// A connection that keeps to the rules of flow control, and breaks others on demand. For one
// thread.
class Http2Client {
 public:
  // Takes ownership of a connected stream socket, and sends the preface. Meanwhile drops the input
  // of the socket `dropped`, if there is one, descriptors included.
  Http2Client(UniqueFd socket, std::string token, int dropped = -1);
  Http2Client(const Http2Client&) = delete;
  Http2Client& operator=(const Http2Client&) = delete;

  // Begins a call of `method` ("/gpumem.v1.Broker/Acquire"), and returns its stream. `body` is the
  // message with its prefix. Without `end` the stream stays open after it. `fields`: further ones
  // of its header.
  uint32_t Begin(absl::string_view method, std::shared_ptr<const std::string> body, bool end = true,
                 absl::string_view fields = {});
  // Sends bytes on a stream that is open, whatever its window says.
  void Say(uint32_t stream, absl::string_view bytes);
  // Exchanges frames until `done`. False where the connection or the time ended before.
  bool Run(const std::function<bool()>& done, absl::Time deadline);
  // Makes a call, and returns its answer. Others that were begun go on beside it.
  //   FAILED_PRECONDITION  it was refused
  //   UNAVAILABLE          the connection is closed
  //   DEADLINE_EXCEEDED    no answer in time
  absl::StatusOr<std::string> Call(absl::string_view method, absl::string_view message,
                                   absl::Time deadline);

  bool closed() const { return closed_; }
  // Bytes of bodies that the daemon's windows have not let through yet.
  uint64_t unsent() const { return unsent_; }
  // Calls that were answered, with any result; and those whose answer has a message.
  uint64_t answered() const { return answered_; }
  // Frames of DATA that have arrived.
  uint64_t data_frames() const { return data_frames_; }
  uint64_t granted() const { return granted_; }

 private:
  struct Stream {
    std::shared_ptr<const std::string> body;
    size_t sent = 0;
    bool end = false;
    int64_t window = 0;
    std::string answer;
  };

  void QueueBodies();
  void OnFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload);
  void Answered(uint32_t stream);
  bool ReadSome();

  const UniqueFd socket_;
  const std::string token_;
  const int dropped_;
  std::string out_, in_;
  uint32_t next_stream_ = 1;
  int64_t window_ = 65535;
  int64_t initial_window_ = 65535;
  uint64_t unsent_ = 0, answered_ = 0, granted_ = 0, data_frames_ = 0;
  bool closed_ = false;
  absl::flat_hash_map<uint32_t, Stream> streams_;  // without an answer yet
  std::deque<uint32_t> waiting_;                   // with bytes to send
  uint32_t awaited_ = 0;                           // of Call
  std::string awaited_answer_;
};

}  // namespace gpumem::hostile
