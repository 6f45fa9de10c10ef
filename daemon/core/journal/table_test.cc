// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/journal/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "daemon/core/journal/layout.h"
#include "daemon/core/journal/testing/chance.h"
#include "daemon/core/journal/testing/memory_journal.h"

namespace gpumemd {
namespace {

using journal::Change;
using journal::Erase;
using journal::Put;

TEST(JournalTable, ReadsWhatWasAppended) {
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
  EXPECT_EQ(journal.table.staged(), 1u) << "of the last batch";
}

TEST(JournalTable, AFileThatIsNotCompleteIsNotReadBeforeItsFirstState) {
  Bytes bytes(9 * kJournalPageBytes);
  JournalTable table = JournalTable::Create(absl::MakeSpan(bytes), kIdentity,
                                            {.page = 1, .stage_pages = 1, .slot_pages = 1},
                                            /*complete=*/false);
  const absl::StatusOr<JournalHeader> header = ReadJournalHeader(bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_FALSE(header->complete);
  ExpectRefused(bytes, absl::StatusCode::kDataLoss, "the journal was never complete");
  JournalImage image;
  image.Apply(PutExposure(1, 1));
  const JournalArea area = table.Place(1, 1);
  ASSERT_EQ(area.end(), bytes.size());
  table.Rewrite(area, image);
  const absl::StatusOr<JournalContents> read = ReadJournal(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->header.complete);
  EXPECT_TRUE(read->image == image);
}

TEST(JournalTable, LastChangeOfAnObjectInABatchCounts) {
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
TEST(JournalTable, NumbersOutliveErasedObjects) {
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

// The slots of objects are found through many maps. One that was large gives memory back.
TEST(JournalTable, ErasedObjectsOfOneMapLeaveTheOthersInTheirSlots) {
  Journal journal(1, 7);
  // The sum of the two numbers selects the map.
  const auto exposure = [](uint64_t i, uint32_t count) {
    return journal::Exposure{SessionId{i}, SegmentId{1000 - i}, count};
  };
  for (uint64_t i = 1; i <= 100; ++i) ASSERT_TRUE(journal.table.Append({Put(exposure(i, 1))}));
  for (uint64_t i = 1; i <= 95; ++i) {
    ASSERT_TRUE(journal.table.Append({Erase<journal::Exposure>(exposure(i, 1).key())}));
  }
  EXPECT_EQ(journal.table.objects(), 5u);
  for (uint64_t i = 96; i <= 100; ++i) ASSERT_TRUE(journal.table.Append({Put(exposure(i, 2))}));
  EXPECT_EQ(journal.table.objects(), 5u);
  const JournalImage image = journal.Image();
  EXPECT_EQ(image.exposures.size(), 5u);
  for (const auto& [key, read] : image.exposures) EXPECT_EQ(read.count, 2u);
}

TEST(JournalTable, GrowsAndShrinks) {
  Journal journal(1);
  EXPECT_TRUE(journal.table.IsFree(1));
  EXPECT_FALSE(journal.table.IsFree(2)) << "it has one";
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

TEST(JournalTable, RewritesAlternateBetweenAreas) {
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

TEST(JournalTable, RewriteReplacesTheState) {
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

// --- Random batches --------------------------------------------------------------------

// Compares random batches with an image that each is applied to. Includes growth, shrinking, other
// pages, resumption at any moment, and garbage in bytes that do not count.
TEST(JournalTable, RandomBatchesMatchTheModel) {
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
