// SPDX-License-Identifier: Apache-2.0
// A journal in plain memory, and what its tests have in common.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/core/journal/table.h"

namespace gpumemd {

using Bytes = std::vector<uint8_t>;

// Offsets of words that are stored at once, and of a record's parts (layout.h).
inline constexpr size_t kFormAt = 8, kRecordBytesAt = 12, kGenerationAt = 80, kAreaPageAt = 88;
inline constexpr size_t kSlotPagesAt = 48, kBatchAt = 56, kBehindAt = 64;

inline constexpr JournalIdentity kIdentity = {
    .boot_id = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .pid_namespace = 4026531836, .number = 3};

inline journal::Change PutExposure(uint64_t session, uint32_t count) {
  return journal::Put(journal::Exposure{SessionId{session}, SegmentId{1}, count});
}

// A journal in plain memory that grows as a file would.
struct Journal {
  explicit Journal(uint32_t stage_pages, uint32_t slot_pages = 1)
      : bytes((2 + 2 * stage_pages + slot_pages) * kJournalPageBytes),
        table(JournalTable::Create(
            absl::MakeSpan(bytes), kIdentity,
            {.page = 1, .stage_pages = stage_pages, .slot_pages = slot_pages})) {}
  Journal(const Journal&) = delete;

  void Reach(size_t end) {
    if (end > bytes.size()) bytes.resize(end);
    table.Moved(absl::MakeSpan(bytes));
  }
  JournalArea Place(uint32_t stage_pages, uint32_t slot_pages) {
    const JournalArea area = table.Place(stage_pages, slot_pages);
    Reach(area.end());
    return area;
  }
  void Grow(uint32_t pages) {
    Reach(table.area().end() + pages * kJournalPageBytes);
    table.Grow(pages);
  }
  JournalImage Image() const {
    const absl::StatusOr<JournalContents> contents = ReadJournal(bytes);
    EXPECT_EQ(contents.status().ToString(), "OK");
    return contents.ok() ? contents->image : JournalImage();
  }
  // Returns the stage of the last batch.
  size_t Stage() const { return table.area().stage(bytes[table.area().begin() + kBatchAt] % 2); }
  size_t SlotAt(size_t slot) const {
    return table.area().slots_begin() + slot * kJournalRecordBytes;
  }

  Bytes bytes;
  JournalTable table;
};

inline void ExpectRefused(const Bytes& bytes, absl::StatusCode code, absl::string_view words) {
  const absl::Status status = ReadJournal(bytes).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(std::string(words)));
}

}  // namespace gpumemd
