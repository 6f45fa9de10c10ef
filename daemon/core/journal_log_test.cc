#include "daemon/core/journal_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/journal_chance.h"
#include "daemon/core/journal_layout.h"

namespace gpumemd {
namespace {

using journal::Change;
using journal::Erase;
using journal::Put;
using ::testing::HasSubstr;

using Bytes = std::vector<uint8_t>;

// Where words lie that are stored at once, and a record's parts (journal_layout.h).
constexpr size_t kVersionAt = 8, kRecordBytesAt = 12, kGenerationAt = 56, kAreaPageAt = 64;
constexpr size_t kAreaVersionAt = 8, kUsedAt = 32, kBehindAt = 40;

constexpr JournalIdentity kIdentity = {
    .boot_id = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .pid_namespace = 4026531836, .number = 3};

Change PutExposure(uint64_t session, uint32_t count) {
  return Put(journal::Exposure{SessionId{session}, SegmentId{1}, count});
}

// A journal in plain memory, that grows as a file would.
struct Journal {
  explicit Journal(uint32_t pages)
      : bytes((1 + pages) * kJournalPageBytes),
        log(JournalLog::Create(absl::MakeSpan(bytes), kIdentity, {.page = 1, .pages = pages})) {}
  Journal(const Journal&) = delete;

  JournalArea Reach(uint32_t pages) {
    const JournalArea area = log.Place(pages);
    if (area.end() > bytes.size()) bytes.resize(area.end());
    log.Moved(absl::MakeSpan(bytes));
    return area;
  }
  absl::Status Compact(uint32_t pages) {
    const absl::StatusOr<JournalLog::Live> live = log.FindLive();
    if (!live.ok()) return live.status();
    EXPECT_LE(JournalArea::PagesFor(live->records.size() + 1), pages);
    log.Compact(Reach(pages), *live);
    return absl::OkStatus();
  }
  JournalImage Image() const {
    const absl::StatusOr<JournalContents> contents = ReadJournal(bytes);
    EXPECT_EQ(contents.status().ToString(), "OK");
    return contents.ok() ? contents->image : JournalImage();
  }

  Bytes bytes;
  JournalLog log;
};

void ExpectRefused(const Bytes& bytes, absl::StatusCode code, absl::string_view words) {
  const absl::Status status = ReadJournal(bytes).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(words)));
}

TEST(JournalLog, IsWhatWasAppended) {
  Journal journal(2);
  EXPECT_TRUE(journal.Image() == JournalImage());
  EXPECT_TRUE(journal.log.Append({}));
  const std::vector<Change> batch = {
      Put(journal::Session{.id = SessionId{7}, .tenant = "alice"}),
      Put(journal::Segment{.id = SegmentId{8}, .bytes = 4096, .tenant = "alice"}),
      Put(journal::Lease{.id = LeaseId{9}, .session = SessionId{7}, .segment = SegmentId{8}})};
  EXPECT_TRUE(journal.log.Append(batch));
  EXPECT_TRUE(journal.log.Append({Erase<journal::Lease>(LeaseId{9})}));

  const absl::StatusOr<JournalContents> read = ReadJournal(journal.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  JournalImage expected;
  for (const Change& change : batch) expected.Apply(change);
  expected.Apply(Erase<journal::Lease>(LeaseId{9}));
  EXPECT_TRUE(read->image == expected);
  EXPECT_EQ(read->image.counters.lease, 9u);
  EXPECT_EQ(read->header.version, kJournalVersion);
  EXPECT_EQ(read->header.identity, kIdentity);
  EXPECT_EQ(read->header.generation, 1u);
  EXPECT_TRUE(read->header.complete);
  // The area's head, Counters, and four records.
  EXPECT_EQ(journal.log.used(), 5u);
  EXPECT_EQ(read->end, kJournalPageBytes + 6 * kJournalRecordBytes);
  EXPECT_EQ(read->dropped, 0u);
}

TEST(JournalLog, ABatchThatDoesNotFitChangesNothing) {
  Journal journal(1);
  EXPECT_EQ(journal.log.capacity(), 15u);
  for (uint64_t i = 1; i <= 12; ++i) EXPECT_TRUE(journal.log.Append({PutExposure(i, 1)}));
  const Bytes before = journal.bytes;
  EXPECT_FALSE(journal.log.Append({PutExposure(13, 1), PutExposure(14, 1), PutExposure(15, 1)}));
  EXPECT_EQ(journal.bytes, before);
  EXPECT_TRUE(journal.log.Append({PutExposure(13, 1), PutExposure(14, 1)}));
  EXPECT_FALSE(journal.log.Append({PutExposure(15, 1)}));
  EXPECT_TRUE(journal.log.Append({}));
  EXPECT_EQ(journal.Image().exposures.size(), 14u);
}

TEST(JournalLog, CompactionKeepsWhatCounts) {
  Journal journal(1);
  for (uint32_t i = 1; i <= 13; ++i) {
    ASSERT_TRUE(journal.log.Append({PutExposure(1 + i % 2, i)}));
  }
  ASSERT_TRUE(journal.log.Append({Put(journal::Session{.id = SessionId{99}})}));
  const JournalImage before = journal.Image();
  const absl::StatusOr<JournalLog::Live> live = journal.log.FindLive();
  ASSERT_TRUE(live.ok());
  EXPECT_THAT(live->records, ::testing::ElementsAre(12, 13, 14));
  EXPECT_EQ(live->counters.session, 99u);
  ASSERT_TRUE(journal.Compact(1).ok());
  EXPECT_EQ(journal.log.used(), 4u);
  EXPECT_TRUE(journal.Image() == before);
  // The number stays, though nothing in the log has it any more.
  ASSERT_TRUE(journal.log.Append({Erase<journal::Session>(SessionId{99})}));
  ASSERT_TRUE(journal.Compact(1).ok());
  EXPECT_EQ(journal.log.used(), 3u);
  EXPECT_EQ(journal.Image().counters.session, 99u);
  EXPECT_TRUE(journal.Image().sessions.empty());
}

TEST(JournalLog, AreasTakeTurns) {
  Journal journal(2);
  std::vector<uint32_t> pages;
  for (uint32_t wanted : {2, 2, 2, 3, 4, 1, 1}) {
    ASSERT_TRUE(journal.Compact(wanted).ok());
    pages.push_back(journal.log.area().page);
  }
  EXPECT_THAT(pages, ::testing::ElementsAre(3, 1, 3, 5, 1, 5, 1));
  EXPECT_EQ(journal.bytes.size(), 8 * kJournalPageBytes);
}

TEST(JournalLog, RewriteIsTheOtherState) {
  Journal journal(1);
  ASSERT_TRUE(journal.log.Append({PutExposure(1, 1)}));
  JournalImage other;
  other.Apply(PutExposure(2, 7));
  other.Apply(Put(journal::Session{.id = SessionId{5}}));
  journal.log.SetBehind();
  ExpectRefused(journal.bytes, absl::StatusCode::kDataLoss, "had no memory for its last changes");
  journal.log.Rewrite(journal.Reach(1), other);
  EXPECT_TRUE(journal.Image() == other);
  EXPECT_TRUE(journal.log.Append({PutExposure(3, 1)}));
  EXPECT_EQ(journal.Image().exposures.size(), 2u);
}

TEST(JournalLog, ResumesWhereItEnded) {
  Journal journal(1);
  ASSERT_TRUE(journal.log.Append({PutExposure(1, 1), PutExposure(2, 1)}));
  for (uint32_t generation = 2; generation < 5; ++generation) {
    absl::StatusOr<JournalContents> contents = ReadJournal(journal.bytes);
    ASSERT_TRUE(contents.ok());
    JournalLog log = JournalLog::Resume(absl::MakeSpan(journal.bytes), *contents);
    EXPECT_EQ(contents->header.generation, generation);
    ASSERT_TRUE(log.Append(
        {PutExposure(generation + 1, 1), Erase<journal::Exposure>({SessionId{1}, SegmentId{1}})}));
    const absl::StatusOr<JournalContents> after = ReadJournal(journal.bytes);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(after->header.generation, generation);
    EXPECT_EQ(after->image.exposures.size(), generation);
    journal.log = log;
    ASSERT_TRUE(journal.Compact(1).ok());
  }
}

// Whatever order a batch's bytes come in: until the one word says so, it is not there, and what
// there is of it is dropped.
TEST(JournalLog, ATornBatchIsDroppedWhole) {
  JournalChance chance(11);
  Journal journal(4);
  for (int i = 0; i < 6; ++i) {
    Bytes before = journal.bytes;
    const JournalImage image = journal.Image();
    const std::vector<Change> batch = chance.Batch(4);
    ASSERT_TRUE(journal.log.Append(batch));
    if (batch.empty()) continue;
    const Bytes& after = journal.bytes;
    const absl::StatusOr<JournalContents> whole = ReadJournal(after);
    ASSERT_TRUE(whole.ok());
    const size_t begin = whole->end - batch.size() * kJournalRecordBytes;
    Bytes torn = before;
    for (size_t at = begin; at < whole->end; ++at) {
      torn[at] = after[at];
      const absl::StatusOr<JournalContents> read = ReadJournal(torn);
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_TRUE(read->image == image);
      ASSERT_EQ(read->end, begin);
      // Up to the last byte that is not zero.
      ASSERT_LE(read->dropped, at + 1 - begin);
      if (after[at] != 0) {
        ASSERT_EQ(read->dropped, at + 1 - begin);
      }
    }
    for (int round = 0; round < 200; ++round) {
      torn = before;
      for (size_t at = begin; at < whole->end; ++at) {
        if (chance.OneIn(2)) torn[at] = after[at];
      }
      const absl::StatusOr<JournalContents> read = ReadJournal(torn);
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_TRUE(read->image == image);
      // And the next daemon goes on there.
      absl::StatusOr<JournalContents> contents = read;
      JournalLog log = JournalLog::Resume(absl::MakeSpan(torn), *contents);
      ASSERT_TRUE(log.Append({PutExposure(5, 5)}));
      const absl::StatusOr<JournalContents> again = ReadJournal(torn);
      ASSERT_TRUE(again.ok()) << again.status();
      contents->image.Apply(PutExposure(5, 5));
      ASSERT_TRUE(again->image == contents->image);
    }
  }
}

// Nothing that is wrong in what counts is passed over, and nothing is read as what it was not.
TEST(JournalLog, EveryByteThatCountsIsWatched) {
  Journal journal(1);
  ASSERT_TRUE(journal.log.Append({PutExposure(1, 1), PutExposure(2, 1)}));
  ASSERT_TRUE(journal.log.Append({Erase<journal::Exposure>({SessionId{1}, SegmentId{1}})}));
  const absl::StatusOr<JournalContents> right = ReadJournal(journal.bytes);
  ASSERT_TRUE(right.ok());
  for (size_t at = 0; at < right->end; ++at) {
    const bool watched = at < kAreaPageAt + 8 ||
                         (at >= kJournalPageBytes && at < kJournalPageBytes + kBehindAt + 8) ||
                         at >= kJournalPageBytes + kJournalRecordBytes;
    for (int bit = 0; bit < 8; ++bit) {
      Bytes wrong = journal.bytes;
      wrong[at] ^= static_cast<uint8_t>(1 << bit);
      const absl::Status status = ReadJournal(wrong).status();
      if (!watched) {
        ASSERT_TRUE(status.ok()) << "byte " << at << ": " << status;
      } else if (status.code() == absl::StatusCode::kFailedPrecondition) {
        ASSERT_TRUE((at - kVersionAt) % kJournalPageBytes < 4) << at;  // a version
      } else {
        ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << "byte " << at << ": " << status;
      }
    }
  }
}

TEST(JournalLog, SaysWhatIsDamagedAndWhere) {
  Journal journal(1);
  for (uint64_t i = 1; i <= 4; ++i) ASSERT_TRUE(journal.log.Append({PutExposure(i, 1)}));
  const size_t first = kJournalPageBytes + kJournalRecordBytes;
  {
    Bytes wrong = journal.bytes;
    wrong[first + 2 * kJournalRecordBytes + 40] ^= 1;  // records behind it are right
    ExpectRefused(wrong, absl::StatusCode::kDataLoss,
                  "damaged at byte 4864: a record's checksum does not fit what is in it (record 2 "
                  "of 5)");
  }
  {
    Bytes wrong = journal.bytes;  // two that are right, each in the other's place
    std::swap_ranges(wrong.begin() + first + 256, wrong.begin() + first + 512,
                     wrong.begin() + first + 512);
    ExpectRefused(wrong, absl::StatusCode::kDataLoss,
                  "damaged at byte 4608: a record is not the one that follows the one before it");
  }
  {
    Bytes wrong = journal.bytes;
    const uint64_t more = ~uint64_t{16} << 32 | 16;
    std::memcpy(&wrong[kJournalPageBytes + kUsedAt], &more, sizeof more);
    ExpectRefused(wrong, absl::StatusCode::kDataLoss,
                  "damaged at byte 4128: how many of its records count");
  }
  {
    Bytes wrong = journal.bytes;  // one more than there are
    const uint64_t more = (~uint64_t{6} << 32) | 6;
    std::memcpy(&wrong[kJournalPageBytes + kUsedAt], &more, sizeof more);
    ExpectRefused(wrong, absl::StatusCode::kDataLoss, "(record 5 of 6)");
  }
  {
    Bytes wrong = journal.bytes;
    const uint64_t page = (~uint64_t{2} << 32) | 2;
    std::memcpy(&wrong[kAreaPageAt], &page, sizeof page);
    ExpectRefused(wrong, absl::StatusCode::kDataLoss, "damaged at byte 64: where its records are");
  }
  Bytes cut = journal.bytes;
  cut.resize(kJournalPageBytes + 100);
  ExpectRefused(cut, absl::StatusCode::kDataLoss, "where its records are");
  cut.resize(100);
  ExpectRefused(cut, absl::StatusCode::kDataLoss, "shorter than a page");
  ExpectRefused({}, absl::StatusCode::kDataLoss, "shorter than a page");
  ExpectRefused(Bytes(2 * kJournalPageBytes), absl::StatusCode::kDataLoss,
                "does not begin as a journal does");
}

// A batch of which the end is not there, though the records that count say so.
TEST(JournalLog, PartOfABatchIsDamage) {
  Journal journal(1);
  ASSERT_TRUE(journal.log.Append({PutExposure(1, 1), PutExposure(2, 1), PutExposure(3, 1)}));
  for (uint64_t used = 2; used <= 3; ++used) {
    Bytes wrong = journal.bytes;
    const uint64_t word = (~used << 32) | used;
    std::memcpy(&wrong[kJournalPageBytes + kUsedAt], &word, sizeof word);
    ExpectRefused(wrong, absl::StatusCode::kDataLoss, "is not the one that follows");
  }
}

TEST(JournalLog, OtherVersionsAreNamedAndLeft) {
  Journal journal(1);
  for (uint32_t version : {0u, kJournalVersion + 1, 77u}) {
    for (size_t at : {kVersionAt, kJournalPageBytes + kAreaVersionAt}) {
      Bytes other = journal.bytes;
      std::memcpy(&other[at], &version, sizeof version);
      ExpectRefused(other, absl::StatusCode::kFailedPrecondition,
                    absl::StrCat("the journal is of version ", version,
                                 ", and this gpumemd reads versions 1 to 2"));
    }
  }
  Bytes other = journal.bytes;
  other[kRecordBytesAt] = 128;
  ExpectRefused(other, absl::StatusCode::kDataLoss, "its records have 384 bytes, and not 256");
}

// Of version 1, which had no answers, no attempts to connect, and a request's number in the
// publication that it made. What goes on with it writes its own version.
TEST(JournalLog, TheVersionBeforeIsReadAndWrittenAnew) {
  Journal journal(1);
  ASSERT_TRUE(journal.log.Append(
      {Put(journal::Session{.id = SessionId{7}, .tenant = "alice"}),
       Put(journal::Publication{
           .id = PublicationId{4}, .publisher = SessionId{7}, .request_id = 9, .name = "x"})}));
  const JournalImage image = journal.Image();
  const auto make_old = [&](size_t at, auto head) {
    head.version = 1;
    head.checksum = journal::ChecksumOf(head);
    std::memcpy(&journal.bytes[at], &head, sizeof head);
  };
  make_old(0, journal::Load<journal::FileHead>(journal.bytes.data()));
  make_old(kJournalPageBytes, journal::Load<journal::AreaHead>(&journal.bytes[kJournalPageBytes]));
  const absl::StatusOr<JournalContents> old = ReadJournal(journal.bytes);
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->header.version, 1u);
  EXPECT_TRUE(old->image == image);
  EXPECT_EQ(old->image.publications.at(PublicationId{4}).request_id, 9u);
  journal.log.Rewrite(journal.Reach(1), old->image);
  const absl::StatusOr<JournalContents> rewritten = ReadJournal(journal.bytes);
  ASSERT_TRUE(rewritten.ok()) << rewritten.status();
  EXPECT_EQ(rewritten->header.version, kJournalVersion);
  EXPECT_TRUE(rewritten->image == image);
}

TEST(JournalLog, OneThatIsNotCompleteSaysSo) {
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

TEST(JournalLog, DoesNotLaunderWhatIsDamaged) {
  Journal journal(1);
  ASSERT_TRUE(journal.log.Append({PutExposure(1, 1), PutExposure(2, 1)}));
  journal.bytes[kJournalPageBytes + 2 * kJournalRecordBytes + 50] ^= 1;
  const Bytes before = journal.bytes;
  EXPECT_EQ(journal.Compact(1).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(journal.bytes, before);
}

// Batches by chance against an image that each is applied to; compaction and resumption at any
// moment; and garbage wherever nothing counts.
TEST(JournalLog, IsTheModelAtEveryMoment) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    JournalChance chance(seed);
    Journal journal(JournalArea::PagesFor(1 + chance.Below(60)));
    JournalImage model;
    uint32_t generation = 1;
    int compactions = 0;
    for (int step = 0; step < 300; ++step) {
      const std::vector<Change> batch = chance.Batch(8);
      if (!journal.log.Append(batch)) {
        ASSERT_GT(batch.size(), journal.log.capacity() - journal.log.used());
        const uint32_t pages =
            JournalArea::PagesFor(model.size() + batch.size() + chance.Below(40));
        ASSERT_TRUE(journal.Compact(pages).ok());
        ASSERT_LE(journal.log.used(), model.size());
        ++compactions;
        ASSERT_TRUE(journal.log.Append(batch));
      }
      for (const Change& change : batch) model.Apply(change);
      if (chance.OneIn(10)) {
        absl::StatusOr<JournalContents> contents = ReadJournal(journal.bytes);
        ASSERT_TRUE(contents.ok()) << contents.status();
        journal.log = JournalLog::Resume(absl::MakeSpan(journal.bytes), *contents);
        ASSERT_EQ(contents->header.generation, ++generation);
      }
      if (chance.OneIn(40)) {
        journal.log.Rewrite(journal.Reach(JournalArea::PagesFor(model.size())), model);
      }
      const size_t end =
          journal.log.area().begin() + (1 + journal.log.used()) * kJournalRecordBytes;
      for (int i = 0; i < 20; ++i) {
        const size_t at =
            kJournalPageBytes + chance.Below(journal.bytes.size() - kJournalPageBytes);
        if (at < journal.log.area().begin() || at >= end) {
          journal.bytes[at] = static_cast<uint8_t>(chance.Below(256));
        }
      }
      const absl::StatusOr<JournalContents> contents = ReadJournal(journal.bytes);
      ASSERT_TRUE(contents.ok()) << contents.status();
      ASSERT_TRUE(contents->image == model);
      ASSERT_EQ(contents->end, end);
    }
    ASSERT_GT(compactions, 2);
  }
}

}  // namespace
}  // namespace gpumemd
