// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/context/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/start_thread.h"
#include "common/unix_channel.h"
#include "daemon/device/context/copy_wire.h"
#include "daemon/device/context/cuda_context.h"
#include "daemon/device/context/host_context.h"
#include "daemon/device/context/tier_lock.h"
#include "daemon/device/context/wire.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;

// A first CUDA context on a busy machine takes seconds; a driver that hangs hangs for good.
constexpr absl::Duration kStartTimeout = absl::Seconds(120);
// Once it is there, the slowest that it does is to clear a whole GPU, in a tenth of a second.
constexpr absl::Duration kTimeout = absl::Seconds(10);
// A batch is one GiB at most, but the tier's memory may have to be allocated first.
constexpr absl::Duration kCopyTimeout = absl::Seconds(60);
// How long the process may take to end by itself before it is killed.
constexpr int kFarewellMs = 10'000;

// True for variables by which the daemon's supervisor addresses the daemon alone.
bool IsForParentOnly(const char* variable) {
  return absl::StartsWith(variable, "NOTIFY_SOCKET=") || absl::StartsWith(variable, "LISTEN_") ||
         absl::StartsWith(variable, "WATCHDOG_");
}

absl::Status SpawnError(int error, absl::string_view what) {
  const absl::Status status = absl::ErrnoToStatus(error, what);
  switch (error) {
    case EAGAIN:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(status.message());
    default:
      return absl::InternalError(status.message());
  }
}

// Runs this program again with one end of a socket, no other descriptor above the standard
// ones, no signal blocked, and out of reach of the terminal's Ctrl-C.
absl::StatusOr<pid_t> Spawn(const ContextSpec& spec, int socket) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const absl::Cleanup destroy_actions = [&] { posix_spawn_file_actions_destroy(&actions); };
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, socket, kContextSocket);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  const absl::Cleanup destroy_attributes = [&] { posix_spawnattr_destroy(&attributes); };
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!IsForParentOnly(*variable)) environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  std::string name = kContextProcessName, flag = kContextFlag, uuid = spec.device_uuid,
              path = spec.socket_path;
  char* const argv[] = {name.data(), flag.data(), uuid.data(), path.data(), nullptr};
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, argv, environment.data());
  if (error != 0) {
    return SpawnError(
        error, absl::StrCat("running this program again for a context on ", spec.device_uuid));
  }
  return pid;
}

// Describes how a child ended, by its wait status.
std::string Ending(int wait_status) {
  if (WIFSIGNALED(wait_status)) return absl::StrCat("killed by signal ", WTERMSIG(wait_status));
  return absl::StrCat("exit status ", WEXITSTATUS(wait_status));
}

int Reap(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// True if the process ends in that time.
bool AwaitExit(int pidfd, int milliseconds = kFarewellMs) {
  pollfd exited = {pidfd, POLLIN, 0};
  return poll(&exited, 1, milliseconds) > 0;
}

// A child without a watcher yet; the destructor kills it.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    Reap(pid_);
  }
  pid_t release() { return std::exchange(pid_, 0); }

 private:
  pid_t pid_;  // 0 once another object is responsible for it
};

}  // namespace

ContextProcess::ContextProcess(pid_t pid, UniqueFd pidfd, UniqueFd socket,
                               std::function<void(pid_t)> on_death)
    : pid_(pid),
      pidfd_(std::move(pidfd)),
      on_death_(std::move(on_death)),
      socket_(std::move(socket)) {}

absl::StatusOr<std::unique_ptr<ContextProcess>> ContextProcess::Start(
    const ContextSpec& spec, std::function<void(pid_t)> on_death) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return SpawnError(errno, "socketpair");
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const absl::StatusOr<pid_t> pid = Spawn(spec, theirs.get());
  if (!pid.ok()) return pid.status();
  theirs.reset();
  Child child(*pid);
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, *pid, 0)));
  if (!pidfd.valid()) return SpawnError(errno, "pidfd_open");

  // Its first message says whether it has its context.
  const absl::StatusOr<gpumem::UnixMessage> hello =
      gpumem::ReceiveMessage(ours.get(), absl::Now() + kStartTimeout);
  if (!hello.ok()) {
    if (absl::IsDeadlineExceeded(hello.status())) {
      return absl::InternalError(absl::StrCat("the process for a context on ", spec.device_uuid,
                                              " made no context within ",
                                              absl::FormatDuration(kStartTimeout)));
    }
    // If it exits by itself, that status tells more than the kill's.
    AwaitExit(pidfd.get());
    kill(*pid, SIGKILL);
    child.release();
    return absl::InternalError(absl::StrCat("the process for a context on ", spec.device_uuid,
                                            " ended before it made one: ", Ending(Reap(*pid))));
  }
  absl::StatusOr<ContextAnswer> answer = Unpack<ContextAnswer>(hello->bytes);
  if (!answer.ok()) return answer.status();
  if (const absl::Status status = answer->status(); !status.ok()) {
    if (absl::IsResourceExhausted(status)) return status;
    return absl::InternalError(status.message());
  }
  std::unique_ptr<ContextProcess> process(
      new ContextProcess(*pid, std::move(pidfd), std::move(ours), std::move(on_death)));
  absl::StatusOr<std::thread> watcher =
      gpumem::StartThread([process = process.get()] { process->Watch(); });
  if (!watcher.ok()) return watcher.status();
  process->watcher_ = *std::move(watcher);
  child.release();
  return process;
}

ContextProcess::~ContextProcess() {
  if (!watcher_.joinable()) return;  // it was never watched, and is not ours to end
  // One that was gone before is still to be reported.
  if (!gone_) ending_ = true;
  {
    absl::MutexLock lock(&mutex_);
    socket_.reset();
  }
  if (!AwaitExit(pidfd_.get())) Kill();
  watcher_.join();
}

void ContextProcess::Kill() const {
  syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
}

void ContextProcess::AwaitEnd() const {
  while (!AwaitExit(pidfd_.get(), -1)) {
  }
}

void ContextProcess::Watch() {
  Reap(pid_);
  gone_ = true;
  if (!ending_) on_death_(pid_);
}

absl::Status ContextProcess::Gone(absl::string_view how) {
  gone_ = true;
  Kill();  // it may hang, or speak nonsense
  return absl::UnavailableError(
      absl::StrCat("the context process ", how, "; the memory in it is lost"));
}

absl::StatusOr<ContextAnswer> ContextProcess::Ask(const ContextRequest& request, UniqueFd* fd) {
  return Exchange(Pack(request), {}, kTimeout, fd);
}

absl::StatusOr<ContextAnswer> ContextProcess::Exchange(absl::string_view bytes,
                                                       absl::Span<const int> fds,
                                                       absl::Duration timeout, UniqueFd* fd) {
  absl::MutexLock lock(&mutex_);
  if (gone_) return Gone("is gone");
  const absl::Time deadline = absl::Now() + timeout;
  const absl::Status sent = gpumem::SendMessage(socket_.get(), bytes, fds, deadline);
  if (absl::IsResourceExhausted(sent)) return sent;  // too many descriptors are on their way
  if (!sent.ok()) return Gone("has ended");
  absl::StatusOr<gpumem::UnixMessage> received = gpumem::ReceiveMessage(socket_.get(), deadline);
  // The descriptor of a pool did not fit into this process: the pool is of no use then.
  if (absl::IsDataLoss(received.status())) {
    return absl::ResourceExhaustedError(
        absl::StrCat(received.status().message(), "; raise the daemon's limit of open files"));
  }
  if (absl::IsDeadlineExceeded(received.status())) return Gone("does not answer");
  if (!received.ok()) return Gone("has ended");
  absl::StatusOr<ContextAnswer> answer = Unpack<ContextAnswer>(received->bytes);
  if (!answer.ok()) return Gone("sent an invalid message");
  if (const absl::Status status = answer->status(); !status.ok()) return status;
  if (fd != nullptr && !received->fds.empty()) *fd = std::move(received->fds.front());
  return answer;
}

absl::StatusOr<ExportData> ContextProcess::CreateIpc(uint64_t memory, uint64_t bytes) {
  const absl::StatusOr<ContextAnswer> answer =
      Ask({.op = ContextOp::kCreateIpc, .memory = memory, .bytes = bytes});
  if (!answer.ok()) return answer.status();
  return answer->data;
}

absl::StatusOr<ExportData> ContextProcess::Allocate(uint64_t memory, uint64_t pool,
                                                    uint64_t bytes) {
  const absl::StatusOr<ContextAnswer> answer =
      Ask({.op = ContextOp::kAllocate, .memory = memory, .pool = pool, .bytes = bytes});
  if (!answer.ok()) return answer.status();
  return answer->data;
}

absl::Status ContextProcess::Free(uint64_t memory) {
  return Ask({.op = ContextOp::kFree, .memory = memory}).status();
}

absl::StatusOr<MadePool> ContextProcess::CreatePool(uint64_t pool, uint64_t max_bytes) {
  MadePool made;
  const absl::StatusOr<ContextAnswer> answer =
      Ask({.op = ContextOp::kCreatePool, .pool = pool, .bytes = max_bytes}, &made.fd);
  if (!answer.ok()) return answer.status();
  if (!made.fd.valid()) return absl::InternalError("a pool came without its descriptor");
  made.max_bytes = answer->max_bytes;
  return made;
}

absl::Status ContextProcess::DestroyPool(uint64_t pool) {
  return Ask({.op = ContextOp::kDestroyPool, .pool = pool}).status();
}

absl::StatusOr<PoolNumbers> ContextProcess::ReadPool(uint64_t pool) {
  const absl::StatusOr<ContextAnswer> answer = Ask({.op = ContextOp::kReadPool, .pool = pool});
  if (!answer.ok()) return answer.status();
  return answer->numbers;
}

absl::Status ContextProcess::SetPool(uint64_t pool, const PoolChange& change) {
  return Ask({.op = ContextOp::kSetPool, .pool = pool, .change = change}).status();
}

absl::Status ContextProcess::TrimPool(uint64_t pool, uint64_t keep_bytes) {
  return Ask({.op = ContextOp::kTrimPool, .pool = pool, .bytes = keep_bytes}).status();
}

absl::Status ContextProcess::StartCopy(const CopyBatch& batch) {
  const absl::StatusOr<CopyMessage> message = EncodeCopy(batch);
  if (!message.ok()) return message.status();
  return Exchange(message->bytes, message->fds, kCopyTimeout, nullptr).status();
}

absl::Status ContextProcess::FinishCopies() {
  const ContextRequest request{.op = ContextOp::kFinishCopies};
  return Exchange(Pack(request), {}, kCopyTimeout, nullptr).status();
}

absl::StatusOr<std::unique_ptr<Context>> MakeContext(const ContextSpec& spec) {
  if (absl::StartsWith(spec.device_uuid, "HOST-")) return MakeHostContext(spec);
  return MakeCudaContext(spec);
}

}  // namespace gpumemd
