// SPDX-License-Identifier: Apache-2.0
// The versions of the journal that this daemon writes and reads (table.h, "Versions").
//
// It is a variable for one test alone, in which a daemon of a future version writes journals for
// this one (tests/support/next_journal.cc). In the daemon that users run it never changes.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace gpumemd::journal {

struct RecordHead;

inline constexpr uint32_t kForm = 2;
inline constexpr uint32_t kOldestForm = 2;  // 1 was a log, and no release wrote it

// Version 2 added suspended memory, 3 tags and scratch memory, 4 kind host, 5 content ids and
// claims. Version 6 added kind driver and tenants made at run time, 7 lasting tenants of sessions,
// 8 the use and the users of made tenants.
inline constexpr uint8_t kVersion = 8;

struct Dialect {
  uint32_t form = kForm;
  uint8_t version = kVersion;
  // Changes a new record before its checksum is computed.
  void (*write)(RecordHead& head, absl::Span<uint8_t> payload) = nullptr;
  // Removes from a copy of a record what `write` added. True: nothing is left of the record.
  bool (*read)(RecordHead& head, absl::Span<uint8_t> payload) = nullptr;
  // Records of a type unknown to this version that are written with each whole state.
  uint32_t more_records = 0;
};
inline Dialect dialect;

}  // namespace gpumemd::journal
