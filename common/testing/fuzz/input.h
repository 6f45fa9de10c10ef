// SPDX-License-Identifier: Apache-2.0
// What a fuzz target makes of its bytes. Structured inputs are read from the bytes, too, so that
// any engine can mutate them without knowing their structure.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Ends the process, and so the run of the engine, if `condition` is false: a finding. The line that
// it prints tells findings apart (fuzz.py).
#define FUZZ_CHECK(condition)                \
  do {                                       \
    if (!(condition)) FUZZ_FAIL(#condition); \
  } while (false)

// As FUZZ_CHECK, of an absl::Status or absl::StatusOr, which it prints, too.
#define FUZZ_CHECK_OK(expression)                                             \
  do {                                                                        \
    const absl::Status fuzz_status = gpumem::testing::StatusOf((expression)); \
    if (fuzz_status.ok()) break;                                              \
    std::fprintf(stderr, "%s\n", fuzz_status.ToString().c_str());             \
    FUZZ_FAIL(#expression);                                                   \
  } while (false)

#define FUZZ_FAIL(what) gpumem::testing::FailFuzz(__FILE__, __LINE__, what)

namespace gpumem::testing {

inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

[[noreturn]] inline void FailFuzz(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: FUZZ_CHECK(%s)\n", file, line, what.c_str());
  std::abort();
}

// Takes values from the front of the bytes. Bytes that are missing count as zeros.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return left_.empty(); }
  size_t size() const { return left_.size(); }

  template <typename T>
  T Take() {
    static_assert(std::is_integral_v<T>);
    T value{};
    const size_t bytes = left_.size() < sizeof(T) ? left_.size() : sizeof(T);
    if (bytes > 0) std::memcpy(&value, left_.data(), bytes);
    left_.remove_prefix(bytes);
    return value;
  }
  uint8_t Byte() { return Take<uint8_t>(); }
  bool Bool() { return (Byte() & 1) != 0; }
  // Returns a number below `end`, from one byte or, for larger ends, from four.
  uint32_t Below(uint32_t end) { return end <= 256 ? Byte() % end : Take<uint32_t>() % end; }
  // Returns a number that is often small, or near a power of two.
  uint64_t Number() {
    const uint8_t form = Byte();
    switch (form & 3) {
      case 0:
        return form >> 2;
      case 1:
        return (uint64_t{1} << (form >> 2)) - (Byte() & 1);
      case 2:
        return Take<uint16_t>();
      default:
        return Take<uint64_t>();
    }
  }

  // Returns a word of at most `most` bytes, whose length comes first.
  absl::string_view Word(size_t most) {
    const size_t length = most < 256 ? Byte() % (most + 1) : Take<uint16_t>() % (most + 1);
    return Bytes(length);
  }
  // Returns up to `size` bytes.
  absl::string_view Bytes(size_t size) {
    const absl::string_view bytes = left_.substr(0, size);
    left_.remove_prefix(bytes.size());
    return bytes;
  }
  absl::string_view Rest() { return Bytes(left_.size()); }

 private:
  absl::string_view left_;
};

}  // namespace gpumem::testing
