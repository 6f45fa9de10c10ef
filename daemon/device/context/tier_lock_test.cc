// SPDX-License-Identifier: Apache-2.0
// Copiers that outlive their daemon: stand-ins, and one with a request that no daemon waits for.
#include "daemon/device/context/tier_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "common/unix_channel.h"
#include "daemon/device/context/copy_wire.h"
#include "daemon/device/context/process.h"
#include "daemon/device/context/wire.h"
#include "daemon/device/memfd.h"
#include "daemon/device/testing/tier_memory.h"

namespace gpumemd {
namespace {

using absl::StatusCode;
using gpumem::kMiB;
using gpumem::UniqueFd;

// A process that has the tier's file locked. It lives until Finish(), or until it is killed.
class Copier {
 public:
  // `work` runs in it at the end. Returns once it has the lock.
  explicit Copier(
      int tier_fd, const char* name = kContextProcessName,
      const std::function<void()>& work = [] {}) {
    int ready[2], finish[2];
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(finish, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(finish[1]);
      prctl(PR_SET_NAME, name);
      TierLock lock;
      if (!lock.Hold(tier_fd).ok() || !lock.Hold(tier_fd).ok()) _exit(2);
      char byte = 'r';
      if (write(ready[1], &byte, 1) != 1) _exit(3);
      while (read(finish[0], &byte, 1) > 0) {
      }
      work();
      _exit(0);
    }
    close(ready[1]);
    close(finish[0]);
    finish_.reset(finish[1]);
    const UniqueFd told(ready[0]);
    char byte = 0;
    EXPECT_EQ(read(told.get(), &byte, 1), 1);
  }
  ~Copier() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    Wait();
  }
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  void Finish() { finish_.reset(); }
  // True if it has ended. Does not reap it.
  bool ended() const {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid_;
  }
  // Returns its wait status.
  int Wait() {
    int status = 0;
    EXPECT_GT(waitpid(std::exchange(pid_, 0), &status, 0), 0);
    return status;
  }

 private:
  pid_t pid_ = 0;
  UniqueFd finish_;
};

class TierLockTest : public testing::Test {
 protected:
  const std::unique_ptr<TierMemory> tier_ = *TierMemory::Make(4 * kMiB);
};

TEST_F(TierLockTest, WithoutACopierNothingIsAwaited) {
  EXPECT_EQ(AwaitCopiers(tier_->fd(), absl::ZeroDuration()), absl::OkStatus());
  { const Copier copier(tier_->fd()); }
  EXPECT_EQ(AwaitCopiers(tier_->fd(), absl::ZeroDuration()), absl::OkStatus());
}

TEST_F(TierLockTest, ACopierEndsBeforeTheFileIsTaken) {
  char* const data = tier_->data();
  Copier first(tier_->fd(), kContextProcessName, [data] { data[0] = 'a'; });
  Copier second(tier_->fd(), kContextProcessName, [data] { data[1] = 'b'; });
  std::atomic<bool> taken = false;
  std::thread next([&] {
    EXPECT_EQ(AwaitCopiers(tier_->fd(), absl::InfiniteDuration()), absl::OkStatus());
    EXPECT_TRUE(first.ended());
    taken = true;
  });
  second.Finish();
  EXPECT_EQ(second.Wait(), 0);
  EXPECT_FALSE(taken);
  first.Finish();
  next.join();
  EXPECT_EQ(std::string(data, 2), "ab");
}

TEST_F(TierLockTest, ACopierThatStaysIsKilled) {
  Copier copier(tier_->fd());
  EXPECT_EQ(AwaitCopiers(tier_->fd(), absl::Milliseconds(20)), absl::OkStatus());
  EXPECT_EQ(copier.Wait(), SIGKILL);
}

TEST_F(TierLockTest, AnotherProcessIsNotKilled) {
  Copier other(tier_->fd(), "innocent");
  const absl::Status refused = AwaitCopiers(tier_->fd(), absl::ZeroDuration());
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << refused;
  EXPECT_FALSE(other.ended());
}

// Its daemon ends between the request and its execution, and the next daemon sees no lock.
TEST_F(TierLockTest, ARequestOfADaemonThatIsGoneIsNotExecuted) {
  absl::StatusOr<UniqueFd> segment = MakeSealedMemfd("segment", 2 * kMiB);
  ASSERT_TRUE(segment.ok()) << segment.status();
  ASSERT_EQ(pwrite(segment->get(), "x", 1, 0), 1);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd daemon(ends[0]), copiers(ends[1]);
  const pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    daemon.reset();
    dup2(copiers.get(), kContextSocket);
    std::string name = "test", flag = kContextFlag, uuid = "HOST-00000000", path;
    char* argv[] = {name.data(), flag.data(), uuid.data(), path.data(), nullptr};
    _exit(RunAsContextProcess(4, argv).value_or(99));
  }
  copiers.reset();
  const auto hello = gpumem::ReceiveMessage(daemon.get(), absl::InfiniteFuture());
  ASSERT_TRUE(hello.ok()) << hello.status();
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
  const CopyPart part{
      .fd = segment->get(), .segment_bytes = 2 * kMiB, .extents = {{.offset = 0, .bytes = kMiB}}};
  const auto request = EncodeCopy({.tier_fd = tier_->fd(), .parts = {part}});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_TRUE(
      gpumem::SendMessage(daemon.get(), request->bytes, request->fds, absl::InfiniteFuture()).ok());
  daemon.reset();
  EXPECT_EQ(AwaitCopiers(tier_->fd(), absl::ZeroDuration()), absl::OkStatus());
  ASSERT_EQ(kill(pid, SIGCONT), 0);
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(tier_->data()[0], '\0');
}

}  // namespace
}  // namespace gpumemd
