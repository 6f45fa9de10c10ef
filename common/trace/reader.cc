// SPDX-License-Identifier: Apache-2.0
#include "common/trace/reader.h"

#include <utility>

#include "common/trace/encoder.h"

namespace gpumem::trace {
namespace {

constexpr char kPacketTag = 1 << 3 | 2;  // field `packet` of Trace, with its length

absl::Status NoTrace() {
  return absl::InvalidArgumentError("this is no trace in Perfetto's format");
}

// Reads a varint at the begin of `bytes`, and removes it. False if it is not all there.
bool TakeVarint(absl::string_view* bytes, uint64_t* value) {
  *value = 0;
  for (size_t i = 0; i < bytes->size() && i < 10; ++i) {
    const auto byte = static_cast<uint8_t>((*bytes)[i]);
    *value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if (byte < 0x80) {
      bytes->remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<size_t> Reader::Add(absl::string_view piece) {
  absl::string_view rest = piece;
  while (!rest.empty()) {
    absl::string_view packet = rest;
    if (packet.front() != kPacketTag) return NoTrace();
    packet.remove_prefix(1);
    uint64_t size = 0;
    if (!TakeVarint(&packet, &size)) {
      if (packet.size() < 10) break;
      return NoTrace();
    }
    if (size > kMostPacketBytes) return NoTrace();
    if (size > packet.size()) break;
    perfetto::TracePacket parsed;
    if (!parsed.ParseFromArray(packet.data(), static_cast<int>(size))) return NoTrace();
    Read(parsed);
    rest = packet.substr(size);
  }
  return piece.size() - rest.size();
}

void Reader::Read(const perfetto::TracePacket& packet) {
  using perfetto::TrackEvent;
  if (!packet.has_track_event()) return;
  const TrackEvent& event = packet.track_event();
  if (event.type() == TrackEvent::TYPE_SLICE_END) {
    auto open = open_.find(event.track_uuid());
    if (open == open_.end()) return;
    Slice slice = std::move(open->second.back());
    open->second.pop_back();
    if (open->second.empty()) open_.erase(open);
    slice.end_ns = packet.timestamp();
    slices_.push_back(std::move(slice));
    return;
  }
  bool ours = false;
  Slice slice = {.name = event.name(),
                 .process = packet.trusted_packet_sequence_id(),
                 .track = event.track_uuid(),
                 .begin_ns = packet.timestamp()};
  for (const std::string& category : event.categories()) {
    slice.daemon |= category == kDaemonCategory;
    slice.call |= category == kCallCategory;
    ours |= category == kDaemonCategory || category == kClientCategory;
  }
  if (!ours) return;
  uint64_t spans = 0;
  for (const perfetto::DebugAnnotation& annotation : event.debug_annotations()) {
    const uint64_t value = annotation.uint_value();
    if (annotation.name() == "session") slice.session = value;
    if (annotation.name() == "request") slice.request = value;
    if (annotation.name() == "call") slice.number = value;
    if (annotation.name() == "bytes") slice.bytes = value;
    if (annotation.name() == "spans") spans = value;
  }
  if (event.type() == TrackEvent::TYPE_SLICE_BEGIN) {
    open_[slice.track].push_back(std::move(slice));
  } else if (event.type() == TrackEvent::TYPE_INSTANT && event.name() == kDropped) {
    dropped_ += spans;
  }
}

}  // namespace gpumem::trace
