// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/http2_meter.h"

#include <algorithm>
#include <utility>

namespace gpumemd {
namespace {

enum FrameType : uint8_t { kData = 0, kHeaders = 1, kRstStream = 3, kContinuation = 9 };
constexpr uint8_t kEndStream = 1;  // a flag of DATA and HEADERS

FrameScanner::Frame Parse(const std::array<uint8_t, 9>& header) {
  return {.bytes = uint32_t{header[0]} << 16 | uint32_t{header[1]} << 8 | header[2],
          .type = header[3],
          .flags = header[4],
          .stream = (uint32_t{header[5]} & 0x7f) << 24 | uint32_t{header[6]} << 16 |
                    uint32_t{header[7]} << 8 | header[8]};
}

}  // namespace

void FrameScanner::Feed(absl::Span<const char> bytes, absl::FunctionRef<void(const Frame&)> show,
                        absl::FunctionRef<void(absl::Span<const char>)> payload) {
  while (!bytes.empty()) {
    if (skip_ > 0) {
      const size_t skipped = std::min(skip_, bytes.size());
      if (in_frame_) payload(bytes.subspan(0, skipped));
      skip_ -= skipped;
      bytes.remove_prefix(skipped);
      continue;
    }
    const size_t part = std::min(header_.size() - header_size_, bytes.size());
    std::copy_n(bytes.data(), part, header_.data() + header_size_);
    header_size_ += part;
    bytes.remove_prefix(part);
    if (header_size_ < header_.size()) continue;
    header_size_ = 0;
    const Frame frame = Parse(header_);
    skip_ = frame.bytes;
    in_frame_ = true;
    show(frame);
  }
}

uint64_t MessageScanner::Feed(absl::Span<const char> bytes) {
  uint64_t ended = 0;
  while (!bytes.empty()) {
    size_t taken = 0;
    if (prefix_size_ < prefix_.size()) {
      taken = std::min(prefix_.size() - prefix_size_, bytes.size());
      std::copy_n(bytes.data(), taken, prefix_.data() + prefix_size_);
      prefix_size_ += taken;
      if (prefix_size_ == prefix_.size()) {
        // After a byte of flags.
        left_ = uint32_t{prefix_[1]} << 24 | uint32_t{prefix_[2]} << 16 |
                uint32_t{prefix_[3]} << 8 | prefix_[4];
      }
    } else {
      taken = std::min<uint64_t>(left_, bytes.size());
      left_ -= taken;
    }
    begun_ += taken;
    bytes.remove_prefix(taken);
    if (prefix_size_ < prefix_.size() || left_ > 0) continue;
    ++ended;
    prefix_size_ = 0;
    begun_ = 0;
  }
  return ended;
}

FrameCounts& FrameCounts::operator+=(const FrameCounts& more) {
  streams += more.streams;
  calls += more.calls;
  requests += more.requests;
  resets += more.resets;
  control += more.control;
  begun_bytes += more.begun_bytes;
  ended_bytes += more.ended_bytes;
  violations += more.violations;
  return *this;
}

FrameCounts Http2Meter::Feed(absl::Span<const char> bytes) {
  FrameCounts counts;
  counts.ended_bytes = std::exchange(ended_bytes_, 0);
  scanner_.Feed(
      bytes, [&](const FrameScanner::Frame& frame) { Count(frame, counts); },
      [&](absl::Span<const char> payload) { CountMessages(payload, counts); });
  return counts;
}

void Http2Meter::Count(const FrameScanner::Frame& frame, FrameCounts& counts) {
  data_stream_ = 0;
  last_data_.reset();
  switch (frame.type) {
    case kHeaders:
      ++counts.streams;
      ++counts.calls;
      header_bytes_ = 0;
      CountHeader(frame.bytes, counts);
      break;
    case kData:
      if (frame.bytes < kSmallData) ++counts.control;
      data_stream_ = frame.stream;
      break;
    case kRstStream:
      ++counts.resets;
      End(frame.stream, counts);
      return;
    case kContinuation:
      CountHeader(frame.bytes, counts);
      [[fallthrough]];
    default:
      ++counts.control;
      return;
  }
  if ((frame.flags & kEndStream) == 0) {
    return Begin(frame.stream, frame.type == kHeaders ? kCallBytes : frame.bytes, counts);
  }
  Begun ended = End(frame.stream, counts);
  // Without a message, too, gRPC answers it.
  if (ended.messages == 0) ++counts.requests;
  if (frame.type == kData) last_data_ = ended;
}

void Http2Meter::CountHeader(uint32_t bytes, FrameCounts& counts) {
  header_bytes_ += bytes;
  if (header_bytes_ > kMostHeaderBytes) ++counts.violations;
}

void Http2Meter::CountMessages(absl::Span<const char> payload, FrameCounts& counts) {
  if (data_stream_ == 0) return;
  Begun* begun = nullptr;
  if (last_data_) {
    begun = &*last_data_;
  } else if (const auto found = begun_.find(data_stream_); found != begun_.end()) {
    begun = &found->second;
  } else {
    return;
  }
  uint64_t messages = begun->scanner.Feed(payload);
  if (messages == 0) return;
  // The message of a unary call is counted with its end.
  const bool is_counted = last_data_ && begun->messages == 0;
  begun->messages += messages;
  begun->unanswered += messages;
  if (is_counted) --messages;
  counts.calls += messages;
  counts.requests += messages;
  if (begun->unanswered > kMostUnanswered) ++counts.violations;
}

void Http2Meter::Begin(uint32_t stream, uint32_t bytes, FrameCounts& counts) {
  counts.begun_bytes += bytes;
  begun_bytes_ += bytes;
  const auto found = begun_.find(stream);
  if (found != begun_.end()) {
    found->second.bytes += bytes;
  } else if (begun_.size() < kMaxRequests) {
    begun_[stream].bytes = bytes;
  } else {
    ++counts.violations;
  }
}

Http2Meter::Begun Http2Meter::End(uint32_t stream, FrameCounts& counts) {
  const auto found = begun_.find(stream);
  if (found == begun_.end()) return {};
  Begun ended = found->second;
  begun_.erase(found);
  counts.ended_bytes += ended.bytes;
  begun_bytes_ -= ended.bytes;
  return ended;
}

bool Http2Meter::Answered(uint32_t stream) {
  const auto found = begun_.find(stream);
  if (found == begun_.end() || found->second.unanswered == 0) return false;
  Begun& begun = found->second;
  if (--begun.unanswered > 0) return true;
  // gRPC has passed all of it on, but for a message that has not come whole.
  uint64_t kept = begun.scanner.begun();
  if (data_stream_ == stream && !last_data_) kept += scanner_.bytes_to_come();
  kept = std::min(kept, begun.bytes);
  ended_bytes_ += begun.bytes - kept;
  begun_bytes_ -= begun.bytes - kept;
  begun.bytes = kept;
  return true;
}

void Http2Meter::Closed(uint32_t stream) {
  FrameCounts counts;
  End(stream, counts);
  ended_bytes_ += counts.ended_bytes;
}

AnswerMeter::Answers AnswerMeter::Feed(absl::Span<const char> bytes, Http2Meter& client) {
  Answers answers;
  scanner_.Feed(
      bytes,
      [&](const FrameScanner::Frame& frame) {
        if (frame.type == kData) {
          if (client.Answered(frame.stream)) ++answers.messages;
          return;
        }
        const bool ends = frame.type == kHeaders && (frame.flags & kEndStream) != 0;
        if (ends) ++answers.calls;
        if (ends || frame.type == kRstStream) client.Closed(frame.stream);
      },
      [](absl::Span<const char>) {});
  return answers;
}

}  // namespace gpumemd
