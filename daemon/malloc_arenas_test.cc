// SPDX-License-Identifier: Apache-2.0
#include "daemon/malloc_arenas.h"

#include <malloc.h>
#include <stdio.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "gtest/gtest.h"

namespace gpumemd {
namespace {

int Arenas() {
  char* text = nullptr;
  size_t bytes = 0;
  FILE* const file = open_memstream(&text, &bytes);
  malloc_info(0, file);
  fclose(file);
  int count = 0;
  const std::string info(text, bytes);
  for (size_t at = 0; (at = info.find("<heap nr=", at)) != std::string::npos; ++at) ++count;
  free(text);
  return count;
}

TEST(MallocArenasTest, ManyThreadsShareTwo) {
  setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);  // another parameter
  LimitMallocArenas();
  constexpr int kThreads = 16;
  auto* const all_have_some = new absl::Barrier(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([all_have_some] {
      // Larger than what a thread's cache keeps.
      void* const memory = std::malloc(64 * 1024);
      if (all_have_some->Block()) delete all_have_some;
      std::free(memory);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(Arenas(), 1);
  EXPECT_LE(Arenas(), 2);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they replace malloc(3)
// Returns the private memory of this process.
uint64_t AnonymousBytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::string word;
  uint64_t kib = 0;
  while (rollup >> word) {
    if (word == "Anonymous:" && rollup >> kib) return kib * 1024;
  }
  ADD_FAILURE() << "no Anonymous: in smaps_rollup";
  return 0;
}

TEST(MallocArenasTest, EndOfAnArenaIsGivenBackAfterALargeBlockWasFreed) {
  LimitMallocArenas();
  LimitMallocTrimThreshold();
  constexpr uint64_t kBurst = 20 << 20;
  constexpr size_t kPiece = 500;
  const uint64_t before = AnonymousBytes();
  // In an arena other than the main thread's.
  std::thread([] {
    void* volatile large = std::malloc(kBurst);  // mapped alone; its end raises the threshold
    std::free(large);
    std::vector<void*> pieces(kBurst / kPiece);
    for (void*& piece : pieces) piece = std::memset(std::malloc(kPiece), 1, kPiece);
    for (void* const piece : pieces) std::free(piece);
  }).join();
  malloc_trim(0);
  EXPECT_LT(AnonymousBytes(), before + kBurst / 2);
}
#endif

}  // namespace
}  // namespace gpumemd
