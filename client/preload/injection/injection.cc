// SPDX-License-Identifier: Apache-2.0
// The second way into a program, for those that cannot take a preload. If CUDA_INJECTION64_PATH
// names this library, the driver loads it in the first cuInit(), and calls InitializeInjection().
// That writes a jump to the stub into each of the driver's functions that has one. Driver gets the
// moved beginnings of these functions.
//
// cuGetProcAddress() stays as it is: the addresses that it gives lead to the stubs by themselves.
//
// Other threads may be in the driver at the same time, in cuInit() or in what needs no cuInit().
// They run other functions than those with stubs, which all answer NOT_INITIALIZED before cuInit()
// has returned. EditCode() lets them go on.
#include "client/preload/toolkit.h"

#if GPUMEM_PRELOAD_BUILT
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include <new>

#include "client/preload/driver.h"
#include "client/preload/elf.h"
#include "client/preload/injection/patch.h"
#include "client/preload/injection/relocator.h"
#include "client/preload/lock.h"

extern "C" int InitializeInjection(void);

namespace gpumem::preload {
namespace {

#if defined(__x86_64__)
constexpr bool kAvailable = true;
#else
constexpr bool kAvailable = false;
#endif
constexpr const char kRelocator[] = "libgpumem-relocator.so";
constexpr size_t kFunctionAlignment = 16;  // what lies between functions is padding
constexpr size_t kNearJump = 5;            // E9 and 32 bits
constexpr size_t kFarJump = 14;            // FF 25, 0 in 32 bits, and the address
constexpr size_t kIsland = 128;            // room for a trampoline and a far jump
// NOLINTNEXTLINE(bugprone-macro-parentheses): it is a term of a sum.
#define GPUMEM_PRELOAD_COUNT(name) +1
constexpr size_t kMostStubs = GPUMEM_PRELOAD_STUBS(GPUMEM_PRELOAD_COUNT);
#undef GPUMEM_PRELOAD_COUNT

// What grants memory that a program has not already: without these it gets none.
constexpr const char* kGranting[] = {"cuDevicePrimaryCtxRetain",
                                     "cuCtxCreate",
                                     "cuCtxCreate_v2",
                                     "cuCtxCreate_v3",
                                     "cuCtxCreate_v4",
                                     "cuGreenCtxCreate",
                                     "cuMemCreate",
                                     "cuMemAlloc",
                                     "cuMemAlloc_v2",
                                     "cuMemAllocManaged"};

// Writes one line. `name` is that of a function, or empty.
void Tell(const char* name, const char* why, const char* then) {
  const char* words[] = {
      "libgpumem-preload: injection: ", name, *name == '\0' ? "" : " ", why, "; ", then, "\n"};
  iovec parts[sizeof(words) / sizeof(words[0])];
  int count = 0;
  for (const char* word : words) {
    parts[count].iov_base = const_cast<char*>(word);
    parts[count++].iov_len = strlen(word);
  }
  if (writev(STDERR_FILENO, parts, count) < 0) return;
}

// True if a preload is in the program, this library or a copy. It was loaded before the C library.
bool IsPreloaded() {
  bool found = false;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        LoadedObject object;
        if (info->dlpi_name == nullptr) return 0;
        if (HasPrefix(BaseName(info->dlpi_name), "libc.so")) return 1;
        if (!DescribeObject(*info, &object)) return 0;
        if (FindFunction(object, "InitializeInjection") == nullptr) return 0;
        if (FindFunction(object, "cuMemAlloc_v2") == nullptr) return 0;
        *static_cast<bool*>(data) = true;
        return 1;
      },
      &found);
  return found;
}

using Relocate = decltype(&gpumem_relocate);

// Loads the library that reads instructions: the one that the environment names, or the one beside
// this library.
Relocate LoadRelocator() {
  const char* path = secure_getenv("GPUMEM_PRELOAD_RELOCATOR");
  LoadedObject self;
  if (path == nullptr || *path == '\0') {
    if (!FindObjectOf(reinterpret_cast<const void*>(&InitializeInjection), &self)) return nullptr;
    const size_t folder = static_cast<size_t>(BaseName(self.path) - self.path);
    if (folder + sizeof(kRelocator) > sizeof(self.path)) return nullptr;
    memcpy(self.path + folder, kRelocator, sizeof(kRelocator));
    path = self.path;
  }
  void* library = OpenLibrary(path, RTLD_NOW | RTLD_LOCAL);
  auto search = reinterpret_cast<void* (*)(void*, const char*)>(RealDlsym());
  if (library == nullptr || search == nullptr) return nullptr;
  return reinterpret_cast<Relocate>(search(library, "gpumem_relocate"));
}

// A function of the driver, and its replacement.
struct Detour {
  const Stub* stub;
  uint8_t* entry;
  size_t size;
  uint8_t* island;
  const Detour* same;  // another name of the same function, which comes before this one
};

// All functions of the driver that have stubs. Too large for the stack of a small thread; used
// once.
class Injection {
 public:
  // Replaces all of them; if one of them cannot be, has the driver refuse memory.
  void Run() {
    if (!kAvailable) return Abandon("", "it is not available on this processor");
    if (!Collect()) return Abandon("", "there is no room near the driver");
    Relocate relocate = LoadRelocator();
    if (relocate == nullptr) return Refuse("", "libgpumem-relocator.so cannot be loaded");
    for (size_t i = 0; i < count_; ++i) {
      if (detours_[i].same != nullptr) continue;
      if (const char* why = Prepare(relocate, detours_[i])) {
        return Refuse(detours_[i].stub->name, why);
      }
    }
    if (!MakeExecutable(islands_, kSize)) return Abandon("", "new code is not allowed");
    // Before the first stub can be reached.
    for (size_t i = 0; i < count_; ++i) {
      const Detour& detour = detours_[i].same == nullptr ? detours_[i] : *detours_[i].same;
      Rebind(*detours_[i].stub, detour.island);
    }
    if (EditCode(edits_, edit_count_) == Edited::kAll) return;
    Abandon("", "the driver's code cannot be changed");
  }

 private:
  // One island is for the answer of Refuse().
  static constexpr size_t kSize = (kMostStubs + 1) * kIsland;

  bool Collect() {
    const LoadedObject* driver = DriverObject();
    size_t count = 0;
    const Stub* stubs = Stubs(&count);
    if (driver == nullptr) return false;
    for (size_t i = 0; i < count && count_ < kMostStubs; ++i) {
      if (HasPrefix(stubs[i].name, "cuGetProcAddress")) continue;
      Detour detour = {&stubs[i], nullptr, 0, nullptr, nullptr};
      detour.entry = static_cast<uint8_t*>(FindFunction(*driver, stubs[i].name, &detour.size));
      if (detour.entry == nullptr) continue;
      for (size_t j = 0; j < count_ && detour.same == nullptr; ++j) {
        if (detours_[j].entry == detour.entry) detour.same = &detours_[j];
      }
      detours_[count_++] = detour;
    }
    islands_ = AllocateNear(driver->begin, driver->end, kSize);
    return islands_ != nullptr;
  }

  // Writes the island of a function: what the function did, and a jump to the stub.
  const char* Prepare(Relocate relocate, Detour& detour) {
    detour.island = islands_ + static_cast<size_t>(&detour - detours_) * kIsland;
    const uintptr_t end = reinterpret_cast<uintptr_t>(detour.entry) + detour.size;
    const size_t padding = (kFunctionAlignment - end % kFunctionAlignment) % kFunctionAlignment;
    const GpumemFunction function = {detour.entry, detour.size, detour.size + padding,
                                     detour.island, kIsland - kFarJump};
    GpumemRelocation relocation;
    if (const char* why = relocate(&function, &relocation)) return why;
    uint8_t* to_stub = detour.island + kIsland - kFarJump;
    PutFarJump(to_stub, detour.stub->function);
    AddJump(detour.entry + relocation.kept, to_stub);
    return nullptr;
  }

  static void PutFarJump(uint8_t* at, const void* target) {
    const uint8_t jump[] = {0xFF, 0x25, 0, 0, 0, 0};
    memcpy(at, jump, sizeof(jump));
    memcpy(at + sizeof(jump), &target, sizeof(target));
  }

  void AddJump(uint8_t* from, const uint8_t* to) {
    Edit& edit = edits_[edit_count_++];
    edit.at = from;
    edit.size = kNearJump;
    edit.bytes[0] = 0xE9;
    const int32_t distance = static_cast<int32_t>(to - (from + kNearJump));
    memcpy(edit.bytes + 1, &distance, sizeof(distance));
  }

  // Has the functions that grant memory answer out of memory. That needs no knowledge of their code
  // but how long they are.
  void Refuse(const char* name, const char* why) {
    const uint8_t out_of_memory[] = {0xB8, CUDA_ERROR_OUT_OF_MEMORY, 0, 0, 0, 0xC3};
    uint8_t* answer = islands_ + kSize - kIsland;
    memcpy(answer, out_of_memory, sizeof(out_of_memory));
    edit_count_ = 0;
    for (size_t i = 0; i < count_; ++i) {
      const Detour& detour = detours_[i];
      bool grants = false;
      for (const char* each : kGranting) grants = grants || strcmp(each, detour.stub->name) == 0;
      if (!grants || detour.same != nullptr) continue;
      const uint8_t endbr64[] = {0xF3, 0x0F, 0x1E, 0xFA};
      size_t kept = 0;
      if (detour.size >= sizeof(endbr64) && memcmp(detour.entry, endbr64, sizeof(endbr64)) == 0) {
        kept = sizeof(endbr64);
      }
      if (detour.size < kept + kNearJump) return Abandon(name, why);
      AddJump(detour.entry + kept, answer);
    }
    if (!MakeExecutable(islands_, kSize) || EditCode(edits_, edit_count_) != Edited::kAll) {
      return Abandon(name, why);
    }
    Tell(name, why, "every request for device memory is refused");
  }

  // The driver would go on without a limit.
  [[noreturn]] void Abandon(const char* name, const char* why) {
    Tell(name, why, "the program ends, as it cannot be held to its limit");
    _exit(EXIT_FAILURE);
  }

  Detour detours_[kMostStubs] = {};
  size_t count_ = 0;
  Edit edits_[kMostStubs];
  size_t edit_count_ = 0;
  uint8_t* islands_ = nullptr;
};

Mutex g_injection_mutex;
bool g_injected = false;  // under g_injection_mutex

}  // namespace
}  // namespace gpumem::preload

using gpumem::preload::g_injected;
using gpumem::preload::g_injection_mutex;
using gpumem::preload::Injection;
using gpumem::preload::IsPreloaded;
using gpumem::preload::MutexLock;

// Returns 1, which is success, in any case: what the driver does otherwise is not documented. Calls
// no function of the driver, which may hold its locks.
extern "C" int InitializeInjection(void) {
  MutexLock lock(&g_injection_mutex);
  if (g_injected || IsPreloaded()) return 1;
  g_injected = true;
  void* memory = calloc(1, sizeof(Injection));
  Injection* injection = memory == nullptr ? nullptr : new (memory) Injection();
  if (injection == nullptr) _exit(EXIT_FAILURE);
  injection->Run();
  free(memory);
  return 1;
}

#endif  // GPUMEM_PRELOAD_BUILT
