// Reading a journal, whatever its bytes are.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/journal_layout.h"
#include "daemon/core/journal_log.h"

namespace gpumemd {

using journal::AreaHead;
using journal::Damaged;
using journal::FileHead;
using journal::RecordHead;

namespace journal {

absl::Status Damaged(size_t byte, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the journal is damaged at byte ", byte, ": ", what,
                   "; what it says of leases and publications cannot be relied on"));
}

absl::StatusOr<uint64_t> ScanRecords(
    absl::Span<const uint8_t> file, size_t begin, size_t used,
    absl::FunctionRef<bool(uint32_t number, const RecordHead& head, const uint8_t* payload)>
        visit) {
  RecordHead before;  // with length 0: no batch is open
  for (size_t number = 0; number < used; ++number) {
    const size_t at = begin + (number + 1) * kJournalRecordBytes;
    const auto wrong = [&](absl::string_view what) {
      return Damaged(at, absl::StrCat(what, " (record ", number, " of ", used, ")"));
    };
    const uint8_t* const record = file.data() + at;
    const RecordHead head = Load<RecordHead>(record);
    if (head.checksum != ChecksumOfRecord(record)) {
      return wrong("a record's checksum does not fit what is in it");
    }
    const bool first = number == 0 || before.index + 1 == before.length;
    const bool follows = first
                             ? head.index == 0 && head.length > 0 && head.length <= used - number &&
                                   (number == 0 || head.batch == before.batch + 1)
                             : head.index == before.index + 1 && head.length == before.length &&
                                   head.batch == before.batch;
    if (!follows) return wrong("a record is not the one that follows the one before it");
    const bool zero =
        std::all_of(head.zero.begin(), head.zero.end(), [](uint8_t byte) { return byte == 0; });
    if (!zero || !visit(static_cast<uint32_t>(number), head, record + sizeof head)) {
      return wrong("a record that no daemon of this version writes");
    }
    before = head;
  }
  return before.batch;
}

}  // namespace journal

namespace {

absl::Status CheckVersion(uint32_t version) {
  if (version >= kOldestJournalVersion && version <= kJournalVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the journal is of version ", version, ", and this gpumemd reads versions ",
      kOldestJournalVersion, " to ", kJournalVersion,
      ": start the gpumemd that wrote it, or a newer one, or stop the service and start it again, "
      "by which its clients lose what they hold"));
}

}  // namespace

uint32_t JournalArea::PagesFor(size_t records) {
  const size_t bytes = (records + 1) * kJournalRecordBytes;
  return static_cast<uint32_t>((bytes + kJournalPageBytes - 1) / kJournalPageBytes);
}

absl::StatusOr<JournalHeader> ReadJournalHeader(absl::Span<const uint8_t> file) {
  if (file.size() < kJournalPageBytes) return Damaged(0, "it is shorter than a page");
  const auto head = journal::Load<FileHead>(file.data());
  if (head.magic != journal::kFileMagic) return Damaged(0, "it does not begin as a journal does");
  if (absl::Status read = CheckVersion(head.version); !read.ok()) return read;
  if (head.record_bytes != kJournalRecordBytes) {
    return Damaged(offsetof(FileHead, record_bytes),
                   absl::StrCat("its records have ", head.record_bytes, " bytes, and not ",
                                kJournalRecordBytes));
  }
  if (head.checksum != journal::ChecksumOf(head) || head.zero != 0) {
    return Damaged(0, "its header's checksum does not fit what is in it");
  }
  JournalHeader header{.identity = {.boot_id = head.boot_id,
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
    return Damaged(offsetof(FileHead, area_page), "where its records are");
  }
  const auto area = journal::Load<AreaHead>(file.data() + begin);
  if (area.magic != journal::kAreaMagic) return Damaged(begin, "the head of its records");
  if (absl::Status read = CheckVersion(area.version); !read.ok()) return read;
  if (area.checksum != journal::ChecksumOf(area) || area.zero != 0) {
    return Damaged(begin, "the checksum of the head of its records");
  }
  const size_t bytes = size_t{area.pages} * kJournalPageBytes;
  if (bytes == 0 || bytes > file.size() - begin) {
    return Damaged(begin + offsetof(AreaHead, pages), "its records end behind the file's end");
  }
  const std::optional<uint32_t> used = journal::Unsealed(area.used);
  if (!used || *used > bytes / kJournalRecordBytes - 1) {
    return Damaged(begin + offsetof(AreaHead, used), "how many of its records count");
  }
  if (area.behind != 0) {
    return absl::DataLossError(
        "the journal is not complete: the daemon that wrote it had no memory for its last changes");
  }

  JournalContents contents{.header = *std::move(header)};
  contents.header.version = area.version;
  const absl::StatusOr<uint64_t> last = journal::ScanRecords(
      file, begin, *used, [&](uint32_t, const RecordHead& record, const uint8_t* payload) {
        const std::optional<journal::Change> change =
            journal::Decode(record.type, record.op, {payload, journal::kPayloadBytes});
        if (change) contents.image.Apply(*change);
        return change.has_value();
      });
  if (!last.ok()) return last.status();
  contents.end = begin + (size_t{*used} + 1) * kJournalRecordBytes;
  size_t written = begin + bytes;
  while (written > contents.end && file[written - 1] == 0) --written;
  contents.dropped = written - contents.end;
  return contents;
}

}  // namespace gpumemd
