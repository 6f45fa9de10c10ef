// SPDX-License-Identifier: Apache-2.0
#include "daemon/transport/meter/metered_sockets.h"

#include <dlfcn.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/trace/span.h"
#include "daemon/transport/meter/activity.h"
#include "daemon/transport/meter/http2_meter.h"

namespace gpumemd {
namespace {

constexpr size_t kMaxSockets = size_t{1} << 20;

// The C library's functions.
template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
ssize_t Receive(int socket, msghdr* message, int flags) {
  static const auto next = Next<ssize_t (*)(int, msghdr*, int)>("recvmsg");
  return next(socket, message, flags);
}
ssize_t Send(int socket, const msghdr* message, int flags) {
  static const auto next = Next<ssize_t (*)(int, const msghdr*, int)>("sendmsg");
  return next(socket, message, flags);
}
int Control(int epoll, int operation, int socket, epoll_event* event) {
  static const auto next = Next<int (*)(int, int, int, epoll_event*)>("epoll_ctl");
  return next(epoll, operation, socket, event);
}

// Some milliseconds late, and cheap.
absl::Time Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return absl::TimeFromTimespec(now);
}

// Shows the bytes of a message of which `size` were transferred.
template <typename Show>
void ForEachPart(const msghdr& message, size_t size, Show show) {
  for (size_t i = 0; i < message.msg_iovlen && size > 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t filled = std::min(part.iov_len, size);
    show(absl::Span<const char>(static_cast<const char*>(part.iov_base), filled));
    size -= filled;
  }
}

// One read brings not many more calls than the window has room for: so many bytes for each, about
// twice those of the smallest call, and kLeastBytes at least.
constexpr size_t kCallBytes = 64;
constexpr size_t kLeastBytes = 128;

// As recvmsg(), but reads at most so many bytes.
ssize_t ReceiveUpTo(size_t bytes, int socket, msghdr* message, int flags) {
  std::array<iovec, 64> parts;
  msghdr less = *message;
  less.msg_iov = parts.data();
  less.msg_iovlen = 0;
  for (size_t i = 0; i < message->msg_iovlen && i < parts.size() && bytes > 0; ++i) {
    parts[i] = message->msg_iov[i];
    parts[i].iov_len = std::min(parts[i].iov_len, bytes);
    bytes -= parts[i].iov_len;
    ++less.msg_iovlen;
  }
  const ssize_t size = Receive(socket, &less, flags);
  message->msg_namelen = less.msg_namelen;
  message->msg_controllen = less.msg_controllen;
  message->msg_flags = less.msg_flags;
  return size;
}

bool HasData(int socket) {
  char byte;
  return recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

// Also if its end can be read.
bool IsReadable(int socket) {
  char byte;
  return recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 ||
         (errno != EAGAIN && errno != EINTR);
}

// A socket that may be read now.
struct Turn {
  int socket;
  std::shared_ptr<CallWindow> window;
};

// Of the two sorts of windows.
struct Turns {
  std::optional<Turn> calls, ends;
};

std::optional<Turn> NextTurn(const std::shared_ptr<CallWindow>& window, absl::Time now) {
  const std::optional<int> socket = window->NextToRead(now);
  if (!socket) return std::nullopt;
  return Turn{.socket = *socket, .window = window};
}

// The meter of the socket with one descriptor number.
class MeteredSocket {
 public:
  void Start(std::shared_ptr<FrameBudget> budget, std::shared_ptr<CallWindow> window,
             std::shared_ptr<CallWindow> ends) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    End();
    received_ = {};
    sent_ = {};
    open_calls_ = 0;
    refused_ = false;
    ending_calls_.reset();
    epoll_ = -1;
    budget_ = std::move(budget);
    window_ = std::move(window);
    ends_ = std::move(ends);
  }

  // Marks the socket closed; its number will be reused. The caller must resume the sockets of the
  // returned turns: this one may have been resumed without being read since.
  Turns Closed() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    Turns turns;
    const absl::Time now = Now();
    if (window_ != nullptr) turns.calls = NextTurn(window_, now);
    if (ends_ != nullptr) {
      ends_->Answered(ending_calls_.value_or(0), now);
      turns.ends = NextTurn(ends_, now);
    }
    End();
    ends_.reset();
    return turns;
  }

  // As recvmsg(). The caller must resume the returned turn's socket.
  ssize_t Read(int socket, msghdr* message, int flags, std::optional<Turn>& turn)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::ReleasableMutexLock lock(&mutex_);
    if (window_ == nullptr) {
      lock.Release();  // it may block
      return Receive(socket, message, flags);
    }
    const absl::Time now = Now();
    if (refused_) {
      errno = MayEnd(socket, now) ? ECONNRESET : EAGAIN;
      return -1;
    }
    const uint64_t room = window_->room();
    size_t bytes = room > 0 ? std::max(kLeastBytes, kCallBytes * room) : 0;
    // The end of a request that is counted already.
    bytes += received_.bytes_to_come();
    if (bytes == 0) {
      // Without data gRPC will be told when some come.
      if (epoll_ >= 0 && HasData(socket) && !window_->MayReceive(socket, now)) {
        errno = EAGAIN;
        return -1;
      }
      bytes = kLeastBytes;
    }
    const ssize_t size = ReceiveUpTo(bytes, socket, message, flags);
    if (size > 0) {
      refused_ = budget_ == nullptr || !Count(*message, static_cast<size_t>(size), now);
      turn = NextTurn(window_, now);
      if (!refused_) return size;
      errno = ECONNRESET;
      if (!MayEnd(socket, now)) {
        // Resume() finds an end to read, and the peer sends no more meanwhile.
        shutdown(socket, SHUT_RD);
        errno = EAGAIN;
      }
      return -1;
    }
    const int error = errno;
    if (size == 0 || (error != EAGAIN && error != EINTR)) {
      if (!MayEnd(socket, now)) {
        errno = EAGAIN;
        return -1;
      }
      turn = NextTurn(window_, now);
      End();
    }
    errno = error;
    return size;
  }

  // Counts `size` written bytes of `message`. The caller must resume the returned turn's socket.
  std::optional<Turn> Wrote(const msghdr& message, size_t size) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (window_ == nullptr) return std::nullopt;
    uint64_t calls = 0;
    uint64_t messages = 0;
    ForEachPart(message, size, [&](auto bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const AnswerMeter::Answers answers = sent_.Feed(bytes, received_);
      calls += answers.calls;
      messages += answers.messages;
    });
    if (calls + messages == 0) return std::nullopt;
    open_calls_ -= std::min(open_calls_, calls);
    const absl::Time now = Now();
    window_->Answered(calls + messages, now);
    return NextTurn(window_, now);
  }

  // Records a waiter for `socket` on `epoll`.
  void Awaited(int epoll, int operation, const epoll_event* event) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (window_ == nullptr) return;
    epoll_ = operation == EPOLL_CTL_DEL ? -1 : epoll;
    if (event != nullptr) event_ = *event;
  }

  // Has gRPC read it. False if there is nothing to read: it has been read meanwhile, or is another
  // socket by now.
  bool Resume(int socket) ABSL_LOCKS_EXCLUDED(mutex_) {
    // As long as this is held it is not closed.
    absl::MutexLock lock(&mutex_);
    return window_ != nullptr && epoll_ >= 0 && IsReadable(socket) &&
           Control(epoll_, EPOLL_CTL_MOD, socket, &event_) == 0;
  }

 private:
  // False if the connection is to be closed.
  bool Count(const msghdr& message, size_t size, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    FrameCounts counts;
    ForEachPart(message, size, [&](auto bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      counts += received_.Feed(bytes);
    });
    open_calls_ += counts.streams;
    window_->Received(counts.requests, now);
    switch (budget_->Charge(counts, now)) {
      case FrameBudget::Decision::kServe:
        return true;
      case FrameBudget::Decision::kFlood:
        return false;
      case FrameBudget::Decision::kClose:
        break;
    }
    // gRPC releases its data when it closes the connection, and needs the room for others now.
    // Later data is not counted.
    EndAtOnce(now);
    budget_->Return(received_.begun_bytes());
    budget_.reset();
    return false;
  }

  // True if gRPC may learn that the connection ends. If not, the socket is held until its turn.
  bool MayEnd(int socket, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ending_calls_) return true;
    if (open_calls_ > 0 && epoll_ >= 0 && !ends_->MayReceive(socket, now)) return false;
    EndAtOnce(now);
    return true;
  }

  // Has MayEnd() return true.
  void EndAtOnce(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ending_calls_ = open_calls_;
    ends_->Received(open_calls_, now);
  }

  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (budget_ != nullptr) budget_->Return(received_.begun_bytes());
    budget_.reset();
    window_.reset();
  }

  absl::Mutex mutex_;
  Http2Meter received_ ABSL_GUARDED_BY(mutex_);
  AnswerMeter sent_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<CallWindow> window_ ABSL_GUARDED_BY(mutex_);   // null: it is not metered
  std::shared_ptr<FrameBudget> budget_ ABSL_GUARDED_BY(mutex_);  // null: it is to be closed
  std::shared_ptr<CallWindow> ends_ ABSL_GUARDED_BY(mutex_);     // until it is closed
  // Calls without an answer; those that the client has reset stay in it.
  uint64_t open_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;  // nothing more is read
  // Once gRPC may learn of the end: the calls that were open.
  std::optional<uint64_t> ending_calls_ ABSL_GUARDED_BY(mutex_);
  int epoll_ ABSL_GUARDED_BY(mutex_) = -1;  // with which gRPC waits for it
  epoll_event event_ ABSL_GUARDED_BY(mutex_) = {};
};

// By descriptor number. They are made once and never freed, so that a reader needs no lock to find
// one; a process has as many as it had sockets of this sort at one time.
constinit std::array<MeteredSocket*, kMaxSockets> metered_sockets = {};

std::atomic_ref<MeteredSocket*> PlaceOf(int socket) {
  return std::atomic_ref(metered_sockets[static_cast<size_t>(socket)]);
}

MeteredSocket* Find(int socket) {
  if (socket < 0 || static_cast<size_t>(socket) >= kMaxSockets) return nullptr;
  return PlaceOf(socket).load(std::memory_order_acquire);
}

void Resume(std::optional<Turn> turn) {
  while (turn) {
    MeteredSocket* const metered = Find(turn->socket);
    if (metered != nullptr && metered->Resume(turn->socket)) return;
    turn = NextTurn(turn->window, Now());
  }
}

}  // namespace

absl::Status MeterSocket(int socket, std::shared_ptr<FrameBudget> budget,
                         std::shared_ptr<CallWindow> window, std::shared_ptr<CallWindow> ends) {
  if (socket < 0 || static_cast<size_t>(socket) >= kMaxSockets) {
    return absl::ResourceExhaustedError(
        absl::StrCat("descriptor ", socket, " is beyond those that can be metered"));
  }
  const std::atomic_ref<MeteredSocket*> place = PlaceOf(socket);
  MeteredSocket* metered = place.load(std::memory_order_acquire);
  if (metered == nullptr) {
    auto made = std::make_unique<MeteredSocket>();
    if (place.compare_exchange_strong(metered, made.get(), std::memory_order_acq_rel)) {
      metered = made.release();
    }
  }
  metered->Start(std::move(budget), std::move(window), std::move(ends));
  return absl::OkStatus();
}

void ResumeReads(const std::shared_ptr<CallWindow>& window) { Resume(NextTurn(window, Now())); }

}  // namespace gpumemd

extern "C" ssize_t recvmsg(int socket, msghdr* message, int flags) {
  gpumemd::MeteredSocket* const metered = gpumemd::Find(socket);
  if (metered == nullptr || (flags & MSG_PEEK) != 0) {
    const ssize_t size = gpumemd::Receive(socket, message, flags);
    if (size >= 0) gpumemd::ActivityWatch::Note();
    return size;
  }
  std::optional<gpumemd::Turn> turn;
  const uint64_t begin_ns = gpumem::trace::NowIfOn();
  const ssize_t size = metered->Read(socket, message, flags, turn);
  const int error = errno;
  if (size > 0) gpumemd::NoteReader(socket);
  if (size >= 0 || error != EAGAIN) gpumemd::ActivityWatch::Note();
  if (begin_ns != 0 && size > 0) {
    gpumem::trace::Record("read socket", begin_ns, static_cast<uint64_t>(size));
  }
  gpumemd::Resume(std::move(turn));
  errno = error;
  return size;
}

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  const uint64_t begin_ns = gpumem::trace::NowIfOn();
  const ssize_t size = gpumemd::Send(socket, message, flags);
  if (size > 0) gpumemd::ActivityWatch::Note();
  gpumemd::MeteredSocket* const metered = size > 0 ? gpumemd::Find(socket) : nullptr;
  if (metered != nullptr) {
    gpumem::trace::Record("write socket", begin_ns, static_cast<uint64_t>(size));
    gpumemd::Resume(metered->Wrote(*message, static_cast<size_t>(size)));
  }
  return size;
}

extern "C" int epoll_ctl(int epoll, int operation, int socket, epoll_event* event) noexcept {
  const int result = gpumemd::Control(epoll, operation, socket, event);
  gpumemd::MeteredSocket* const metered = result == 0 ? gpumemd::Find(socket) : nullptr;
  if (metered != nullptr) metered->Awaited(epoll, operation, event);
  return result;
}

extern "C" int close(int descriptor) {
  if (gpumemd::MeteredSocket* const metered = gpumemd::Find(descriptor)) {
    gpumemd::Turns turns = metered->Closed();
    gpumemd::Resume(std::move(turns.calls));
    gpumemd::Resume(std::move(turns.ends));
    gpumemd::ActivityWatch::Note();
  }
  // Not by dlsym(): it is called before and after everything else in a program.
  return static_cast<int>(syscall(SYS_close, descriptor));
}
