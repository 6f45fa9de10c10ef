// SPDX-License-Identifier: Apache-2.0
// The journal as a file in memory (memfd_create(2)). It outlives the daemon for as long as the
// service manager, or the keeper, has its descriptor (sd_notify(3): FDSTORE=1).
//
// It is one file for good: it grows by a few pages if it must, and releases those at its end. A
// replacement of the whole state goes to other pages of the same file
// (daemon/core/journal/table.h). A batch of thousands of changes gets memory temporarily: the file
// has places for 65,535, and most of these have no memory. So its descriptor is stored once, when
// the file is made, and later operations never depend on the service manager. The file cannot
// shrink (F_SEAL_SHRINK, fcntl(2)): no access to the mapping can fail. Its pages are allocated
// before they are written, so that want of memory is a status and no signal.
//
// Memory: 256 bytes for each record, which is 8 MiB for 10,000 segments with a lease and an
// exposure each, and half a MiB more. Gaps left by removed objects are reused. They are released
// only at the end of the file, or when the next daemon begins.
//
// Not thread-safe: requires the mutex of the ledger's owner.
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

// Returns the identity of this boot and of this process's PID namespace.
//   UNAVAILABLE  /proc does not report it
absl::StatusOr<JournalIdentity> ReadJournalIdentity(uint32_t number);

// Returns the index in `fds` of the journal: of the complete files the one with the highest number.
// The caller keeps `fds`. There are several if a daemon was killed between storing a new one and
// releasing the old one.
//   NOT_FOUND            none is complete: there is no state to continue from
//   DATA_LOSS, FAILED_PRECONDITION  as JournalFile::ReadHeader for the first unreadable one:
//                        it could be the newest
absl::StatusOr<size_t> ChooseJournal(absl::Span<const int> fds);

class JournalFile {
 public:
  // Makes an empty one.
  //   complete  false: ChooseJournal() ignores it until a Rewrite(). So it can be kept beside older
  //             ones whose state is still to be copied.
  //   RESOURCE_EXHAUSTED  no memory for it, or no descriptor
  static absl::StatusOr<std::unique_ptr<JournalFile>> Create(const JournalIdentity& identity,
                                                             bool complete = true);

  // Continues the journal of another daemon, which has ended. Checks its contents and references
  // (JournalImage::CheckReferences). The caller must check whether its pids are still meaningful
  // (header.identity). On an error the file is unchanged.
  //   DATA_LOSS            its contents are damaged, or it is no journal
  //   FAILED_PRECONDITION  it has contents that this daemon does not understand
  //   RESOURCE_EXHAUSTED   it cannot be mapped
  struct Adopted;
  static absl::StatusOr<Adopted> Adopt(gpumem::UniqueFd fd);

  // Reads a file's header without its contents; the caller keeps the descriptor.
  //   as ReadJournalHeader, and DATA_LOSS if it is no file that Create() made
  static absl::StatusOr<JournalHeader> ReadHeader(int fd);

  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;
  ~JournalFile();

  // Appends all of the batch or nothing; on return it survives this process. Takes a fifth of a
  // microsecond for each change, and twice that in a batch of more than a thousand. Some
  // microseconds more if the file grows, whatever its size. Only a batch of more than 65,535
  // changes copies all of it.
  //   RESOURCE_EXHAUSTED   no memory for it to grow: the batch is not in it, and the file
  //                        tells its readers so, until a Rewrite()
  //   FAILED_PRECONDITION  an earlier one failed, and there was no Rewrite() since
  absl::Status Append(absl::Span<const journal::Change> batch);

  // Replaces its contents by the whole state, at once.
  //   RESOURCE_EXHAUSTED  no memory for it; it stays as it was
  absl::Status Rewrite(const JournalImage& image);

  // Returns the descriptor to store. Close-on-exec; owned by this object.
  int fd() const { return fd_.get(); }
  // Returns the file's present bytes of memory. A system call.
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
  // Pages of each stage with memory, beyond those that always have some.
  std::array<uint32_t, 2> more_stage_pages_{};
  bool behind_ = false;
};

struct JournalFile::Adopted {
  // Null if the file is of an older form, which this daemon does not write. The state then goes to
  // a new file, and this one stays as it is.
  std::unique_ptr<JournalFile> file;
  JournalContents contents;
};

}  // namespace gpumemd
