// SPDX-License-Identifier: Apache-2.0
// The boundary between C++ and the C ABI (gpumem/gpumem.h). Statuses become numbers and this
// thread's last error, no exception passes, and structs are read and written with the program's
// struct_size.
//
// Thread-safe; the state of Report() is per thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gpumem/client.h"
#include "gpumem/gpumem.h"
#include "gpumem/publication.h"

namespace gpumem::c_api {

// Returns the status as a number; an error becomes the thread's last error.
int Report(const absl::Status& status) noexcept;
// As Report, for errors such as lack of memory: allocates nothing.
int ReportPlain(absl::StatusCode code, absl::string_view message) noexcept;

// Runs `work`, which returns absl::Status, and reports its status.
template <typename Work>
int Call(Work work) noexcept {
  try {
    return Report(work());
  } catch (const std::bad_alloc&) {
    return ReportPlain(absl::StatusCode::kResourceExhausted, "this process is out of host memory");
  } catch (const std::exception& error) {
    return ReportPlain(absl::StatusCode::kInternal, error.what());
  } catch (...) {
    return ReportPlain(absl::StatusCode::kInternal, "an exception that is not a std::exception");
  }
}

template <typename... Pointers>
bool AnyNull(const Pointers*... pointers) {
  return (... || (pointers == nullptr));
}

// Returns INVALID_ARGUMENT: one of these names is a null pointer.
absl::Status NullError(absl::string_view names);

//   OUT_OF_RANGE  `index` is not below the number of these ("segment")
absl::Status CheckIndex(size_t index, size_t count, absl::string_view of);

// An upper bound of struct sizes: a larger struct_size means that it was not set.
inline constexpr size_t kMaxStructBytes = 4096;

inline absl::Status CheckSize(size_t struct_size) {
  if (struct_size >= sizeof(size_t) && struct_size <= kMaxStructBytes) return absl::OkStatus();
  return absl::InvalidArgumentError("set struct_size to sizeof of the struct, and the rest to 0");
}

// Copies the program's options, as far as this library knows them; all zero for null.
//   UNIMPLEMENTED  it sets some that this library does not know
template <typename Options>
absl::StatusOr<Options> Read(const Options* from) {
  Options options = {};
  if (from == nullptr) return options;
  if (absl::Status status = CheckSize(from->struct_size); !status.ok()) return status;
  const char* const bytes = reinterpret_cast<const char*>(from);
  if (from->struct_size > sizeof(Options) &&
      std::any_of(bytes + sizeof(Options), bytes + from->struct_size,
                  [](char byte) { return byte != 0; })) {
    return absl::UnimplementedError(
        "the program sets options that this libgpumem does not know: install a newer one");
  }
  std::memcpy(&options, bytes, std::min(from->struct_size, sizeof(Options)));
  return options;
}

// Writes the fields of `value` that the program knows, and zeros to those that only it knows.
template <typename Struct>
absl::Status Write(Struct value, Struct* to) {
  if (to == nullptr) return NullError("the struct to be filled in");
  const size_t size = to->struct_size;
  if (absl::Status status = CheckSize(size); !status.ok()) return status;
  value.struct_size = size;
  std::memcpy(static_cast<void*>(to), &value, std::min(size, sizeof(Struct)));
  if (size > sizeof(Struct)) {
    std::memset(reinterpret_cast<char*>(to) + sizeof(Struct), 0, size - sizeof(Struct));
  }
  return absl::OkStatus();
}

// Writes a number to `to`, unless that is null. Returns the status of `from`.
inline absl::Status GiveNumber(const absl::StatusOr<uint64_t>& from, uint64_t* to) {
  if (from.ok() && to != nullptr) *to = *from;
  return from.status();
}

// Returns "" for null.
inline std::string Text(const char* text) { return text == nullptr ? "" : text; }

// Returns any bytes. INVALID_ARGUMENT: null, and not 0 of them; `name`: of the pointer.
absl::StatusOr<std::string> Bytes(const void* data, size_t size, absl::string_view name);

// Returns the status that a function of the program returned as `code`. `name`: of the function.
absl::Status OfProgram(int code, absl::string_view name);

//   INVALID_ARGUMENT  one of them is null
absl::StatusOr<std::vector<std::string>> Texts(const char* const* texts, size_t count);

absl::Duration Time(uint64_t milliseconds);
// As above, but 0 means none.
std::optional<absl::Duration> Timeout(uint64_t milliseconds);
// As Time, but 0 is infinite.
absl::Duration TimeOrNone(uint64_t milliseconds);
// Rounds down; infinity becomes GPUMEM_UNLIMITED.
uint64_t ToMilliseconds(absl::Duration time);

//   INVALID_ARGUMENT  not in enum gpumem_kind
absl::StatusOr<Kind> ToKind(int32_t kind);

//   INVALID_ARGUMENT  not in enum gpumem_publication_access
absl::StatusOr<PublicationAccess> ToAccess(int32_t access);

absl::StatusOr<OpenOptions> ToOptions(const gpumem_open_options* from);

// Its text belongs to `segment`.
gpumem_segment_info InfoOf(const Segment& segment);

}  // namespace gpumem::c_api
