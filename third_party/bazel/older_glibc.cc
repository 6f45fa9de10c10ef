// SPDX-License-Identifier: Apache-2.0
// Two functions of glibc that GCC's own archives call, so that a program with libstdc++ and libgcc
// inside runs with glibc 2.34. Hidden: libraries that are loaded at run time keep glibc's.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#define GPUMEM_HIDDEN __attribute__((visibility("hidden")))

namespace {

struct Search {
  uintptr_t address;
  dl_find_object* result;
};

// Returns 1, which ends the iteration, if the object contains the address.
int Look(dl_phdr_info* info, size_t, void* data) {
  const auto* search = static_cast<Search*>(data);
  const ElfW(Phdr)* unwind = nullptr;
  uintptr_t start = UINTPTR_MAX, end = 0;
  bool found = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    const uintptr_t first = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_GNU_EH_FRAME) unwind = &segment;
    if (segment.p_type != PT_LOAD) continue;
    if (first < start) start = first;
    if (first + segment.p_memsz > end) end = first + segment.p_memsz;
    if (search->address - first < segment.p_memsz) found = true;
  }
  if (!found || unwind == nullptr) return 0;
  *search->result = {};
  search->result->dlfo_map_start = reinterpret_cast<void*>(start);
  search->result->dlfo_map_end = reinterpret_cast<void*>(end);
  search->result->dlfo_eh_frame = reinterpret_cast<void*>(info->dlpi_addr + unwind->p_vaddr);
  return 1;
}

}  // namespace

extern "C" {

// glibc 2.35: libgcc finds the unwind table of a function by it. Returns 0 if there is one. Leaves
// dlfo_link_map empty, which libgcc does not read. Takes the loader's lock, as libgcc itself did
// before glibc had the function: code must not throw in a signal handler.
GPUMEM_HIDDEN int _dl_find_object(void* address, dl_find_object* result) noexcept {
  Search search = {reinterpret_cast<uintptr_t>(address), result};
  return dl_iterate_phdr(Look, &search) == 1 ? 0 : -1;
}

// glibc 2.36: std::random_device draws from it. Has no state that a fork could copy. getentropy()
// blocks until the kernel has entropy, and repeats a call that a signal interrupted. It fails only
// where a filter denies getrandom(2); numbers that are not random would be worse than the end.
GPUMEM_HIDDEN uint32_t arc4random() noexcept {
  uint32_t number = 0;
  if (getentropy(&number, sizeof(number)) != 0) abort();
  return number;
}
}
