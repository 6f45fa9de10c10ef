// SPDX-License-Identifier: Apache-2.0
// The context process's side of process.h.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/start_thread.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "daemon/device/context/copy_wire.h"
#include "daemon/device/context/process.h"
#include "daemon/device/context/tier_lock.h"
#include "daemon/device/context/wire.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

// Not a sanitizer's or a test's business: the status of a process that has lost its context.
constexpr int kBroken = 3;
// That of one that hung when its parent let go of it, and how long it is waited for.
constexpr int kHung = 4;
constexpr int kGraceMs = 5'000;

// What requests are executed for and with.
struct Serving {
  const int socket;
  Context& context;
  TierLock& lock;
};

// True if the parent is gone. Its requests may still be in the socket.
bool IsOrphan(int socket) {
  pollfd closed = {socket, 0, 0};  // POLLHUP comes unasked
  return poll(&closed, 1, 0) > 0;
}

absl::Status StartCopy(const Serving& serving, const ContextRequest& request,
                       const gpumem::UnixMessage& message) {
  const absl::StatusOr<CopyBatch> batch = DecodeCopy(request, message);
  if (!batch.ok()) return batch.status();
  if (absl::Status held = serving.lock.Hold(batch->tier_fd); !held.ok()) return held;
  // In this order: the next daemon, which looks for the lock, may have the file by now.
  if (IsOrphan(serving.socket)) return absl::CancelledError("the parent is gone");
  return serving.context.StartCopy(*batch);
}

// `message` is the request with what came with it.
absl::Status Do(const Serving& serving, const ContextRequest& request,
                const gpumem::UnixMessage& message, ContextAnswer& answer, UniqueFd& fd) {
  Context& context = serving.context;
  switch (request.op) {
    case ContextOp::kCreateIpc:
    case ContextOp::kAllocate: {
      const absl::StatusOr<ExportData> data =
          request.op == ContextOp::kCreateIpc
              ? context.CreateIpc(request.memory, request.bytes)
              : context.Allocate(request.memory, request.pool, request.bytes);
      if (data.ok()) answer.data = *data;
      return data.status();
    }
    case ContextOp::kFree:
      return context.Free(request.memory);
    case ContextOp::kCreatePool: {
      absl::StatusOr<MadePool> pool = context.CreatePool(request.pool, request.bytes);
      if (!pool.ok()) return pool.status();
      fd = std::move(pool->fd);
      answer.max_bytes = pool->max_bytes;
      return absl::OkStatus();
    }
    case ContextOp::kDestroyPool:
      return context.DestroyPool(request.pool);
    case ContextOp::kReadPool: {
      const absl::StatusOr<PoolNumbers> numbers = context.ReadPool(request.pool);
      if (numbers.ok()) answer.numbers = *numbers;
      return numbers.status();
    }
    case ContextOp::kSetPool:
      return context.SetPool(request.pool, request.change);
    case ContextOp::kTrimPool:
      return context.TrimPool(request.pool, request.bytes);
    case ContextOp::kStartCopy:
      return StartCopy(serving, request, message);
    case ContextOp::kFinishCopies:
      return context.FinishCopies();
  }
  return absl::InternalError("unknown request to the context process");
}

bool Send(int socket, const ContextAnswer& answer, const UniqueFd& fd) {
  std::vector<int> fds;
  if (fd.valid()) fds.push_back(fd.get());
  return gpumem::SendMessage(socket, Pack(answer), fds, absl::InfiniteFuture()).ok();
}

// Ends this process when the other side of `socket` is gone and no thread here notices: the driver
// may hang for good.
void EndWithParent(int socket) {
  pollfd closed = {socket, 0, 0};  // POLLHUP comes unasked
  while (poll(&closed, 1, -1) < 0) {
  }
  poll(nullptr, 0, kGraceMs);
  _exit(kHung);
}

// Returns when no client is left.
int Serve(const Serving& serving) {
  const int socket = serving.socket;
  while (true) {
    const absl::StatusOr<gpumem::UnixMessage> message =
        gpumem::ReceiveMessage(socket, absl::InfiniteFuture());
    if (absl::IsUnavailable(message.status())) return 0;  // the parent has let go of us
    ContextAnswer answer;
    if (absl::IsDataLoss(message.status())) {
      answer.set_status(absl::ResourceExhaustedError(
          absl::StrCat(message.status().message(), "; raise the daemon's limit of open files")));
      if (!Send(socket, answer, UniqueFd())) return 0;
      continue;
    }
    if (!message.ok()) return 1;
    const absl::StatusOr<ContextRequest> request =
        Unpack<ContextRequest>(absl::string_view(message->bytes).substr(0, sizeof(ContextRequest)));
    if (!request.ok()) return 1;
    UniqueFd fd;
    answer.set_status(Do(serving, *request, *message, answer, fd));
    // Nothing can be freed in a broken context: the kernel does that, at our end.
    if (serving.context.broken()) _exit(kBroken);
    if (!Send(socket, answer, fd)) return 0;
  }
}

int MakeAndServe(int socket, const ContextSpec& spec, const ContextFactory& make) {
  TierLock lock;
  absl::StatusOr<std::unique_ptr<Context>> context = absl::InternalError("no context was made");
  absl::StatusOr<std::thread> end = gpumem::StartThread([socket] { EndWithParent(socket); });
  if (end.ok()) {
    end->detach();
    context = make(spec);
  } else {
    context = end.status();
  }
  ContextAnswer hello;
  hello.set_status(context.status());
  if (!Send(socket, hello, UniqueFd()) || !context.ok()) return 1;
  const int status = Serve({socket, **context, lock});
  // The copies that are in progress end before the lock does.
  (*context)->FinishCopies().IgnoreError();
  context->reset();
  // Not exit(): the driver's handlers there would free memory that other processes still have open;
  // the kernel lets them keep it.
  _exit(status);
}

}  // namespace

std::optional<int> RunAsContextProcess(int argc, char** argv, const ContextFactory& make) {
  if (argc != 4 || strcmp(argv[1], kContextFlag) != 0) return std::nullopt;
  // Whatever the parent's libraries left open for a child.
  close_range(kContextSocket + 1, ~0U, 0);
  prctl(PR_SET_NAME, kContextProcessName);
  // A service manager that stops the daemon signals all its processes; the daemon decides
  // when the memory here goes.
  signal(SIGTERM, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  const UniqueFd socket(kContextSocket);
  return MakeAndServe(socket.get(), {.device_uuid = argv[2], .socket_path = argv[3]}, make);
}

}  // namespace gpumemd
