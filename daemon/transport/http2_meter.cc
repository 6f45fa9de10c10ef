#include "daemon/transport/http2_meter.h"

#include <algorithm>

namespace gpumemd {
namespace {

enum FrameType : uint8_t { kData = 0, kHeaders = 1, kRstStream = 3 };
constexpr uint8_t kEndStream = 1;

using Header = std::array<uint8_t, 9>;

uint32_t PayloadBytes(const Header& header) {
  return uint32_t{header[0]} << 16 | uint32_t{header[1]} << 8 | header[2];
}

uint32_t StreamOf(const Header& header) {
  return (uint32_t{header[5]} & 0x7f) << 24 | uint32_t{header[6]} << 16 | uint32_t{header[7]} << 8 |
         header[8];
}

}  // namespace

FrameCounts& FrameCounts::operator+=(const FrameCounts& more) {
  calls += more.calls;
  resets += more.resets;
  control += more.control;
  begun_bytes += more.begun_bytes;
  ended_bytes += more.ended_bytes;
  return *this;
}

FrameCounts Http2Meter::Feed(absl::Span<const char> bytes) {
  FrameCounts counts;
  while (!bytes.empty()) {
    if (skip_ > 0) {
      const size_t skipped = std::min(skip_, bytes.size());
      skip_ -= skipped;
      bytes.remove_prefix(skipped);
      continue;
    }
    header_[header_size_++] = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    if (header_size_ < kHeaderBytes) continue;
    header_size_ = 0;
    skip_ = PayloadBytes(header_);
    Count(counts);
  }
  return counts;
}

void Http2Meter::Count(FrameCounts& counts) {
  const uint8_t type = header_[3];
  const uint8_t flags = header_[4];
  const uint32_t stream = StreamOf(header_);
  switch (type) {
    case kHeaders:
      ++counts.calls;
      return;
    case kRstStream:
      ++counts.resets;
      counts.ended_bytes += End(stream);
      return;
    case kData:
      if (PayloadBytes(header_) < kSmallData) ++counts.control;
      if ((flags & kEndStream) != 0) {
        counts.ended_bytes += End(stream);
        return;
      }
      counts.begun_bytes += PayloadBytes(header_);
      Begin(stream, PayloadBytes(header_));
      return;
    default:
      ++counts.control;
  }
}

void Http2Meter::Begin(uint32_t stream, uint32_t bytes) {
  begun_bytes_ += bytes;
  const auto found = begun_.find(stream);
  if (found != begun_.end()) {
    found->second += bytes;
  } else if (begun_.size() < kMaxRequests) {
    begun_.emplace(stream, bytes);
  }
}

uint64_t Http2Meter::End(uint32_t stream) {
  const auto found = begun_.find(stream);
  if (found == begun_.end()) return 0;
  const uint64_t bytes = found->second;
  begun_.erase(found);
  begun_bytes_ -= bytes;
  return bytes;
}

}  // namespace gpumemd
