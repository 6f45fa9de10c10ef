// SPDX-License-Identifier: Apache-2.0
#include "daemon/core/journal/table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "common/version.h"
#include "daemon/core/journal/layout.h"
#include "daemon/core/mutant.h"

namespace gpumemd {

using journal::AreaHead;
using journal::Change;
using journal::Counters;
using journal::FileHead;
using journal::Op;
using journal::Publish;
using journal::RecordHead;
using journal::Sealed;
using journal::StageHead;

namespace {

constexpr size_t kFreeWordSlots = 64;
// For a map of slots by key: a larger one that is nearly empty gives memory back.
constexpr size_t kLeastCapacity = 64;

journal::Writer ThisWriter() {
  static_assert(sizeof GPUMEM_VERSION <= std::tuple_size_v<journal::Writer>);
  journal::Writer writer{};
  std::memcpy(writer.data(), GPUMEM_VERSION, sizeof GPUMEM_VERSION);
  return writer;
}

uint64_t Seal(uint8_t* record) {
  const uint64_t checksum = journal::ChecksumOfRecord(record);
  std::memcpy(record, &checksum, sizeof checksum);
  return checksum;
}

// Returns the record's checksum.
uint64_t WriteRecord(uint8_t* at, RecordHead head, const Change& change) {
  const auto payload = absl::MakeSpan(at + sizeof head, journal::kPayloadBytes);
  head.type = static_cast<uint8_t>(journal::TypeOf(change.object));
  head.op = static_cast<uint8_t>(change.op);
  head.version = journal::VersionOf(change.object);
  head.flags = journal::MayPass(change.object) ? journal::kMayPass : 0;
  journal::Encode(change, payload);
  if (journal::dialect.write != nullptr) journal::dialect.write(head, payload);
  std::memcpy(at, &head, sizeof head);
  return Seal(at);
}

size_t CountPuts(absl::Span<const Change> batch) {
  return static_cast<size_t>(std::count_if(batch.begin(), batch.end(), [](const Change& change) {
    return change.op == Op::kPut && !std::holds_alternative<Counters>(change.object);
  }));
}

bool IsCounters(const Change& change) { return std::holds_alternative<Counters>(change.object); }

}  // namespace

// --- Slots by key ----------------------------------------------------------------------

JournalTable::Key JournalTable::KeyOf(const journal::Object& object) {
  return std::visit(
      [this]<typename T>(const T& it) -> Key {
        constexpr auto kType = static_cast<uint8_t>(T::kType);
        if constexpr (std::is_same_v<T, Counters>) {
          return {};
        } else if constexpr (std::is_enum_v<typename T::Key>) {
          return {ToInt(it.key()), 0, kType};
        } else if constexpr (std::is_same_v<T, journal::PoolImport> ||
                             std::is_same_v<T, journal::MadeTenantUse>) {
          auto device = std::find(devices_.begin(), devices_.end(), it.device_uuid);
          if (device == devices_.end()) device = devices_.insert(device, it.device_uuid);
          return {ToInt(it.key().first), static_cast<uint64_t>(device - devices_.begin()), kType};
        } else {
          const auto& [first, second] = it.key();
          return {ToInt(first), static_cast<uint64_t>(second), kType};
        }
      },
      object);
}

JournalTable::SlotsByKey& JournalTable::MapOf(const Key& key) {
  static_assert(std::tuple_size_v<decltype(slots_by_key_)> == 256);
  return slots_by_key_[((key.a + key.b) * 0x9e3779b97f4a7c15) >> 56];
}

uint8_t* JournalTable::Slot(uint32_t slot) const {
  return file_.data() + area_.slots_begin() + size_t{slot} * kJournalRecordBytes;
}

void JournalTable::ForgetSlots(size_t slots) {
  for (SlotsByKey& map : slots_by_key_) map.clear();
  devices_.clear();
  sum_ = 0;
  live_ = 0;
  checksums_.assign(slots, 0);
  free_.assign((slots + kFreeWordSlots - 1) / kFreeWordSlots, 0);
  for (size_t slot = 0; slot < slots; ++slot) {
    free_[slot / kFreeWordSlots] |= uint64_t{1} << slot % kFreeWordSlots;
  }
  first_free_ = 0;
  free_count_ = slots;
}

// Takes the first free slot, so that the last ones become free and their pages are given back.
uint32_t JournalTable::TakeSlot() {
  while (free_[first_free_] == 0) ++first_free_;
  uint64_t& word = free_[first_free_];
  const int bit = std::countr_zero(word);
  word &= word - 1;
  --free_count_;
  return static_cast<uint32_t>(first_free_ * kFreeWordSlots + static_cast<size_t>(bit));
}

void JournalTable::FreeSlot(uint32_t slot) {
  free_[slot / kFreeWordSlots] |= uint64_t{1} << slot % kFreeWordSlots;
  first_free_ = std::min<size_t>(first_free_, slot / kFreeWordSlots);
  ++free_count_;
}

void JournalTable::Account(uint32_t slot, uint64_t checksum) {
  uint64_t& known = checksums_[slot];
  sum_ += checksum - known;
  live_ += (checksum != 0) - (known != 0);
  known = checksum;
}

bool JournalTable::Stage(const Change& change, uint8_t* at, uint32_t* slot) {
  const Key key = KeyOf(change.object);
  SlotsByKey& map = MapOf(key);
  RecordHead head{.batch = batch_};
  if (change.op == Op::kErase) {
    auto found = map.find(key);
    if (found == map.end()) return false;
    *slot = head.slot = found->second;
    map.erase(found);
    if (map.capacity() > kLeastCapacity && map.size() < map.capacity() / 8) map.rehash(0);
    WriteRecord(at, head, change);
    Account(*slot, 0);
    FreeSlot(*slot);
    return true;
  }
  const auto [found, is_new] = map.try_emplace(key);
  if (is_new) found->second = TakeSlot();
  *slot = head.slot = found->second;
  Account(*slot, WriteRecord(at, head, change));
  std::visit(
      [this]<typename T>(const T& it) {
        if constexpr (std::is_enum_v<typename T::Key>) {
          uint64_t& counter = *counters_.Of(T::kType);
          counter = std::max(counter, ToInt(it.key()));
        }
      },
      change.object);
  return true;
}

void JournalTable::WriteStageHead(JournalArea area, uint32_t length) {
  uint8_t* const at = file_.data() + area.stage(batch_ % 2);
  staged_ = length;
  const StageHead head{.batch = batch_, .length = length, .objects = live_, .sum = sum_};
  journal::Encode(journal::Put(counters_),
                  absl::MakeSpan(at + sizeof head, journal::kPayloadBytes));
  std::memcpy(at, &head, sizeof head);
  Seal(at);
}

// --- Writing ---------------------------------------------------------------------------

JournalTable JournalTable::Create(absl::Span<uint8_t> file, const JournalIdentity& identity,
                                  JournalArea area, bool complete) {
  FileHead head{.boot_id = identity.boot_id,
                .pid_namespace = identity.pid_namespace,
                .number = identity.number,
                .writer = ThisWriter(),
                .generation = Sealed(1)};
  head.checksum = journal::ChecksumOf(head);
  std::memcpy(file.data(), &head, sizeof head);
  JournalTable table(file);
  table.Rewrite(area, JournalImage());
  if (!complete) Publish(file.data() + offsetof(FileHead, area_page), 0);
  return table;
}

JournalTable JournalTable::Resume(absl::Span<uint8_t> file, JournalContents& contents) {
  // ReadJournal has checked all of this.
  JournalTable table(file);
  const auto file_head = journal::Load<FileHead>(file.data());
  const auto page = static_cast<uint32_t>(file_head.area_page);
  const auto area = journal::Load<AreaHead>(file.data() + size_t{page} * kJournalPageBytes);
  table.area_ = {.page = page,
                 .stage_pages = area.stage_pages,
                 .slot_pages = static_cast<uint32_t>(area.slot_pages)};
  uint8_t* const stage = file.data() + table.area_.stage(area.batch % 2);
  const auto head = journal::Load<StageHead>(stage);
  table.batch_ = head.batch;
  table.staged_ = head.length;
  table.counters_ = contents.image.counters;
  // Finishes a batch that the daemon before may have been killed in.
  table.ApplyStage(head.length);
  table.ForgetSlots(table.area_.slots());
  for (uint32_t slot = 0; slot < table.checksums_.size(); ++slot) {
    const auto record = journal::Load<RecordHead>(table.Slot(slot));
    if (record.checksum == 0) continue;
    table.Account(slot, record.checksum);
    table.free_[slot / kFreeWordSlots] &= ~(uint64_t{1} << slot % kFreeWordSlots);
    --table.free_count_;
    // A record of an unknown type stays in its slot until the next whole state.
    const std::optional<Change> change =
        journal::DecodeKey(record.type, {table.Slot(slot) + sizeof record, journal::kPayloadBytes});
    if (!change) continue;
    const Key key = table.KeyOf(change->object);
    table.MapOf(key).emplace(key, slot);
  }
  ++contents.header.generation;
  Publish(file.data() + offsetof(FileHead, generation), Sealed(contents.header.generation));
  return table;
}

void JournalTable::ApplyStage(uint32_t length) {
  const uint8_t* record = file_.data() + area_.stage(batch_ % 2);
  for (uint32_t i = 0; i < length; ++i) {
    record += kJournalRecordBytes;
    const auto head = journal::Load<RecordHead>(record);
    if (head.op == static_cast<uint8_t>(Op::kPut)) {
      std::memcpy(Slot(head.slot), record, kJournalRecordBytes);
    } else {
      std::memset(Slot(head.slot), 0, sizeof(RecordHead));
    }
  }
}

bool JournalTable::Append(absl::Span<const Change> batch) {
  if (batch.size() > area_.stage_records() || CountPuts(batch) > free_count_) return false;
  if (batch.empty()) return true;
  ++batch_;
  uint8_t* record = file_.data() + area_.stage(batch_ % 2);
  uint32_t length = 0;
  for (const Change& change : batch) {
    if (IsCounters(change)) {
      counters_.RaiseTo(std::get<Counters>(change.object));
      continue;
    }
    uint32_t slot;
    if (!Stage(change, record + (length + 1) * kJournalRecordBytes, &slot)) continue;
    ++length;
  }
  WriteStageHead(area_, length);
  Publish(file_.data() + area_.begin() + offsetof(AreaHead, batch),
          Sealed(static_cast<uint32_t>(batch_)));
  if (!Mutant(Fault::kStageStays)) ApplyStage(length);
  return true;
}

void JournalTable::Grow(uint32_t pages) {
  const size_t bytes = size_t{pages} * kJournalPageBytes;
  std::memset(file_.data() + area_.end(), 0, bytes);
  const size_t before = area_.slots();
  area_.slot_pages += pages;
  Publish(file_.data() + area_.begin() + offsetof(AreaHead, slot_pages), Sealed(area_.slot_pages));
  checksums_.resize(area_.slots(), 0);
  free_.resize((area_.slots() + kFreeWordSlots - 1) / kFreeWordSlots, 0);
  for (size_t slot = before; slot < area_.slots(); ++slot) FreeSlot(static_cast<uint32_t>(slot));
}

bool JournalTable::IsFree(uint32_t pages) const {
  static_assert(kJournalRecordsOfPage == 16 && kFreeWordSlots % kJournalRecordsOfPage == 0);
  if (pages > area_.slot_pages) return false;
  size_t slot = area_.slots();
  for (uint32_t page = 0; page < pages; ++page) {
    slot -= kJournalRecordsOfPage;
    const uint64_t bits = free_[slot / kFreeWordSlots] >> slot % kFreeWordSlots;
    if ((bits & 0xffff) != 0xffff) return false;
  }
  return true;
}

void JournalTable::Shrink(uint32_t pages) {
  // The last batch must not name slots in the removed pages: a reader would look for them.
  ++batch_;
  WriteStageHead(area_, 0);
  Publish(file_.data() + area_.begin() + offsetof(AreaHead, batch),
          Sealed(static_cast<uint32_t>(batch_)));
  area_.slot_pages -= pages;
  Publish(file_.data() + area_.begin() + offsetof(AreaHead, slot_pages), Sealed(area_.slot_pages));
  free_count_ -= size_t{pages} * kJournalRecordsOfPage;
  checksums_.resize(area_.slots());
  free_.resize((area_.slots() + kFreeWordSlots - 1) / kFreeWordSlots);
  if (const size_t rest = area_.slots() % kFreeWordSlots; rest != 0) {
    free_.back() &= (uint64_t{1} << rest) - 1;
  }
  first_free_ = std::min(first_free_, free_.size());
}

JournalArea JournalTable::Place(uint32_t stage_pages, uint32_t slot_pages) const {
  JournalArea area{.page = 1, .stage_pages = stage_pages, .slot_pages = slot_pages};
  if (area_.page < area.page + area.pages()) area.page = area_.page + area_.pages();
  return area;
}

void JournalTable::PutToUse(JournalArea area) {
  AreaHead head{.stage_pages = area.stage_pages,
                .writer = ThisWriter(),
                .slot_pages = Sealed(area.slot_pages),
                .batch = Sealed(static_cast<uint32_t>(batch_))};
  head.checksum = journal::ChecksumOf(head);
  std::memcpy(file_.data() + area.begin(), &head, sizeof head);
  Publish(file_.data() + offsetof(FileHead, area_page), Sealed(area.page));
  area_ = area;
}

void JournalTable::Rewrite(JournalArea area, const JournalImage& image) {
  ++batch_;
  counters_ = image.counters;
  ForgetSlots(area.slots());
  uint8_t* const slots = file_.data() + area.slots_begin();
  std::memset(slots, 0, area.slots() * kJournalRecordBytes);
  image.ForEach([&](const journal::Object& object) {
    if (std::holds_alternative<Counters>(object)) return;
    uint32_t slot;
    (void)Stage({Op::kPut, object}, slots + (area.slots() - free_count_) * kJournalRecordBytes,
                &slot);
  });
  for (uint32_t i = 0; i < journal::dialect.more_records; ++i) {
    const uint32_t slot = TakeSlot();
    Account(slot, WriteRecord(slots + size_t{slot} * kJournalRecordBytes,
                              {.batch = batch_, .slot = slot}, journal::Put(Counters())));
  }
  WriteStageHead(area, 0);
  PutToUse(area);
}

void JournalTable::MoveWith(JournalArea area, absl::Span<const Change> batch) {
  ++batch_;
  const size_t before = area_.slots();
  uint8_t* const slots = file_.data() + area.slots_begin();
  std::memcpy(slots, Slot(0), before * kJournalRecordBytes);
  std::memset(slots + before * kJournalRecordBytes, 0,
              (area.slots() - before) * kJournalRecordBytes);
  checksums_.resize(area.slots(), 0);
  free_.resize((area.slots() + kFreeWordSlots - 1) / kFreeWordSlots, 0);
  for (size_t slot = before; slot < area.slots(); ++slot) FreeSlot(static_cast<uint32_t>(slot));
  std::array<uint8_t, kJournalRecordBytes> record;
  for (const Change& change : batch) {
    if (IsCounters(change)) {
      counters_.RaiseTo(std::get<Counters>(change.object));
      continue;
    }
    uint32_t slot;
    if (!Stage(change, record.data(), &slot)) continue;
    uint8_t* const at = slots + size_t{slot} * kJournalRecordBytes;
    if (change.op == Op::kPut) {
      std::memcpy(at, record.data(), record.size());
    } else {
      std::memset(at, 0, sizeof(RecordHead));
    }
  }
  WriteStageHead(area, 0);
  PutToUse(area);
}

void JournalTable::SetBehind() {
  Publish(file_.data() + area_.begin() + offsetof(AreaHead, behind), 1);
}

}  // namespace gpumemd
