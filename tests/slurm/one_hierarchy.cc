// SPDX-License-Identifier: Apache-2.0
// Preloaded into slurmd and slurmstepd, hides control groups of version 1: /proc/self/cgroup has
// the line of version 2 alone, as on a machine that has no other. Slurm's plug-in for version 2
// refuses machines with both.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace {

using Open = int (*)(const char*, int, ...);

Open RealOpen() {
  static const Open real = reinterpret_cast<Open>(dlsym(RTLD_NEXT, "open"));
  return real;
}

int OpenFiltered(const char* path) {
  const int in = RealOpen()(path, O_RDONLY | O_CLOEXEC);
  if (in < 0) return in;
  char text[4096];
  const ssize_t size = read(in, text, sizeof(text) - 1);
  close(in);
  text[size > 0 ? size : 0] = '\0';
  const char* line = strstr(text, "0::");
  if (line == nullptr) line = "";
  const int out = memfd_create("cgroup", MFD_CLOEXEC);
  const auto length = static_cast<ssize_t>(strlen(line));
  if (out >= 0 && (write(out, line, strlen(line)) != length || lseek(out, 0, SEEK_SET) != 0)) {
    close(out);
    return -1;
  }
  return out;
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  if (strcmp(path, "/proc/self/cgroup") == 0) return OpenFiltered(path);
  va_list more;
  va_start(more, flags);
  const int mode = va_arg(more, int);
  va_end(more);
  return RealOpen()(path, flags, mode);
}
