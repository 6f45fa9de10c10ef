// SPDX-License-Identifier: Apache-2.0
// Programs without CUDA run as ever.
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/preload/run_preloaded.h"

namespace gpumem::preload {
namespace {

class HarmlessTest : public PreloadTest {
 protected:
  void Same(const std::vector<std::string>& arguments) {
    if (access(arguments[0].c_str(), X_OK) != 0) GTEST_SKIP() << arguments[0];
    Finished plain = Run(arguments, Via::kNone);
    Finished run = Run(arguments);
    EXPECT_EQ(run.status, plain.status);
    EXPECT_EQ(run.output, plain.output);
    EXPECT_EQ(run.errors, plain.errors);
    EXPECT_EQ(processes(), 0u);
  }
};

TEST_F(HarmlessTest, True) { Same({"/bin/true"}); }
TEST_F(HarmlessTest, Shell) {
  Same({"/bin/bash", "-c", "echo $(echo one | cat; (exit 3); echo $?) two | tr a-z A-Z; exit 7"});
}
// Python looks functions up by name.
TEST_F(HarmlessTest, Python) {
  Same({"/usr/bin/python3", "-c",
        "import ctypes, math\n"
        "print(ctypes.CDLL(None).strlen(b'four'), hasattr(ctypes.CDLL(None), 'no_such_function'))\n"
        "print(ctypes.CDLL('libm.so.6').cuberoot if False else math.pi)\n"
        "try: ctypes.CDLL(None).cuNoSuchFunction\n"
        "except AttributeError as error: print(error)"});
}

// Twice in the list, and by two names.
TEST_F(HarmlessTest, LoadedTwice) {
  std::string copy = ::testing::TempDir() + "/libgpumem-preload-copy.so";
  std::ofstream(copy, std::ios::binary) << std::ifstream(Path("PRELOAD"), std::ios::binary).rdbuf();
  preloads = Path("PRELOAD") + ":" + copy;
  Same({"/bin/true"});
  Finished run = Run({Path("WAYS_DLSYM"), "alloc", std::to_string(32 * kMiB)});
  ASSERT_EQ(run.status, 0) << run.errors;
  EXPECT_EQ(run.values("got"), (std::vector<std::string>{"8", "8"})) << run.output;
}

// It brings no library but the C library into a process, and none that is newer than Debian 8's.
TEST_F(HarmlessTest, NeedsOnlyTheCLibrary) {
  std::ifstream file(Path("PRELOAD"), std::ios::binary);
  std::stringstream contents;
  contents << file.rdbuf();
  const std::string image = contents.str();
  Elf64_Ehdr header;
  ASSERT_GE(image.size(), sizeof(header));
  memcpy(&header, image.data(), sizeof(header));
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  memcpy(sections.data(), image.data() + header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr));
  int dynamic_sections = 0;
  for (const Elf64_Shdr& section : sections) {
    const char* strings = image.data() + sections[section.sh_link].sh_offset;
    if (section.sh_type == SHT_DYNAMIC) {
      ++dynamic_sections;
      for (uint64_t at = 0; at < section.sh_size; at += sizeof(Elf64_Dyn)) {
        Elf64_Dyn entry;
        memcpy(&entry, image.data() + section.sh_offset + at, sizeof(entry));
        if (entry.d_tag == DT_NEEDED) {
          EXPECT_STREQ(strings + entry.d_un.d_val, "libc.so.6");
        }
      }
    }
    if (section.sh_type == SHT_GNU_verneed) {
      Elf64_Verneed need;
      memcpy(&need, image.data() + section.sh_offset, sizeof(need));
      uint64_t at = section.sh_offset + need.vn_aux;
      for (int i = 0; i < need.vn_cnt; ++i) {
        Elf64_Vernaux version;
        memcpy(&version, image.data() + at, sizeof(version));
        std::string name = strings + version.vna_name;
        EXPECT_TRUE(name == "GLIBC_2.2.5" || name == "GLIBC_2.3.2" || name == "GLIBC_2.4" ||
                    name == "GLIBC_2.14" || name == "GLIBC_2.17")
            << name;
        at += version.vna_next;
      }
    }
  }
  EXPECT_EQ(dynamic_sections, 1);
}

}  // namespace
}  // namespace gpumem::preload
