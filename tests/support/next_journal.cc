// SPDX-License-Identifier: Apache-2.0
// Makes the daemon that it is linked into one of a future version, which writes more into the
// journal than this one does (daemon/core/journal/dialect.h). The first word of the file
// $GPUMEM_NEXT_JOURNAL_FILE selects the additions:
//
//   nothing   the records of this version, as one that has something new and does not use it
//   optional  a field more in each lease, and records of a new type, that may all be ignored
//   needed    the same, and they may not
//   form      the records of this version, in a file of the next form
//
// It must find all that it has written again, or it dies.
#include <cstdlib>
#include <fstream>
#include <string>

#include "daemon/core/journal/layout.h"

namespace gpumemd {
namespace {

constexpr uint8_t kNextVersion = journal::kVersion + 1, kNewType = 200, kNewField = 7;
constexpr size_t kNewFieldAt = journal::kPayloadBytes - 1;
bool needed = false;

void Write(journal::RecordHead& head, absl::Span<uint8_t> payload) {
  const bool lease = head.type == static_cast<uint8_t>(journal::Type::kLease);
  // Which is in no other record: those that this daemon adds.
  const bool more = head.type == static_cast<uint8_t>(journal::Type::kCounters);
  if (!lease && !more) return;
  if (more) head.type = kNewType;
  payload[kNewFieldAt] = kNewField;
  head.version = kNextVersion;
  head.flags = needed ? 0 : journal::kMayPass;
}

bool Read(journal::RecordHead& head, absl::Span<uint8_t> payload) {
  if (head.version < kNextVersion) return false;  // the version before wrote it
  if (payload[kNewFieldAt] != kNewField) abort();
  payload[kNewFieldAt] = 0;
  return head.type == kNewType;
}

const bool made = [] {
  const char* file = std::getenv("GPUMEM_NEXT_JOURNAL_FILE");
  std::string what;
  if (file == nullptr || !(std::ifstream(file) >> what)) return false;
  journal::dialect.version = kNextVersion;
  journal::dialect.read = Read;
  if (what == "form") ++journal::dialect.form;
  if (what != "optional" && what != "needed") return true;
  needed = what == "needed";
  journal::dialect.write = Write;
  journal::dialect.more_records = 3;
  return true;
}();

}  // namespace
}  // namespace gpumemd
