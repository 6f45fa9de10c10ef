// The journal as a file in memory (memfd_create(2)), that outlives the daemon for as long as the
// service manager, or the keeper, has its descriptor (sd_notify(3): FDSTORE=1).
//
// It is one file for good: it grows by a few pages where it must, and gives those at its end back.
// What replaces the whole state goes to other pages of the same file (daemon/core/journal/table.h).
// A batch of thousands of changes gets memory for the time that it takes: the file has places for
// 65,535, and most of these have no memory. So its descriptor is stored once, when the file is
// made, and no moment depends on what the service manager does. The file cannot shrink
// (F_SEAL_SHRINK, fcntl(2)): no access to the mapping can fail. Its pages are there before they are
// written to, so that want of memory is a status and no signal.
//
// Memory: 256 bytes for each record, which is 8 MiB for 10,000 segments with a lease and an
// exposure each, and half a MiB more. What objects that are gone leave between others is used for
// the next ones, and given back only where it is at the end, or when the next daemon begins.
//
// Not thread-safe: under the mutex of whoever has the ledger.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/unique_fd.h"
#include "daemon/core/journal/image.h"
#include "daemon/core/journal/table.h"

namespace gpumemd {

// This boot, and this process's PID namespace.
//   UNAVAILABLE  /proc does not say
absl::StatusOr<JournalIdentity> ReadJournalIdentity(uint32_t number);

// Which of several files that were found is the journal: of those that are complete the one with
// the highest number. Its index in `fds`, which stay the caller's. There are several where a daemon
// was killed between having a new one kept and having the old one let go.
//   NOT_FOUND            none is complete: there is no state to go on with
//   DATA_LOSS, FAILED_PRECONDITION  as JournalFile::ReadHeader says of the first that cannot be
//                        told: it could be the newest
absl::StatusOr<size_t> ChooseJournal(absl::Span<const int> fds);

class JournalFile {
 public:
  // An empty one.
  //   complete  false: ChooseJournal does not choose it until a Rewrite. So it can be kept beside
  //             older ones of which the state is still to come.
  //   RESOURCE_EXHAUSTED  no memory for it, or no descriptor
  static absl::StatusOr<std::unique_ptr<JournalFile>> Create(const JournalIdentity& identity,
                                                             bool complete = true);

  // Goes on with one that another daemon, which has ended, has written. What it says has been
  // checked, and so have its references (JournalImage::CheckReferences); whether its pids still
  // mean something (header.identity) is the caller's to check. Where this fails, nothing has
  // changed in the file.
  //   DATA_LOSS            what is in it is damaged, or is no journal
  //   FAILED_PRECONDITION  it has what this daemon does not understand
  //   RESOURCE_EXHAUSTED   it cannot be mapped
  struct Adopted;
  static absl::StatusOr<Adopted> Adopt(gpumem::UniqueFd fd);

  // What a file is, without what is in it; the descriptor stays the caller's.
  //   as ReadJournalHeader, and DATA_LOSS where it is no file that Create made
  static absl::StatusOr<JournalHeader> ReadHeader(int fd);

  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;
  ~JournalFile();

  // Whole, or not at all; it survives this process from the moment at which this returns. Takes a
  // fifth of a microsecond for each change, twice that in a batch of more than a thousand, and some
  // microseconds more where the file grows: however much there is in it. Only a batch of more than
  // 65,535 changes copies all of it.
  //   RESOURCE_EXHAUSTED   there is no memory for it to grow: the batch is not in it, and the file
  //                        says so to who reads it, until a Rewrite
  //   FAILED_PRECONDITION  an earlier one failed, and there was no Rewrite since
  absl::Status Append(absl::Span<const journal::Change> batch);

  // The whole state in place of what is in it, at once.
  //   RESOURCE_EXHAUSTED  no memory for it; it stays as it was
  absl::Status Rewrite(const JournalImage& image);

  // The descriptor to store. Close-on-exec; this object's.
  int fd() const { return fd_.get(); }
  // Bytes of memory that the file has now. A system call.
  size_t bytes() const;

 private:
  class Pages;

  JournalFile(gpumem::UniqueFd fd, std::unique_ptr<Pages> pages, JournalTable table);

  void ForgetStages();
  absl::Status MakeStage(size_t records);
  absl::Status AppendWithRoom(absl::Span<const journal::Change> batch);
  absl::StatusOr<JournalArea> MakeArea(size_t records);

  const gpumem::UniqueFd fd_;
  const std::unique_ptr<Pages> pages_;
  JournalTable table_;
  // Pages of each stage that have memory, beyond those that always have.
  std::array<uint32_t, 2> more_stage_pages_{};
  bool behind_ = false;
};

struct JournalFile::Adopted {
  // Null where the file is of an older form, which no daemon of this one writes to: what is to go
  // on goes to a new file, and this one stays as it is.
  std::unique_ptr<JournalFile> file;
  JournalContents contents;
};

}  // namespace gpumemd
