// SPDX-License-Identifier: Apache-2.0
// Journals whose bytes an engine has changed, or made. Reading them ends with a documented status,
// or with a state that could have been written.
//
// Byte 0 has flags. 1: the rest is the journal. Else edits of a written one follow. 2: it is sealed
// again after the edits, which then pass the checksums. 4: the sum of all checksums is sealed, too.
//
//   byte 1    the seed of the written journal
//   edits     a place (how: 1 byte; where: 2), then the bytes for there (length: 1)
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/testing/fuzz/input.h"
#include "daemon/core/journal/codec.h"
#include "daemon/core/journal/layout.h"
#include "daemon/core/journal/table.h"
#include "daemon/core/journal/testing/chance.h"

namespace gpumemd {
namespace {

using gpumem::testing::FuzzInput;
using Bytes = std::vector<uint8_t>;

constexpr JournalArea kArea = {.page = 1, .stage_pages = 1, .slot_pages = 2};
const size_t kBytes = (1 + kArea.pages()) * kJournalPageBytes;

Bytes WrittenJournal(uint8_t seed) {
  JournalChance chance(seed);
  Bytes bytes(kBytes);
  JournalTable table = JournalTable::Create(absl::MakeSpan(bytes), {.number = 1}, kArea);
  for (int i = seed % 8; i > 0; --i) (void)table.Append(chance.Batch(6));
  return bytes;
}

// Where the bytes have a meaning.
size_t PlaceOf(uint8_t how, uint16_t where) {
  switch (how % 4) {
    case 0:
      return where % sizeof(journal::FileHead);
    case 1:
      return kArea.begin() + where % sizeof(journal::AreaHead);
    case 2:  // in a stage's head and records
      return kArea.stage(how / 4 % 2) + where % kJournalPageBytes;
    default:
      return kArea.slots_begin() + where % (kArea.slot_pages * kJournalPageBytes);
  }
}

template <typename Head>
void Seal(Bytes& bytes, size_t at) {
  auto head = journal::Load<Head>(&bytes[at]);
  head.checksum = journal::ChecksumOf(head);
  std::memcpy(&bytes[at], &head, sizeof head);
}

void SealRecord(Bytes& bytes, size_t at) {
  const uint64_t checksum = journal::ChecksumOfRecord(&bytes[at]);
  std::memcpy(&bytes[at], &checksum, sizeof checksum);
}

void SealAll(Bytes& bytes, bool sums) {
  Seal<journal::FileHead>(bytes, 0);
  Seal<journal::AreaHead>(bytes, kArea.begin());
  uint64_t sum = 0;
  uint32_t objects = 0;
  for (size_t at = kArea.stage(0); at < kArea.end(); at += kJournalRecordBytes) {
    const auto head = journal::Load<journal::RecordHead>(&bytes[at]);
    if (head.checksum == 0 && head.batch == 0) continue;
    SealRecord(bytes, at);
    if (at < kArea.slots_begin()) continue;
    sum += journal::Load<journal::RecordHead>(&bytes[at]).checksum;
    ++objects;
  }
  for (const size_t stage : {kArea.stage(0), kArea.stage(1)}) {
    if (!sums) continue;
    auto head = journal::Load<journal::StageHead>(&bytes[stage]);
    head.sum = sum;
    head.objects = objects;
    std::memcpy(&bytes[stage], &head, sizeof head);
    SealRecord(bytes, stage);
  }
}

Bytes JournalOf(FuzzInput& input) {
  const uint8_t flags = input.Byte();
  if ((flags & 1) != 0) {
    const absl::string_view rest = input.Rest();
    return Bytes(rest.begin(), rest.end());
  }
  Bytes bytes = WrittenJournal(input.Byte());
  while (!input.empty()) {
    const uint8_t how = input.Byte();
    const size_t at = PlaceOf(how, input.Take<uint16_t>());
    const absl::string_view edit = input.Word(255);
    const size_t length = std::min(edit.size(), bytes.size() - at);
    if (length > 0) std::memcpy(&bytes[at], edit.data(), length);
  }
  if ((flags & 2) != 0) SealAll(bytes, (flags & 4) != 0);
  return bytes;
}

// A single record's payload, without a journal around it.
void DecodeAlone(absl::Span<const uint8_t> bytes) {
  if (bytes.size() < 2 + journal::kPayloadBytes) return;
  const auto payload = bytes.subspan(2, journal::kPayloadBytes);
  const std::optional<journal::Change> change = journal::Decode(bytes[0], bytes[1], payload);
  (void)journal::DecodeKey(bytes[0], payload);
  (void)journal::Decode(bytes[0], bytes[1], payload, /*more=*/true);
  if (!change) return;
  uint8_t again[journal::kPayloadBytes];
  journal::Encode(*change, absl::MakeSpan(again));
  FUZZ_CHECK(std::equal(payload.begin(), payload.end(), again));
}

// A state that was read could have been written: written again, it is the same.
void CheckRewritten(const JournalContents& read) {
  const JournalArea area{
      .page = 1, .stage_pages = 1, .slot_pages = JournalArea::PagesFor(read.image.size())};
  Bytes bytes((1 + 2 * area.pages()) * kJournalPageBytes);
  JournalTable table = JournalTable::Create(absl::MakeSpan(bytes), read.header.identity, area);
  table.Rewrite(table.Place(area.stage_pages, area.slot_pages), read.image);
  const absl::StatusOr<JournalContents> again = ReadJournal(bytes);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(again->image == read.image);
}

// A daemon that resumes it leaves the same state, and new batches.
void CheckResumed(Bytes bytes, JournalContents contents) {
  const journal::Change change = journal::Put(journal::Session{.id = SessionId{77}});
  JournalImage expected = contents.image;
  JournalTable table = JournalTable::Resume(absl::MakeSpan(bytes), contents);
  if (!table.Append({change})) return;
  const absl::StatusOr<JournalContents> again = ReadJournal(bytes);
  FUZZ_CHECK(again.ok());
  expected.Apply(change);
  FUZZ_CHECK(again->image == expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  DecodeAlone({data, size});
  FuzzInput input(data, size);
  const Bytes bytes = JournalOf(input);
  const absl::StatusOr<JournalHeader> header = ReadJournalHeader(bytes);
  const absl::StatusOr<JournalContents> read = ReadJournal(bytes);
  if (!read.ok()) {
    FUZZ_CHECK(absl::IsDataLoss(read.status()) || absl::IsFailedPrecondition(read.status()));
    FUZZ_CHECK(!read.status().message().empty());
    return 0;
  }
  FUZZ_CHECK(header.ok());
  FUZZ_CHECK(read->image.size() <= bytes.size() / kJournalRecordBytes);
  (void)read->image.CheckReferences();
  CheckRewritten(*read);
  if (read->header.form == journal::dialect.form) CheckResumed(bytes, *read);
  return 0;
}

}  // namespace gpumemd
