// SPDX-License-Identifier: Apache-2.0
// A shared library found at run time, which then stays loaded.
#pragma once

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace gpumem {

// Never closed: drivers have their threads and exit handlers in it.
class DynamicLibrary {
 public:
  // Loads the library.
  //   UNAVAILABLE  it is not on this machine, or does not load; with the loader's message
  static absl::StatusOr<DynamicLibrary> Open(const char* soname) {
    void* library = dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot load ", dlerror()));
    }
    return DynamicLibrary(library);
  }

  // Sets `function` to the library's function of that name. False if there is none.
  template <typename Function>
  bool Find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    return function != nullptr;
  }

 private:
  explicit DynamicLibrary(void* library) : library_(library) {}
  void* library_;
};

}  // namespace gpumem
