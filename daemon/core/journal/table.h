// The journal's bytes: a table of objects that a process can be killed in the middle of changing.
//
// They are a file's pages, mapped shared (daemon/restart/journal_file.h): what a process has stored
// stays when it is killed, in the order in which it was stored, up to some instruction. So the
// table is safe if after every single store it can be read, and that is all that is needed: no
// flush. Not against the machine's own end, which takes the memory, too.
//
//   page 0      the file's header; in it, the page at which the area in use begins
//   an area     its header, one page; two stages; then slots of 256 bytes
//   a slot      one object's record, or nothing
//   a stage     a head, which says what all slots together are, and the records of one batch
//
// Append writes a batch's records, each with the number of the slot that it is for, into that of
// the two stages that is not in use. By one atomic store, of the batch's number, that one is in
// use: the batch counts. Only then are its records copied to their slots. Who reads the table lays
// the records of the stage in use over the slots that they are for, whether these have them already
// or not, so that it does not matter how far the copying had come. So a process killed before that
// store leaves the state before the batch, and one killed after it the state after; nothing is
// ever rewritten as a whole, and a batch costs the same whatever the table's size is.
//
// Each record has a checksum and the number of its slot, and the single words that are stored hold
// their value twice. The stage's head has the number of objects and the sum of their checksums, so
// that a record that has got lost, or is an old one, is found out, too. What a kill can leave never
// looks wrong; whatever does look wrong was written over by somebody, and Read says so: it never
// gives a part of a state for the whole. What lies in slots without an object, behind their heads,
// in the stage that is not in use, and outside the area in use, means nothing and may be anything.
//
// Versions (kForm and kVersion, dialect.h). The form is that of the headers, and where
// records are; the version counts what records may say. Page 0 names the file's form, each record
// the version that a daemon has to know to understand it, the lowest that does: what a newer daemon
// writes as an older one would have written it stays the older one's to read. A new version may
//   - use bytes that are zero until now, in a slot's record behind a type's last field, where zero
//     has to mean what was meant before
//   - add types, and change nothing else: a type that needs another meaning is a new type, and the
//     old one is still read.
// A record that says more than the version before could is marked with the new version, and is
// either one that may be passed over (kMayPass) or not. What may be passed over is what an older
// daemon can do without, such that nobody's memory or rights are any other: it takes of the record
// what it knows, none of it where the type is new to it, and the next state that it writes is
// without the rest. Any other record that it does not know has it refuse the journal as a whole,
// FAILED_PRECONDITION, which names the daemon that wrote it. So after an upgrade an operator can go
// back for as long as nothing is there that only the newer daemon can look after, and is told where
// something is; going forward again loses nothing then, since who refuses has changed nothing.
// What is added to Counters is always passed over.
//
// A daemon reads all forms from kOldestForm on, and writes its own: where it finds an older one it
// begins a new file (ContinuityStore), and the older stays as it was until the new one is whole.
// There is no way back over a form. The first 80 bytes of page 0 are the same in all of them.
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

// Where the pids in a journal mean something, and which journal it is.
struct JournalIdentity {
  std::array<uint8_t, 16> boot_id{};  // random(4): /proc/sys/kernel/random/boot_id
  uint64_t pid_namespace = 0;         // its inode (namespaces(7): /proc/self/ns/pid)
  // Of several files that are found, the one with the highest number counts: who begins a new
  // one beside others gives it a higher number than theirs.
  uint32_t number = 1;

  bool operator==(const JournalIdentity&) const = default;
};

struct JournalHeader {
  uint32_t form = 0;
  JournalIdentity identity;
  uint32_t generation = 0;  // how many daemons have written to it
  bool complete = false;    // false: its first daemon was killed before there was a state in it
};

struct JournalContents {
  JournalHeader header;
  std::string writer;  // the release of the daemon that wrote its last whole state
  JournalImage image;
  size_t objects = 0;    // those included that were passed over
  size_t passed = 0;     // records that a newer daemon wrote, of which something was passed over
  size_t unapplied = 0;  // slots that did not have what the last batch put there yet
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
  // The longest batch.
  size_t stage_records() const { return stage_pages * kJournalRecordsOfPage - 1; }
  // Pages that so many slots need.
  static uint32_t PagesFor(size_t records) {
    return static_cast<uint32_t>((records + kJournalRecordsOfPage - 1) / kJournalRecordsOfPage);
  }
};

// What a file is, without what is in it. Reads one page.
//   DATA_LOSS            it is no journal, or its header is damaged
//   FAILED_PRECONDITION  it is of a form that this daemon does not read
absl::StatusOr<JournalHeader> ReadJournalHeader(absl::Span<const uint8_t> file);

// All that counts. Believes nothing that it reads; takes memory in proportion to the file. Nobody
// writes meanwhile.
//   as ReadJournalHeader, and
//   FAILED_PRECONDITION  there is something in it that only a newer daemon understands
//   DATA_LOSS  it was never complete; or its daemon could not write on (SetBehind); or something
//              in it is damaged: what, and at which byte
absl::StatusOr<JournalContents> ReadJournal(absl::Span<const uint8_t> file);

// Writes to `file`, which belongs to the caller, begins at a page and stays mapped, and which
// nobody else writes to.
class JournalTable {
 public:
  // A new file with an empty state; `file` is all zeros, and holds page 0 and the area.
  //   complete  false: it is not, and whoever finds it passes it over, until a Rewrite
  static JournalTable Create(absl::Span<uint8_t> file, const JournalIdentity& identity,
                             JournalArea area, bool complete = true);
  // Goes on after `contents`, which ReadJournal has just read from the same bytes, and which are of
  // this form. There, and in the file, the generation is one higher from now on.
  static JournalTable Resume(absl::Span<uint8_t> file, JournalContents& contents);

  // False where the batch does not fit: nothing has changed then. It fits where it is no longer
  // than a stage, and there are as many slots free as it puts objects.
  bool Append(absl::Span<const journal::Change> batch);

  JournalArea area() const { return area_; }
  size_t objects() const { return live_; }
  size_t free_slots() const { return free_count_; }
  // The number of the stage that the next batch goes to.
  size_t next_stage() const { return (batch_ + 1) % 2; }
  // How many records the other one has.
  size_t staged() const { return staged_; }

  // So many more pages of slots. The file reaches so far.
  void Grow(uint32_t pages);
  // Whether there is no object in so many pages of slots at the end; and to do without them, for
  // which there must not be one.
  bool IsFree(uint32_t pages) const;
  void Shrink(uint32_t pages);

  // Pages that are not in use: perhaps behind the file's end, and then the caller makes it longer
  // first.
  JournalArea Place(uint32_t stage_pages, uint32_t slot_pages) const;
  // The file is mapped elsewhere now, or has become longer.
  void Moved(absl::Span<uint8_t> file) { file_ = file; }

  // Makes `area`, which Place gave, the one in use, with this state, for which it has slots.
  void Rewrite(JournalArea area, const JournalImage& image);
  // The same with the present state and a batch of any length; it has as many slots as the present
  // area, and as many again as the batch puts objects.
  void MoveWith(JournalArea area, absl::Span<const journal::Change> batch);

  // Changes are missing from now on: ReadJournal refuses it, until a Rewrite.
  void SetBehind();

 private:
  // An object's type and its key, as two numbers: of a device's UUID, which is longer, its place in
  // devices_.
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

  // Writes the record of a change to `at`, and remembers what slots are by it. False where the
  // change changes none.
  bool Stage(const journal::Change& change, uint8_t* at, uint32_t* slot);
  void Account(uint32_t slot, uint64_t checksum);
  // Copies the records of the last batch to their slots.
  void ApplyStage(uint32_t length);
  // Of the batch of which batch_ is the number.
  void WriteStageHead(JournalArea area, uint32_t length);
  // Writes an area's head, which says that batch_ is its last, and puts it to use.
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
  // A bit for each slot, set where it is free; the first word that may have one.
  std::vector<uint64_t> free_;
  size_t first_free_ = 0;
  size_t free_count_ = 0;
  // One map is many small ones: as it grows, it takes no batch long.
  std::array<SlotsByKey, 256> slots_by_key_;
  std::vector<journal::DeviceUuid> devices_;
};

}  // namespace gpumemd
