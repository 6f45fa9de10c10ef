// SPDX-License-Identifier: Apache-2.0
// gpumemctl in a terminal: its screen, and keys for it.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace gpumem {

// A child process whose stdin, stdout and stderr are a pseudo terminal, killed and reaped by the
// destructor. For one thread.
class PseudoTerminal {
 public:
  struct Size {
    unsigned short rows = 24;
    unsigned short columns = 80;
  };
  // `environment` besides this process's own; TERM is xterm and NO_COLOR unset otherwise.
  PseudoTerminal(const std::vector<std::string>& argv, Size size,
                 const std::map<std::string, std::string>& environment = {});
  ~PseudoTerminal();
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  pid_t pid() const { return pid_; }

  void Type(const std::string& keys);
  // The terminal gets another size, and the process a SIGWINCH.
  void Resize(Size size);

  // Reads the output until `text` appears on the screen, or disappears. False: the child has ended,
  // or the deadline is over.
  bool WaitFor(const std::string& text, absl::Time deadline);
  bool WaitUntilGone(const std::string& text, absl::Time deadline);
  // Waits for its end: its exit code, or 128 and the signal that ended it; -1: it does not end.
  int Wait(absl::Time deadline);

  // Returns the present screen: the text of the last picture, without colours.
  std::string Screen() const;
  // Returns its raw output.
  const std::string& written() const { return written_; }

 private:
  bool Read(absl::Time deadline);

  pid_t pid_ = -1;
  UniqueFd leader_;
  std::string written_;
};

// The text of a frame: escape sequences are taken out, and line ends made '\n'.
std::string PlainText(const std::string& frame);

}  // namespace gpumem
