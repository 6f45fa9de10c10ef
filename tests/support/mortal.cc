// SPDX-License-Identifier: Apache-2.0
// Kills the program that it is linked into at a failpoint. $GPUMEM_FAILPOINT_FILE, as it is when
// the program starts, contains the failpoint's name and a number of passes, "deliver-after 3". The
// file is removed before the death, so that the next daemon lives. "record-before 1 hang": it does
// not die, but no thread gets past the failpoint any more. "record-before 1 pause 50": it does not
// die, but takes 50 ms there, once. The file is removed at its start.
//
// A file of that name and ".target" names a process, too, "deliver-after 1 4711", and may come at
// any time. That process is killed after so many further passes of the failpoint by this one, which
// goes on when it is dead.
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

#include "common/failpoint.h"

namespace gpumem::testing {
namespace {

struct Death {
  std::string file, name;
  std::atomic<int> passes{0};
  bool hangs = false;
  int pause_ms = 0;  // 0: it does not pause
};
Death death;

struct Target {
  std::mutex mutex;
  std::string file, name;
  int passes = 0;
  pid_t pid = 0;  // 0: none
};
Target target;

void KillAndWait(pid_t pid) {
  const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  kill(pid, SIGKILL);
  pollfd dead = {process, POLLIN, 0};
  poll(&dead, 1, -1);
  close(process);
}

void PassTarget(const char* name) {
  std::lock_guard lock(target.mutex);
  if (target.pid == 0) {
    if (access(target.file.c_str(), R_OK) != 0) return;
    std::ifstream(target.file) >> target.name >> target.passes >> target.pid;
  }
  if (target.name != name || --target.passes > 0) return;
  unlink(target.file.c_str());
  KillAndWait(target.pid);
  target.pid = 0;
}

void Pass(const char* name) {
  PassTarget(name);
  if (death.name != name || --death.passes != 0) return;
  if (death.pause_ms > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(death.pause_ms));
    return;
  }
  unlink(death.file.c_str());
  while (death.hangs) pause();
  kill(getpid(), SIGKILL);
}

const bool armed = [] {
  const char* file = std::getenv("GPUMEM_FAILPOINT_FILE");
  if (file == nullptr) return false;
  target.file = std::string(file) + ".target";
  failpoint_hook = Pass;
  int passes = 0;
  std::ifstream words(file);
  if (!(words >> death.name >> passes)) return false;
  std::string how;
  death.hangs = words >> how && how == "hang";
  // The file is for this one alone: the next may be armed before this one gets there.
  if (how == "pause" && (!(words >> death.pause_ms) || unlink(file) != 0)) return false;
  death.file = file;
  death.passes = passes;
  return true;
}();

}  // namespace
}  // namespace gpumem::testing
