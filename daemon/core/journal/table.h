// SPDX-License-Identifier: Apache-2.0
// The journal's bytes: a table of objects that stays readable if its writer is killed at any point.
//
// The bytes are a file's pages, mapped shared (daemon/restart/journal_file.h). The stores of a
// killed process stay, in the order in which they were made, up to some instruction. So the table
// is safe if it can be read after every single store; no flush is needed. It does not survive the
// machine's end, which takes the memory, too.
//
//   page 0      the file's header; in it, the page at which the area in use begins
//   an area     its header, one page; two stages; then slots of 256 bytes
//   a slot      one object's record, or nothing
//   a stage     a head, which describes all slots together, and the records of one batch
//
// Append works in three steps:
//   1. It writes a batch's records to the stage that is not in use, each with its slot's number.
//   2. One atomic store, of the batch's number, puts that stage to use: the batch counts.
//   3. It copies the records to their slots.
// A reader overlays the slots with the records of the stage in use, whether or not the slots have
// them already. So it does not matter how far the copying had come. A process killed before step 2
// leaves the state before the batch; one killed after it leaves the state after. Nothing is ever
// rewritten as a whole, and a batch costs the same whatever the table's size is.
//
// Damage. Each record has a checksum and the number of its slot, and single stored words hold their
// value twice. The stage's head has the number of objects and the sum of their checksums, so lost
// and old records are detected, too. A kill never leaves a table that looks wrong. If one looks
// wrong, other code has overwritten it. Read reports that: it never returns a part of a state as
// the whole. Three places mean nothing and may hold any bytes: slots without an object behind their
// heads, the stage that is not in use, and all outside the area in use.
//
// Versions (kForm and kVersion, dialect.h). The form covers the headers and the places of records;
// the version covers the contents of records. Page 0 names the file's form. Each record names the
// lowest version that a daemon must know to understand it. So an older daemon can read a newer
// daemon's record if it is as the older one would have written it. A new version may
//   - use bytes that are zero until now, in a slot's record behind a type's last field; zero has
//     to mean what was meant before
//   - add types, and change nothing else: a type that needs another meaning is a new type, and the
//     old one is still read.
// A record that says more than the version before could is marked with the new version. Either it
// may be ignored (kMayPass) or not. A record may be ignored only if an older daemon can do without
// it and no tenant's memory or rights change. The older daemon reads the fields that it knows, and
// nothing if the type is new to it. The next state that it writes is without the rest. Any other
// record of an unknown version makes it refuse the whole journal with FAILED_PRECONDITION, which
// names the daemon that wrote it. So after an upgrade an operator can go back while no record needs
// the newer daemon, and is told if one does. Going forward again then loses nothing, since a daemon
// that refuses changes nothing. Fields added to Counters are always ignored.
//
// A daemon reads all forms from kOldestForm on, and writes kForm. If it finds an older form it
// begins a new file (ContinuityStore); the older file stays unchanged until the new one is whole.
// There is no way back over a form. The first 80 bytes of page 0 are the same in all forms.
//
// No I/O, no lock: under the caller's mutex.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/core/journal/image.h"
#include "daemon/core/journal/records.h"

namespace gpumemd {

inline constexpr size_t kJournalRecordBytes = 256;
inline constexpr size_t kJournalPageBytes = 4096;
inline constexpr size_t kJournalRecordsOfPage = kJournalPageBytes / kJournalRecordBytes;

// Names a journal, and the boot and pid namespace in which its pids are valid.
struct JournalIdentity {
  std::array<uint8_t, 16> boot_id{};  // random(4): /proc/sys/kernel/random/boot_id
  uint64_t pid_namespace = 0;         // its inode (namespaces(7): /proc/self/ns/pid)
  // Of several files, the one with the highest number counts. A daemon that begins a new file
  // beside others gives it a higher number than theirs.
  uint32_t number = 1;

  bool operator==(const JournalIdentity&) const = default;
};

struct JournalHeader {
  uint32_t form = 0;
  JournalIdentity identity;
  uint32_t generation = 0;  // how many daemons have written to it
  bool complete = false;    // false: its first daemon was killed before it held a state
};

struct JournalContents {
  JournalHeader header;
  std::string writer;  // the release of the daemon that wrote its last whole state
  JournalImage image;
  size_t objects = 0;    // including ignored ones
  size_t passed = 0;     // records of a newer daemon that were ignored in part or whole
  size_t unapplied = 0;  // slots that did not yet have the last batch's record
};

// Whole pages of the file.
struct JournalArea {
  uint32_t page = 0;
  uint32_t stage_pages = 0;  // of each of the two
  uint32_t slot_pages = 0;

  uint32_t pages() const { return 1 + 2 * stage_pages + slot_pages; }
  size_t begin() const { return size_t{page} * kJournalPageBytes; }
  size_t stage(size_t i) const { return begin() + (1 + i * stage_pages) * kJournalPageBytes; }
  size_t slots_begin() const { return stage(2); }
  size_t end() const { return slots_begin() + size_t{slot_pages} * kJournalPageBytes; }
  size_t slots() const { return slot_pages * kJournalRecordsOfPage; }
  // Returns the length of the longest batch.
  size_t stage_records() const { return stage_pages * kJournalRecordsOfPage - 1; }
  // Returns the pages that `records` slots need.
  static uint32_t PagesFor(size_t records) {
    return static_cast<uint32_t>((records + kJournalRecordsOfPage - 1) / kJournalRecordsOfPage);
  }
};

// Returns a file's header. Reads one page.
//   DATA_LOSS            it is no journal, or its header is damaged
//   FAILED_PRECONDITION  this daemon does not read its form
absl::StatusOr<JournalHeader> ReadJournalHeader(absl::Span<const uint8_t> file);

// Returns the journal's contents. Trusts none of the bytes; takes memory in proportion to the file.
// Requires that no thread or process writes to the file meanwhile.
//   as ReadJournalHeader, and
//   FAILED_PRECONDITION  a record in it is understood only by a newer daemon
//   DATA_LOSS  it was never complete; or its daemon could not write on (SetBehind); or it is
//              damaged: the message says which part, and at which byte
absl::StatusOr<JournalContents> ReadJournal(absl::Span<const uint8_t> file);

// Writes to `file`. The caller owns `file`, which begins at a page and stays mapped. Requires that
// there is no other writer.
class JournalTable {
 public:
  // Makes a new file with an empty state. `file` is all zeros, and holds page 0 and the area.
  //   complete  false: daemons that find the file ignore it until a Rewrite
  static JournalTable Create(absl::Span<uint8_t> file, const JournalIdentity& identity,
                             JournalArea area, bool complete = true);
  // Goes on after `contents`, which ReadJournal has just read from the same bytes, and which are of
  // this form. Raises the generation by one, in `contents` and in the file.
  static JournalTable Resume(absl::Span<uint8_t> file, JournalContents& contents);

  // False if the batch does not fit; nothing has changed then. A batch fits if it is no longer than
  // a stage and no more objects are put than slots are free.
  bool Append(absl::Span<const journal::Change> batch);

  JournalArea area() const { return area_; }
  size_t objects() const { return live_; }
  size_t free_slots() const { return free_count_; }
  // Returns the number of the stage for the next batch.
  size_t next_stage() const { return (batch_ + 1) % 2; }
  // Returns the number of records in the other stage.
  size_t staged() const { return staged_; }

  // Adds pages of slots. Requires that the file reaches so far.
  void Grow(uint32_t pages);
  // IsFree is true if the last `pages` pages of slots hold no object. Shrink removes them; it
  // requires that IsFree is true.
  bool IsFree(uint32_t pages) const;
  void Shrink(uint32_t pages);

  // Returns pages that are not in use. They may be behind the file's end; the caller then first
  // makes the file longer.
  JournalArea Place(uint32_t stage_pages, uint32_t slot_pages) const;
  // Tells the table that the file is mapped elsewhere now, or has become longer.
  void Moved(absl::Span<uint8_t> file) { file_ = file; }

  // Puts `area`, which Place returned, to use with this state. Requires that it has enough slots.
  void Rewrite(JournalArea area, const JournalImage& image);
  // As Rewrite, with the present state and a batch of any length. Requires as many slots as the
  // present area has, plus one for each object that the batch puts.
  void MoveWith(JournalArea area, absl::Span<const journal::Change> batch);

  // Marks the journal as missing changes: ReadJournal refuses it until a Rewrite.
  void SetBehind();

 private:
  // An object's type and key, as two numbers. A device's UUID is too long, so its index in devices_
  // stands for it.
  struct Key {
    uint64_t a = 0, b = 0;
    uint8_t type = 0;

    bool operator==(const Key&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Key& key) {
      return H::combine(std::move(h), key.a, key.b, key.type);
    }
  };
  using SlotsByKey = absl::flat_hash_map<Key, uint32_t>;

  explicit JournalTable(absl::Span<uint8_t> file) : file_(file) {}

  Key KeyOf(const journal::Object& object);
  SlotsByKey& MapOf(const Key& key);
  uint8_t* Slot(uint32_t slot) const;
  void ForgetSlots(size_t slots);
  uint32_t TakeSlot();
  void FreeSlot(uint32_t slot);

  // Writes the record of a change to `at`, and records its effect on the slots. False if it has
  // none.
  bool Stage(const journal::Change& change, uint8_t* at, uint32_t* slot);
  void Account(uint32_t slot, uint64_t checksum);
  // Copies the records of the last batch to their slots.
  void ApplyStage(uint32_t length);
  // Writes the head of the stage for batch batch_.
  void WriteStageHead(JournalArea area, uint32_t length);
  // Writes an area's head, which names batch_ as its last, and puts the area to use.
  void PutToUse(JournalArea area);

  absl::Span<uint8_t> file_;
  JournalArea area_;
  uint64_t batch_ = 0;
  journal::Counters counters_;
  uint64_t sum_ = 0;   // of the records' checksums
  uint32_t live_ = 0;  // records
  uint32_t staged_ = 0;
  // By slot; 0: no record.
  std::deque<uint64_t> checksums_;  // grows without copying elements
  // One bit for each slot, set if it is free; the first word that may have a set bit.
  std::vector<uint64_t> free_;
  size_t first_free_ = 0;
  size_t free_count_ = 0;
  // Many small maps in place of one: when a map grows, no batch takes long.
  std::array<SlotsByKey, 256> slots_by_key_;
  std::vector<journal::DeviceUuid> devices_;
};

}  // namespace gpumemd
