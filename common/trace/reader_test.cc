// SPDX-License-Identifier: Apache-2.0
// What Encoder writes, Reader reads.
#include "common/trace/reader.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/trace/encoder.h"

namespace gpumem::trace {
namespace {

Process Named(const std::string& name) {
  return {.pid = 12, .name = name, .thread_name = [](uint32_t thread) {
            return "thread" + std::to_string(thread);
          }};
}

Event Of(const char* name, uint64_t begin, uint64_t end, uint32_t thread = 1,
         Request request = {}) {
  return {.name = name,
          .begin_ns = begin,
          .end_ns = end,
          .request = request,
          .bytes = 0,
          .thread = thread,
          .place = Event::Place::kThread,
          .role = Event::Role::kStep};
}

std::map<std::string, Slice> ByName(const Reader& reader) {
  std::map<std::string, Slice> slices;
  for (const Slice& slice : reader.slices()) slices[slice.name] = slice;
  return slices;
}

TEST(ReaderTest, SpansComeBack) {
  Encoder encoder(kDaemonCategory, Named("gpumemd"), 5);
  const Request request = {.session = 3, .id = 4, .call = 9};
  Event call = Of("Acquire", 90, 400, 2, request);
  call.place = Event::Place::kRequest;
  call.role = Event::Role::kCall;
  Event create = Of("create", 150, 250, 1, request);
  create.bytes = 1 << 20;
  std::string trace;
  // As they end.
  encoder.Add({Of("inner", 120, 130), create, Of("outer", 100, 300), call}, &trace);
  Reader reader;
  ASSERT_TRUE(reader.Add(trace).ok());
  auto slices = ByName(reader);
  ASSERT_EQ(slices.size(), 4u);
  EXPECT_EQ(slices["inner"].begin_ns, 120u);
  EXPECT_EQ(slices["inner"].end_ns, 130u);
  EXPECT_EQ(slices["outer"].begin_ns, 100u);
  EXPECT_EQ(slices["outer"].end_ns, 300u);
  EXPECT_EQ(slices["outer"].track, slices["create"].track);
  EXPECT_EQ(slices["create"].bytes, uint64_t{1} << 20);
  EXPECT_EQ(slices["create"].session, 3u);
  EXPECT_EQ(slices["create"].request, 4u);
  EXPECT_EQ(slices["create"].number, 9u);
  EXPECT_TRUE(slices["create"].daemon);
  EXPECT_FALSE(slices["create"].call);
  EXPECT_TRUE(slices["Acquire"].call);
  EXPECT_NE(slices["Acquire"].track, slices["create"].track);
}

TEST(ReaderTest, PiecesAndSeveralTracesAreOne) {
  Encoder daemon(kDaemonCategory, Named("gpumemd"), 5);
  Encoder client(kClientCategory, Named("worker"), 6);
  std::string a, b, c;
  daemon.Add({Of("inner", 20, 30)}, &a);
  client.Add({Of("client", 1, 2)}, &b);
  // Its part came in an earlier piece.
  daemon.Add({Of("outer", 10, 40)}, &c);
  daemon.AddDropped(17, &c);
  Reader at_once, in_pieces;
  ASSERT_TRUE(at_once.Add(a + b + c).ok());
  for (const std::string& piece : {a, b, c}) ASSERT_TRUE(in_pieces.Add(piece).ok());
  for (const Reader* reader : {&at_once, &in_pieces}) {
    auto slices = ByName(*reader);
    ASSERT_EQ(slices.size(), 3u);
    EXPECT_EQ(slices["outer"].begin_ns, 10u);
    EXPECT_EQ(slices["outer"].end_ns, 40u);
    EXPECT_EQ(slices["inner"].end_ns, 30u);
    EXPECT_FALSE(slices["client"].daemon);
    EXPECT_NE(slices["client"].process, slices["inner"].process);
    EXPECT_EQ(reader->dropped(), 17u);
  }
}

TEST(ReaderTest, ASpanThatTouchesTheNextOneIsNotInIt) {
  Encoder encoder(kDaemonCategory, Named("gpumemd"), 5);
  std::string trace;
  encoder.Add({Of("first", 10, 20), Of("empty", 20, 20), Of("second", 20, 30)}, &trace);
  Reader reader;
  ASSERT_TRUE(reader.Add(trace).ok());
  auto slices = ByName(reader);
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices["first"].end_ns, 20u);
  EXPECT_EQ(slices["second"].begin_ns, 20u);
  EXPECT_EQ(slices["second"].end_ns, 30u);
}

// What Perfetto requires of a trace.
TEST(ReaderTest, TheFormIsPerfettos) {
  for (const bool in_machine : {true, false}) {
    Process process = Named("gpumemd");
    process.in_machine_namespace = in_machine;
    Encoder encoder(kDaemonCategory, process, 5);
    std::string bytes;
    const Request request = {.session = 3, .id = 4, .call = 9};
    Event call = Of("Acquire", 90, 400, 2, request);
    call.place = Event::Place::kRequest;
    call.role = Event::Role::kCall;
    encoder.Add({Of("a", 10, 20, 1), Of("b", 10, 20, 2), call}, &bytes);
    encoder.Add({Of("c", 30, 40, 1)}, &bytes);
    perfetto::Trace trace;
    ASSERT_TRUE(trace.ParseFromString(bytes));
    EXPECT_TRUE(trace.packet(0).first_packet_on_sequence());
    EXPECT_EQ(trace.packet(0).sequence_flags(), 1u);
    std::set<uint64_t> tracks;
    std::map<uint64_t, int> open;
    int flows = 0;
    for (const perfetto::TracePacket& packet : trace.packet()) {
      EXPECT_EQ(packet.trusted_packet_sequence_id(), trace.packet(0).trusted_packet_sequence_id());
      EXPECT_NE(packet.trusted_packet_sequence_id(), 0u);
      if (packet.has_track_descriptor()) {
        const perfetto::TrackDescriptor& track = packet.track_descriptor();
        // A track is described before it is used, and after its parent.
        EXPECT_TRUE(track.parent_uuid() == 0 || tracks.contains(track.parent_uuid()));
        tracks.insert(track.uuid());
        EXPECT_TRUE(in_machine || (!track.has_process() && !track.has_thread()));
        continue;
      }
      const perfetto::TrackEvent& event = packet.track_event();
      EXPECT_TRUE(tracks.contains(event.track_uuid()));
      open[event.track_uuid()] += event.type() == perfetto::TrackEvent::TYPE_SLICE_BEGIN ? 1 : -1;
      EXPECT_GE(open[event.track_uuid()], 0);
      flows += event.flow_ids_size();
    }
    EXPECT_EQ(tracks.size(), 4u);  // the process, two threads, one call
    EXPECT_EQ(flows, 1);
    for (const auto& [track, count] : open) EXPECT_EQ(count, 0);
  }
}

TEST(ReaderTest, SkipsWhatOtherProgramsWrite) {
  perfetto::Trace other;
  perfetto::TrackEvent& event = *other.add_packet()->mutable_track_event();
  event.set_type(perfetto::TrackEvent::TYPE_SLICE_BEGIN);
  event.add_categories("input");
  event.set_name("other");
  perfetto::TrackEvent& end = *other.add_packet()->mutable_track_event();
  end.set_type(perfetto::TrackEvent::TYPE_SLICE_END);
  other.add_packet();
  Reader reader;
  ASSERT_TRUE(reader.Add(other.SerializeAsString()).ok());
  EXPECT_TRUE(reader.slices().empty());
}

TEST(ReaderTest, RefusesWhatIsNoTrace) {
  for (const std::string& bytes :
       {std::string("not a trace"), std::string("\x0a\x02\xff\xff"),
        std::string("\x0a\xff\xff\xff\xff\x7f"), "\x0a" + std::string(10, '\xff')}) {
    Reader reader;
    EXPECT_EQ(reader.Add(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ReaderTest, ReadsWholePacketsOfAPiece) {
  Encoder encoder(kDaemonCategory, Named("gpumemd"), 5);
  std::string trace;
  encoder.Add({Of("inner", 20, 30), Of("outer", 10, 40)}, &trace);
  for (size_t cut = 0; cut <= trace.size(); ++cut) {
    Reader reader;
    const absl::StatusOr<size_t> read = reader.Add(trace.substr(0, cut));
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_LE(*read, cut);
    const absl::StatusOr<size_t> rest = reader.Add(trace.substr(*read));
    ASSERT_TRUE(rest.ok()) << rest.status();
    EXPECT_EQ(*read + *rest, trace.size());
    EXPECT_EQ(reader.slices().size(), 2u);
  }
}

TEST(ReaderTest, RandomBytesDoNoHarm) {
  std::mt19937 random(5);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = "\x0a";
    const size_t size = random() % 60;
    bytes.push_back(static_cast<char>(size));
    for (size_t k = 0; k < size; ++k) bytes.push_back(static_cast<char>(random()));
    Reader reader;
    reader.Add(bytes).status().IgnoreError();
  }
}

TEST(EncoderTest, DescribesThisProcess) {
  const Process self = Process::Self();
  EXPECT_FALSE(self.name.empty());
  EXPECT_GT(self.pid, 0);
  EXPECT_FALSE(self.thread_name(static_cast<uint32_t>(self.pid)).empty());
  EXPECT_TRUE(self.thread_name(4'000'000'000).empty());
}

}  // namespace
}  // namespace gpumem::trace
