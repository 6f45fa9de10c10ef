// SPDX-License-Identifier: Apache-2.0
#include "client/preload/injection/patch.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace gpumem::preload {
namespace {

// Before glibc 2.27. Kernels before 4.17 take the address as a hint.
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

// Distances of 32 bits reach this far, less what an instruction may be long.
constexpr uintptr_t kReach = (uintptr_t{1} << 31) - 4096;
constexpr uintptr_t kStep = uintptr_t{1} << 20;

uintptr_t PageSize() { return static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)); }

uint8_t* MapAt(uintptr_t address, size_t bytes) {
  void* const wanted = reinterpret_cast<void*>(address);
  void* got = mmap(wanted, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  if (got == wanted) return static_cast<uint8_t*>(got);
  munmap(got, bytes);
  return nullptr;
}

// Pages that follow each other, and their edited copy.
struct Run {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  uint8_t* copy = nullptr;
  size_t size() const { return end - begin; }
};

// The protection of code, as its object asks for it. 0 if it is not the code of an object.
struct ProtectionSearch {
  uintptr_t begin;
  uintptr_t end;
  int protection;
};

int VisitProtection(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<ProtectionSearch*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    const uintptr_t page = PageSize();
    const uintptr_t begin = (info->dlpi_addr + header.p_vaddr) & ~(page - 1);
    const uintptr_t end =
        (info->dlpi_addr + header.p_vaddr + header.p_filesz + page - 1) & ~(page - 1);
    if (search->begin < begin || search->end > end) continue;
    search->protection = PROT_EXEC | ((header.p_flags & PF_R) != 0 ? PROT_READ : 0);
    return 1;
  }
  return 0;
}

int ProtectionOf(const Run& run) {
  ProtectionSearch search = {run.begin, run.end, 0};
  dl_iterate_phdr(VisitProtection, &search);
  return search.protection;
}

int ByAddress(const void* left, const void* right) {
  const uintptr_t a = static_cast<const Run*>(left)->begin;
  const uintptr_t b = static_cast<const Run*>(right)->begin;
  return a < b ? -1 : a > b;
}

// Fills `runs`, of room for `count`, with the pages of the edits. Returns their number.
size_t FindRuns(const Edit* edits, size_t count, Run* runs) {
  const uintptr_t page = PageSize();
  for (size_t i = 0; i < count; ++i) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(edits[i].at);
    runs[i] = {at & ~(page - 1), (at + edits[i].size + page - 1) & ~(page - 1), nullptr};
  }
  qsort(runs, count, sizeof(Run), &ByAddress);
  size_t merged = 0;
  for (size_t i = 0; i < count; ++i) {
    if (merged > 0 && runs[i].begin <= runs[merged - 1].end) {
      if (runs[i].end > runs[merged - 1].end) runs[merged - 1].end = runs[i].end;
    } else {
      runs[merged++] = runs[i];
    }
  }
  return merged;
}

bool MakeCopy(const Edit* edits, size_t count, Run* run) {
  const int protection = ProtectionOf(*run);
  if (protection == 0) return false;
  void* copy =
      mmap(nullptr, run->size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  run->copy = static_cast<uint8_t*>(copy);
  memcpy(run->copy, reinterpret_cast<const void*>(run->begin), run->size());
  for (size_t i = 0; i < count; ++i) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(edits[i].at);
    if (at < run->begin || at >= run->end) continue;
    memcpy(run->copy + (at - run->begin), edits[i].bytes, edits[i].size);
  }
  return mprotect(run->copy, run->size(), protection) == 0;
}

Edited ReplaceRuns(const Edit* edits, size_t count, Run* runs) {
  const size_t size = FindRuns(edits, count, runs);
  bool made = true;
  for (size_t i = 0; i < size && made; ++i) made = MakeCopy(edits, count, &runs[i]);
  size_t moved = 0;
  for (; made && moved < size; ++moved) {
    // Unmaps the original and maps the copy in one step: no thread finds neither.
    if (mremap(runs[moved].copy, runs[moved].size(), runs[moved].size(),
               MREMAP_MAYMOVE | MREMAP_FIXED,
               reinterpret_cast<void*>(runs[moved].begin)) == MAP_FAILED) {
      break;
    }
  }
  if (moved == size) return Edited::kAll;
  for (size_t i = moved; i < size; ++i) {
    if (runs[i].copy != nullptr) munmap(runs[i].copy, runs[i].size());
  }
  return moved == 0 ? Edited::kNone : Edited::kSome;
}

}  // namespace

uint8_t* AllocateNear(uintptr_t begin, uintptr_t end, size_t bytes) {
  const uintptr_t granularity = uintptr_t{1} << 16;
  const uintptr_t above = (end + granularity - 1) & ~(granularity - 1);
  if (end - begin >= kReach) return nullptr;
  for (uintptr_t at = above; at + bytes - begin < kReach; at += kStep) {
    if (uint8_t* memory = MapAt(at, bytes)) return memory;
  }
  const uintptr_t below =
      (begin & ~(granularity - 1)) - ((bytes + granularity - 1) & ~(granularity - 1));
  for (uintptr_t at = below; at < begin && end - at < kReach && at > kStep; at -= kStep) {
    if (uint8_t* memory = MapAt(at, bytes)) return memory;
  }
  return nullptr;
}

bool MakeExecutable(uint8_t* memory, size_t bytes) {
  return mprotect(memory, bytes, PROT_READ | PROT_EXEC) == 0;
}

void FreeNear(uint8_t* memory, size_t bytes) { munmap(memory, bytes); }

Edited EditCode(const Edit* edits, size_t count) {
  if (count == 0) return Edited::kAll;
  Run* runs = static_cast<Run*>(calloc(count, sizeof(Run)));
  if (runs == nullptr) return Edited::kNone;
  const Edited edited = ReplaceRuns(edits, count, runs);
  free(runs);
  return edited;
}

}  // namespace gpumem::preload
