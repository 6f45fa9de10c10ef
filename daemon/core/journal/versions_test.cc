// SPDX-License-Identifier: Apache-2.0
// Journals of other forms, and of later versions of this form.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "daemon/core/journal/layout.h"
#include "daemon/core/journal/testing/memory_journal.h"

namespace gpumemd {
namespace {

using journal::Erase;
using journal::Put;

TEST(JournalVersions, OtherFormsAreRefused) {
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

// The form is checked before the checksum: the name of the writer can be any bytes.
TEST(JournalVersions, AWriterNameWithoutAnEndIsReadToItsLastByte) {
  Bytes bytes = Journal(1).bytes;
  bytes[kFormAt] = 3;
  constexpr size_t kAt = offsetof(journal::FileHead, writer), kSize = sizeof(journal::Writer);
  std::memset(&bytes[kAt], 'x', kSize);
  ExpectRefused(bytes, absl::StatusCode::kFailedPrecondition,
                absl::StrCat("which gpumemd ", std::string(kSize, 'x'), " wrote, and"));
  bytes[kAt] = '\n';
  ExpectRefused(bytes, absl::StatusCode::kFailedPrecondition, "which another gpumemd wrote, and");
}

constexpr uint8_t kNext = journal::kVersion + 1;

// Writes and reads as a daemon of the next version does, which has one more field and one more
// type.
class NextVersion {
 public:
  explicit NextVersion(uint8_t flags) {
    flags_ = flags;
    journal::dialect = {.version = kNext, .write = Write, .read = Read, .more_records = 3};
  }
  ~NextVersion() { journal::dialect = {}; }

 private:
  static void Write(journal::RecordHead& head, absl::Span<uint8_t> payload) {
    if (head.type == static_cast<uint8_t>(journal::Type::kLease)) {
      payload[journal::kPayloadBytes - 1] = 7;
    } else if (head.type == static_cast<uint8_t>(journal::Type::kCounters)) {
      head.type = kNextType;
    } else {
      return;  // as this version writes it
    }
    head.version = kNext;
    head.flags = flags_;
  }
  static bool Read(journal::RecordHead& head, absl::Span<uint8_t> payload) {
    if (head.version == kNext) payload[journal::kPayloadBytes - 1] = 0;
    return head.type == kNextType;
  }
  static constexpr uint8_t kNextType = 200;
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

TEST(JournalVersions, ANewerDaemonReadsItsOwnRecords) {
  Journal journal(1);
  const NextVersion next(0);
  journal.table.Rewrite(journal.Place(1, 1), SomeImage());
  const absl::StatusOr<JournalContents> read = ReadJournal(journal.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->image == SomeImage());
  EXPECT_EQ(read->passed, 0u);
  EXPECT_EQ(read->objects, 6u);
}

TEST(JournalVersions, SkippableRecordsOfANewerVersionAreSkipped) {
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

TEST(JournalVersions, ADaemonBeforeMadeTenantsRefusesAJournalThatHasSome) {
  Journal journal(1);
  JournalImage image = SomeImage();
  image.Apply(Put(journal::MadeTenant{.id = MadeTenantId{1}, .name = "job"}));
  image.Apply(Put(journal::MadeTenantQuota{.id = MadeTenantId{1}, .limit_bytes = 4096}));
  journal.table.Rewrite(journal.Place(1, 1), image);
  absl::StatusOr<JournalContents> read = ReadJournal(journal.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->image == image);
  journal::dialect.version = 5;
  EXPECT_EQ(ReadJournal(journal.bytes).status().code(), absl::StatusCode::kFailedPrecondition);
  // Once they have ended, it can go on: the number in Counters means nothing to it.
  journal::dialect = {};
  ASSERT_TRUE(journal.table.Append({Erase<journal::MadeTenant>(MadeTenantId{1}),
                                    Erase<journal::MadeTenantQuota>(MadeTenantId{1})}));
  ASSERT_TRUE(journal.table.Append({PutExposure(5, 1)}));  // both have left the stages
  journal::dialect.version = 5;
  read = ReadJournal(journal.bytes);
  journal::dialect = {};
  EXPECT_TRUE(read.ok()) << read.status();
}

TEST(JournalVersions, ADaemonBeforeLastingTenantsReadsTheOthers) {
  Journal journal(1);
  JournalImage image = SomeImage();
  image.Apply(Put(journal::MadeTenant{.id = MadeTenantId{1}, .name = "user-5:5.run"}));
  journal.table.Rewrite(journal.Place(1, 1), image);
  journal::dialect.version = 6;
  absl::StatusOr<JournalContents> read = ReadJournal(journal.bytes);
  journal::dialect = {};
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->image == image);
  // It would end one that lasts.
  image.Apply(
      Put(journal::MadeTenant{.id = MadeTenantId{2}, .name = "user-5:5.kept", .lasting = true}));
  journal.table.Rewrite(journal.Place(1, 1), image);
  read = ReadJournal(journal.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->image == image);
  journal::dialect.version = 6;
  EXPECT_EQ(ReadJournal(journal.bytes).status().code(), absl::StatusCode::kFailedPrecondition);
  journal::dialect = {};
}

TEST(JournalVersions, ADaemonBeforeByteSecondsReadsAllButTheFigures) {
  Journal journal(1);
  JournalImage image = SomeImage();
  image.Apply(Put(journal::MadeTenant{.id = MadeTenantId{1}, .name = "job"}));
  image.Apply(Put(journal::MadeTenantQuota{.id = MadeTenantId{1}, .limit_bytes = 4096}));
  JournalImage newer = image;
  newer.Apply(Put(journal::MadeTenant{.id = MadeTenantId{1}, .name = "job", .user = 1000}));
  newer.Apply(Put(journal::MadeTenantUse{
      .tenant = MadeTenantId{1}, .device_uuid = "GPU-1", .byte_seconds = 7, .peak_bytes = 8}));
  journal.table.Rewrite(journal.Place(1, 1), newer);
  absl::StatusOr<JournalContents> read = ReadJournal(journal.bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->image == newer);
  EXPECT_EQ(read->passed, 0u);
  // It knows neither the type nor the field. (This one reads what it knows of a type.)
  journal::dialect.version = 7;
  read = ReadJournal(journal.bytes);
  EXPECT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->passed, 2u);
  // What it does not mark as newer is as version 7 has written it.
  journal.table.Rewrite(journal.Place(1, 1), image);
  read = ReadJournal(journal.bytes);
  journal::dialect = {};
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->image == image);
  EXPECT_EQ(read->passed, 0u);
  // One from before made tenants is stopped all the same.
  journal.table.Rewrite(journal.Place(1, 1), newer);
  journal::dialect.version = 5;
  EXPECT_EQ(ReadJournal(journal.bytes).status().code(), absl::StatusCode::kFailedPrecondition);
  journal::dialect = {};
}

TEST(JournalVersions, OtherRecordsOfANewerVersionAreRefused) {
  Journal journal(1);
  {
    const NextVersion next(0);
    journal.table.Rewrite(journal.Place(1, 1), SomeImage());
  }
  ExpectRefused(journal.bytes, absl::StatusCode::kFailedPrecondition,
                "the journal has data that only version 9 has, which gpumemd " GPUMEM_VERSION
                " wrote, and this one (gpumemd " GPUMEM_VERSION ") understands version 8");
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
                "a record that is invalid in its version (slot 2)");
}

}  // namespace
}  // namespace gpumemd
