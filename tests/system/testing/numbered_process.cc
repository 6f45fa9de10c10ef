// SPDX-License-Identifier: Apache-2.0
#include "tests/system/testing/numbered_process.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "tests/support/child.h"

namespace gpumem::testing {

pid_t Start(const Part& part, bool as_other_user, int end, const sockaddr_un& address,
            const Life& life) {
  pid_t wanted = kNumber;
  clone_args args{};
  args.exit_signal = SIGCHLD;
  args.set_tid = reinterpret_cast<uint64_t>(&wanted);
  args.set_tid_size = 1;
  const pid_t pid = static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof(args)));
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, part.name);
  if (!part.procs.empty()) {
    const int procs = open(part.procs.c_str(), O_WRONLY | O_CLOEXEC);
    if (procs < 0 || write(procs, "0", 1) != 1) syscall(SYS_exit_group, 3);
    close(procs);
  }
  if (as_other_user && (syscall(SYS_setresgid, part.id, part.id, part.id) != 0 ||
                        syscall(SYS_setresuid, part.id, part.id, part.id) != 0)) {
    syscall(SYS_exit_group, 4);
  }
  if (connect(end, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    syscall(SYS_exit_group, 5);
  }
  if (!life.hello.empty()) (void)send(end, life.hello.data(), life.hello.size(), 0);
  for (int i = 0; i < life.yields; ++i) sched_yield();
  while (life.stays) pause();
  syscall(SYS_exit_group, 0);
  return 0;
}

bool Reap() {
  int status = 0;
  return waitpid(kNumber, &status, 0) == kNumber && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void Kill() {
  kill(kNumber, SIGKILL);
  waitpid(kNumber, nullptr, 0);
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd NewEnd() { return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

bool Connected(int end) {
  return Eventually([end] {
    sockaddr_un peer;
    socklen_t size = sizeof(peer);
    return getpeername(end, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
  });
}

}  // namespace gpumem::testing
