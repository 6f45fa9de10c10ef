// SPDX-License-Identifier: Apache-2.0
// Reads a journal, whatever its bytes are.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "daemon/core/journal/layout.h"
#include "daemon/core/journal/table.h"

namespace gpumemd {

using journal::AreaHead;
using journal::Change;
using journal::Damaged;
using journal::FileHead;
using journal::Op;
using journal::RecordHead;
using journal::StageHead;

namespace journal {

absl::Status Damaged(size_t byte, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the journal is damaged at byte ", byte, ": ", what,
                                          "; its leases and publications cannot be used"));
}

}  // namespace journal

namespace {

// Returns a name for a sentence, whatever the bytes are.
std::string NameOf(const journal::Writer& writer) {
  std::string name;
  for (char c : writer) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) break;
    name.push_back(c);
  }
  return name.empty() ? "another gpumemd" : absl::StrCat("gpumemd ", name);
}

absl::Status CheckForm(const FileHead& head) {
  const uint32_t form = journal::dialect.form;
  if (head.form >= journal::kOldestForm && head.form <= form) return absl::OkStatus();
  // Form 1 did not name its writer.
  const std::string writer = head.form < 2 ? "another gpumemd" : NameOf(head.writer);
  return absl::FailedPreconditionError(absl::StrCat(
      "the journal is of form ", head.form, ", which ", writer, " wrote, and this one (gpumemd ",
      GPUMEM_VERSION, ") reads forms ", journal::kOldestForm, " to ", form));
}

// One reading of the area in use.
class Reading {
 public:
  Reading(absl::Span<const uint8_t> file, JournalArea area, const AreaHead& head)
      : file_(file), area_(area), head_(head) {}

  absl::Status Read(JournalContents& contents) {
    if (absl::Status read = ReadStage(contents.image.counters); !read.ok()) return read;
    for (size_t slot = 0; slot < area_.slots(); ++slot) {
      if (absl::Status read = ReadSlot(slot, contents); !read.ok()) return read;
    }
    if (objects_ != stage_.objects || sum_ != stage_.sum) {
      return Damaged(
          stage_at_,
          absl::StrCat("its ", objects_,
                       " records differ in number from those that its last daemon left, ",
                       stage_.objects));
    }
    if (contents.image.size() != 1 + known_) {
      return Damaged(area_.slots_begin(), "two of its records are for the same object");
    }
    contents.objects = objects_;
    return absl::OkStatus();
  }

 private:
  struct Record {
    size_t at = 0;  // in the file
    const uint8_t* bytes = nullptr;
    RecordHead head;
  };
  static absl::Status Wrong(const Record& record, absl::string_view what) {
    return Damaged(record.at, absl::StrCat(what, " (slot ", record.head.slot, ")"));
  }
  Record At(size_t at) const {
    return {at, file_.data() + at, journal::Load<RecordHead>(file_.data() + at)};
  }

  // Checks the properties that all records share, in a stage as in a slot.
  static absl::Status Check(const Record& record) {
    const RecordHead& head = record.head;
    if (head.checksum != journal::ChecksumOfRecord(record.bytes)) {
      return Wrong(record, "a record's checksum does not match its contents");
    }
    const bool zero =
        std::all_of(head.zero.begin(), head.zero.end(), [](uint8_t byte) { return byte == 0; });
    if (!zero || (head.flags & ~journal::kMayPass) != 0 || head.version == 0) {
      return Wrong(record, "an invalid record");
    }
    return absl::OkStatus();
  }

  absl::Status ReadStage(journal::Counters& counters) {
    const std::optional<uint32_t> batch = journal::Unsealed(head_.batch);
    if (!batch)
      return Damaged(area_.begin() + offsetof(AreaHead, batch), "the number of its last batch");
    stage_at_ = area_.stage(*batch % 2);
    const uint8_t* const stage = file_.data() + stage_at_;
    stage_ = journal::Load<StageHead>(stage);
    if (stage_.checksum != journal::ChecksumOfRecord(stage)) {
      return Damaged(stage_at_, "the checksum of the head of its last batch");
    }
    const std::optional<Change> found = journal::Decode(
        static_cast<uint8_t>(journal::Type::kCounters), static_cast<uint8_t>(Op::kPut),
        {stage + sizeof stage_, journal::kPayloadBytes}, /*more=*/true);
    if (static_cast<uint32_t>(stage_.batch) != *batch || stage_.length > area_.stage_records() ||
        !found) {
      return Damaged(stage_at_, "the head of its last batch");
    }
    counters = std::get<journal::Counters>(found->object);
    for (uint32_t i = 0; i < stage_.length; ++i) {
      const Record record = At(stage_at_ + (i + 1) * kJournalRecordBytes);
      if (absl::Status right = Check(record); !right.ok()) return right;
      const bool put = record.head.op == static_cast<uint8_t>(Op::kPut);
      if (record.head.batch != stage_.batch || record.head.slot >= area_.slots() ||
          (!put && record.head.op != static_cast<uint8_t>(Op::kErase))) {
        return Wrong(record, "a record that is not of the last batch");
      }
      staged_[record.head.slot] = record;
    }
    return absl::OkStatus();
  }

  absl::Status ReadSlot(size_t slot, JournalContents& contents) {
    Record record = At(area_.slots_begin() + slot * kJournalRecordBytes);
    if (auto staged = staged_.find(slot); staged != staged_.end()) {
      const Record& newer = staged->second;
      const bool put = newer.head.op == static_cast<uint8_t>(Op::kPut);
      // An erasure clears only the head of its slot.
      constexpr std::array<uint8_t, sizeof(RecordHead)> kFree{};
      if (put ? std::memcmp(newer.bytes, record.bytes, kJournalRecordBytes) != 0
              : std::memcmp(kFree.data(), record.bytes, kFree.size()) != 0) {
        ++contents.unapplied;
      }
      if (!put) return absl::OkStatus();
      record = newer;
    } else if (std::all_of(record.bytes, record.bytes + sizeof(RecordHead),
                           [](uint8_t byte) { return byte == 0; })) {
      return absl::OkStatus();
    }
    if (absl::Status right = Check(record); !right.ok()) return right;
    if (record.head.slot != slot || record.head.op != static_cast<uint8_t>(Op::kPut)) {
      return Wrong(record, "a record in the slot of another");
    }
    ++objects_;
    sum_ += record.head.checksum;
    return Apply(record, contents);
  }

  absl::Status Apply(const Record& record, JournalContents& contents) {
    RecordHead head = record.head;
    std::array<uint8_t, journal::kPayloadBytes> payload;
    std::copy_n(record.bytes + sizeof head, payload.size(), payload.begin());
    if (journal::dialect.read != nullptr && journal::dialect.read(head, absl::MakeSpan(payload))) {
      return absl::OkStatus();
    }
    const bool newer = head.version > journal::dialect.version;
    if (newer && (head.flags & journal::kMayPass) == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the journal has data that only version ", head.version, " has, which ",
                       NameOf(head_.writer), " wrote, and this one (gpumemd ", GPUMEM_VERSION,
                       ") understands version ", journal::dialect.version));
    }
    if (newer) ++contents.passed;
    if (newer && (head.type == 0 || head.type > journal::kLastType)) return absl::OkStatus();
    const std::optional<Change> change = journal::Decode(head.type, head.op, payload, newer);
    if (!change || head.type == static_cast<uint8_t>(journal::Type::kCounters)) {
      return Wrong(record, "a record that is invalid in its version");
    }
    contents.image.Apply(*change);
    ++known_;
    return absl::OkStatus();
  }

  const absl::Span<const uint8_t> file_;
  const JournalArea area_;
  const AreaHead& head_;
  size_t stage_at_ = 0;
  StageHead stage_;
  absl::flat_hash_map<size_t, Record> staged_;  // by slot: the last record for it
  uint64_t sum_ = 0;
  size_t objects_ = 0, known_ = 0;
};

}  // namespace

absl::StatusOr<JournalHeader> ReadJournalHeader(absl::Span<const uint8_t> file) {
  if (file.size() < kJournalPageBytes) return Damaged(0, "it is shorter than a page");
  const auto head = journal::Load<FileHead>(file.data());
  if (head.magic != journal::kFileMagic)
    return Damaged(0, "it does not begin with the header of a journal");
  if (absl::Status read = CheckForm(head); !read.ok()) return read;
  if (head.record_bytes != kJournalRecordBytes) {
    return Damaged(offsetof(FileHead, record_bytes),
                   absl::StrCat("its records have ", head.record_bytes, " bytes, and not ",
                                kJournalRecordBytes));
  }
  if (head.checksum != journal::ChecksumOf(head) || head.zero != 0) {
    return Damaged(0, "its header's checksum does not match its contents");
  }
  JournalHeader header{.form = head.form,
                       .identity = {.boot_id = head.boot_id,
                                    .pid_namespace = head.pid_namespace,
                                    .number = head.number},
                       .complete = head.area_page != 0};
  const std::optional<uint32_t> generation = journal::Unsealed(head.generation);
  if (!generation && header.complete) {
    return Damaged(offsetof(FileHead, generation), "the number of daemons that have written to it");
  }
  header.generation = generation.value_or(0);
  return header;
}

absl::StatusOr<JournalContents> ReadJournal(absl::Span<const uint8_t> file) {
  absl::StatusOr<JournalHeader> header = ReadJournalHeader(file);
  if (!header.ok()) return header.status();
  if (!header->complete) {
    return absl::DataLossError(
        "the journal was never complete: the daemon that began it was killed before it had written "
        "its first state");
  }
  const auto head = journal::Load<FileHead>(file.data());
  const std::optional<uint32_t> page = journal::Unsealed(head.area_page);
  const size_t begin = size_t{page.value_or(0)} * kJournalPageBytes;
  if (!page || *page == 0 || begin > file.size() - kJournalPageBytes) {
    return Damaged(offsetof(FileHead, area_page), "the position of its records");
  }
  const auto area_head = journal::Load<AreaHead>(file.data() + begin);
  if (area_head.magic != journal::kAreaMagic) return Damaged(begin, "the head of its records");
  if (area_head.checksum != journal::ChecksumOf(area_head) || area_head.zero != 0) {
    return Damaged(begin, "the checksum of the head of its records");
  }
  const std::optional<uint32_t> slot_pages = journal::Unsealed(area_head.slot_pages);
  const size_t pages = (file.size() - begin) / kJournalPageBytes;
  if (!slot_pages || area_head.stage_pages == 0 || area_head.stage_pages > pages ||
      1 + 2 * size_t{area_head.stage_pages} + *slot_pages > pages) {
    return Damaged(begin + offsetof(AreaHead, slot_pages),
                   "its records end past the end of the file");
  }
  if (area_head.behind != 0) {
    return absl::DataLossError(
        "the journal is not complete: the daemon that wrote it had no memory for its last changes");
  }
  JournalContents contents{.header = *std::move(header), .writer = NameOf(area_head.writer)};
  Reading reading(file,
                  {.page = *page, .stage_pages = area_head.stage_pages, .slot_pages = *slot_pages},
                  area_head);
  if (absl::Status read = reading.Read(contents); !read.ok()) return read;
  return contents;
}

}  // namespace gpumemd
