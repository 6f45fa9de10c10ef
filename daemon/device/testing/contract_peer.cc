// SPDX-License-Identifier: Apache-2.0
#include "daemon/device/testing/contract_peer.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unix_channel.h"
#include "daemon/device/testing/contract_peer_server.h"

namespace gpumemd {
namespace {

using gpumem::UniqueFd;
using gpumem::UnixMessage;

constexpr char kPeerFlag[] = "--serve-as-contract-peer";
constexpr int kPeerSocket = 3;
constexpr uid_t kNobody = 65534;
// Making a first CUDA context on a busy machine takes seconds.
constexpr absl::Duration kPeerTimeout = absl::Seconds(120);

absl::Status Refused(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(absl::ErrnoToStatus(errno, what).message(),
                                                    "; that takes root, outside of a sandbox"));
}

absl::Status BecomeNobody() {
  if (setgroups(0, nullptr) != 0 || setgid(kNobody) != 0 || setuid(kNobody) != 0) {
    return Refused("becoming another user");
  }
  // The process owns its files in /proc again.
  prctl(PR_SET_DUMPABLE, 1);
  return absl::OkStatus();
}

// In the outer process of separate namespaces: the server inside them, for which this one only
// waits.
volatile sig_atomic_t inner_pid = 0;

void KillInner(int) { kill(static_cast<pid_t>(inner_pid), SIGKILL); }

// Continues in a child that is in the namespaces; ends this process with it.
absl::Status EnterNamespaces() {
  if (unshare(CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS) != 0) {
    return Refused("entering namespaces");
  }
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, &before);
  const pid_t child = fork();
  if (child < 0) return Refused("fork");
  if (child > 0) {
    close(kPeerSocket);
    inner_pid = child;
    signal(SIGTERM, KillInner);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
    return Refused("mounting /proc");
  }
  return absl::OkStatus();
}

absl::Status Become(absl::string_view identity) {
  if (identity == PeerIdentityName(PeerIdentity::kOtherUser)) return BecomeNobody();
  if (identity == PeerIdentityName(PeerIdentity::kOwnNamespaces)) return EnterNamespaces();
  return absl::OkStatus();
}

}  // namespace

absl::string_view PeerIdentityName(PeerIdentity identity) {
  switch (identity) {
    case PeerIdentity::kThisProcess:
      return "ThisProcess";
    case PeerIdentity::kSameUser:
      return "SameUser";
    case PeerIdentity::kOtherUser:
      return "OtherUser";
    case PeerIdentity::kOwnNamespaces:
      return "OwnNamespaces";
  }
  return "Unknown";
}

ContractPeer::ContractPeer() = default;

absl::StatusOr<std::unique_ptr<ContractPeer>> ContractPeer::Start(PeerIdentity identity) {
  std::unique_ptr<ContractPeer> peer(new ContractPeer);
  peer->identity_ = identity;
  if (identity == PeerIdentity::kThisProcess) {
    peer->here_ = std::make_unique<PeerServer>();
    return peer;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "socketpair");
  }
  peer->socket_.reset(ends[0]);
  const UniqueFd theirs(ends[1]);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), kPeerSocket);
  std::string program = "/proc/self/exe";
  std::string flag = kPeerFlag;
  std::string who(PeerIdentityName(identity));
  char* const argv[] = {program.data(), flag.data(), who.data(), nullptr};
  const int error = posix_spawn(&peer->pid_, program.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::ErrnoToStatus(error, "posix_spawn");
  if (absl::Status status = peer->Ask("hello"); !status.ok()) return status;
  return peer;
}

ContractPeer::~ContractPeer() { Kill(); }

void ContractPeer::Kill() {
  if (pid_ == 0) return;
  // The outer process of namespaces kills the inner one, and ends after it.
  kill(pid_, identity_ == PeerIdentity::kOwnNamespaces ? SIGTERM : SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
}

absl::Status ContractPeer::Ask(absl::string_view command, absl::Span<const int> fds,
                               UniqueFd* answer) {
  if (here_ != nullptr) {
    UnixMessage message{.bytes = std::string(command)};
    for (const int fd : fds) message.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    absl::StatusOr<UniqueFd> done = here_->Do(std::move(message));
    if (!done.ok()) return done.status();
    if (answer != nullptr) *answer = *std::move(done);
    return absl::OkStatus();
  }
  const absl::Time deadline = absl::Now() + kPeerTimeout;
  absl::Status sent = gpumem::SendMessage(socket_.get(), command, fds, deadline);
  if (!sent.ok()) return sent;
  absl::StatusOr<UnixMessage> received = gpumem::ReceiveMessage(socket_.get(), deadline);
  if (!received.ok()) return received.status();
  // "CODE MESSAGE".
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(received->bytes, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(parts.first, &code)) return absl::InternalError(received->bytes);
  if (answer != nullptr && !received->fds.empty()) *answer = std::move(received->fds.front());
  return absl::Status(static_cast<absl::StatusCode>(code), parts.second);
}

absl::Status ContractPeer::Open(absl::string_view verb, const SharedMemory& memory,
                                bool read_only) {
  std::string data = "-";
  if (memory.data.has_value()) {
    data = absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(memory.data->data()), memory.data->size()));
  }
  return Ask(absl::StrCat(verb, " ", static_cast<int>(memory.kind), " ", memory.device_uuid, " ",
                          memory.runtime_dir.empty() ? "-" : memory.runtime_dir, " ", memory.bytes,
                          " ", memory.pool_id, " ", data, read_only ? " ro" : " rw"),
             memory.fds);
}

absl::Status ContractPeer::Map(const SharedMemory& memory, bool read_only) {
  return Open("map", memory, read_only);
}

absl::Status ContractPeer::MapAgain(const SharedMemory& memory) {
  return Open("map-again", memory, /*read_only=*/false);
}

absl::Status ContractPeer::Unmap() { return Ask("unmap"); }

absl::Status ContractPeer::WritePattern(uint64_t seed) { return Ask(absl::StrCat("write ", seed)); }

absl::Status ContractPeer::ExpectPattern(uint64_t seed) {
  return Ask(absl::StrCat("expect ", seed));
}

absl::Status ContractPeer::ExpectZeros() { return Ask("expect-zeros"); }

absl::Status ContractPeer::Keep(int fd) { return Ask("keep", {fd}); }

absl::StatusOr<UniqueFd> ContractPeer::GiveBack() {
  UniqueFd fd;
  absl::Status status = Ask("give-back", {}, &fd);
  if (!status.ok()) return status;
  return fd;
}

std::optional<int> RunAsContractPeer(int argc, char** argv) {
  if (argc != 3 || strcmp(argv[1], kPeerFlag) != 0) return std::nullopt;
  const absl::Status became = Become(argv[2]);
  const UniqueFd socket(kPeerSocket);
  PeerServer server;
  while (true) {
    absl::StatusOr<UnixMessage> message =
        gpumem::ReceiveMessage(socket.get(), absl::InfiniteFuture());
    if (absl::IsUnavailable(message.status())) return 0;
    if (!message.ok()) return 1;
    const absl::StatusOr<UniqueFd> done =
        became.ok() ? server.Do(*std::move(message)) : absl::StatusOr<UniqueFd>(became);
    std::vector<int> fds;
    if (done.ok() && done->valid()) fds.push_back(done->get());
    const std::string answer =
        absl::StrCat(static_cast<int>(done.status().code()), " ", done.status().message());
    if (!gpumem::SendMessage(socket.get(), answer, fds, absl::InfiniteFuture()).ok()) return 1;
  }
}

}  // namespace gpumemd
