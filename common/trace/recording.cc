// SPDX-License-Identifier: Apache-2.0
#include "common/trace/recording.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>

#include "absl/status/status.h"
#include "common/trace/ring.h"

namespace gpumem::trace {

constinit std::atomic<bool> on = false;

namespace {

struct ThreadRing {
  Ring<Event, kSpansPerThread> ring;
  // A ring has one thread that puts, until that thread ends, also from one recording to the next:
  // so a span that ends late meets no other thread in its ring.
  std::atomic<bool> owned = false;
};

constinit std::array<ThreadRing, kMostThreads> rings = {};
// Slots of all rings. Reserved once and never unmapped: a span may end after its recording.
constinit std::atomic<Event*> all_slots = nullptr;
constinit std::atomic<bool> recording = false;
constinit std::atomic<uint64_t> recordings = 0;
constinit std::atomic<uint64_t> calls = 0;
// Spans of threads that found no ring.
constinit std::atomic<uint64_t> without_ring = 0;

// Trivial, so that a thread may use it at any time of its life.
struct ThreadState {
  Request request;
  ThreadRing* ring;
  uint32_t thread;
  uint64_t refused_in;  // the number of the recording in which there was no ring
  bool ends;            // its ring is given up
};
constinit thread_local ThreadState this_thread = {};

// Gives up the thread's ring when the thread ends.
struct RingOwner {
  ~RingOwner() {
    this_thread.ends = true;
    if (ThreadRing* const ring = std::exchange(this_thread.ring, nullptr)) {
      ring->owned.store(false, std::memory_order_release);
    }
  }
};

Event* SlotsOf(const ThreadRing* ring) {
  return all_slots.load(std::memory_order_acquire) +
         static_cast<size_t>(ring - rings.data()) * kSpansPerThread;
}

// Returns the thread's ring; null if there is none for it.
ThreadRing* OwnRing() {
  ThreadState& state = this_thread;
  if (state.ring != nullptr) [[likely]]
    return state.ring;
  const uint64_t number = recordings.load(std::memory_order_relaxed);
  if (state.ends || state.refused_in == number) return nullptr;
  for (ThreadRing& ring : rings) {
    if (ring.owned.load(std::memory_order_relaxed)) continue;
    if (ring.owned.exchange(true, std::memory_order_acquire)) continue;
    static thread_local RingOwner owner;
    static_cast<void>(&owner);
    state.thread = static_cast<uint32_t>(gettid());
    return state.ring = &ring;
  }
  state.refused_in = number;
  return nullptr;
}

void Put(const Request& request, Event::Place place, Event::Role role, const char* name,
         uint64_t begin_ns, uint64_t bytes) {
  if (begin_ns == 0 || !IsOn()) return;
  const uint64_t end_ns = Now();
  ThreadRing* const ring = OwnRing();
  if (ring == nullptr) {
    without_ring.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  ring->ring.Put(SlotsOf(ring), {.name = name,
                                 .begin_ns = begin_ns,
                                 .end_ns = end_ns,
                                 .request = request,
                                 .bytes = bytes,
                                 .thread = this_thread.thread,
                                 .place = place,
                                 .role = role});
}

}  // namespace

uint64_t Now() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t NextCall() { return IsOn() ? calls.fetch_add(1, std::memory_order_relaxed) + 1 : 0; }

Request CurrentRequest() { return this_thread.request; }

void Record(const char* name, uint64_t begin_ns, uint64_t bytes) {
  Put(this_thread.request, Event::Place::kThread, Event::Role::kStep, name, begin_ns, bytes);
}

void RecordOf(const Request& request, const char* name, uint64_t begin_ns, uint64_t bytes) {
  Put(request, Event::Place::kRequest, Event::Role::kStep, name, begin_ns, bytes);
}

void RecordCall(const Request& request, const char* name, uint64_t begin_ns) {
  Put(request, Event::Place::kRequest, Event::Role::kCall, name, begin_ns, 0);
}

void internal::Identify(uint64_t session, uint64_t id) {
  if (this_thread.request.call == 0) return;
  this_thread.request.session = session;
  if (id != 0) this_thread.request.id = id;
}

void CallSpan::Begin() {
  outermost_ = this_thread.request.call == 0;
  if (outermost_) this_thread.request = {.call = NextCall()};
}

void CallSpan::End() {
  Put(this_thread.request, Event::Place::kThread,
      outermost_ ? Event::Role::kCall : Event::Role::kStep, name_, begin_ns_, 0);
  if (outermost_) this_thread.request = {};
}

void RequestScope::Enter(const Request& request) {
  before_ = std::exchange(this_thread.request, request);
}

void RequestScope::Leave() { this_thread.request = before_; }

absl::StatusOr<std::unique_ptr<Recording>> Recording::Start() {
  if (recording.exchange(true)) {
    return absl::FailedPreconditionError("another trace of this process runs");
  }
  if (all_slots.load() == nullptr) {
    void* const slots = mmap(nullptr, kMostRecordingBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slots == MAP_FAILED) {
      recording = false;
      return absl::ResourceExhaustedError(
          absl::ErrnoToStatus(errno, "no memory for a trace").message());
    }
    all_slots.store(static_cast<Event*>(slots), std::memory_order_release);
  }
  auto made = std::unique_ptr<Recording>(new Recording);
  // Spans of an earlier recording that ended after it.
  for (ThreadRing& ring : rings) {
    ring.ring.TakeAll(SlotsOf(&ring), [](const Event&) {});
    ring.ring.NewlyDropped();
  }
  without_ring = 0;
  made->started_ns_ = Now();
  recordings.fetch_add(1);
  on.store(true, std::memory_order_release);
  return made;
}

Recording::~Recording() {
  Stop();
  std::vector<Event> rest;
  Take(&rest);
  madvise(all_slots.load(), kMostRecordingBytes, MADV_DONTNEED);
  recording = false;
}

void Recording::Take(std::vector<Event>* events) {
  for (ThreadRing& ring : rings) {
    ring.ring.TakeAll(SlotsOf(&ring), [&](const Event& event) {
      // It began in an earlier recording, or its slot was given back while it was written.
      if (event.name != nullptr && event.begin_ns >= started_ns_) events->push_back(event);
    });
    dropped_ += ring.ring.NewlyDropped();
  }
  dropped_ += without_ring.exchange(0, std::memory_order_relaxed);
}

void StopAfterFork() { on.store(false, std::memory_order_relaxed); }

}  // namespace gpumem::trace
