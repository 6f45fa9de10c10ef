// The journal's bytes: a log of changes that a process can be killed in the middle of.
//
// They are a file's pages, mapped shared (daemon/journal_file.h): what a process has stored stays
// when it is killed, in the order in which it was stored, up to some instruction. So the log is
// safe if after every single store it can be read, and that is all that is needed: no flush, no
// second copy. Not against the machine's own end, which takes the memory, too.
//
//   page 0      the file's header; in it, the page at which the area in use begins
//   an area     its header; how many records of it count; then the records, 256 bytes each
//
// Append writes the records of a batch behind those that count, and then, by one atomic store, the
// new number of records that do. A process killed before that store leaves the state before the
// batch, and one killed after it the state after. When the area is full, Compact writes those
// records that still say something into another area, where nothing counts yet, and one store
// into page 0 makes that the one in use. So what lies behind the records that count, and outside
// the area in use, means nothing, may be anything, and is written over.
//
// Each record has a checksum, the number of its batch, its place in it and the batch's length, and
// the single words that are stored hold their value twice. What a kill can leave never looks
// wrong; whatever does look wrong was written over by somebody, and Read says so: it never gives
// a part of a log for the whole.
//
// Versions. A daemon reads what is of versions kOldestJournalVersion to kJournalVersion; page 0 has
// the version of the headers' form, each area that of its records. Files of another version are
// only named, FAILED_PRECONDITION, and not touched. A new version may, such that all older ones
// stay readable,
//   - use bytes that are zero until now, in a header or behind a type's last field, where zero has
//     to mean what was meant before
//   - add types, and change nothing else: a type that needs another form is a new type, and the
//     old one is still read.
// Every such change raises kJournalVersion, since a daemon that did not know of it would take such
// bytes for damage. A daemon that goes on with an area of an older version rewrites it
// (JournalFile::Rewrite) before it appends: the new area has its own version. The headers' form is
// not meant to change.
//
// No I/O, no lock: under the caller's mutex. JournalLog neither allocates nor fails in Append.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "daemon/core/journal_image.h"
#include "daemon/core/journal_records.h"

namespace gpumemd {

inline constexpr size_t kJournalRecordBytes = 256;
inline constexpr size_t kJournalPageBytes = 4096;
inline constexpr uint32_t kJournalVersion = 2;
inline constexpr uint32_t kOldestJournalVersion = 1;

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
  uint32_t version = 0;  // of the records; 0 from ReadJournalHeader
  JournalIdentity identity;
  uint32_t generation = 0;  // how many daemons have written to it
  bool complete = false;    // false: its first daemon was killed before there was a state in it
};

struct JournalContents {
  JournalHeader header;
  JournalImage image;
  size_t end = 0;      // the byte behind the last record that counts
  size_t dropped = 0;  // bytes behind it that somebody wrote to: of a batch that was cut off
};

// Whole pages of the file.
struct JournalArea {
  uint32_t page = 0, pages = 0;

  size_t begin() const { return size_t{page} * kJournalPageBytes; }
  size_t bytes() const { return size_t{pages} * kJournalPageBytes; }
  size_t end() const { return begin() + bytes(); }
  // Pages that `records` need.
  static uint32_t PagesFor(size_t records);
};

// What a file is, without what is in it. Reads one page.
//   DATA_LOSS            it is no journal, or its header is damaged
//   FAILED_PRECONDITION  it is of a version that this daemon does not read
absl::StatusOr<JournalHeader> ReadJournalHeader(absl::Span<const uint8_t> file);

// All that counts. Believes nothing that it reads; takes memory in proportion to the records that
// there are. Nobody writes meanwhile.
//   as ReadJournalHeader, and
//   DATA_LOSS  it was never complete; or its daemon could not write on (SetBehind); or something
//              in it is damaged: what, and at which byte
absl::StatusOr<JournalContents> ReadJournal(absl::Span<const uint8_t> file);

// Writes to `file`, which belongs to the caller, begins at a page and stays mapped, and which
// nobody else writes to.
class JournalLog {
 public:
  // A new file with an empty state; `file` is all zeros, and holds page 0 and the area.
  static JournalLog Create(absl::Span<uint8_t> file, const JournalIdentity& identity,
                           JournalArea area);
  // Goes on after `contents`, which ReadJournal has just read from the same bytes. There, and in
  // the file, the generation is one higher from now on.
  static JournalLog Resume(absl::Span<uint8_t> file, JournalContents& contents);

  // False where the batch does not fit: nothing has changed then. An empty one always fits.
  bool Append(absl::Span<const journal::Change> batch);

  // How many records count, and how many there is room for.
  size_t used() const { return used_; }
  size_t capacity() const { return capacity_; }
  JournalArea area() const { return area_; }

  // The records that still say something, by number, and what those that do not have left.
  //   DATA_LOSS  somebody has written over them
  struct Live {
    std::vector<uint32_t> records;
    journal::Counters counters;
  };
  absl::StatusOr<Live> FindLive() const;

  // Pages of that many that are not in use: perhaps behind the file's end, and then the caller
  // makes it longer first.
  JournalArea Place(uint32_t pages) const;
  // The file is mapped elsewhere now, or has become longer.
  void Moved(absl::Span<uint8_t> file) { file_ = file; }

  // Makes `area`, which Place gave, the one in use, with what FindLive found in the present one,
  // or with another state. It has room for that: for Live, one record more than it names.
  void Compact(JournalArea area, const Live& live);
  void Rewrite(JournalArea area, const JournalImage& image);

  // Changes are missing from now on: ReadJournal refuses it, until a Rewrite.
  void SetBehind();

 private:
  class AreaWriter;

  JournalLog(absl::Span<uint8_t> file) : file_(file) {}

  absl::Span<uint8_t> file_;
  JournalArea area_;
  uint32_t area_number_ = 0;  // how many areas there were
  size_t used_ = 0;
  size_t capacity_ = 0;
  uint64_t batches_ = 0;
};

}  // namespace gpumemd
