// SPDX-License-Identifier: Apache-2.0
// Arguments of C calls, from the bytes of a fuzz target.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
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

  template <typename T>
  static T Options() {
    T options;
    std::memset(&options, 0, sizeof options);
    return options;
  }

  // Has `call` read the options as a program of some version holds them: with fewer fields, at
  // least `least` bytes; with more, which this library does not know; as null; or with no true
  // size. Returns true if it has succeeded.
  template <typename T, typename Call>
  bool With(T options, Call call, size_t least = sizeof(size_t)) {
    const uint8_t how = input_.Byte();
    if (how == kNull && least == sizeof(size_t)) return Ok(call(static_cast<const T*>(nullptr)));
    options.struct_size = SizeOf(how, sizeof options, least);
    const bool is_size = IsSize(options.struct_size);
    // No byte more, so that the sanitizer sees what reads beyond.
    const size_t held = is_size ? options.struct_size : sizeof options;
    const auto memory = std::make_unique<char[]>(held);
    std::memcpy(memory.get(), &options, std::min(held, sizeof options));
    const bool unknown = held > sizeof options && input_.Bool();
    if (unknown) memory[held - 1] = 1;
    const bool ok = Ok(call(reinterpret_cast<const T*>(memory.get())));
    FUZZ_CHECK(!ok || (is_size && !unknown));
    return ok;
  }

  // As With(), for a struct that `call` fills in.
  template <typename T, typename Call>
  void Fill(Call call) {
    const size_t size = SizeOf(input_.Byte(), sizeof(T), sizeof(size_t));
    const size_t held = IsSize(size) ? size : sizeof(T);
    const auto memory = std::make_unique<char[]>(held);
    std::memset(memory.get(), 0x5a, held);
    std::memcpy(memory.get(), &size, sizeof size);
    const bool ok = Ok(call(reinterpret_cast<T*>(memory.get())));
    FUZZ_CHECK(!ok || IsSize(size));
    FUZZ_CHECK(std::memcmp(memory.get(), &size, sizeof size) == 0);
    // What the library does not know is set to zero.
    FUZZ_CHECK(!ok || std::all_of(memory.get() + std::min(held, sizeof(T)), memory.get() + held,
                                  [](char byte) { return byte == 0; }));
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
  static constexpr uint8_t kNull = 0xcf;

  // What the library takes for a size.
  static bool IsSize(size_t size) { return size >= sizeof(size_t) && size <= 4096; }

  // Returns mostly the library's own size. Those of older versions end with a whole word.
  static size_t SizeOf(uint8_t how, size_t own, size_t least) {
    constexpr size_t kNoSizes[] = {0, 1, 4, 7, 4097, 4104, SIZE_MAX / 2, SIZE_MAX};
    constexpr size_t kWord = sizeof(size_t);
    if (how < 0xd0) return own;
    if (how < 0xf0) return least + how % ((own - least) / kWord + 1) * kWord;
    return how < 0xf8 ? own + (how - 0xef) * kWord : kNoSizes[how - 0xf8];
  }

  std::string text_;
};

}  // namespace gpumem::testing
