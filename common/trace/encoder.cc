// SPDX-License-Identifier: Apache-2.0
#include "common/trace/encoder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gpumem::trace {
namespace {

// The inode of the machine's first PID namespace (PROC_PID_INIT_INO of the Linux kernel).
constexpr ino_t kMachinePidNamespace = 0xEFFFFFFC;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns a number that differs from those of other arguments (splitmix64).
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t mixed = a + 0x9E3779B97F4A7C15 * (b + 1);
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
  return mixed ^ (mixed >> 31);
}

void Annotate(const char* name, uint64_t value, perfetto::TrackEvent* event) {
  if (value == 0) return;
  perfetto::DebugAnnotation* const annotation = event->add_debug_annotations();
  annotation->set_name(name);
  annotation->set_uint_value(value);
}

}  // namespace

Process Process::Self() {
  struct stat own = {};
  const bool known = stat("/proc/self/ns/pid", &own) == 0;
  return {.pid = getpid(),
          .name = FirstLine("/proc/self/comm"),
          .in_machine_namespace = known && own.st_ino == kMachinePidNamespace,
          .thread_name = [](uint32_t thread) {
            return FirstLine(absl::StrCat("/proc/self/task/", thread, "/comm"));
          }};
}

Encoder::Encoder(std::string category, Process process, uint64_t started_ns)
    : category_(std::move(category)),
      process_(std::move(process)),
      started_ns_(started_ns),
      uuid_(Mix(static_cast<uint64_t>(process_.pid), started_ns)) {}

void Encoder::Append(perfetto::TracePacket& packet, std::string* trace) {
  // Never 0, which means that there is none.
  packet.set_trusted_packet_sequence_id(static_cast<uint32_t>(uuid_) | 1);
  one_.AppendToString(trace);
}

void Encoder::Describe(std::string* trace) {
  if (std::exchange(described_, true)) return;
  one_.Clear();
  perfetto::TracePacket& packet = *one_.add_packet();
  packet.set_first_packet_on_sequence(true);
  packet.set_sequence_flags(perfetto::TracePacket::SEQ_INCREMENTAL_STATE_CLEARED);
  packet.set_timestamp(started_ns_);
  perfetto::TrackDescriptor& track = *packet.mutable_track_descriptor();
  track.set_uuid(uuid_);
  if (process_.in_machine_namespace) {
    track.mutable_process()->set_pid(process_.pid);
    track.mutable_process()->set_process_name(process_.name);
  } else {
    track.set_name(absl::StrCat(process_.name, " ", process_.pid));
  }
  Append(packet, trace);
}

uint64_t Encoder::ThreadTrack(uint32_t thread, std::string* trace) {
  const uint64_t uuid = Mix(uuid_, thread);
  if (!threads_.insert(thread).second) return uuid;
  one_.Clear();
  perfetto::TracePacket& packet = *one_.add_packet();
  perfetto::TrackDescriptor& track = *packet.mutable_track_descriptor();
  track.set_uuid(uuid);
  track.set_parent_uuid(uuid_);
  const std::string name = process_.thread_name ? process_.thread_name(thread) : "";
  if (process_.in_machine_namespace) {
    track.mutable_thread()->set_pid(process_.pid);
    track.mutable_thread()->set_tid(thread);
    if (!name.empty()) track.mutable_thread()->set_thread_name(name);
  } else {
    track.set_name(absl::StrCat(name, " ", thread));
  }
  Append(packet, trace);
  return uuid;
}

uint64_t Encoder::RequestTrack(const Event& event, std::string* trace) {
  const uint64_t uuid = Mix(uuid_, ~event.request.call);
  // Described with each span, so that it need not be remembered.
  one_.Clear();
  perfetto::TracePacket& packet = *one_.add_packet();
  perfetto::TrackDescriptor& track = *packet.mutable_track_descriptor();
  track.set_uuid(uuid);
  track.set_parent_uuid(uuid_);
  track.set_name("calls");
  Append(packet, trace);
  return uuid;
}

void Encoder::AppendBegin(const Event& event, uint64_t track, std::string* trace) {
  one_.Clear();
  perfetto::TracePacket& packet = *one_.add_packet();
  packet.set_timestamp(event.begin_ns);
  perfetto::TrackEvent& begin = *packet.mutable_track_event();
  begin.set_type(perfetto::TrackEvent::TYPE_SLICE_BEGIN);
  begin.set_track_uuid(track);
  begin.add_categories(category_);
  begin.set_name(event.name);
  if (event.role == Event::Role::kCall) {
    begin.add_categories(kCallCategory);
    // An arrow from the client's call to the daemon's.
    if (event.request.session != 0 && event.request.id != 0) {
      begin.add_flow_ids(Mix(event.request.session, event.request.id));
    }
  }
  Annotate("session", event.request.session, &begin);
  Annotate("request", event.request.id, &begin);
  Annotate("call", event.request.call, &begin);
  Annotate("bytes", event.bytes, &begin);
  Append(packet, trace);
}

void Encoder::AppendEnd(uint64_t end_ns, uint64_t track, std::string* trace) {
  one_.Clear();
  perfetto::TracePacket& packet = *one_.add_packet();
  packet.set_timestamp(end_ns);
  perfetto::TrackEvent& end = *packet.mutable_track_event();
  end.set_type(perfetto::TrackEvent::TYPE_SLICE_END);
  end.set_track_uuid(track);
  Append(packet, trace);
}

void Encoder::Add(absl::Span<const Event> events, std::string* trace) {
  Describe(trace);
  struct Placed {
    uint64_t track;
    const Event* event;
  };
  std::vector<Placed> placed;
  placed.reserve(events.size());
  for (const Event& event : events) {
    const uint64_t track = event.place == Event::Place::kThread ? ThreadTrack(event.thread, trace)
                                                                : RequestTrack(event, trace);
    placed.push_back({track, &event});
  }
  // Outer spans before those inside them.
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    if (a.track != b.track) return a.track < b.track;
    if (a.event->begin_ns != b.event->begin_ns) return a.event->begin_ns < b.event->begin_ns;
    return a.event->end_ns > b.event->end_ns;
  });
  std::vector<Placed> open;
  const auto close_until = [&](const Placed* next) {
    while (!open.empty() && (next == nullptr || open.back().track != next->track ||
                             open.back().event->end_ns <= next->event->begin_ns)) {
      AppendEnd(open.back().event->end_ns, open.back().track, trace);
      open.pop_back();
    }
  };
  for (const Placed& next : placed) {
    close_until(&next);
    AppendBegin(*next.event, next.track, trace);
    open.push_back(next);
  }
  close_until(nullptr);
}

void Encoder::AddDropped(uint64_t count, std::string* trace) {
  Describe(trace);
  one_.Clear();
  perfetto::TracePacket& packet = *one_.add_packet();
  packet.set_timestamp(Now());
  perfetto::TrackEvent& mark = *packet.mutable_track_event();
  mark.set_type(perfetto::TrackEvent::TYPE_INSTANT);
  mark.set_track_uuid(uuid_);
  mark.add_categories(category_);
  mark.set_name(kDropped);
  Annotate("spans", count, &mark);
  Append(packet, trace);
}

}  // namespace gpumem::trace
