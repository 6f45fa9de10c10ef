// SPDX-License-Identifier: Apache-2.0
// Linked into a program, makes one allocation of its process fail, of any thread and any library.
// The file $GPUMEM_FAILPOINT_FILE.allocation has a counter of 8 bytes, which a test may set at any
// time. Each allocation counts it down; that which brings it to 0 fails. No other does until the
// test sets it again, so that the next daemon has all of its allocations. memalign(), valloc() and
// pvalloc() are not counted.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

// A sanitizer replaces malloc(), too. clang names it in another way than gcc.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define GPUMEM_IS_SANITIZED
#endif
#endif
#if !defined(GPUMEM_IS_SANITIZED) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {

using Counter = std::atomic<int64_t>;
Counter* counter = nullptr;

// Before the constructors of others, and without an allocation.
__attribute__((constructor(101))) void Begin() {
  const char* file = getenv("GPUMEM_FAILPOINT_FILE");
  char path[512];
  if (file == nullptr || std::strlen(file) + sizeof(".allocation") > sizeof(path)) return;
  std::strcpy(path, file);
  std::strcat(path, ".allocation");
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* const shared = mmap(nullptr, sizeof(Counter), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (shared != MAP_FAILED) counter = static_cast<Counter*>(shared);
}

bool Fails() {
  if (counter == nullptr || counter->load(std::memory_order_relaxed) <= 0) return false;
  if (counter->fetch_sub(1) != 1) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace

extern "C" {

// The C library's own, behind the names that a program may replace.
void* __libc_malloc(size_t size);                      // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(size_t count, size_t size);        // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* memory, size_t size);       // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(size_t alignment, size_t size);  // NOLINT(bugprone-reserved-identifier)

void* malloc(size_t size) { return Fails() ? nullptr : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return Fails() ? nullptr : __libc_calloc(count, size); }
void* realloc(void* memory, size_t size) {
  return Fails() ? nullptr : __libc_realloc(memory, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  return Fails() ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
  void* const made = Fails() ? nullptr : __libc_memalign(alignment, size);
  if (made == nullptr) return ENOMEM;
  *memory = made;
  return 0;
}

}  // extern "C"

#endif
