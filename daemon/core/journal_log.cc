#include "daemon/core/journal_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "daemon/core/journal_layout.h"

namespace gpumemd {

using journal::AreaHead;
using journal::Change;
using journal::FileHead;
using journal::Publish;
using journal::RecordHead;
using journal::Sealed;

namespace {

void WriteRecord(uint8_t* at, RecordHead head, const Change& change) {
  alignas(8) std::array<uint8_t, kJournalRecordBytes> record;
  head.type = static_cast<uint8_t>(journal::TypeOf(change.object));
  head.op = static_cast<uint8_t>(change.op);
  journal::Encode(change, absl::MakeSpan(record).subspan(sizeof head));
  std::memcpy(record.data(), &head, sizeof head);
  head.checksum = journal::ChecksumOfRecord(record.data());
  std::memcpy(record.data(), &head.checksum, sizeof head.checksum);
  std::memcpy(at, record.data(), record.size());
}

// Records by their keys: each is named by its number alone.
struct KeysOfRecords {
  using is_transparent = void;
  const uint8_t* records;

  // Its type and its key.
  std::pair<uint8_t, absl::string_view> operator[](uint32_t number) const {
    const uint8_t* const record = records + size_t{number} * kJournalRecordBytes;
    const uint8_t type = record[offsetof(RecordHead, type)];
    return {type, absl::string_view(reinterpret_cast<const char*>(record) + sizeof(RecordHead),
                                    journal::KeyBytes(type))};
  }
  size_t operator()(uint32_t number) const {
    const auto [type, key] = (*this)[number];
    return XXH3_64bits_withSeed(key.data(), key.size(), type);
  }
  bool operator()(uint32_t a, uint32_t b) const { return (*this)[a] == (*this)[b]; }
};

}  // namespace

// Fills an area that is not in use with one batch of `length` records, and puts it to use.
class JournalLog::AreaWriter {
 public:
  AreaWriter(JournalLog& log, JournalArea area, uint32_t length)
      : log_(log), area_(area), at_(log.file_.data() + area.begin()), length_(length) {
    AreaHead head{.number = log.area_number_ + 1, .pages = area.pages, .used = Sealed(length)};
    head.checksum = journal::ChecksumOf(head);
    std::memcpy(at_, &head, sizeof head);
  }

  void Add(const Change& change) { WriteRecord(Next(), head_, change); }
  // A record that is there already, checksum and all but for its place in the batch.
  void AddCopy(const uint8_t* record) {
    uint8_t* const at = Next();
    std::memcpy(at, record, kJournalRecordBytes);
    auto head = journal::Load<RecordHead>(at);
    head.batch = head_.batch;
    head.index = head_.index;
    head.length = head_.length;
    std::memcpy(at, &head, sizeof head);
    head.checksum = journal::ChecksumOfRecord(at);
    std::memcpy(at, &head.checksum, sizeof head.checksum);
  }

  void PutToUse() {
    Publish(log_.file_.data() + offsetof(FileHead, area_page), Sealed(area_.page));
    log_.area_ = area_;
    ++log_.area_number_;
    ++log_.batches_;
    log_.used_ = length_;
    log_.capacity_ = area_.bytes() / kJournalRecordBytes - 1;
  }

 private:
  uint8_t* Next() {
    head_ = {.batch = log_.batches_ + 1, .index = added_, .length = length_};
    ++added_;
    return at_ + size_t{added_} * kJournalRecordBytes;
  }

  JournalLog& log_;
  const JournalArea area_;
  uint8_t* const at_;
  const uint32_t length_;
  uint32_t added_ = 0;
  RecordHead head_;
};

JournalLog JournalLog::Create(absl::Span<uint8_t> file, const JournalIdentity& identity,
                              JournalArea area) {
  FileHead head{.boot_id = identity.boot_id,
                .pid_namespace = identity.pid_namespace,
                .number = identity.number,
                .generation = Sealed(1)};
  head.checksum = journal::ChecksumOf(head);
  std::memcpy(file.data(), &head, sizeof head);
  JournalLog log(file);
  log.Rewrite(area, JournalImage());
  return log;
}

JournalLog JournalLog::Resume(absl::Span<uint8_t> file, JournalContents& contents) {
  // ReadJournal has found all of this right.
  const auto head = journal::Load<FileHead>(file.data());
  const auto page = static_cast<uint32_t>(head.area_page);
  const auto area = journal::Load<AreaHead>(file.data() + size_t{page} * kJournalPageBytes);
  JournalLog log(file);
  log.area_ = {.page = page, .pages = area.pages};
  log.area_number_ = area.number;
  log.used_ = static_cast<uint32_t>(area.used);
  log.capacity_ = log.area_.bytes() / kJournalRecordBytes - 1;
  if (log.used_ > 0) {
    log.batches_ =
        journal::Load<RecordHead>(file.data() + contents.end - kJournalRecordBytes).batch;
  }
  ++contents.header.generation;
  Publish(file.data() + offsetof(FileHead, generation), Sealed(contents.header.generation));
  return log;
}

bool JournalLog::Append(absl::Span<const Change> batch) {
  if (batch.size() > capacity_ - used_) return false;
  if (batch.empty()) return true;
  uint8_t* const area = file_.data() + area_.begin();
  RecordHead head{.batch = batches_ + 1, .length = static_cast<uint32_t>(batch.size())};
  for (const Change& change : batch) {
    WriteRecord(area + (used_ + 1 + head.index) * kJournalRecordBytes, head, change);
    ++head.index;
  }
  used_ += batch.size();
  ++batches_;
  Publish(area + offsetof(AreaHead, used), Sealed(static_cast<uint32_t>(used_)));
  return true;
}

absl::StatusOr<JournalLog::Live> JournalLog::FindLive() const {
  const uint8_t* const records = file_.data() + area_.begin() + kJournalRecordBytes;
  Live found;
  const absl::StatusOr<uint64_t> scanned = journal::ScanRecords(
      file_, area_.begin(), used_, [&](uint32_t, const RecordHead& head, const uint8_t* payload) {
        if (head.op != static_cast<uint8_t>(journal::Op::kPut)) return true;
        // Their payloads begin with their numbers; those that are not decoded cost half.
        const auto type = static_cast<journal::Type>(head.type);
        if (uint64_t* const counter = found.counters.Of(type)) {
          *counter = std::max(*counter, journal::Load<uint64_t>(payload));
        } else if (type == journal::Type::kCounters) {
          const std::optional<Change> change =
              journal::Decode(head.type, head.op, {payload, journal::kPayloadBytes});
          if (!change) return false;
          found.counters.RaiseTo(std::get<journal::Counters>(change->object));
        }
        return true;
      });
  if (!scanned.ok()) return scanned.status();
  // From the last to the first: what was said last of a key counts.
  const KeysOfRecords keys{records};
  absl::flat_hash_set<uint32_t, KeysOfRecords, KeysOfRecords> said(used_, keys, keys);
  for (auto number = static_cast<uint32_t>(used_); number-- > 0;) {
    const auto head = journal::Load<RecordHead>(records + size_t{number} * kJournalRecordBytes);
    // Counters are written anew.
    if (head.type == static_cast<uint8_t>(journal::Type::kCounters)) continue;
    if (!said.insert(number).second) continue;
    if (head.op == static_cast<uint8_t>(journal::Op::kPut)) found.records.push_back(number);
  }
  std::reverse(found.records.begin(), found.records.end());
  return found;
}

JournalArea JournalLog::Place(uint32_t pages) const {
  const bool before = area_.page >= 1 + pages;
  return {.page = before ? 1 : area_.page + area_.pages, .pages = pages};
}

void JournalLog::Compact(JournalArea area, const Live& live) {
  const uint8_t* const records = file_.data() + area_.begin() + kJournalRecordBytes;
  AreaWriter writer(*this, area, static_cast<uint32_t>(live.records.size() + 1));
  writer.Add(journal::Put(live.counters));
  for (uint32_t number : live.records) {
    writer.AddCopy(records + size_t{number} * kJournalRecordBytes);
  }
  writer.PutToUse();
}

void JournalLog::Rewrite(JournalArea area, const JournalImage& image) {
  AreaWriter writer(*this, area, static_cast<uint32_t>(image.size()));
  image.ForEach([&](const journal::Object& object) { writer.Add({journal::Op::kPut, object}); });
  writer.PutToUse();
}

void JournalLog::SetBehind() {
  Publish(file_.data() + area_.begin() + offsetof(AreaHead, behind), 1);
}

}  // namespace gpumemd
