// SPDX-License-Identifier: Apache-2.0
// Reads bytes that no daemon has written, made from a seed. Reading them always ends with a status,
// or with a state that could have been written. It takes no more memory than that state.
//
// GPUMEM_FUZZ_ROUNDS and GPUMEM_FUZZ_SEED override the defaults.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/journal/layout.h"
#include "daemon/core/journal/table.h"
#include "daemon/core/journal/testing/chance.h"

namespace gpumemd {
namespace {

using Bytes = std::vector<uint8_t>;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

// Stages of one page, and slots of three: in pages 1 to 6, or 7 to 12.
constexpr JournalArea kFirst = {.page = 1, .stage_pages = 1, .slot_pages = 3};

// Returns a journal of a few dozen records, in the first area or the second.
Bytes SomeJournal(JournalChance& chance) {
  Bytes bytes(13 * kJournalPageBytes);
  JournalTable table = JournalTable::Create(absl::MakeSpan(bytes), {.number = 1}, kFirst);
  for (int i = 0; i < 10; ++i) {
    (void)table.Append(chance.Batch(6));
    if (i == 5 && chance.OneIn(2)) table.MoveWith(table.Place(1, 3), {});
  }
  return bytes;
}

// Makes the checksums right again, so that the checks behind them are tested, too. Now and then
// also fixes the sum of all checksums.
void Reseal(JournalChance& chance, Bytes& bytes) {
  const auto reseal = [&](size_t at, size_t checksum_at, uint64_t checksum) {
    std::memcpy(&bytes[at + checksum_at], &checksum, sizeof checksum);
  };
  const auto file = journal::Load<journal::FileHead>(bytes.data());
  reseal(0, offsetof(journal::FileHead, checksum), journal::ChecksumOf(file));
  const size_t begin = size_t{static_cast<uint32_t>(file.area_page)} * kJournalPageBytes;
  if (begin == 0 || begin > bytes.size() - kJournalPageBytes) return;
  const auto area = journal::Load<journal::AreaHead>(&bytes[begin]);
  reseal(begin, offsetof(journal::AreaHead, checksum), journal::ChecksumOf(area));
  uint64_t sum = 0;
  uint32_t objects = 0;
  for (size_t at = begin + kJournalPageBytes; at + kJournalRecordBytes <= bytes.size();
       at += kJournalRecordBytes) {
    const auto head = journal::Load<journal::RecordHead>(&bytes[at]);
    if (head.checksum == 0 && head.batch == 0) continue;
    const uint64_t checksum = journal::ChecksumOfRecord(&bytes[at]);
    reseal(at, offsetof(journal::RecordHead, checksum), checksum);
    if (at >= begin + 3 * kJournalPageBytes && at < begin + 6 * kJournalPageBytes) {
      sum += checksum;
      ++objects;
    }
  }
  if (!chance.OneIn(4)) return;
  for (size_t stage : {begin + kJournalPageBytes, begin + 2 * kJournalPageBytes}) {
    if (stage + kJournalRecordBytes > bytes.size()) continue;
    auto head = journal::Load<journal::StageHead>(&bytes[stage]);
    head.sum = sum;
    head.objects = objects;
    std::memcpy(&bytes[stage], &head, sizeof head);
    reseal(stage, offsetof(journal::StageHead, checksum), journal::ChecksumOfRecord(&bytes[stage]));
  }
}

// Returns a place that has a meaning: a head, or the first bytes of a record.
size_t SomePlace(JournalChance& chance, const Bytes& bytes) {
  switch (chance.Below(4)) {
    case 0:
      return chance.Below(sizeof(journal::FileHead));
    case 1:
      return (1 + 6 * chance.Below(2)) * kJournalPageBytes +
             chance.Below(sizeof(journal::AreaHead));
    case 2:
      return kJournalPageBytes +
             chance.Below((bytes.size() - kJournalPageBytes) / kJournalRecordBytes) *
                 kJournalRecordBytes +
             chance.Below(48);
    default:
      return chance.Below(bytes.size());
  }
}

void Mutate(JournalChance& chance, Bytes& bytes) {
  for (uint64_t changes = 1 + chance.Below(4); changes > 0; --changes) {
    const size_t at = SomePlace(chance, bytes);
    switch (chance.Below(5)) {
      case 0:
        bytes[at] ^= static_cast<uint8_t>(1 << chance.Below(8));
        break;
      case 1:
        bytes[at] = static_cast<uint8_t>(chance.Below(256));
        break;
      case 2: {  // a sealed word, or any number
        constexpr uint32_t kNumbers[] = {0, 1, 2, 3, 5, 8, 15, 16, 63, 64, 0x7fffffff, 0xffffffff};
        const uint64_t word = journal::Sealed(kNumbers[chance.Below(std::size(kNumbers))]);
        const size_t aligned = at / 8 * 8;
        std::memcpy(&bytes[aligned], &word, chance.OneIn(2) ? 8 : 4);
        break;
      }
      case 3: {  // one record in another's place
        const size_t records = bytes.size() / kJournalRecordBytes;
        std::memcpy(&bytes[chance.Below(records) * kJournalRecordBytes],
                    &bytes[chance.Below(records) * kJournalRecordBytes], kJournalRecordBytes);
        break;
      }
      default: {
        const size_t most = std::min<size_t>(bytes.size() - at, 600);
        std::memset(&bytes[at], chance.OneIn(2) ? 0 : 0xff, 1 + chance.Below(most));
      }
    }
  }
}

// A state that was read could have been written: written again, it is the same.
void ExpectSound(const Bytes& bytes) {
  const absl::StatusOr<JournalContents> read = ReadJournal(bytes);
  if (!read.ok()) {
    ASSERT_TRUE(read.status().code() == absl::StatusCode::kDataLoss ||
                read.status().code() == absl::StatusCode::kFailedPrecondition)
        << read.status();
    ASSERT_FALSE(read.status().message().empty());
    return;
  }
  ASSERT_LE(read->image.size(), bytes.size() / kJournalRecordBytes);
  (void)read->image.CheckReferences();
  const JournalArea area{
      .page = 1, .stage_pages = 1, .slot_pages = JournalArea::PagesFor(read->image.size())};
  Bytes again((1 + 2 * area.pages()) * kJournalPageBytes);
  JournalTable table = JournalTable::Create(absl::MakeSpan(again), read->header.identity, area);
  table.Rewrite(table.Place(area.stage_pages, area.slot_pages), read->image);
  const absl::StatusOr<JournalContents> reread = ReadJournal(again);
  ASSERT_TRUE(reread.ok()) << reread.status();
  ASSERT_TRUE(reread->image == read->image);
  // A daemon that resumes it leaves the same state, plus its batches.
  Bytes on = bytes;
  absl::StatusOr<JournalContents> contents = read;
  JournalTable resumed = JournalTable::Resume(absl::MakeSpan(on), *contents);
  const journal::Change change = journal::Put(journal::Session{.id = SessionId{77}});
  if (!resumed.Append({change})) return;
  contents = ReadJournal(on);
  ASSERT_TRUE(contents.ok()) << contents.status();
  JournalImage expected = read->image;
  expected.Apply(change);
  ASSERT_TRUE(contents->image == expected);
}

TEST(JournalFuzz, RandomBytesAreReadSafely) {
  const uint64_t rounds = FromEnvironment("GPUMEM_FUZZ_ROUNDS", 100000);
  const uint64_t seed = FromEnvironment("GPUMEM_FUZZ_SEED", 1);
  JournalChance chance(seed);
  Bytes journal;
  uint64_t sound = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(absl::StrCat("GPUMEM_FUZZ_SEED=", seed, ", round ", round));
    if (round % 500 == 0) journal = SomeJournal(chance);
    Bytes bytes = journal;
    Mutate(chance, bytes);
    if (chance.OneIn(2)) Reseal(chance, bytes);
    if (chance.OneIn(20)) bytes.resize(chance.Below(bytes.size()));
    if (chance.OneIn(200)) {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(chance.Below(256));
    }
    ExpectSound(bytes);
    if (HasFatalFailure()) return;
    if (ReadJournal(bytes).ok()) ++sound;
  }
  // Both outcomes were common.
  EXPECT_GT(sound, rounds / 50);
  EXPECT_LT(sound, rounds - rounds / 50);
}

}  // namespace
}  // namespace gpumemd
