#include "daemon/transport/metered_sockets.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

namespace gpumemd {
namespace {

constexpr size_t kMaxSockets = size_t{1} << 20;

// The kernel's name for a socket, which no other one gets. 0: it is none.
uint64_t CookieOf(int socket) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  if (getsockopt(socket, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return 0;
  return cookie;
}

// The meter of the socket with one descriptor number.
class MeteredSocket {
 public:
  void Start(uint64_t cookie, std::shared_ptr<FrameBudget> budget) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    cookie_ = cookie;
    if (budget_ != nullptr && !closes_) budget_->Return(meter_.begun_bytes());
    meter_ = {};
    closes_ = false;
    budget_ = std::move(budget);
  }

  // False if the connection is to be closed. `message` has `size` bytes that were read from
  // `socket`.
  bool Count(int socket, const msghdr& message, size_t size) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!IsMetered(socket)) return true;
    FrameCounts counts;
    for (size_t i = 0; i < message.msg_iovlen && size > 0; ++i) {
      const iovec& part = message.msg_iov[i];
      const size_t filled = std::min(part.iov_len, size);
      counts += meter_.Feed({static_cast<const char*>(part.iov_base), filled});
      size -= filled;
    }
    switch (budget_->Charge(counts, absl::Now())) {
      case FrameBudget::Decision::kServe:
        return true;
      case FrameBudget::Decision::kFlood:
        return false;
      case FrameBudget::Decision::kClose:
        break;
    }
    // What gRPC has of it goes when it closes the connection. What else comes is not counted.
    budget_->Return(meter_.begun_bytes());
    closes_ = true;
    return false;
  }

  // The peer has closed `socket`, or its connection is broken.
  void Ended(int socket) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!IsMetered(socket)) return;
    if (!closes_) budget_->Return(meter_.begun_bytes());
    budget_.reset();
  }

 private:
  bool IsMetered(int socket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (budget_ != nullptr && CookieOf(socket) != cookie_) {
      // It has been closed, and its number is another socket's now.
      if (!closes_) budget_->Return(meter_.begun_bytes());
      budget_.reset();
    }
    return budget_ != nullptr;
  }

  absl::Mutex mutex_;
  bool closes_ ABSL_GUARDED_BY(mutex_) = false;  // its bytes have been returned
  uint64_t cookie_ ABSL_GUARDED_BY(mutex_) = 0;
  Http2Meter meter_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<FrameBudget> budget_ ABSL_GUARDED_BY(mutex_);
};

// By descriptor number. They are made once and never freed, so that a reader needs no lock to find
// one; a process has as many as it had sockets of this sort at one time.
constinit std::array<std::atomic<MeteredSocket*>, kMaxSockets> metered_sockets = {};

MeteredSocket* Find(int socket) {
  if (socket < 0 || static_cast<size_t>(socket) >= kMaxSockets) return nullptr;
  return metered_sockets[static_cast<size_t>(socket)].load(std::memory_order_acquire);
}

using RecvMsg = ssize_t (*)(int, msghdr*, int);

}  // namespace

absl::Status MeterReads(int socket, std::shared_ptr<FrameBudget> budget) {
  if (socket < 0 || static_cast<size_t>(socket) >= kMaxSockets) {
    return absl::ResourceExhaustedError(
        absl::StrCat("descriptor ", socket, " is beyond those that can be metered"));
  }
  std::atomic<MeteredSocket*>& place = metered_sockets[static_cast<size_t>(socket)];
  MeteredSocket* metered = place.load(std::memory_order_acquire);
  if (metered == nullptr) {
    auto made = std::make_unique<MeteredSocket>();
    if (place.compare_exchange_strong(metered, made.get(), std::memory_order_acq_rel)) {
      metered = made.release();
    }
  }
  metered->Start(CookieOf(socket), std::move(budget));
  return absl::OkStatus();
}

}  // namespace gpumemd

extern "C" ssize_t recvmsg(int socket, msghdr* message, int flags) {
  static const auto next = reinterpret_cast<gpumemd::RecvMsg>(dlsym(RTLD_NEXT, "recvmsg"));
  const ssize_t size = next(socket, message, flags);
  if ((flags & MSG_PEEK) != 0) return size;
  gpumemd::MeteredSocket* const metered = gpumemd::Find(socket);
  if (metered == nullptr) return size;
  if (size > 0) {
    if (metered->Count(socket, *message, static_cast<size_t>(size))) return size;
    errno = ECONNRESET;
    return -1;
  }
  const int error = errno;
  if (size == 0 || (error != EAGAIN && error != EINTR)) metered->Ended(socket);
  errno = error;
  return size;
}
