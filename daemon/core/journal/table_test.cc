#include "daemon/core/journal/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "daemon/core/journal/layout.h"
#include "daemon/core/journal/testing/chance.h"

namespace gpumemd {
namespace {

using journal::Change;
using journal::Erase;
using journal::Put;
using ::testing::HasSubstr;

using Bytes = std::vector<uint8_t>;

// Offsets of words that are stored at once, and of a record's parts (layout.h).
constexpr size_t kFormAt = 8, kRecordBytesAt = 12, kGenerationAt = 80, kAreaPageAt = 88;
constexpr size_t kSlotPagesAt = 48, kBatchAt = 56, kBehindAt = 64;

constexpr JournalIdentity kIdentity = {
    .boot_id = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .pid_namespace = 4026531836, .number = 3};

Change PutExposure(uint64_t session, uint32_t count) {
  return Put(journal::Exposure{SessionId{session}, SegmentId{1}, count});
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

void ExpectRefused(const Bytes& bytes, absl::StatusCode code, absl::string_view words) {
  const absl::Status status = ReadJournal(bytes).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(words)));
}

TEST(JournalTable, IsWhatWasAppended) {
  Journal journal(1);
  EXPECT_TRUE(journal.Image() == JournalImage());
  EXPECT_TRUE(journal.table.Append({}));
  const std::vector<Change> batch = {
      Put(journal::Session{.id = SessionId{7}, .tenant = "alice"}),
      Put(journal::Segment{.id = SegmentId{8}, .bytes = 4096, .tenant = "alice"}),
      Put(journal::Lease{.id = LeaseId{9}, .session = SessionId{7}, .segment = SegmentId{8}})};
  EXPECT_TRUE(journal.table.Append(batch));
  EXPECT_TRUE(journal.table.Append({Erase<journal::Lease>(LeaseId{9})}));

  const absl::StatusOr<JournalContents> read = ReadJournal(journal.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  JournalImage expected;
  for (const Change& change : batch) expected.Apply(change);
  expected.Apply(Erase<journal::Lease>(LeaseId{9}));
  EXPECT_TRUE(read->image == expected);
  EXPECT_EQ(read->image.counters.lease, 9u);
  EXPECT_EQ(read->header.form, journal::kForm);
  EXPECT_EQ(read->header.identity, kIdentity);
  EXPECT_EQ(read->header.generation, 1u);
  EXPECT_TRUE(read->header.complete);
  EXPECT_EQ(read->writer, "gpumemd " GPUMEM_VERSION);
  EXPECT_EQ(read->objects, 2u);
  EXPECT_EQ(read->passed, 0u);
  EXPECT_EQ(read->unapplied, 0u);
  EXPECT_EQ(journal.table.objects(), 2u);
  EXPECT_EQ(journal.table.free_slots(), 14u);
}

TEST(JournalTable, WithinABatchTheLastWordOnAnObjectCounts) {
  Journal journal(1);
  ASSERT_TRUE(journal.table.Append({PutExposure(1, 1)}));
  ASSERT_TRUE(journal.table.Append({PutExposure(1, 2), PutExposure(2, 1),
                                    Erase<journal::Exposure>({SessionId{1}, SegmentId{1}}),
                                    Erase<journal::Exposure>({SessionId{7}, SegmentId{1}}),
                                    PutExposure(3, 3), PutExposure(2, 5), PutExposure(1, 9)}));
  const JournalImage image = journal.Image();
  EXPECT_EQ(image.exposures.size(), 3u);
  EXPECT_EQ(image.exposures.at({SessionId{1}, SegmentId{1}}).count, 9u);
  EXPECT_EQ(image.exposures.at({SessionId{2}, SegmentId{1}}).count, 5u);
}

// An erased object leaves its number, and nothing else.
TEST(JournalTable, NumbersStay) {
  Journal journal(1);
  ASSERT_TRUE(journal.table.Append({Put(journal::Session{.id = SessionId{99}})}));
  ASSERT_TRUE(journal.table.Append({Erase<journal::Session>(SessionId{99})}));
  ASSERT_TRUE(journal.table.Append({Put(journal::Counters{.lease = 7, .ended_version = 4})}));
  ASSERT_TRUE(journal.table.Append({Put(journal::Counters{.lease = 5})}));
  EXPECT_EQ(journal.table.objects(), 0u);
  const journal::Counters counters = journal.Image().counters;
  EXPECT_TRUE(counters == (journal::Counters{.session = 99, .lease = 7, .ended_version = 4}));
}

TEST(JournalTable, ABatchThatDoesNotFitChangesNothing) {
  Journal journal(1);
  for (uint64_t i = 1; i <= 12; ++i) EXPECT_TRUE(journal.table.Append({PutExposure(i, 1)}));
  const Bytes before = journal.bytes;
  const std::vector<Change> five = {PutExposure(13, 1), PutExposure(14, 1), PutExposure(15, 1),
                                    PutExposure(16, 1), PutExposure(17, 1)};
  EXPECT_FALSE(journal.table.Append(five));
  EXPECT_FALSE(journal.table.Append(std::vector<Change>(16, PutExposure(1, 1))));  // over a stage
  EXPECT_EQ(journal.bytes, before);
  EXPECT_TRUE(journal.table.Append(absl::MakeConstSpan(five).subspan(1)));
  EXPECT_FALSE(journal.table.Append({PutExposure(18, 1)}));
  EXPECT_TRUE(journal.table.Append({}));
  EXPECT_TRUE(journal.table.Append({Erase<journal::Exposure>({SessionId{3}, SegmentId{1}})}));
  EXPECT_TRUE(journal.table.Append({PutExposure(18, 1)}));
  EXPECT_EQ(journal.Image().exposures.size(), 16u);
}

TEST(JournalTable, GrowsAndShrinks) {
  Journal journal(1);
  JournalImage model;
  const auto append = [&](const Change& change) {
    model.Apply(change);
    return journal.table.Append({change});
  };
  for (uint64_t i = 1; i <= 16; ++i) ASSERT_TRUE(append(PutExposure(i, 1)));
  EXPECT_FALSE(journal.table.IsFree(1));
  journal.Grow(2);
  EXPECT_TRUE(journal.Image() == model);
  EXPECT_TRUE(journal.table.IsFree(2));
  EXPECT_FALSE(journal.table.IsFree(3));
  for (uint64_t i = 17; i <= 48; ++i) ASSERT_TRUE(append(PutExposure(i, 1)));
  EXPECT_EQ(journal.table.free_slots(), 0u);
  for (uint64_t i = 21; i <= 48; ++i) {  // the last batch names a slot that is removed
    ASSERT_TRUE(append(Erase<journal::Exposure>({SessionId{i}, SegmentId{1}})));
  }
  EXPECT_TRUE(journal.table.IsFree(1));
  EXPECT_FALSE(journal.table.IsFree(2));
  journal.table.Shrink(1);
  EXPECT_EQ(journal.table.area().slot_pages, 2u);
  EXPECT_EQ(journal.table.free_slots(), 12u);
  EXPECT_TRUE(journal.Image() == model);
  // Remains of objects in the removed slots do not count any more.
  journal.Grow(1);
  EXPECT_TRUE(journal.Image() == model);
  ASSERT_TRUE(append(PutExposure(77, 1)));
  EXPECT_TRUE(journal.Image() == model);
}

TEST(JournalTable, AreasTakeTurns) {
  Journal journal(1, 2);
  ASSERT_TRUE(journal.table.Append({PutExposure(1, 1)}));
  const JournalImage image = journal.Image();
  std::vector<uint32_t> pages;
  for (uint32_t wanted : {2, 2, 2, 3, 4, 1, 1}) {
    journal.table.Rewrite(journal.Place(1, wanted), image);
    EXPECT_TRUE(journal.Image() == image);
    pages.push_back(journal.table.area().page);
  }
  EXPECT_THAT(pages, ::testing::ElementsAre(6, 1, 6, 11, 1, 8, 1));
}

TEST(JournalTable, RewriteIsTheOtherState) {
  Journal journal(1);
  ASSERT_TRUE(journal.table.Append({PutExposure(1, 1)}));
  JournalImage other;
  other.Apply(PutExposure(2, 7));
  other.Apply(Put(journal::Session{.id = SessionId{5}}));
  journal.table.SetBehind();
  ExpectRefused(journal.bytes, absl::StatusCode::kDataLoss, "had no memory for its last changes");
  journal.table.Rewrite(journal.Place(1, 1), other);
  EXPECT_TRUE(journal.Image() == other);
  EXPECT_TRUE(journal.table.Append({PutExposure(3, 1)}));
  EXPECT_EQ(journal.Image().exposures.size(), 2u);
}

TEST(JournalTable, ABatchOfAnyLengthGoesToOtherPages) {
  Journal journal(1);
  JournalImage model;
  std::vector<Change> batch;
  for (uint64_t i = 1; i <= 5; ++i) batch.push_back(PutExposure(i, 1));
  ASSERT_TRUE(journal.table.Append(batch));
  for (const Change& change : batch) model.Apply(change);
  batch = {Erase<journal::Exposure>({SessionId{2}, SegmentId{1}}),
           Put(journal::Counters{.lease = 1000})};
  for (uint64_t i = 4; i <= 30; ++i) batch.push_back(PutExposure(i, 2));
  journal.table.MoveWith(journal.Place(1, 3), batch);
  for (const Change& change : batch) model.Apply(change);
  EXPECT_TRUE(journal.Image() == model);
  ASSERT_TRUE(journal.table.Append({PutExposure(4, 3)}));
  model.Apply(PutExposure(4, 3));
  EXPECT_TRUE(journal.Image() == model);
}

TEST(JournalTable, ResumesWhereItEnded) {
  Journal journal(1);
  ASSERT_TRUE(journal.table.Append({PutExposure(1, 1), PutExposure(2, 1),
                                    Put(journal::PoolImport{SessionId{1}, "GPU-a", 1}),
                                    Put(journal::PoolImport{SessionId{1}, "GPU-b", 1})}));
  for (uint32_t generation = 2; generation < 5; ++generation) {
    absl::StatusOr<JournalContents> contents = ReadJournal(journal.bytes);
    ASSERT_TRUE(contents.ok());
    journal.table = JournalTable::Resume(absl::MakeSpan(journal.bytes), *contents);
    EXPECT_EQ(contents->header.generation, generation);
    ASSERT_TRUE(journal.table.Append(
        {PutExposure(generation + 1, 1), Erase<journal::Exposure>({SessionId{1}, SegmentId{1}}),
         Put(journal::PoolImport{SessionId{1}, "GPU-b", generation})}));
    const absl::StatusOr<JournalContents> after = ReadJournal(journal.bytes);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(after->header.generation, generation);
    EXPECT_EQ(after->image.exposures.size(), generation);
    EXPECT_EQ(after->image.pool_imports.at({SessionId{1}, "GPU-b"}).count, generation);
    EXPECT_EQ(after->objects, generation + 2);
  }
}

// Holds for any order of a batch's bytes. Before the one word names it, the batch does not count.
// After that it counts, however much of it is in its slots yet.
TEST(JournalTable, ATornBatchIsDroppedOrThereWhole) {
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
TEST(JournalTable, EveryByteThatCountsIsWatched) {
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
TEST(JournalTable, OldAndLostRecordsAreFoundOut) {
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
  constexpr absl::string_view kNotThose = "are not those that its last daemon left, which were 4";
  refused(0, old.begin() + journal.SlotAt(0), kNotThose);
  refused(1, Bytes(kJournalRecordBytes).begin(), kNotThose);
  refused(2, journal.bytes.begin() + journal.SlotAt(1), "a record in another's slot (slot 1)");
}

TEST(JournalTable, SaysWhatIsDamagedAndWhere) {
  Journal journal(1);
  for (uint64_t i = 1; i <= 4; ++i) ASSERT_TRUE(journal.table.Append({PutExposure(i, 1)}));
  const size_t area = journal.table.area().begin();
  {
    Bytes wrong = journal.bytes;
    wrong[journal.SlotAt(2) + 40] ^= 1;  // records behind it are right
    ExpectRefused(wrong, absl::StatusCode::kDataLoss,
                  absl::StrCat("damaged at byte ", journal.SlotAt(2),
                               ": a record's checksum does not fit what is in it (slot 2)"));
  }
  const auto with_word = [&](size_t at, uint64_t value) {
    Bytes wrong = journal.bytes;
    const uint64_t word = ~value << 32 | value;
    std::memcpy(&wrong[at], &word, sizeof word);
    return wrong;
  };
  ExpectRefused(with_word(area + kSlotPagesAt, 2), absl::StatusCode::kDataLoss,
                "damaged at byte 4144: its records end behind the file's end");
  ExpectRefused(with_word(area + kSlotPagesAt, 0), absl::StatusCode::kDataLoss,
                "none of the last batch");
  // The batch before; with the empty state there are four.
  ExpectRefused(with_word(area + kBatchAt, 4), absl::StatusCode::kDataLoss,
                "its 4 records are not those that its last daemon left, which were 3");
  ExpectRefused(with_word(area + kBatchAt, 3), absl::StatusCode::kDataLoss,
                "the head of its last batch");
  ExpectRefused(with_word(kAreaPageAt, 9), absl::StatusCode::kDataLoss,
                "damaged at byte 88: where its records are");
  Bytes cut = journal.bytes;
  cut.resize(kJournalPageBytes + 100);
  ExpectRefused(cut, absl::StatusCode::kDataLoss, "where its records are");
  cut.resize(100);
  ExpectRefused(cut, absl::StatusCode::kDataLoss, "shorter than a page");
  ExpectRefused({}, absl::StatusCode::kDataLoss, "shorter than a page");
  ExpectRefused(Bytes(2 * kJournalPageBytes), absl::StatusCode::kDataLoss,
                "does not begin as a journal does");
}

TEST(JournalTable, OneThatIsNotCompleteSaysSo) {
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

// --- Versions --------------------------------------------------------------------------

TEST(JournalTable, OtherFormsAreNamedAndLeft) {
  Journal journal(1);
  for (uint32_t form : {0u, 1u, 3u, 77u}) {
    Bytes other = journal.bytes;
    std::memcpy(&other[kFormAt], &form, sizeof form);
    ExpectRefused(
        other, absl::StatusCode::kFailedPrecondition,
        absl::StrCat("the journal is of form ", form, ", which ",
                     form < 2 ? "another gpumemd" : "gpumemd " GPUMEM_VERSION,
                     " wrote, and this one (gpumemd " GPUMEM_VERSION ") reads forms 2 to 2"));
  }
  Bytes other = journal.bytes;
  other[kRecordBytesAt] = 128;
  ExpectRefused(other, absl::StatusCode::kDataLoss, "its records have 384 bytes, and not 256");
}

// Writes as a daemon of the next version does, which has one more field and one more type.
class NextVersion {
 public:
  explicit NextVersion(uint8_t flags) {
    flags_ = flags;
    journal::dialect = {.version = 2, .write = Write, .more_records = 3};
  }
  ~NextVersion() { journal::dialect = {}; }

 private:
  static void Write(journal::RecordHead& head, absl::Span<uint8_t> payload) {
    if (head.type == static_cast<uint8_t>(journal::Type::kLease)) {
      payload[journal::kPayloadBytes - 1] = 7;
    } else if (head.type == static_cast<uint8_t>(journal::Type::kCounters)) {
      head.type = 200;
    } else {
      return;  // as this version writes it
    }
    head.version = 2;
    head.flags = flags_;
  }
  static uint8_t flags_;
};
uint8_t NextVersion::flags_ = 0;

JournalImage SomeImage() {
  JournalImage image;
  image.Apply(Put(journal::Session{.id = SessionId{5}, .tenant = "alice"}));
  image.Apply(Put(journal::Segment{.id = SegmentId{6}, .bytes = 4096}));
  image.Apply(
      Put(journal::Lease{.id = LeaseId{7}, .session = SessionId{5}, .segment = SegmentId{6}}));
  return image;
}

TEST(JournalTable, WhatMayBePassedOverIs) {
  Journal journal(1);
  {
    const NextVersion next(journal::kMayPass);
    journal.table.Rewrite(journal.Place(1, 1), SomeImage());
  }
  absl::StatusOr<JournalContents> read = ReadJournal(journal.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->image == SomeImage());
  EXPECT_EQ(read->passed, 4u);  // the lease, and three of an unknown type
  EXPECT_EQ(read->objects, 6u);
  // This version goes on beside them, and its next state is without them.
  journal.table = JournalTable::Resume(absl::MakeSpan(journal.bytes), *read);
  EXPECT_EQ(journal.table.free_slots(), 10u);
  ASSERT_TRUE(journal.table.Append(
      {Erase<journal::Lease>(LeaseId{7}), PutExposure(5, 1), PutExposure(6, 1)}));
  read = ReadJournal(journal.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->passed, 3u);
  EXPECT_TRUE(read->image.leases.empty());
  EXPECT_EQ(read->image.exposures.size(), 2u);
  journal.table.Rewrite(journal.Place(1, 1), read->image);
  read = ReadJournal(journal.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->passed, 0u);
  EXPECT_EQ(read->objects, 4u);
}

TEST(JournalTable, WhatMayNotBePassedOverIsRefused) {
  Journal journal(1);
  {
    const NextVersion next(0);
    journal.table.Rewrite(journal.Place(1, 1), SomeImage());
  }
  ExpectRefused(
      journal.bytes, absl::StatusCode::kFailedPrecondition,
      "something in the journal that only version 2 of it can say, which gpumemd " GPUMEM_VERSION
      " wrote, and this one (gpumemd " GPUMEM_VERSION ") understands version 1");
  // Bytes that no earlier version has used are damage in a record without a newer version's mark.
  journal.table.Rewrite(journal.Place(1, 1), SomeImage());
  uint8_t* const record = &journal.bytes[journal.SlotAt(2)];
  record[kJournalRecordBytes - 1] = 7;
  const uint64_t before = journal::Load<uint64_t>(record);
  const uint64_t checksum = journal::ChecksumOfRecord(record);
  std::memcpy(record, &checksum, sizeof checksum);
  uint8_t* const stage = &journal.bytes[journal.Stage()];
  auto head = journal::Load<journal::StageHead>(stage);
  head.sum += checksum - before;
  std::memcpy(stage, &head, sizeof head);
  head.checksum = journal::ChecksumOfRecord(stage);
  std::memcpy(stage, &head, sizeof head);
  ExpectRefused(journal.bytes, absl::StatusCode::kDataLoss,
                "a record that no daemon of its version writes (slot 2)");
}

// --- Random batches --------------------------------------------------------------------

// Compares random batches with an image that each is applied to. Includes growth, shrinking, other
// pages, resumption at any moment, and garbage in bytes that do not count.
TEST(JournalTable, IsTheModelAtEveryMoment) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    JournalChance chance(seed);
    Journal journal(1, 1 + static_cast<uint32_t>(chance.Below(3)));
    JournalImage model;
    uint32_t generation = 1;
    int growths = 0, shrinks = 0, moves = 0;
    for (int step = 0; step < 300; ++step) {
      const std::vector<Change> batch = chance.Batch(chance.OneIn(20) ? 60 : 8);
      if (!journal.table.Append(batch)) {
        const JournalArea area = journal.table.area();
        if (batch.size() > area.stage_records() || chance.OneIn(3)) {
          journal.table.MoveWith(
              journal.Place(1, area.slot_pages + JournalArea::PagesFor(batch.size())), batch);
          ++moves;
        } else {
          ASSERT_GT(batch.size(), journal.table.free_slots());
          journal.Grow(1);
          ++growths;
          ASSERT_TRUE(journal.table.Append(batch));
        }
      }
      for (const Change& change : batch) model.Apply(change);
      if (chance.OneIn(4) && journal.table.area().slot_pages > 1 && journal.table.IsFree(1)) {
        journal.table.Shrink(1);
        ++shrinks;
      }
      if (chance.OneIn(10)) {
        absl::StatusOr<JournalContents> contents = ReadJournal(journal.bytes);
        ASSERT_TRUE(contents.ok()) << contents.status();
        journal.table = JournalTable::Resume(absl::MakeSpan(journal.bytes), *contents);
        ASSERT_EQ(contents->header.generation, ++generation);
      }
      if (chance.OneIn(40)) {
        journal.table.Rewrite(journal.Place(1, JournalArea::PagesFor(model.size())), model);
      }
      const JournalArea area = journal.table.area();
      const size_t idle = area.stage(0) + area.stage(1) - journal.Stage();
      for (int i = 0; i < 20; ++i) {
        const size_t at =
            kJournalPageBytes + chance.Below(journal.bytes.size() - kJournalPageBytes);
        if (at < area.begin() || at >= area.end() ||
            (at >= idle && at < idle + kJournalPageBytes)) {
          journal.bytes[at] = static_cast<uint8_t>(chance.Below(256));
        }
      }
      const absl::StatusOr<JournalContents> contents = ReadJournal(journal.bytes);
      ASSERT_TRUE(contents.ok()) << contents.status();
      ASSERT_TRUE(contents->image == model);
      ASSERT_EQ(contents->objects, journal.table.objects());
      ASSERT_EQ(contents->objects + journal.table.free_slots(), area.slots());
      ASSERT_EQ(contents->unapplied, 0u);
    }
    ASSERT_GT(growths + moves, 2);
    ASSERT_GT(moves, 0);
  }
}

}  // namespace
}  // namespace gpumemd
