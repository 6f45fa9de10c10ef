// SPDX-License-Identifier: Apache-2.0
#include "client/preload/injection/patch.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#if defined(__x86_64__)
namespace gpumem::preload {
namespace {

// Two functions on one page, and one that lies over the end of the page.
asm(".pushsection .text\n"
    ".p2align 12\n"
    "patch_test_one: mov $1, %eax\nret\n"
    ".p2align 4\n"
    "patch_test_fixed: mov $2, %eax\nret\n"
    ".fill 4096 - 19 - (. - patch_test_one), 1, 0xCC\n"
    "patch_test_border: .fill 16, 1, 0x90\nmov $3, %eax\nret\n"
    ".p2align 12, 0xCC\n"
    ".popsection\n");
extern "C" int patch_test_one();
extern "C" int patch_test_fixed();
extern "C" int patch_test_border();

uint8_t* CodeOf(int (*function)()) { return reinterpret_cast<uint8_t*>(function); }

Edit Constant(uint8_t* instruction, uint32_t value) {
  Edit edit;
  edit.at = instruction + 1;
  edit.size = sizeof(value);
  memcpy(edit.bytes, &value, sizeof(value));
  return edit;
}

// Returns the protections of the mappings, "r-xp" and so on; of all, or of one address.
std::vector<std::string> Protections(const void* address = nullptr) {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::string> found;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char protection[5] = {};
    EXPECT_EQ(sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, protection), 3);
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    if (address == nullptr || (at >= begin && at < end)) found.emplace_back(protection);
  }
  return found;
}

TEST(PatchTest, EditsCodeAndKeepsItsProtection) {
  uint8_t* border = CodeOf(&patch_test_border) + 16;
  ASSERT_NE(reinterpret_cast<uintptr_t>(border + 1) / 4096,
            reinterpret_cast<uintptr_t>(border + 4) / 4096);
  const Edit edits[] = {Constant(border, 30), Constant(CodeOf(&patch_test_one), 10)};
  ASSERT_EQ(EditCode(edits, 2), Edited::kAll);
  EXPECT_EQ(patch_test_one(), 10);
  EXPECT_EQ(patch_test_fixed(), 2);
  EXPECT_EQ(patch_test_border(), 30);
  for (const void* at : {static_cast<const void*>(border), static_cast<const void*>(border + 8)}) {
    EXPECT_EQ(Protections(at), std::vector<std::string>{"r-xp"});
  }
  for (const std::string& protection : Protections()) EXPECT_NE(protection.substr(0, 3), "rwx");
  const Edit back[] = {Constant(border, 3), Constant(CodeOf(&patch_test_one), 1)};
  ASSERT_EQ(EditCode(back, 2), Edited::kAll);
  EXPECT_EQ(patch_test_border(), 3);
}

TEST(PatchTest, OtherThreadsGoOn) {
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<int> running{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      ++running;
      while (!stop) {
        const int one = patch_test_one();
        if ((one != 1 && one != 100) || patch_test_fixed() != 2) ++wrong;
      }
    });
  }
  while (running < 4) std::this_thread::yield();
  for (int round = 0; round < 2000; ++round) {
    const Edit edit = Constant(CodeOf(&patch_test_one), round % 2 == 0 ? 100 : 1);
    ASSERT_EQ(EditCode(&edit, 1), Edited::kAll);
    ASSERT_EQ(patch_test_one(), round % 2 == 0 ? 100 : 1);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(PatchTest, ChangesNothingIfOneEditIsNotOfCode) {
  static uint8_t data[64];
  const Edit edits[] = {Constant(CodeOf(&patch_test_one), 10), Constant(data, 5)};
  EXPECT_EQ(EditCode(edits, 2), Edited::kNone);
  EXPECT_EQ(patch_test_one(), 1);
  EXPECT_EQ(data[1], 0);
}

TEST(PatchTest, NearMemoryIsWithinReachOfAllOfTheCode) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(&patch_test_one) & ~uintptr_t{4095};
  for (const uintptr_t length : {uintptr_t{4096}, uintptr_t{1} << 28}) {
    std::vector<uint8_t*> all;
    for (int i = 0; i < 20; ++i) {
      uint8_t* memory = AllocateNear(begin, begin + length, 16384);
      ASSERT_NE(memory, nullptr);
      memset(memory, 0xC3, 16384);
      const uintptr_t at = reinterpret_cast<uintptr_t>(memory);
      const uintptr_t low = std::min(at, begin);
      const uintptr_t high = std::max(at + 16384, begin + length);
      EXPECT_LT(high - low, uintptr_t{1} << 31);
      all.push_back(memory);
    }
    for (uint8_t* memory : all) FreeNear(memory, 16384);
  }
  EXPECT_EQ(AllocateNear(begin, begin + (uintptr_t{1} << 31), 4096), nullptr);
}

}  // namespace
}  // namespace gpumem::preload
#endif
