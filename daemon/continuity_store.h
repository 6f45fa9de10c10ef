// What the daemon leaves behind: the journal, and the descriptors of the segments' memory, both in
// the service manager's FD store.
//
// The journal is one descriptor of the store. Those of the segments lie in crates where systemd is
// the manager (fd_crates.h); gpumem-keeper takes each by itself, as long as it has places.
// Where the store fails, the daemon goes on, and the log and `gpumemctl status` say that its next
// death will cost memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/unique_fd.h"
#include "daemon/core/continuity.h"
#include "daemon/fd_store/fd_crates.h"
#include "daemon/fd_store/fd_name.h"
#include "daemon/fd_store/fd_store.h"
#include "daemon/journal_file.h"

namespace gpumemd {

// Thread-safe, but for TakeFound.
class ContinuityStore final : public Continuity {
 public:
  ~ContinuityStore() override;
  // Finds in the store what an earlier daemon has left, or begins anew. `store` outlives this.
  //   DATA_LOSS            the journal is damaged
  //   FAILED_PRECONDITION  a newer daemon wrote it, and this one does not understand it
  // Both leave everything as it is, and say what helps.
  //   RESOURCE_EXHAUSTED   no memory, or no descriptors left
  //   UNAVAILABLE          the service manager is gone
  static absl::StatusOr<std::unique_ptr<ContinuityStore>> Open(FdStore* store);

  // What was found; once. Without a journal, both are empty.
  struct Found {
    JournalImage image;
    absl::flat_hash_map<SegmentId, gpumem::UniqueFd> memory;
    absl::flat_hash_map<PublicationId, gpumem::UniqueFd> metadata;
    // The pids in the image mean nothing here: they are of another PID namespace.
    bool strange_pids = false;
  };
  Found TakeFound();

  // How many daemons there have been, this one included.
  uint32_t generation() const { return generation_; }
  // What is wrong with it now, in sentences for the operator.
  std::vector<std::string> Notices() const ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Begin(const JournalImage& image) override;
  void Write(absl::Span<const journal::Change> batch) override;
  void Keep(SegmentId segment, int fd) override;
  void LetGo(absl::Span<const SegmentId> segments) override;
  void Keep(PublicationId publication, int fd) override;
  void LetGo(PublicationId publication) override;

 private:
  explicit ContinuityStore(FdStore* store) : store_(store), crates_(*store) {}
  // The journal of this daemon's own.
  absl::Status CreateJournal(const JournalIdentity& identity, std::string* name);
  void CheckRoom();
  void Keep(const std::string& name, int fd, const std::string& what);
  void LetGo(absl::Span<const std::string> names);
  // Once for each sort of trouble, until it is over.
  void Tell(std::string* trouble, std::string sentence) ABSL_LOCKS_EXCLUDED(mutex_);

  FdStore* const store_;
  FdCrates crates_;
  // How many descriptors go to the manager itself; crates hold the rest, and need places of it,
  // too.
  uint64_t direct_room_ = 0;
  std::atomic<uint64_t> direct_ = 0;  // that have
  // Names that are let go when the state is in this daemon's journal.
  std::vector<std::string> old_journals_, strange_;
  // A journal that nothing has begun yet: without that it goes with this object.
  std::string empty_journal_;
  std::unique_ptr<JournalFile> file_;  // under the broker's mutex
  uint32_t generation_ = 1;
  Found found_;
  std::vector<FdName> stored_;  // that the crates had at the start

  std::thread room_;  // asks the manager whether it keeps anything at all

  mutable absl::Mutex mutex_;
  std::string manager_trouble_ ABSL_GUARDED_BY(mutex_);
  std::string journal_trouble_ ABSL_GUARDED_BY(mutex_);
  std::string memory_trouble_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gpumemd
