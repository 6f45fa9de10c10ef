// SPDX-License-Identifier: Apache-2.0
#include "client/preload/elf.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>

#include "gtest/gtest.h"

namespace gpumem::preload {
namespace {

TEST(ElfTest, FindsWhatDlsymFinds) {
  LoadedObject libc;
  ASSERT_TRUE(FindLoadedObject("libc.so.6", &libc));
  void* handle = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(handle, nullptr);
  // Functions with one version, with several, and those of the dynamic loader's interface.
  for (const char* name : {"getpid", "dlsym", "dlopen", "pthread_cond_wait", "realpath", "fopen"}) {
    EXPECT_EQ(FindFunction(libc, name), dlsym(handle, name)) << name;
  }
  EXPECT_EQ(FindFunction(libc, "no_such_function"), nullptr);
  EXPECT_EQ(FindFunction(libc, ""), nullptr);
  // Data is no function.
  EXPECT_EQ(FindFunction(libc, "environ"), nullptr);
  dlclose(handle);
}

TEST(ElfTest, FindsTheObjectOfAnAddress) {
  LoadedObject found;
  ASSERT_TRUE(FindObjectOf(reinterpret_cast<const void*>(&gnu_get_libc_version), &found));
  EXPECT_STREQ(BaseName(found.path), "libc.so.6");
  // The program has no name among the loaded objects.
  static const int here = 0;
  ASSERT_TRUE(FindObjectOf(&here, &found));
  EXPECT_STREQ(found.path, "");
  EXPECT_FALSE(FindObjectOf(nullptr, &found));
  EXPECT_FALSE(FindLoadedObject("no_such_library.so", &found));
}

TEST(ElfTest, SearchesBehindTheCaller) {
  static const int here = 0;
  LoadedObject found;
  ASSERT_TRUE(FindNextDefining(&here, "getpid", &found));
  EXPECT_STREQ(BaseName(found.path), "libc.so.6");
  // Nothing is behind the C library that defines it again.
  EXPECT_FALSE(
      FindNextDefining(reinterpret_cast<const void*>(&gnu_get_libc_version), "getpid", &found));
}

}  // namespace
}  // namespace gpumem::preload
