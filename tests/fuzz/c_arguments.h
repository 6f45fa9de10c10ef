// SPDX-License-Identifier: Apache-2.0
// Arguments of C calls, from the bytes of a fuzz target.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>

#include "common/testing/fuzz/input.h"
#include "gpumem/gpumem.h"

namespace gpumem::testing {

class CArguments {
 protected:
  explicit CArguments(FuzzInput& input) : input_(input) {}

  template <typename T, size_t kSize>
  T& Of(std::array<T, kSize>& slots) {
    return slots[input_.Below(kSize)];
  }
  template <typename T>
  static void Drop(T*& handle, int (*drop)(T*)) {
    if (handle != nullptr) (void)drop(handle);
    handle = nullptr;
  }

  // Checks that the status is one that the header names, and not a mistake of the library.
  static bool Ok(int status) {
    if (status == GPUMEM_INTERNAL || status == GPUMEM_UNKNOWN) {
      std::fprintf(stderr, "status %d: %s\n", status, gpumem_last_error());
    }
    FUZZ_CHECK(status >= 0 && status <= 16);
    FUZZ_CHECK(status != GPUMEM_INTERNAL && status != GPUMEM_UNKNOWN);
    return status == GPUMEM_OK;
  }

  // Returns the size of a struct: mostly right, else one of an older or newer program, or wrong.
  size_t Size(size_t size) {
    const uint8_t how = input_.Byte();
    if (how < 0xe0) return size;
    return how < 0xf0 ? how % (size + 1) : 1000 * how;
  }
  template <typename T>
  T Options() {
    T options;
    std::memset(&options, 0, sizeof options);
    options.struct_size = Size(sizeof options) <= sizeof options ? sizeof options : SIZE_MAX / 2;
    return options;
  }
  const char* Name() {
    constexpr const char* kNames[] = {"p", "q", "a/p", "b/q", "", "\n", "most-free", "0", nullptr};
    const uint8_t which = input_.Byte();
    if (which < 0xc0) return kNames[which % std::size(kNames)];
    text_ = std::string(input_.Word(80));
    return text_.c_str();
  }
  uint64_t Bytes() {
    const uint64_t bytes = input_.Number();
    return input_.Byte() < 0xe0 ? bytes % (uint64_t{80} << 20) : bytes;
  }

  // Writes to a segment's ends: it is mapped as a whole.
  static void Touch(gpumem_segment* segment) {
    gpumem_segment_info info{};
    info.struct_size = sizeof info;
    if (!Ok(gpumem_segment_get_info(segment, &info)) || info.bytes == 0) return;
    int away = 0;
    if (Ok(gpumem_segment_is_suspended(segment, &away)) && away != 0) return;
    auto* data = static_cast<volatile char*>(info.data);
    FUZZ_CHECK(data != nullptr);
    data[0] = 1;
    data[info.bytes - 1] = 1;
  }

  FuzzInput& input_;

 private:
  std::string text_;
};

}  // namespace gpumem::testing
