// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/http2_meter.h"

#include <algorithm>

namespace gpumemd {
namespace {

enum FrameType : uint8_t { kData = 0, kHeaders = 1, kRstStream = 3 };
constexpr uint8_t kEndStream = 1;  // a flag of DATA and HEADERS

FrameScanner::Frame Parse(const std::array<uint8_t, 9>& header) {
  return {.bytes = uint32_t{header[0]} << 16 | uint32_t{header[1]} << 8 | header[2],
          .type = header[3],
          .flags = header[4],
          .stream = (uint32_t{header[5]} & 0x7f) << 24 | uint32_t{header[6]} << 16 |
                    uint32_t{header[7]} << 8 | header[8]};
}

}  // namespace

void FrameScanner::Feed(absl::Span<const char> bytes, absl::FunctionRef<void(const Frame&)> show) {
  while (!bytes.empty()) {
    if (skip_ > 0) {
      const size_t skipped = std::min(skip_, bytes.size());
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
    show(frame);
  }
}

FrameCounts& FrameCounts::operator+=(const FrameCounts& more) {
  calls += more.calls;
  requests += more.requests;
  resets += more.resets;
  control += more.control;
  begun_bytes += more.begun_bytes;
  ended_bytes += more.ended_bytes;
  return *this;
}

FrameCounts Http2Meter::Feed(absl::Span<const char> bytes) {
  FrameCounts counts;
  scanner_.Feed(bytes, [&](const FrameScanner::Frame& frame) { Count(frame, counts); });
  return counts;
}

void Http2Meter::Count(const FrameScanner::Frame& frame, FrameCounts& counts) {
  switch (frame.type) {
    case kHeaders:
      ++counts.calls;
      break;
    case kData:
      if (frame.bytes < kSmallData) ++counts.control;
      break;
    case kRstStream:
      ++counts.resets;
      return End(frame.stream, counts);
    default:
      ++counts.control;
      return;
  }
  if ((frame.flags & kEndStream) != 0) {
    ++counts.requests;
    return End(frame.stream, counts);
  }
  Begin(frame.stream, frame.type == kHeaders ? kCallBytes : frame.bytes, counts);
}

void Http2Meter::Begin(uint32_t stream, uint32_t bytes, FrameCounts& counts) {
  counts.begun_bytes += bytes;
  begun_bytes_ += bytes;
  const auto found = begun_.find(stream);
  if (found != begun_.end()) {
    found->second += bytes;
  } else if (begun_.size() < kMaxRequests) {
    begun_.emplace(stream, bytes);
  }
}

void Http2Meter::End(uint32_t stream, FrameCounts& counts) {
  const auto found = begun_.find(stream);
  if (found == begun_.end()) return;
  counts.ended_bytes += found->second;
  begun_bytes_ -= found->second;
  begun_.erase(found);
}

uint64_t AnswerMeter::Feed(absl::Span<const char> bytes) {
  uint64_t answers = 0;
  scanner_.Feed(bytes, [&](const FrameScanner::Frame& frame) {
    if (frame.type == kHeaders && (frame.flags & kEndStream) != 0) ++answers;
  });
  return answers;
}

}  // namespace gpumemd
