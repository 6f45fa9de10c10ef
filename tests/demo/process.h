// SPDX-License-Identifier: Apache-2.0
// A child process that talks in lines and does not outlive its parent.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumem::demo {

// Ends the demo; the message is the error, in one sentence.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// SIGINT and SIGTERM become a Failure in whichever wait comes next, so that everything
// is cleaned up.
void CatchSignals();
void ThrowIfInterrupted();

struct ProcessOptions {
  std::vector<std::string> argv;                   // the program's path first
  std::map<std::string, std::string> environment;  // besides this process's own
  std::string log_file;     // for stdout and stderr; empty: stdout is read by ReadLine
  bool stderr_too = false;  // ReadLine reads stderr as well
};

class Process {
 public:
  // Throws Failure if it cannot be started.
  explicit Process(const ProcessOptions& options);
  // Kills and reaps it.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  // The next line that it writes, without its end; nullopt once it has closed its output.
  // Throws Failure at the deadline.
  std::optional<std::string> ReadLine(absl::Time deadline);

  // Writes a line to its input. The line is lost if it has gone.
  void WriteLine(const std::string& line);

  void Signal(int signal);

  // Reaps it: its exit code, or 128 and the signal that ended it. Throws Failure at the
  // deadline.
  int Wait(absl::Time deadline);

  // As Wait, but nullopt if it still runs.
  std::optional<int> Poll();

 private:
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
  UniqueFd pidfd_;
  UniqueFd input_;
  UniqueFd output_;
  std::string unread_;
};

}  // namespace gpumem::demo
