// SPDX-License-Identifier: Apache-2.0
// Journals that are torn, damaged or incomplete: the state read from them, or the refusal.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/journal/layout.h"
#include "daemon/core/journal/testing/chance.h"
#include "daemon/core/journal/testing/memory_journal.h"

namespace gpumemd {
namespace {

using journal::Change;
using journal::Erase;

// Holds for any order of a batch's bytes. Before the one word names it, the batch does not count.
// After that it counts, however much of it is in its slots yet.
TEST(JournalDamage, TornBatchIsDroppedOrComplete) {
  JournalChance chance(11);
  Journal journal(1, 4);
  for (int i = 0; i < 12; ++i) {
    const Bytes before = journal.bytes;
    const JournalImage image = journal.Image();
    const std::vector<Change> batch = chance.Batch(4);
    ASSERT_TRUE(journal.table.Append(batch));
    if (batch.empty()) continue;
    const Bytes& after = journal.bytes;
    const JournalImage next = journal.Image();
    const size_t word = journal.table.area().begin() + kBatchAt;
    for (int round = 0; round < 400; ++round) {
      const bool counts = chance.OneIn(2);
      Bytes torn = before;
      for (size_t at = journal.Stage(); at < journal.bytes.size(); ++at) {
        const bool in_slots = at >= journal.table.area().slots_begin();
        if (in_slots ? counts && chance.OneIn(2) : counts || chance.OneIn(2)) torn[at] = after[at];
        if (!in_slots && at + 1 == journal.Stage() + kJournalPageBytes) {
          at = journal.table.area().slots_begin() - 1;
        }
      }
      if (counts) std::copy_n(after.begin() + word, 8, torn.begin() + word);
      absl::StatusOr<JournalContents> read = ReadJournal(torn);
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_TRUE(read->image == (counts ? next : image));
      // The next daemon resumes there.
      JournalTable table = JournalTable::Resume(absl::MakeSpan(torn), *read);
      ASSERT_TRUE(table.Append({PutExposure(5, 5)}));
      const absl::StatusOr<JournalContents> again = ReadJournal(torn);
      ASSERT_TRUE(again.ok()) << again.status();
      read->image.Apply(PutExposure(5, 5));
      ASSERT_TRUE(again->image == read->image);
      ASSERT_EQ(again->unapplied, 0u);
    }
  }
}

// No damage in bytes that count is ignored, and nothing is read as something else.
TEST(JournalDamage, DamageToAnyUsedByteIsDetected) {
  Journal journal(1);
  ASSERT_TRUE(journal.table.Append({PutExposure(1, 1), PutExposure(2, 1), PutExposure(3, 1)}));
  ASSERT_TRUE(journal.table.Append(
      {Erase<journal::Exposure>({SessionId{1}, SegmentId{1}}), PutExposure(2, 5)}));
  const JournalImage right = journal.Image();
  ASSERT_EQ(right.exposures.size(), 2u);
  const size_t stage = journal.Stage(), area = journal.table.area().begin();
  const auto watched = [&](size_t at) {
    return at < kAreaPageAt + 8 || (at >= area && at < area + kBehindAt + 8) ||
           (at >= stage && at < stage + 3 * kJournalRecordBytes) ||
           // The stage decides slots 0 and 1: one is free now, one has changed.
           (at >= journal.SlotAt(2) && at < journal.SlotAt(3)) ||
           (at >= journal.SlotAt(3) &&
            (at - journal.SlotAt(0)) % kJournalRecordBytes < sizeof(journal::RecordHead));
  };
  size_t unwatched = 0;
  for (size_t at = 0; at < journal.bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes wrong = journal.bytes;
      wrong[at] ^= static_cast<uint8_t>(1 << bit);
      const absl::StatusOr<JournalContents> read = ReadJournal(wrong);
      if (!watched(at)) {
        ASSERT_TRUE(read.ok()) << "byte " << at << ": " << read.status();
        ASSERT_TRUE(read->image == right);
        ++unwatched;
        if (bit == 0 && at % 16 != 0) break;
      } else if (read.status().code() == absl::StatusCode::kFailedPrecondition) {
        ASSERT_TRUE(at >= kFormAt && at < kFormAt + 4) << at;
      } else {
        ASSERT_EQ(read.status().code(), absl::StatusCode::kDataLoss)
            << "byte " << at << ": " << read.status();
      }
    }
  }
  EXPECT_GT(unwatched, 1000u);
}

// Each record by itself is right; together they are not the state that was left.
TEST(JournalDamage, OldAndMissingRecordsAreDetected) {
  Journal journal(1);
  ASSERT_TRUE(journal.table.Append({PutExposure(1, 1), PutExposure(2, 1), PutExposure(3, 1)}));
  const Bytes old = journal.bytes;
  ASSERT_TRUE(journal.table.Append({PutExposure(1, 2)}));
  ASSERT_TRUE(journal.table.Append({PutExposure(4, 1)}));
  const auto refused = [&](size_t slot, const auto& from, absl::string_view words) {
    Bytes wrong = journal.bytes;
    std::copy_n(from, kJournalRecordBytes, wrong.begin() + journal.SlotAt(slot));
    ExpectRefused(wrong, absl::StatusCode::kDataLoss, words);
  };
  constexpr absl::string_view kNotThose =
      "differ in number from those that its last daemon left, 4";
  refused(0, old.begin() + journal.SlotAt(0), kNotThose);
  refused(1, Bytes(kJournalRecordBytes).begin(), kNotThose);
  refused(2, journal.bytes.begin() + journal.SlotAt(1), "a record in the slot of another (slot 1)");
}

TEST(JournalDamage, SaysWhatIsDamagedAndWhere) {
  Journal journal(1);
  for (uint64_t i = 1; i <= 4; ++i) ASSERT_TRUE(journal.table.Append({PutExposure(i, 1)}));
  const size_t area = journal.table.area().begin();
  {
    Bytes wrong = journal.bytes;
    wrong[journal.SlotAt(2) + 40] ^= 1;  // records behind it are right
    ExpectRefused(wrong, absl::StatusCode::kDataLoss,
                  absl::StrCat("damaged at byte ", journal.SlotAt(2),
                               ": a record's checksum does not match its contents (slot 2)"));
  }
  const auto with_word = [&](size_t at, uint64_t value) {
    Bytes wrong = journal.bytes;
    const uint64_t word = ~value << 32 | value;
    std::memcpy(&wrong[at], &word, sizeof word);
    return wrong;
  };
  ExpectRefused(with_word(area + kSlotPagesAt, 2), absl::StatusCode::kDataLoss,
                "damaged at byte 4144: its records end past the end of the file");
  ExpectRefused(with_word(area + kSlotPagesAt, 0), absl::StatusCode::kDataLoss,
                "not of the last batch");
  // The batch before; with the empty state there are four.
  ExpectRefused(with_word(area + kBatchAt, 4), absl::StatusCode::kDataLoss,
                "its 4 records differ in number from those that its last daemon left, 3");
  ExpectRefused(with_word(area + kBatchAt, 3), absl::StatusCode::kDataLoss,
                "the head of its last batch");
  ExpectRefused(with_word(kAreaPageAt, 9), absl::StatusCode::kDataLoss,
                "damaged at byte 88: the position of its records");
  Bytes cut = journal.bytes;
  cut.resize(kJournalPageBytes + 100);
  ExpectRefused(cut, absl::StatusCode::kDataLoss, "the position of its records");
  cut.resize(100);
  ExpectRefused(cut, absl::StatusCode::kDataLoss, "shorter than a page");
  ExpectRefused({}, absl::StatusCode::kDataLoss, "shorter than a page");
  ExpectRefused(Bytes(2 * kJournalPageBytes), absl::StatusCode::kDataLoss,
                "does not begin with the header of a journal");
}

TEST(JournalDamage, IncompleteJournalIsRefused) {
  Journal journal(1);
  std::fill_n(journal.bytes.begin() + kAreaPageAt, 8, uint8_t{0});
  const absl::StatusOr<JournalHeader> header = ReadJournalHeader(journal.bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_FALSE(header->complete);
  EXPECT_EQ(header->identity, kIdentity);
  ExpectRefused(journal.bytes, absl::StatusCode::kDataLoss, "was never complete");
  std::fill_n(journal.bytes.begin() + kGenerationAt, 8, uint8_t{0});
  EXPECT_TRUE(ReadJournalHeader(journal.bytes).ok());
}

}  // namespace
}  // namespace gpumemd
