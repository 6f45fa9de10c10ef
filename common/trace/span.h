// SPDX-License-Identifier: Apache-2.0
// Spans: named stretches of time on the paths of requests, for traces (recording.h).
//
// While no trace runs a span costs one relaxed load and a branch. While one runs, a span reads the
// clock twice and writes one cache line of its thread's ring: no lock, no allocation, no wait.
//
//   trace::Span span("create");                       // until the end of the scope
//   trace::RequestScope scope({.session = id, ...});  // whose request this thread works on
//
// Names are string literals, in the words of docs/reference/trace.md, which lists them. Spans carry
// numbers only, and none that is secret.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace gpumem::trace {

// The request that spans belong to. Numbers are 0 where there is none.
struct Request {
  uint64_t session = 0;
  uint64_t id = 0;    // AcquireRequest.request_id and the like: the same at both ends
  uint64_t call = 0;  // from NextCall(); unique in this process
};

struct Event {
  enum class Place : uint16_t {
    kThread,   // spans of one thread are nested
    kRequest,  // of its call; may begin and end on different threads
  };
  enum class Role : uint16_t { kStep, kCall };
  const char* name;
  uint64_t begin_ns, end_ns;  // of Now()
  Request request;
  uint64_t bytes;  // that it handled; 0: not told
  uint32_t thread;
  Place place;
  Role role;  // kCall: the whole call, of which all other spans of the request are steps
};
static_assert(sizeof(Event) == 64);

// True while a trace of this process runs.
extern constinit std::atomic<bool> on;
inline bool IsOn() { return on.load(std::memory_order_relaxed); }

namespace internal {
void Identify(uint64_t session, uint64_t id);
}  // namespace internal

// Returns nanoseconds of CLOCK_BOOTTIME: one clock for all processes of a machine, and the one of
// Perfetto's traces.
uint64_t Now();

// Returns Now() while a trace runs, else 0.
inline uint64_t NowIfOn() { return IsOn() ? Now() : 0; }

// Returns a number for Request::call, while a trace runs; else 0.
uint64_t NextCall();

// Returns the request of this thread's innermost RequestScope.
Request CurrentRequest();

// Sets the numbers of this thread's request, which are known later than its call has begun. Does
// nothing without a RequestScope or CallSpan.
inline void Identify(uint64_t session, uint64_t id);

// Records a span from `begin_ns` until now, of this thread and its request. Does nothing if
// `begin_ns` is 0 or no trace runs.
void Record(const char* name, uint64_t begin_ns, uint64_t bytes = 0);

// The same, of the given request, which may have passed through several threads.
void RecordOf(const Request& request, const char* name, uint64_t begin_ns, uint64_t bytes = 0);

// The same, for a whole call.
void RecordCall(const Request& request, const char* name, uint64_t begin_ns);

// A span of the thread that makes it, for the object's lifetime.
class Span {
 public:
  explicit Span(const char* name, uint64_t bytes = 0)
      : name_(name), begin_ns_(NowIfOn()), bytes_(bytes) {}
  ~Span() { End(); }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  void set_bytes(uint64_t bytes) { bytes_ = bytes; }
  // Ends it before the object's lifetime.
  void End() {
    if (begin_ns_ != 0) [[unlikely]]
      Record(name_, std::exchange(begin_ns_, 0), bytes_);
  }

 private:
  const char* const name_;
  uint64_t begin_ns_;  // 0: none is recorded
  uint64_t bytes_;
};

// Has the spans of this thread belong to `request` for the object's lifetime.
class RequestScope {
 public:
  explicit RequestScope(const Request& request) : set_(IsOn()) {
    if (set_) [[unlikely]]
      Enter(request);
  }
  ~RequestScope() {
    if (set_) [[unlikely]]
      Leave();
  }
  RequestScope(const RequestScope&) = delete;
  RequestScope& operator=(const RequestScope&) = delete;

 private:
  void Enter(const Request& request);
  void Leave();

  const bool set_;
  Request before_;
};

// A whole call of the thread that makes it. Calls inside it are steps of it.
class CallSpan {
 public:
  explicit CallSpan(const char* name) : name_(name), begin_ns_(NowIfOn()) {
    if (begin_ns_ != 0) [[unlikely]]
      Begin();
  }
  ~CallSpan() {
    if (begin_ns_ != 0) [[unlikely]]
      End();
  }
  CallSpan(const CallSpan&) = delete;
  CallSpan& operator=(const CallSpan&) = delete;

 private:
  void Begin();
  void End();

  const char* const name_;
  const uint64_t begin_ns_;
  bool outermost_ = false;
};

inline void Identify(uint64_t session, uint64_t id) {
  if (IsOn()) [[unlikely]]
    internal::Identify(session, id);
}

}  // namespace gpumem::trace
