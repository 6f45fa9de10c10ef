// What this daemon writes of a journal, and what it can read (table.h, "Versions").
//
// It is a variable for the sake of one test alone, which has a daemon of a version that is not
// there yet write journals for this one (tests/support/next_journal.cc). In the daemon that users
// run it stays as it is here.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace gpumemd::journal {

struct RecordHead;

inline constexpr uint32_t kForm = 2;
inline constexpr uint32_t kOldestForm = 2;  // 1 was a log, and no release wrote it
inline constexpr uint8_t kVersion = 1;

struct Dialect {
  uint32_t form = kForm;
  uint8_t version = kVersion;
  // Changes a record that was just made, before its checksum is.
  void (*write)(RecordHead& head, absl::Span<uint8_t> payload) = nullptr;
  // Takes out of a record's copy what `write` has put in; true: there is nothing left of it.
  bool (*read)(RecordHead& head, absl::Span<uint8_t> payload) = nullptr;
  // How many records of a type that this version does not know it writes with each whole state.
  uint32_t more_records = 0;
};
inline Dialect dialect;

}  // namespace gpumemd::journal
