// SPDX-License-Identifier: Apache-2.0
// Looks symbols up in the loaded objects of the process, without dlsym(): the preload replaces
// that.
#pragma once

#include <link.h>
#include <stdint.h>

namespace gpumem::preload {

// A loaded object. Valid while it stays loaded.
struct LoadedObject {
  uintptr_t base = 0;
  uintptr_t begin = 0;  // of its mapping
  uintptr_t end = 0;
  const ElfW(Dyn) * dynamic = nullptr;
  char path[512] = {};

  bool contains(const void* address) const {
    uintptr_t at = reinterpret_cast<uintptr_t>(address);
    return at >= begin && at < end;
  }
};

// Returns the file's name within a path.
const char* BaseName(const char* path);

// True if a string begins with a prefix.
bool HasPrefix(const char* text, const char* prefix);

// Describes an object that dl_iterate_phdr() tells of. False if it has no symbols.
bool DescribeObject(const dl_phdr_info& info, LoadedObject* object);

// Returns the first object whose file name begins with a prefix; false if there is none.
bool FindLoadedObject(const char* prefix, LoadedObject* found);

// Returns the object that a code address belongs to.
bool FindObjectOf(const void* address, LoadedObject* found);

// Returns the address of a function that the object defines, or null. Of several versions it is the
// default one. Functions that the loader chooses at run time (IFUNC) are not found. Sets *size to
// the bytes of its code, by its symbol.
void* FindFunction(const LoadedObject& object, const char* name, size_t* size = nullptr);

// Finds the object that RTLD_NEXT would find for a caller: the first one loaded behind the caller's
// which defines `name`.
bool FindNextDefining(const void* caller, const char* name, LoadedObject* found);

}  // namespace gpumem::preload
