// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/store.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "tests/simulation/require.h"

namespace gpumemd::simulation {
namespace {

constexpr JournalIdentity kIdentity = {
    .boot_id = {1, 2, 3}, .pid_namespace = 4026531836, .number = 1};
constexpr JournalArea kFirstArea = {.page = 1, .stage_pages = 8, .slot_pages = 2};

}  // namespace

absl::StatusOr<JournalImage> StoreLink::Open() {
  if (store_.journal.empty()) {
    // The service manager has it once it is whole.
    std::vector<uint8_t> journal(kFirstArea.end());
    table_ = JournalTable::Create(absl::MakeSpan(journal), kIdentity, kFirstArea);
    store_.journal.swap(journal);
    return JournalImage();
  }
  absl::StatusOr<JournalContents> contents = ReadJournal(store_.journal);
  if (!contents.ok()) return contents.status();
  if (absl::Status whole = contents->image.CheckReferences(); !whole.ok()) return whole;
  JournalImage image = contents->image;
  UpToDeath([&] { table_ = JournalTable::Resume(absl::MakeSpan(store_.journal), *contents); });
  return image;
}

void StoreLink::UpToDeath(absl::FunctionRef<void()> write) {
  writing_ = true;
  write();
  writing_ = false;
  if (at_death_) store_.journal = *std::exchange(at_death_, std::nullopt);
}

void StoreLink::Died() {
  if (writing_) at_death_ = store_.journal;
}

void StoreLink::Reach(size_t end) {
  if (end > store_.journal.size()) store_.journal.resize(end);
  table_->Moved(absl::MakeSpan(store_.journal));
}

absl::Status StoreLink::Begin(const JournalImage& image) {
  const std::optional<Tear> tear = host_.TearsWrite();
  if (!host_.Moment("begin-before")) return absl::OkStatus();
  UpToDeath([&] {
    const JournalArea area = table_->Place(
        kFirstArea.stage_pages, JournalArea::PagesFor(image.size()) + kFirstArea.slot_pages);
    Reach(area.end());
    std::vector<uint8_t> head(store_.journal.begin(), store_.journal.begin() + kJournalPageBytes);
    table_->Rewrite(area, image);
    // The other area is whole before the first page names it.
    if (tear && !tear->counts) std::copy(head.begin(), head.end(), store_.journal.begin());
  });
  if (tear && !host_.Moment("begin-torn")) return absl::OkStatus();
  ++store_.batches;
  // One descriptor after the other.
  for (auto kept = store_.memory.begin(); kept != store_.memory.end();) {
    if (image.segments.contains(kept->first)) {
      ++kept;
    } else if (host_.Moment("begin-written")) {
      kept = store_.memory.erase(kept);
    } else {
      return absl::OkStatus();
    }
  }
  if (!host_.Moment("begin-memory")) return absl::OkStatus();
  std::erase_if(store_.metadata,
                [&](const auto& kept) { return !image.publications.contains(kept.first); });
  host_.Moment("begin-after");
  return absl::OkStatus();
}

void StoreLink::Append(absl::Span<const journal::Change> batch) {
  UpToDeath([&] {
    while (!table_->Append(batch)) {
      if (batch.size() <= table_->area().stage_records()) {
        Reach(table_->area().end() + kJournalPageBytes);
        table_->Grow(1);
        continue;
      }
      const JournalArea area =
          table_->Place(JournalArea::PagesFor(batch.size() + 1),
                        table_->area().slot_pages + JournalArea::PagesFor(batch.size()));
      Reach(area.end());
      return table_->MoveWith(area, batch);
    }
  });
}

void StoreLink::Write(absl::Span<const journal::Change> batch) {
  const std::optional<Tear> tear = host_.TearsWrite();
  if (!host_.Moment("record-before")) return;
  ++store_.batches;
  if (!tear) {
    Append(batch);
    host_.Moment("record-after");
    return;
  }
  // A store at a time: first the stage, then the batch's number in the area's head, then the slots.
  const std::vector<uint8_t> before = store_.journal;
  const JournalArea area = table_->area();
  const size_t stage = area.stage(table_->next_stage());
  Append(batch);
  std::vector<uint8_t>& after = store_.journal;
  if (table_->area().page != area.page || table_->area().slot_pages != area.slot_pages) {
    // It has grown, or moved: the batch counts.
  } else if (tear->counts) {
    const size_t from = area.slots_begin() + tear->at % (area.end() - area.slots_begin());
    std::copy(before.begin() + static_cast<ptrdiff_t>(from), before.end(),
              after.begin() + static_cast<ptrdiff_t>(from));
  } else {
    std::vector<uint8_t> torn = before;
    const size_t bytes = tear->at % (size_t{area.stage_pages} * kJournalPageBytes);
    std::copy_n(after.begin() + static_cast<ptrdiff_t>(stage), bytes,
                torn.begin() + static_cast<ptrdiff_t>(stage));
    std::copy(torn.begin(), torn.end(), after.begin());
  }
  host_.Moment("record-torn");
}

absl::Status StoreLink::Keep(SegmentId segment, int fd) {
  if (!host_.Pause("keep-before")) return absl::OkStatus();
  MemoryPtr memory = driver->Find(fd);
  Require(memory != nullptr, "memory to keep is gone");
  if (memory->segment) return absl::InternalError("memory of one segment becomes another's");
  memory->segment = segment;
  if (store_.memory.size() >= store_.places) {
    if (store_.refuses) return absl::ResourceExhaustedError("the store has no place");
    store_.unkept.insert(segment);
    return absl::OkStatus();
  }
  store_.memory[segment] = std::move(memory);
  host_.Pause("keep-after");
  return absl::OkStatus();
}

void StoreLink::LetGo(absl::Span<const SegmentId> segments) {
  if (!host_.Pause("let-go-before")) return;
  for (SegmentId segment : segments) {
    store_.memory.erase(segment);
    store_.unkept.erase(segment);
  }
  host_.Pause("let-go-after");
}

void StoreLink::Keep(PublicationId publication, int fd) {
  if (!host_.Pause("publish-before")) return;
  store_.metadata[publication] = gpumem::UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  host_.Pause("publish-kept");
}

void StoreLink::LetGo(PublicationId publication) {
  if (!host_.Pause("let-go-metadata")) return;
  store_.metadata.erase(publication);
}

}  // namespace gpumemd::simulation
