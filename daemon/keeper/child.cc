// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper/child.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <utility>

namespace gpumemd::keeper {
namespace {

using gpumem::UniqueFd;

constexpr int kFirst = 3;  // SD_LISTEN_FDS_START

// In the child: gives `fds` the numbers from kFirst on, in order, and leaves only these open
// across exec. Of other descriptors it overwrites those below kFirst + fds.size().
bool Place(std::vector<int> fds) {
  const int end = kFirst + static_cast<int>(fds.size());
  std::unordered_map<int, size_t> owner;  // number -> which one has it
  for (size_t i = 0; i < fds.size(); ++i) owner[fds[i]] = i;
  for (size_t i = 0; i < fds.size(); ++i) {
    const int target = kFirst + static_cast<int>(i);
    if (fds[i] == target) {
      if (fcntl(target, F_SETFD, 0) != 0) return false;
      continue;
    }
    const auto occupant = owner.find(target);
    if (occupant == owner.end()) {
      if (dup2(fds[i], target) < 0) return false;
      continue;
    }
    // They change places.
    const UniqueFd aside(fcntl(target, F_DUPFD_CLOEXEC, end));
    if (!aside.valid() || dup2(fds[i], target) < 0 || dup3(aside.get(), fds[i], O_CLOEXEC) < 0) {
      return false;
    }
    const size_t other = occupant->second;
    owner.erase(occupant);
    owner[fds[i]] = other;
    fds[other] = fds[i];
  }
  return true;
}

void SetEnvironment(const ChildSpec& spec, const StoredFds& stored) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  set("NOTIFY_SOCKET", spec.notify_socket);
  set("FDSTORE", std::to_string(spec.max_fds));
  set("GPUMEM_KEEPER_PID", std::to_string(getppid()));
  if (stored.empty()) {
    for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) unsetenv(name);
    return;
  }
  set("LISTEN_PID", std::to_string(getpid()));
  set("LISTEN_FDS", std::to_string(stored.size()));
  set("LISTEN_FDNAMES", stored.Names());
}

// Replaces the child process by the command. Returns on failure; errno says why.
void Become(const ChildSpec& spec, const StoredFds& stored) {
  if (!Place(stored.Numbers())) return;
  SetEnvironment(spec, stored);
  std::vector<char*> argv;
  for (const std::string& word : spec.command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  sigaction(SIGPIPE, &spec.on_pipe, nullptr);
  sigprocmask(SIG_SETMASK, &spec.signal_mask, nullptr);
  execvp(argv[0], argv.data());
}

}  // namespace

pid_t RunChild(const ChildSpec& spec, const StoredFds& stored) {
  // Closes at exec: then the other end has read nothing.
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return -1;
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return -1;
  if (pid == 0) {
    // Out of the way of the numbers to come.
    const int report =
        fcntl(theirs.get(), F_DUPFD_CLOEXEC, kFirst + static_cast<int>(stored.size()));
    if (report >= 0) Become(spec, stored);
    const int error = errno;
    (void)!write(report >= 0 ? report : theirs.get(), &error, sizeof(error));
    _exit(127);
  }
  theirs.reset();
  int error = 0;
  ssize_t size;
  do {
    size = read(ours.get(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  if (size == 0) return pid;
  // It could not run; the error reports its end, not the exit code.
  if (size < 0) kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  errno = error;
  return -1;
}

}  // namespace gpumemd::keeper
