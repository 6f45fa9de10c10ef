// Has the daemon that it is linked into killed at a failpoint: $GPUMEM_FAILPOINT_FILE is a file of
// the failpoint's name and after how many passes it is time, "deliver-after 3". The file is removed
// before the death, so that the next daemon lives. "record-before 1 hang": it does not die, but
// nobody gets past the failpoint any more.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "daemon/core/failpoint.h"

namespace gpumemd {
namespace {

struct Death {
  std::string file, name;
  std::atomic<int> passes{0};
  bool hangs = false;
};
Death death;

void Pass(const char* name) {
  if (death.name != name || --death.passes != 0) return;
  unlink(death.file.c_str());
  while (death.hangs) pause();
  kill(getpid(), SIGKILL);
}

const bool armed = [] {
  const char* file = std::getenv("GPUMEM_FAILPOINT_FILE");
  if (file == nullptr) return false;
  int passes = 0;
  std::ifstream words(file);
  if (!(words >> death.name >> passes)) return false;
  std::string how;
  death.hangs = words >> how && how == "hang";
  death.file = file;
  death.passes = passes;
  failpoint_hook = Pass;
  return true;
}();

}  // namespace
}  // namespace gpumemd
