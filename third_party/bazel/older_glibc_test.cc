// SPDX-License-Identifier: Apache-2.0
// Compares the functions of older_glibc.cc with glibc's, which libraries still find.
#include <dlfcn.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace {

using Find = int (*)(void*, dl_find_object*);

Find GlibcFind() { return reinterpret_cast<Find>(dlsym(RTLD_DEFAULT, "_dl_find_object")); }

struct Places {
  std::vector<uintptr_t> addresses;  // in objects that have unwind tables
  std::vector<std::string> names;    // their objects
};

int AddEnds(dl_phdr_info* info, size_t, void* data) {
  auto* places = static_cast<Places*>(data);
  bool unwinds = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    unwinds |= info->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME;
  }
  for (int i = 0; unwinds && i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t first = info->dlpi_addr + segment.p_vaddr;
    for (uintptr_t address : {first, first + segment.p_memsz / 2, first + segment.p_memsz - 1}) {
      places->addresses.push_back(address);
      places->names.emplace_back(info->dlpi_name);
    }
  }
  return 0;
}

TEST(OlderGlibcTest, LibrariesFindGlibcsFunctions) {
  ASSERT_NE(GlibcFind(), nullptr);
  EXPECT_NE(GlibcFind(), &_dl_find_object);
  EXPECT_NE(dlsym(RTLD_DEFAULT, "arc4random"), reinterpret_cast<void*>(&arc4random));
}

TEST(OlderGlibcTest, FindsTheUnwindTablesThatGlibcFinds) {
  Places places;
  dl_iterate_phdr(AddEnds, &places);
  // The program, libstdc++, libgcc, libc at least.
  ASSERT_GT(std::set<std::string>(places.names.begin(), places.names.end()).size(), 3u);
  for (size_t i = 0; i < places.addresses.size(); ++i) {
    SCOPED_TRACE(places.names[i]);
    auto* address = reinterpret_cast<void*>(places.addresses[i]);
    dl_find_object ours, glibcs;
    ASSERT_EQ(GlibcFind()(address, &glibcs), 0);
    ASSERT_EQ(_dl_find_object(address, &ours), 0);
    EXPECT_EQ(ours.dlfo_eh_frame, glibcs.dlfo_eh_frame);
    EXPECT_LE(ours.dlfo_map_start, address);
    EXPECT_GT(ours.dlfo_map_end, address);
  }
}

TEST(OlderGlibcTest, FindsNothingWhereNoCodeIs) {
  int on_stack = 0;
  const auto on_heap = std::make_unique<int>(0);
  for (void* address : {static_cast<void*>(nullptr), static_cast<void*>(&on_stack),
                        static_cast<void*>(on_heap.get()), reinterpret_cast<void*>(UINTPTR_MAX)}) {
    dl_find_object ours, glibcs;
    EXPECT_EQ(GlibcFind()(address, &glibcs), -1);
    EXPECT_EQ(_dl_find_object(address, &ours), -1);
  }
}

TEST(OlderGlibcTest, FindsTheTableOfALibraryThatIsLoadedLater) {
  void* library = dlopen("libresolv.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) GTEST_SKIP() << dlerror();
  void* function = dlsym(library, "ns_parserr");
  if (function == nullptr) function = dlsym(library, "__b64_ntop");
  ASSERT_NE(function, nullptr);
  dl_find_object ours, glibcs;
  ASSERT_EQ(GlibcFind()(function, &glibcs), 0);
  ASSERT_EQ(_dl_find_object(function, &ours), 0);
  EXPECT_EQ(ours.dlfo_eh_frame, glibcs.dlfo_eh_frame);
  dlclose(library);
  EXPECT_EQ(_dl_find_object(function, &ours), GlibcFind()(function, &glibcs));
}

TEST(OlderGlibcTest, RandomNumbersDifferInAChild) {
  std::set<uint32_t> numbers;
  for (int i = 0; i < 64; ++i) numbers.insert(arc4random());
  EXPECT_GT(numbers.size(), 60u);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  uint32_t number[2] = {arc4random(), arc4random()};
  if (child == 0) _exit(write(ends[1], number, sizeof(number)) == sizeof(number) ? 0 : 1);
  uint32_t theirs[2] = {};
  ASSERT_EQ(read(ends[0], theirs, sizeof(theirs)), ssize_t{sizeof(theirs)});
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(number[0] != theirs[0] || number[1] != theirs[1]);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
